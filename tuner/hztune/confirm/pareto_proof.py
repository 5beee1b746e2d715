"""Confirming a front: fresh pairs of every member with the control, for speed and for memory.

Every member has pairs of its own, in turn: beside several others a process would wait longer for
its turns, and memory that ages meanwhile makes it another process than the one that `hztune verify`
measures. Error: all claims of a study together have CLAIM_ERROR, which is split evenly over the
members and over the two objectives (Bonferroni). Where machines share a study, one that takes over
the proof of another one begins anew: the first has half of the error, the second a quarter, and so
on. The members are chosen before the first fresh pair, by what the search and the ablation have
measured; afterwards one may only leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hztune.blocks import Arm
from hztune.confirm.looks import Looks
from hztune.confirm.proof import (
    CLAIM_ERROR,
    FUTILE_FROM,
    REPORTED_ERROR,
    ProofAnswer,
    claim_error,
    is_futile,
    is_precise,
    limit_is_futile,
    missing_limit,
    within_limits,
)
from hztune.stats import FIRST_LOOK, Interval, is_look, sequential_interval
from hztune.trial import LEAST_SAVING, PAIRS, ArmRecord, Ledger, Point, Workbench, unbeaten

MOST_MEMBERS = 5
"""Members of a front that are proved: more would leave too few pairs for each."""

_OBJECTIVES = 2


@dataclass(frozen=True, slots=True)
class Member:
    """What the fresh pairs of one member have shown.

    Attributes:
        arm: Whose they are.
        answer: "proved", or why it is not on the front.
        speed: 95 % interval of its log ratio to the control; None: too few pairs.
        memory: The same of the log ratio of the memory that is weighed; below 0 it takes less.
        is_faster: Whether more speed is proved.
        is_saving: Whether less memory is proved.
    """

    arm: Arm
    answer: ProofAnswer
    speed: Interval | None
    memory: Interval | None
    is_faster: bool
    is_saving: bool

    @property
    def point(self) -> Point:
        """The estimates of both; of a member that has them."""
        assert self.speed is not None and self.memory is not None
        return self.speed.estimate, -self.memory.estimate


@dataclass(frozen=True, slots=True)
class _Objective:
    """One objective of one member.

    Attributes:
        pairs: Log units, above 0 is better, in order of time.
        least: A smaller gain is not claimed.
        proved_by: Pairs at the look that proved a gain; 0: none did.
    """

    pairs: Sequence[float]
    least: float
    proved_by: int

    @classmethod
    def of(cls, pairs: Sequence[float], least: float, looks: Looks, alpha: float) -> _Objective:
        """What the looks that were due say: what one of them has proved stays proved."""
        seen = looks.intervals(pairs, alpha)
        for count, interval in zip(looks.counts, seen, strict=False):  # none without pairs
            if interval.low > 0.0 and interval.estimate >= least:
                return cls(pairs, least, count)
        return cls(pairs, least, 0)

    @property
    def reported(self) -> Interval | None:
        """The newest interval; should it reach zero, what it has in common with the proof's own.

        Both cover at once, so that what they have in common covers, too; and the estimate is that
        of all pairs, as far as it lies there.
        """
        if len(self.pairs) < FIRST_LOOK:
            return None
        newest = sequential_interval(self.pairs, REPORTED_ERROR)
        if not self.proved_by or newest.low > 0.0:
            return newest
        proving = sequential_interval(self.pairs[: self.proved_by], REPORTED_ERROR)
        low, high = max(newest.low, proving.low), min(newest.high, proving.high)
        middle = min(high, max(low, newest.estimate))
        return Interval(middle, low, high, newest.pairs) if low <= high else newest

    def is_settled(self, total: int, alpha: float) -> bool:
        """Whether more pairs, `total` in all, would show nothing new."""
        if self.proved_by:
            shown = self.reported
            return shown is not None and is_precise(shown)
        return len(self.pairs) >= FUTILE_FROM and is_futile(self.pairs, total, alpha, self.least)


def member_error(members: int, error: float = CLAIM_ERROR) -> float:
    """Two-sided error of each claim, of speed or of memory, where so many members are proved.

    Args:
        members: How many.
        error: That of all their claims together, see `front_error`.
    """
    return error / (_OBJECTIVES * members)


def front_error(ledger: Ledger) -> float:
    """Two-sided error of all claims of a front that is proved on this machine."""
    if not ledger.machine:
        return CLAIM_ERROR
    return claim_error(len({machine for machine, _ in ledger.tried_by_other_machines}))


def front_rounds(bench: Workbench, members: int, share: float) -> int:
    """Rounds of each pair: `share` of the budget must hold PAIRS of every member."""
    return bench.rounds(2, bench.budget.total_s * share / (members * PAIRS))


def affordable(bench: Workbench, share: float, until: float) -> int:
    """Members for which there is time, MOST_MEMBERS at most; 0: for none.

    Args:
        bench: Where blocks are measured.
        share: Part of the budget that is meant for all proofs.
        until: Part of the budget that may be used by then.
    """
    pairs = max(PAIRS, bench.least_pairs)
    for members in range(MOST_MEMBERS, 1, -1):
        pair_s = bench.executor.cost(2, front_rounds(bench, members, share))
        if bench.budget.allows(members * pairs * pair_s, until):
            return members
    pair_s = bench.executor.cost(2, front_rounds(bench, 1, share))
    return int(bench.budget.allows(bench.least_pairs * pair_s, until))


def prove_front(
    bench: Workbench, control: Arm, arms: Sequence[Arm], *, share: float, until: float
) -> list[Member]:
    """Measures fresh pairs until every arm is settled or time is up.

    Args:
        bench: Where blocks are measured.
        control: What all are compared with.
        arms: The members.
        share: Part of the budget that is meant for all proofs.
        until: Part of the budget that may be used by then.

    Returns:
        One for each arm. Of the confirmed ones, by what the fresh pairs estimate, those are
        "dominated" that another one dominates: see trial.pareto.unbeaten.
    """
    alpha = member_error(len(arms), front_error(bench.ledger))
    rounds = front_rounds(bench, len(arms), share)
    pair_s = bench.executor.cost(2, rounds)
    unsettled: Sequence[Arm] = arms
    while True:
        more = max(0, int(bench.budget.left(until) / (pair_s * max(1, len(unsettled)))))
        unsettled = [
            arm for arm in arms if not _is_settled(bench, bench.ledger.fresh(arm), alpha, more)
        ]
        if not unsettled or not bench.budget.allows(pair_s, until):
            break
        for arm in unsettled:
            if bench.budget.allows(pair_s, until):
                bench.measure([control, arm], "confirm", rounds)
                tell(bench, "confirm", bench.ledger.fresh(arm))
    judged = [_judged(bench, bench.ledger.fresh(arm), alpha, arm in unsettled) for arm in arms]
    ahead = on_front(judged)
    return [
        replace(one, answer="dominated") if one.answer == "proved" and one not in ahead else one
        for one in judged
    ]


def on_front(members: Sequence[Member]) -> list[Member]:
    """Those that are confirmed and that none beats, the fastest first."""
    return unbeaten([member for member in members if member.answer == "proved"])


def _looks(bench: Workbench, pairs: int, *, is_last: bool) -> Looks:
    """The looks so far.

    When the time is up there is one whose moment the data did not choose.
    """
    due = looks_at(bench, pairs)
    return Looks((*due, pairs) if is_last and pairs >= bench.least_pairs else tuple(due))


def _gains(
    bench: Workbench, record: ArmRecord, alpha: float, *, is_last: bool
) -> tuple[_Objective, _Objective]:
    """Speed and memory."""
    speed, saving = record.log_ratios, [each.log_ratio for each in record.savings]
    return (
        _Objective.of(speed, bench.floor, _looks(bench, len(speed), is_last=is_last), alpha),
        _Objective.of(saving, LEAST_SAVING, _looks(bench, len(saving), is_last=is_last), alpha),
    )


def _is_settled(bench: Workbench, record: ArmRecord, alpha: float, more: int) -> bool:
    """Whether nothing more is to be learned of one; asked where its intervals are valid."""
    if record.failures:
        return True
    pairs = len(record.pairs)
    if not may_end(pairs):
        return False
    looks = _looks(bench, pairs, is_last=False)
    if limit_is_futile(bench.ledger, record, alpha, looks, pairs + more):
        return True
    gains = _gains(bench, record, alpha, is_last=False)
    is_known = within_limits(bench.ledger, record, alpha, looks) is not None
    return is_known and all(gain.is_settled(len(gain.pairs) + more, alpha) for gain in gains)


def _judged(bench: Workbench, record: ArmRecord, alpha: float, is_last: bool) -> Member:
    """What the pairs have shown; `is_last`: time is up.

    A member may use its whole error for the limit, too: see `proof._shown`.
    """
    speed, saving = _gains(bench, record, alpha, is_last=is_last)
    shown = saving.reported
    memory = shown and shown.reciprocal
    is_faster, is_saving = bool(speed.proved_by), bool(saving.proved_by)
    answer: ProofAnswer = "out_of_time" if is_last else "futile"
    if record.failures:
        answer = "failed"
    elif (is_faster or is_saving) and speed.reported is not None and memory is not None:
        looks = _looks(bench, len(record.pairs), is_last=is_last)
        known = within_limits(bench.ledger, record, alpha, looks)
        answer = known or missing_limit(bench.ledger, record, alpha, looks)
    return Member(record.arm, answer, speed.reported, memory, is_faster, is_saving)


def looks_at(bench: Workbench, pairs: int) -> list[int]:
    """The looks that were due so far: what one of them has proved stays proved."""
    return [count for count in range(bench.least_pairs, pairs + 1) if is_look(count)]


def may_end(pairs: int) -> bool:
    """Whether what the pairs show may end them after so many: before or at a scheduled look.

    Repeated intervals cover at once at the looks of their schedule, and at one more whose moment
    the data did not choose, which is the end of time (see stats.sequential). Taken after every
    pair, one of them misses in 8 to 11 % of studies with up to 40 and 200 pairs instead of 5 %.
    Before the first look no interval is reported, so that a proof given up by then has none.
    """
    return pairs < FIRST_LOOK or is_look(pairs)


def tell(bench: Workbench, phase: str, record: ArmRecord) -> None:
    """Reports how a proof stands."""
    if len(record.pairs) < 2:
        bench.tell(phase, sum(record.log_ratios))
        return
    interval = sequential_interval(record.log_ratios, REPORTED_ERROR)
    bench.tell(phase, interval.estimate, interval.half_width)
