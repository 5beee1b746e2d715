"""Ablation of those that are to be proved as members of a front, before their first fresh pair.

A member is not one gain but a place: it goes back towards the default as long as neither its speed
nor its memory gets worse by more than what can be claimed at all. Every step may cost a little of
that, so what is left is at last measured beside the whole one, and takes its place only if all
steps together cost no more. The proof then sees the shorter one alone: there are no fresh pairs of
the longer one to be held up to, nor any that had to be paid for twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hztune.blocks import Arm
from hztune.confirm.shrink import GROUPS, LEAST_ABLATION_PAIRS, beside, shorten
from hztune.space import AnySpace
from hztune.stats import pool_plain
from hztune.trial import LEAST_SAVING, ArmRecord, Bench

_BLOCKS = 8
"""Blocks of the ablation for which each member has time at least."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Lets go what is not seen to move a place by more than the noise floor and LEAST_SAVING.

    One standard error of doubt speaks for the shorter configuration: the floor is that of a whole
    proof, and a few pairs would not let anything go that does nothing.

    Attributes:
        bench: What knows the noise.
        gain: Log ratio of the member to the default.
    """

    bench: Bench
    gain: float

    def may_go(self, without: ArmRecord) -> bool:
        """Whether neither too much speed nor too much memory is lost, for all that is seen."""
        if without.failures or not without.savings:
            return False
        return all(spare >= -error for spare, error in self._spare(without))

    def is_clear(self, without: ArmRecord) -> bool:
        """Whether there is no doubt of both, or none of one that is lost."""
        if not without.savings:
            return True
        each = self._spare(without)
        return any(spare < -error for spare, error in each) or all(
            spare > error for spare, error in each
        )

    def _spare(self, without: ArmRecord) -> list[tuple[float, float]]:
        """How much more speed and memory may be lost, each with its standard error."""
        ledger = self.bench.ledger
        speed, speed_error = pool_plain(without.pairs, ledger.noise())
        saving, saving_error = pool_plain(without.savings, ledger.memory_noise())
        return [(speed + self.bench.floor, speed_error), (saving + LEAST_SAVING, saving_error)]


def shorten_members(
    bench: Bench, space: AnySpace, arms: Sequence[Arm], share: float
) -> list[tuple[Arm, Arm]]:
    """Shortens each in turn; what one leaves of the time, the next ones may use.

    Args:
        bench: Where blocks are measured.
        space: What may be proposed.
        arms: The members, as the search has found them.
        share: Part of the budget that may be used by then.

    Returns:
        Each member and what is left of it, which is itself where nothing could be dropped.
    """
    shorter = []
    for number, arm in enumerate(arms):
        part_s = max(0.0, bench.budget.left(share)) / (len(arms) - number)
        shorter.append((arm, _shortened(bench, space, arm, part_s, share)))
    return shorter


def _shortened(bench: Bench, space: AnySpace, member: Arm, part_s: float, share: float) -> Arm:
    """What is left of a member, if that is shown beside it to keep its place.

    Its part of the time must do for the fewest pairs: rather the first ones are shortened than
    none at all.
    """
    known = bench.ledger.estimates().get(member.key)
    judge = _Place(bench, known.mean if known else 0.0)
    rounds = bench.rounds(1 + GROUPS, part_s / _BLOCKS)
    check_s = LEAST_ABLATION_PAIRS * bench.executor.cost(2, rounds)
    least_s = LEAST_ABLATION_PAIRS * bench.executor.cost(1 + GROUPS, rounds) + check_s
    end_s = bench.budget.elapsed() + max(part_s, least_s)
    until = min(share, end_s / bench.budget.total_s)
    dropped_by = until - check_s / bench.budget.total_s
    part = space.part(member.allocator)
    shorter = shorten(bench, part, member, judge, rounds, dropped_by)
    if shorter in (member, space.control):
        return member
    compared = beside(bench, member, [shorter], judge, rounds, until)
    return shorter if compared and judge.may_go(compared[0]) else member
