"""Confirming a front: fresh pairs of every member with the control, for speed and for memory.

Every member has pairs of its own, in turn: beside several others a process would wait longer for
its turns, and memory that ages meanwhile makes it another process than the one that `hztune verify`
measures. Error: all claims of a study together have CLAIM_ERROR, which is split evenly over the
members and over the two objectives (Bonferroni). Where machines share a study, one that takes over
the proof of another one begins anew: the first has half of the error, the second a quarter, and so
on. The members are chosen before the first fresh pair, by what the search and the ablation have
measured; afterwards one may only leave.

The looks are planned, and the scatter of speed is moderated by what other pairs say of it, as in
every proof (see `proof`). A member is looked at again only at its looks, or given up as in vain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hztune.blocks import Arm, ProofPlan
from hztune.confirm.proof import CLAIM_ERROR, ProofAnswer, plan_of
from hztune.confirm.within_limits import limit_answer, limit_is_futile, missing_limit
from hztune.decide import Looks, Question
from hztune.decide.question import REPORTED_ERROR, futile_counts, is_precise
from hztune.stats import Interval, fixed_interval
from hztune.trial import LEAST_SAVING, PAIRS, ArmRecord, Point, Workbench, unbeaten
from hztune.trial.division import PROVED_BY

MOST_MEMBERS = 5
"""Members of a front that are proved: more would leave too few pairs for each."""

_OBJECTIVES = 2

_MORE = 1.5
"""Pairs that are planned for each of several members, in even parts of the time: some members are
settled early, and the others have what they leave. One whose time is up before looks for the last
time then, with all the error that is left."""


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
class _FrontProof:
    """How the members of a front are proved.

    Attributes:
        bench: Where blocks are measured.
        alpha: Two-sided error of each claim.
        plan: Of the looks at each member, and the least gain that is claimed of it.
    """

    bench: Workbench
    alpha: float
    plan: ProofPlan

    @classmethod
    def of(cls, bench: Workbench, arms: Sequence[Arm], share: float, until: float) -> _FrontProof:
        """The plan for some members: their pairs are known before the first of them is measured."""
        alpha = member_error(len(arms))
        plan = plan_of(bench.ledger, arms)
        if plan is None:
            rounds = front_rounds(bench, len(arms), share)
            each = int(bench.budget.left(until) / bench.executor.cost(2, rounds)) // len(arms)
            pairs = max(bench.least_pairs, each if len(arms) == 1 else round(_MORE * each))
            had = max(len(bench.ledger.fresh(arm).pairs) for arm in arms)
            plan = ProofPlan(max(pairs, had), rounds, bench.floor)
        return cls(bench, alpha, plan)

    def gains(self, record: ArmRecord, *, is_last: bool) -> tuple[Question, Question]:
        """Is it faster? Does it save memory? In that, configurations are not alike in scatter."""
        plan, least = self.plan, self.bench.least_pairs
        speed, saving = record.log_ratios, [each.log_ratio for each in record.savings]
        prior = self.bench.ledger.noise().spread(plan.rounds)
        looks = [
            Looks.due(len(each), least, plan.pairs, is_last=is_last) for each in (speed, saving)
        ]
        return (
            Question(speed, looks[0], self.alpha, least=plan.floor, prior=prior),
            Question(saving, looks[1], self.alpha, least=LEAST_SAVING),
        )

    def is_settled(self, record: ArmRecord) -> bool:
        """Whether nothing more is to be learned of a member.

        Of a proved gain that is asked at its looks, of another one at the counts of futility.
        """
        planned, pairs = self.plan.pairs, len(record.pairs)
        if record.failures or pairs >= planned:
            return True
        gains = self.gains(record, is_last=False)
        looks = gains[0].looks
        ledger, rounds = self.bench.ledger, self.plan.rounds
        if pairs in futile_counts(planned) and limit_is_futile(ledger, record, self.alpha, looks):
            return True
        limits = limit_answer(ledger, record, self.alpha, looks, rounds)
        if "no" not in limits and "open" in limits:
            return False
        asked = max((count for count in futile_counts(planned) if count <= pairs), default=0)
        return all(
            (shown := one.reported(one.looks.counts[-1])) is not None and is_precise(shown)
            if one.proved_by
            else asked > 0 and replace(one, values=one.values[:asked]).is_futile()
            for one in gains
        )

    def judged(self, record: ArmRecord, *, is_last: bool) -> Member:
        """What the pairs have shown; `is_last`: time is up."""
        speed, saving = self.gains(record, is_last=is_last)
        seen, shown = _reported(speed), _reported(saving)
        memory = shown and shown.reciprocal
        is_faster, is_saving = bool(speed.proved_by), bool(saving.proved_by)
        answer: ProofAnswer = "out_of_time" if is_last else "futile"
        if record.failures:
            answer = "failed"
        elif (is_faster or is_saving) and seen is not None and memory is not None:
            ledger, rounds = self.bench.ledger, self.plan.rounds
            kept, loss = limit_answer(ledger, record, self.alpha, speed.looks, rounds)
            is_within = kept == loss == "yes"
            answer = "proved" if is_within else missing_limit(kept, loss)
        return Member(record.arm, answer, seen, memory, is_faster, is_saving)


def _reported(gain: Question) -> Interval | None:
    """The newest interval; should it reach zero, what it has in common with the proof's own.

    Both cover at once, so that what they have in common covers, too; and the estimate is that
    of all pairs, as far as it lies there.
    """
    newest = gain.reported()
    if newest is None or not gain.proved_by or newest.low > 0.0:
        return newest
    proving = gain.reported(gain.proved_by)
    if proving is None:
        return newest
    low, high = max(newest.low, proving.low), min(newest.high, proving.high)
    middle = min(high, max(low, newest.estimate))
    return Interval(middle, low, high, newest.pairs) if low <= high else newest


def member_error(members: int) -> float:
    """Two-sided error of each claim, of speed or of memory, where so many members are proved."""
    return CLAIM_ERROR / (_OBJECTIVES * members)


def front_rounds(bench: Workbench, members: int, share: float) -> int:
    """Rounds of each pair: `share` of the budget must hold PAIRS of every member."""
    return bench.rounds(2, bench.budget.total_s * share / (members * PAIRS))


def affordable(bench: Workbench, share: float, until: float) -> int:
    """Members for which there is time, MOST_MEMBERS at most; 0: for none.

    Args:
        bench: Where blocks are measured.
        share: Part of the budget that is meant for all proofs.
        until: Part of the budget that may be used by then; one member alone may use all of it.
    """
    pairs = max(PAIRS, bench.least_pairs)
    for members in range(MOST_MEMBERS, 1, -1):
        pair_s = bench.executor.cost(2, front_rounds(bench, members, share))
        if bench.budget.allows(members * pairs * pair_s, until):
            return members
    pair_s = bench.executor.cost(2, front_rounds(bench, 1, share))
    return int(bench.budget.allows(bench.least_pairs * pair_s, PROVED_BY))


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
    proof = _FrontProof.of(bench, arms, share, until)
    pair_s = bench.executor.cost(2, proof.plan.rounds)
    unsettled: Sequence[Arm] = arms
    while True:
        unsettled = [arm for arm in arms if not proof.is_settled(bench.ledger.fresh(arm))]
        if not unsettled or not bench.budget.allows(pair_s, until):
            break
        for arm in unsettled:
            if bench.budget.allows(pair_s, until):
                bench.measure([control, arm], "confirm", proof.plan.rounds, plan=proof.plan)
                tell(bench, "confirm", bench.ledger.fresh(arm))
    judged = [proof.judged(bench.ledger.fresh(arm), is_last=arm in unsettled) for arm in arms]
    ahead = on_front(judged)
    return [
        replace(one, answer="dominated") if one.answer == "proved" and one not in ahead else one
        for one in judged
    ]


def on_front(members: Sequence[Member]) -> list[Member]:
    """Those that are confirmed and that none beats, the fastest first."""
    return unbeaten([member for member in members if member.answer == "proved"])


def tell(bench: Workbench, phase: str, record: ArmRecord) -> None:
    """Reports how a proof stands."""
    if len(record.pairs) < 2:
        bench.tell(phase, sum(record.log_ratios))
        return
    interval = fixed_interval(record.log_ratios, REPORTED_ERROR)
    bench.tell(phase, interval.estimate, interval.half_width)
