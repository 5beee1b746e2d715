"""Ablation of those that are to be proved as members of a front, before their first fresh pair.

A member is not one gain but a place: it goes back towards the default as long as neither its speed
nor its memory gets worse by more than what can be claimed at all. Knobs are taken back in groups
that are halved where they matter (Zeller & Hildebrandt, Simplifying and Isolating Failure-Inducing
Input, IEEE TSE 28, 2002): most knobs of a winner do nothing, and a whole group goes in one step.
Every step may cost a little, so what is left is at last measured beside the whole one, and takes
its place only if all steps together cost no more. The proof then sees the shorter one alone: there
are no fresh pairs of the longer one to be held up to, nor any that had to be paid for twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hztune.blocks import Arm
from hztune.params import Value
from hztune.space import AnySpace, ConfigDict, Space
from hztune.stats import pool_plain
from hztune.trial import LEAST_SAVING, ArmRecord, Workbench

GROUPS = 4
"""Groups that are taken back side by side in one block."""

LEAST_ABLATION_PAIRS = 2
MOST_ABLATION_PAIRS = 6

_BLOCKS = 8
"""Blocks of the ablation for which each member has time at least."""

_Knobs = tuple[str, ...]


def shorten_members(
    bench: Workbench, space: AnySpace, arms: Sequence[Arm], share: float
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
        part = space.part(arm.allocator)
        shorter.append((arm, _shortened(bench, part, arm, space.control, part_s, share)))
    return shorter


def _shortened(
    bench: Workbench, space: Space, member: Arm, control: Arm, part_s: float, share: float
) -> Arm:
    """What is left of a member, if that is shown beside it to keep its place.

    Its part of the time must do for the fewest pairs: rather the first ones are shortened than
    none at all.
    """
    rounds = bench.rounds(1 + GROUPS, part_s / _BLOCKS)
    check_s = LEAST_ABLATION_PAIRS * bench.executor.cost(2, rounds)
    least_s = LEAST_ABLATION_PAIRS * bench.executor.cost(1 + GROUPS, rounds) + check_s
    end_s = bench.budget.elapsed() + max(part_s, least_s)
    until = min(share, end_s / bench.budget.total_s)
    known = bench.ledger.estimates().get(member.key)
    ablation = _Ablation(bench, space, rounds, known.mean if known else 0.0)
    shorter = ablation.shorten(member, until - check_s / bench.budget.total_s)
    if shorter in (member, control):
        return member
    compared = ablation.beside(member, [shorter], until)
    return shorter if compared and ablation.may_go(compared[0]) else member


@dataclass(frozen=True, slots=True)
class _Ablation:
    """The ablation of one member.

    It lets go what is not seen to move a place by more than the noise floor and LEAST_SAVING. One
    standard error of doubt speaks for the shorter configuration: the floor is that of a whole
    proof, and a few pairs would not let anything go that does nothing.

    Attributes:
        bench: Where blocks are measured; it knows the noise.
        space: What configurations of the member's allocator are legal.
        rounds: Rounds of each process.
        gain: Log ratio of the member to the default, for the progress.
    """

    bench: Workbench
    space: Space
    rounds: int
    gain: float

    def shorten(self, member: Arm, share: float) -> Arm:
        """What is left of a member when all that may go by then has gone."""
        config = member.config
        pending = _split(tuple(config), GROUPS)
        while pending:
            groups, pending = self._next_groups(config, pending)
            arms = [self.space.arm(without) for without in groups.values()]
            measured = self.beside(self.space.arm(config), arms, share)
            if measured is None:
                break
            both = zip(groups, measured, strict=True)
            dropped = [knobs for knobs, one in both if self.may_go(one)]
            config = self.space.without(config, [knob for knobs in dropped for knob in knobs])
            kept = [knobs for knobs in groups if knobs not in dropped and len(knobs) > 1]
            pending += [half for knobs in kept for half in _split(knobs, 2)]
        return self.space.arm(config)

    def beside(self, whole: Arm, arms: Sequence[Arm], share: float) -> list[ArmRecord] | None:
        """Measures shorter configurations beside the whole one, in blocks enough to decide.

        Returns:
            One record for each arm, in their order; None: there was no time for it.
        """
        bench = self.bench
        while True:
            removals = bench.ledger.removals(whole)
            found = [removals.get(arm.key, ArmRecord(arm)) for arm in arms]
            open_ = [r for r in found if not r.failures and len(r.pairs) < MOST_ABLATION_PAIRS]
            is_known = all(len(one.pairs) >= LEAST_ABLATION_PAIRS for one in open_)
            if is_known and all(self._is_clear(one) for one in open_):
                return found
            if not bench.budget.allows(bench.executor.cost(1 + len(arms), self.rounds), share):
                return found if is_known else None
            bench.measure([whole, *arms], "ablate", self.rounds)
            bench.tell("ablate", self.gain)

    def may_go(self, without: ArmRecord) -> bool:
        """Whether neither too much speed nor too much memory is lost, for all that is seen."""
        if without.failures or not without.savings:
            return False
        return all(spare >= -error for spare, error in self._spare(without))

    def _is_clear(self, without: ArmRecord) -> bool:
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

    def _next_groups(
        self, config: Mapping[str, Value], pending: Sequence[_Knobs]
    ) -> tuple[dict[_Knobs, ConfigDict], list[_Knobs]]:
        """Groups for one block with what is left without each, and the groups behind them.

        A group without which the configuration is not legal, or the same, is halved on the way.
        """
        groups: dict[_Knobs, ConfigDict] = {}
        left = list(pending)
        while left and len(groups) < GROUPS:
            knobs = left.pop(0)
            without = self.space.without(config, knobs)
            if without != config and self.space.objection(without) is None:
                groups[knobs] = without
            elif len(knobs) > 1:
                left[:0] = _split(knobs, 2)
        return groups, left


def _split(knobs: _Knobs, parts: int) -> list[_Knobs]:
    """`knobs` in up to `parts` groups of nearly one size."""
    size = max(1, math.ceil(len(knobs) / parts))
    return [knobs[start : start + size] for start in range(0, len(knobs), size)]
