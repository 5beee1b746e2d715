"""The proof: fresh blocks of the default and a chain of configurations that no selection has seen.

Every configuration of the chain adds something to the one before it. All are measured side by side.
That the first one is better than the default is the claim of a study: its error is split over the
finalists, the first may use half of it, the second a quarter, and so on, so that all attempts
together claim a gain that is none in at most 0.8 % of studies (each claim is one-sided, the
interval two-sided). Each further configuration is compared with the one before it, in the order in
which they were chosen, up to the first that is not proved to add something: tests in a fixed
sequence need no correction (Maurer, Hothorn & Lehmacher, 1995).

How a proof was planned is kept with its blocks, and one that has ended is judged by what was known
when its last block was measured: so a study that is read back says again what it said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from hztune.blocks import Arm, Block, ProofPlan
from hztune.confirm.within_limits import limit_answer, limit_is_futile, missing_limit
from hztune.decide import Looks, Question
from hztune.decide.question import REPORTED_ERROR, futile_counts, is_precise
from hztune.errors import OutOfTime
from hztune.stats import (
    LEAST_PLANNED,
    Interval,
    Spread,
    fixed_interval,
    planned_interval,
    planned_looks,
)
from hztune.trial import PAIRS, ArmRecord, Ledger, Workbench
from hztune.trial.division import PROOF_SHARE

CLAIM_ERROR = 0.016
"""Two-sided error of all claims of a study together: 0.8 % of false gains."""

_MOST_FAILURES = 1

ProofAnswer = Literal[
    "proved",
    "kept",
    "futile",
    "out_of_time",
    "failed",
    "over_limit",
    "over_loss",
    "dominated",
]


@dataclass(frozen=True, slots=True)
class Step:
    """What one configuration of a chain adds to the one before it.

    Attributes:
        arm: The configuration.
        before: The one before it, or the default.
        answer: "proved", or why it is not in the profile.
        interval: 95 % interval of its log ratio to `before`; None: too few pairs.
        total: The same of its log ratio to the default.
    """

    arm: Arm
    before: Arm
    answer: ProofAnswer
    interval: Interval | None
    total: Interval | None

    @property
    def succeeded(self) -> bool:
        """Whether it is shown to add something, or to keep the limit."""
        return self.answer in ("proved", "kept")

    @property
    def added(self) -> tuple[str, ...]:
        """The parameters that it changes and the one before it does not."""
        return added_to(self.arm, self.before)


@dataclass(frozen=True, slots=True)
class Proof:
    """What the fresh pairs of a finalist have shown.

    Attributes:
        arm: The longest configuration of the chain that is proved; the first where none is.
        answer: "proved"; "kept" where only the memory limit was to be kept, and is; or why not:
            "dominated" is one that another member of a front dominates.
        interval: 95 % interval of the log ratio to the default; None: too few pairs.
        steps: What each configuration of the chain was shown to add, in order.
        planned: Pairs for which there was time when it began; 0: there was no plan.
        time_is_up: Whether it ended because its time did.
    """

    arm: Arm
    answer: ProofAnswer
    interval: Interval | None
    steps: tuple[Step, ...] = ()
    planned: int = 0
    time_is_up: bool = False

    @property
    def first(self) -> Arm:
        """The configuration that the chain begins with."""
        return self.steps[0].arm if self.steps else self.arm

    @property
    def proved_steps(self) -> tuple[Step, ...]:
        """The steps up to `arm`; none where nothing is shown."""
        return tuple(step for step in self.steps if step.succeeded)

    @property
    def succeeded(self) -> bool:
        """Whether what was sought is shown."""
        return self.answer in ("proved", "kept")


def claim_error(attempt: int) -> float:
    """Two-sided error that finalist number `attempt` (from 0) may use.

    From the hundredth on they share one that is as good as none, so that a study of many days never
    runs into what numbers can hold.
    """
    return CLAIM_ERROR * 0.5 ** (min(attempt, 99) + 1)


def prove(
    bench: Workbench, control: Arm, chain: Sequence[Arm], *, alpha: float, until: float
) -> Proof:
    """Measures fresh blocks until the chain is decided, or time is up.

    How many pairs there will be is known beforehand, from the time. Before that a proof succeeds
    only at a scheduled look. It may be given up at other times: when a process fails, or when
    nothing can be proved any more.

    Args:
        bench: Where blocks are measured.
        control: The default.
        chain: Configurations, each of which adds something to the one before it.
        alpha: Two-sided error of the claim.
        until: Part of the budget that may be used by then.
    """
    attempt = _Attempt.of(bench, control, chain, alpha, until)
    if (ended := attempt.ended()) is not None:
        return ended
    return attempt.proof(is_last=attempt.measure(until))


def given_up(bench: Workbench, control: Arm, chain: Sequence[Arm], *, alpha: float) -> Proof:
    """What an attempt had come to when the next one was begun: it had failed.

    Args:
        bench: Where blocks were measured; nothing more is.
        control: The default.
        chain: Its configurations.
        alpha: Two-sided error of the claim.
    """
    attempt = _Attempt.of(bench, control, chain, alpha, 0.0)
    found = attempt.ended() or attempt.proof(is_last=False)
    answer: ProofAnswer = "futile" if found.succeeded else found.answer
    return replace(found, arm=chain[0], answer=answer)


def chain_rounds(bench: Workbench, arms: int) -> int:
    """Rounds of each process of a proof: its time must hold PAIRS blocks."""
    return bench.rounds(1 + arms, bench.budget.total_s * PROOF_SHARE / PAIRS)


def affordable_pairs(bench: Workbench, arms: int, until: float) -> int:
    """Fresh blocks of the default and so many configurations for which there is time."""
    left_s = bench.budget.left(until)
    return max(0, int(left_s / bench.executor.cost(1 + arms, chain_rounds(bench, arms))))


@dataclass(frozen=True)
class _Attempt:
    """One chain and how it stands.

    Attributes:
        bench: Where blocks are measured.
        control: The default.
        chain: The configurations.
        alpha: Two-sided error of the claim.
        plan: Of its looks, and the least gain that it claims.
        ledger: What is known.
    """

    bench: Workbench
    control: Arm
    chain: tuple[Arm, ...]
    alpha: float
    plan: ProofPlan
    ledger: Ledger

    @classmethod
    def of(
        cls, bench: Workbench, control: Arm, chain: Sequence[Arm], alpha: float, until: float
    ) -> _Attempt:
        """An attempt that may have begun in an earlier session: then it keeps to its plan."""
        plan = plan_of(bench.ledger, chain[:1])
        if plan is None:
            rounds = chain_rounds(bench, len(chain))
            pairs = int(bench.budget.left(until) / bench.executor.cost(1 + len(chain), rounds))
            had = len(bench.ledger.fresh(chain[0]).pairs)
            plan = ProofPlan(max(bench.least_pairs, had, pairs), rounds, bench.floor)
        return cls(bench, control, tuple(chain), alpha, plan, bench.ledger)

    def ended(self) -> Proof | None:
        """What it came to when it ended in an earlier session; None: it goes on, or begins."""
        ledger = self.bench.ledger
        blocks = proof_blocks(ledger, self.chain[:1])
        if not blocks:
            return None
        then = replace(self, ledger=ledger.until(blocks[-1]))
        time_is_up = bool(then.running())
        if time_is_up and not ledger.has_gone_on(blocks[-1]):
            return None
        return then.proof(is_last=time_is_up)

    def measure(self, until: float) -> bool:
        """Measures until every step is decided; returns whether time was up before."""
        bench, rounds = self.bench, self.plan.rounds
        while running := self.running():
            if not bench.budget.allows(bench.executor.cost(1 + len(running), rounds), until):
                return True
            try:
                bench.measure([self.control, *running], "confirm", rounds, plan=self.plan)
            except OutOfTime:
                return True
            self.tell()
        return False

    def running(self) -> list[Arm]:
        """The configurations that the next block holds; none: there is nothing left to learn.

        Nothing is measured behind a step that has failed, nor more than was planned of the first
        one: a step that was in vain may become hopeful again when more is known of the noise.
        """
        if len(self._fresh(self.chain[0]).pairs) >= self.plan.pairs:
            return []
        answers = self._answers(is_last=False)
        found: list[Arm] = []
        for arm, answer in zip(self.chain, answers, strict=True):
            if answer not in (None, "proved", "kept"):
                break
            found.append(arm)
        is_open = any(answer is None for answer in answers[: len(found)])
        return found if is_open or (found and not self._is_done(found[-1])) else []

    def _is_done(self, last: Arm) -> bool:
        """Whether more pairs would hardly tell more of what is proved; asked at looks only."""
        pairs = self._fresh(last).log_ratios
        if len(pairs) >= self.plan.pairs:
            return True
        if len(pairs) not in planned_looks(self.plan.pairs):
            return False
        shown = self._against_control(last, is_last=False).reported()
        return shown is not None and is_precise(shown)

    def _answers(self, *, is_last: bool) -> list[ProofAnswer | None]:
        """What is known of each step; None: it is open."""
        found: list[ProofAnswer | None] = []
        for index in range(len(self.chain)):
            if found and found[-1] not in (None, "proved", "kept"):
                found.append("futile")  # nothing is claimed behind a step that failed
            else:
                found.append(self._answer(index, is_last=is_last))
        return found

    def _answer(self, index: int, *, is_last: bool) -> ProofAnswer | None:
        """What is known of one step.

        Where the default breaks the memory limit, keeping it is the gain. The gain and each limit
        may use the whole error, see `decide.question`.
        """
        record = self._fresh(self.chain[index])
        if len(record.failures) >= _MOST_FAILURES:
            return "failed"
        gain, must_save = self._gain(index, is_last=is_last), self.ledger.default_breaks_limit
        rounds = self.plan.rounds
        memory, loss = limit_answer(self.ledger, record, self.alpha, gain.looks, rounds)
        gains = gain.answer == "yes"
        if (memory == "no" and (gains or must_save)) or (loss == "no" and gains and not must_save):
            return missing_limit(memory, loss)
        if memory == "yes" and (must_save or (gains and loss == "yes")):
            return "proved" if gains and loss == "yes" else "kept"
        if not is_last:
            hopeless = self._hopeless(record, gain)
            if hopeless or len(record.pairs) < self.plan.pairs:
                return hopeless
        if not (must_save or gains):
            return "out_of_time"
        return missing_limit(memory, loss)

    def _hopeless(self, record: ArmRecord, gain: Question) -> ProofAnswer | None:
        """Why even a lucky truth would not be proved with all planned pairs; None: it might be."""
        if len(gain.values) not in futile_counts(self.plan.pairs):
            return None
        if limit_is_futile(self.ledger, record, self.alpha, gain.looks):
            return "over_limit"
        if self.ledger.default_breaks_limit or gain.answer == "yes":
            return None
        is_over = len(gain.values) >= self.plan.pairs
        return "futile" if is_over or gain.is_futile() else None

    def _gain(self, index: int, *, is_last: bool) -> Question:
        """Whether a step adds something to the one before it; the first one, to the default."""
        arm = self.chain[index]
        if index == 0:
            first = self._against_control(arm, is_last=is_last)
            return replace(first, error=self.alpha, least=self.plan.floor)
        before = self.chain[index - 1]
        pairs = self.ledger.fresh_pairs(before, arm, self.chain[0])
        asked = self._against_control(arm, is_last=is_last)
        return replace(asked, values=[pair.log_ratio for pair in pairs])

    def _against_control(self, arm: Arm, *, is_last: bool) -> Question:
        """Whether an arm is better than the default, at the error of what is reported."""
        pairs = self._fresh(arm).log_ratios
        least, planned = self.bench.least_pairs, self.plan.pairs
        looks = Looks.due(len(pairs), least, planned, is_last=is_last)
        prior = self.ledger.noise().spread(self.plan.rounds)
        return Question(pairs, looks, REPORTED_ERROR, prior=prior)

    def _fresh(self, arm: Arm) -> ArmRecord:
        """What the blocks of this attempt say of one of its configurations."""
        return self.ledger.fresh(arm, self.chain[0])

    def proof(self, *, is_last: bool) -> Proof:
        """What the chain has come to."""
        answers = self._answers(is_last=is_last)
        steps = tuple(
            Step(
                arm,
                self.control if index == 0 else self.chain[index - 1],
                answer or "out_of_time",
                interval=self._gain(index, is_last=is_last).reported(),
                total=self._against_control(arm, is_last=is_last).reported(),
            )
            for index, (arm, answer) in enumerate(zip(self.chain, answers, strict=True))
        )
        proved = [step for step in steps if step.succeeded]
        last = proved[-1] if proved else steps[0]
        return Proof(last.arm, last.answer, last.total, steps, self.plan.pairs, time_is_up=is_last)

    def tell(self) -> None:
        """Reports how the first step stands that is not decided."""
        answers = self._answers(is_last=False)
        index = next((n for n, each in enumerate(answers) if each is None), 0)
        pairs = self._gain(index, is_last=False).values
        half = math.inf
        if len(pairs) > 1:
            half = fixed_interval(pairs, REPORTED_ERROR).half_width
        before = self.control if index == 0 else self.chain[index - 1]
        self.bench.tell(
            "prove",
            fmean(pairs) if pairs else 0.0,
            half,
            pairs=len(pairs),
            planned=self.plan.pairs,
            subject=difference(self.chain[index], before),
        )


def added_to(arm: Arm, before: Arm) -> tuple[str, ...]:
    """The parameters that an arm changes and another one does not."""
    had = before.config if arm.allocator == before.allocator else {}
    return tuple(name for name, value in arm.params if had.get(name) != value)


def difference(arm: Arm, before: Arm) -> str:
    """The same with their values, in words."""
    if arm.allocator != before.allocator:
        return arm.text
    return " ".join(f"{name}={arm.config[name]}" for name in added_to(arm, before))


def reported(record: ArmRecord, prior: Spread | None = None) -> Interval | None:
    """The 95 % interval of fresh pairs that are taken together; None while there are too few.

    Args:
        record: The pairs.
        prior: What is known of their variance beforehand.
    """
    return interval_of(record.log_ratios, prior)


def reported_each(record: ArmRecord) -> tuple[Interval | None, ...]:
    """The same on each of several workloads; empty where there is one only.

    Each is a 95 % interval by itself: what is claimed rests on their mean alone.
    """
    return tuple(interval_of([pair.log_ratio for pair in pairs], None) for pairs in record.each)


def interval_of(pairs: Sequence[float], prior: Spread | None = None) -> Interval | None:
    """The 95 % interval of log ratios that are looked at once; None while there are too few."""
    if len(pairs) < LEAST_PLANNED:
        return None
    return planned_interval(pairs, REPORTED_ERROR, len(pairs), prior=prior, is_last=True)


def against_itself(ledger: Ledger) -> Interval | None:
    """What the default is against itself: no gain, as exactly as the calibration knows."""
    aa = [pair.log_ratio for pair in ledger.own_calibration]
    if len(aa) < 2:
        return None
    half = fixed_interval(aa, REPORTED_ERROR).half_width
    return Interval(0.0, -half, half, len(aa))


def loss_words(ledger: Ledger, record: ArmRecord) -> str:
    """Why an arm is refused for what it may lose: names the workload on which most is possible."""
    limit, each = ledger.max_loss, reported_each(record)
    assert limit is not None and each  # or it was not refused for that
    ends = [-math.inf if interval is None else interval.low for interval in each]
    part = ends.index(min(ends))
    seen = each[part]
    told = f", which is {seen.text} of the default's on {seen.pairs} pairs" if seen else ""
    return f"it may lose more than {limit.text} on {limit.name_of(part)}{told}"


def proof_blocks(ledger: Ledger, first: Sequence[Arm]) -> list[Block]:
    """The blocks of a proof, in order of time.

    Args:
        ledger: Of the study.
        first: What stands behind the control in each of them.
    """
    confirm = (block for block in ledger.own_blocks() if block.role == "confirm")
    return [block for block in confirm if block.outcomes[1].arm in first]


def plan_of(ledger: Ledger, first: Sequence[Arm]) -> ProofPlan | None:
    """How a proof was planned that has begun; None: it has not, or that was not kept then."""
    return next((block.plan for block in proof_blocks(ledger, first)), None)
