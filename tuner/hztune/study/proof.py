"""The proof: fresh blocks of the default and a chain of configurations that no selection has seen.

All are measured side by side. That the first configuration is better than the default is the claim
of a study: its error is split over the finalists, the first may use half of it, the second a
quarter, and so on, so that all attempts together claim a gain that is none in at most 0.8 % of
studies (each claim is one-sided, the interval two-sided). Each further configuration is compared
with the one before it, in the order in which they were chosen, up to the first that is not proved
to add something: tests in a fixed sequence need no correction (Maurer, Hothorn & Lehmacher, 1995).

The members of a front are proved in the same way, each by itself, a block each by turns: beside
several others a process would wait longer for its turns, and memory that ages meanwhile would make
it another process than the one that `hztune verify` measures. Of each two questions are asked, is
it faster, and does it take less memory? The error is split evenly over members and questions.

How a proof was planned is kept with its blocks, and one that has ended is judged by what was known
when its last block was measured: so a study that is read back says again what it said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from hztune.blocks import Arm, ProofPlan
from hztune.params import Value
from hztune.stats.intervals import (
    FUTILE_FROM,
    REPORTED_ERROR,
    Answer,
    Interval,
    Looks,
    Question,
    all_of,
    fixed_interval,
    futile_counts,
    is_precise,
    planned_looks,
)
from hztune.study.bench import Wanted, Workbench
from hztune.study.calibration import FRONT_SHARE, PAIRS, PROOF_SHARE, PROVED_BY
from hztune.study.front import LEAST_SAVING, Point, unbeaten
from hztune.study.ledger import ArmRecord, Ledger

CLAIM_ERROR = 0.016  # two-sided error of all claims of a study together: 0.8 % of false gains

MOST_MEMBERS = 5  # members of a front that are proved: more would leave too few pairs for each

_MORE = 1.5
"""Pairs that are planned for each of several members, in even parts of the time: some are settled
early, and leave time. One whose time is up sooner looks for the last time then."""

ProofAnswer = Literal[
    "proved", "kept", "futile", "out_of_time", "failed", "over_limit", "over_loss", "dominated"
]
"""`kept`: only the memory limit was to be kept, and is; `dominated`: by another one of a front."""


@dataclass(frozen=True, slots=True)
class Step:
    arm: Arm
    before: Arm
    answer: ProofAnswer
    interval: Interval | None  # 95 %, of its log ratio to `before`; None: too few pairs
    total: Interval | None  # the same to the default

    @property
    def succeeded(self) -> bool:
        return self.answer in ("proved", "kept")

    @property
    def added(self) -> tuple[str, ...]:
        """The parameters that it changes and the one before it does not."""
        return tuple(name for name in self.changes if name in self.arm.config)

    @property
    def changes(self) -> dict[str, Value]:
        return changed(self.arm, self.before)


@dataclass(frozen=True, slots=True)
class Proof:
    """What the fresh pairs of a finalist, or of a member of a front, have shown."""

    arm: Arm  # the longest configuration of the chain that is proved; the first where none is
    answer: ProofAnswer
    interval: Interval | None  # 95 %, of the log ratio to the default; None: too few pairs
    steps: tuple[Step, ...] = ()  # of the chain, in order; () of a member
    memory: Interval | None = None  # of a member: of its log ratio of memory
    is_faster: bool = False  # of a member: more speed is proved
    is_saving: bool = False  # of a member: less memory is proved

    @property
    def point(self) -> Point:
        assert self.interval is not None and self.memory is not None
        return self.interval.estimate, -self.memory.estimate

    @property
    def first(self) -> Arm:
        return self.steps[0].arm if self.steps else self.arm

    @property
    def proved_steps(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.succeeded)

    @property
    def succeeded(self) -> bool:
        return self.answer in ("proved", "kept")


def claim_error(attempt: int) -> float:
    """Two-sided error that finalist number `attempt` (from 0) may use."""
    return CLAIM_ERROR * 0.5 ** (min(attempt, 99) + 1)


def member_error(members: int) -> float:
    """Two-sided error of each claim, of speed or of memory, where so many members are proved."""
    return CLAIM_ERROR / (2 * members)


# ---- proving -------------------------------------------------------------------------------------


def prove(
    bench: Workbench, control: Arm, chain: Sequence[Arm], *, alpha: float, until: float
) -> Proof:
    """Measures fresh blocks until the chain is decided, or `until` of the budget is used.

    A proof succeeds only at scheduled looks. It may be given up at other times: when a process
    fails, or when nothing can be proved any more. `alpha`: two-sided error of the claim.
    """
    attempt = _Attempt.of(bench, control, chain, alpha, until)
    if (ended := attempt.ended()) is not None:
        return ended
    return attempt.proof(is_last=bool(bench.unanswered([attempt], until * bench.budget.total_s)))


def given_up(bench: Workbench, control: Arm, chain: Sequence[Arm], *, alpha: float) -> Proof:
    """What an attempt had come to when the next one was begun: it had failed."""
    attempt = _Attempt.of(bench, control, chain, alpha, 0.0)
    found = attempt.ended() or attempt.proof(is_last=False)
    answer: ProofAnswer = "futile" if found.succeeded else found.answer
    return replace(found, arm=chain[0], answer=answer)


def prove_front(bench: Workbench, control: Arm, arms: Sequence[Arm], until: float) -> list[Proof]:
    """Measures fresh pairs until every member is settled or time is up; one proof for each."""
    plan = bench.ledger.plan_of(arms)
    if plan is None:
        rounds = _front_rounds(bench, len(arms))
        each = int(bench.budget.left(until) / bench.executor.cost(2, rounds)) // len(arms)
        pairs = max(bench.least_pairs, each if len(arms) == 1 else round(_MORE * each))
        had = max(len(bench.ledger.fresh(arm).pairs) for arm in arms)
        plan = ProofPlan(max(pairs, had), rounds, bench.floor)
    alpha = member_error(len(arms))
    attempts = [
        _Attempt(bench, control, (arm,), alpha, plan, bench.ledger, is_member=True) for arm in arms
    ]
    late = bench.unanswered(attempts, until * bench.budget.total_s)
    proofs = [each.proof(is_last=each in late) for each in attempts]
    ahead = on_front(proofs)
    return [
        replace(one, answer="dominated") if one.answer == "proved" and one not in ahead else one
        for one in proofs
    ]


def on_front(proofs: Sequence[Proof]) -> list[Proof]:
    return unbeaten([proof for proof in proofs if proof.answer == "proved"])


# ---- how much there is time for ------------------------------------------------------------------


def chain_rounds(bench: Workbench, arms: int) -> int:
    return bench.rounds(1 + arms, bench.budget.total_s * PROOF_SHARE / PAIRS)


def affordable_pairs(bench: Workbench, arms: int, until: float) -> int:
    left_s = bench.budget.left(until)
    return max(0, int(left_s / bench.executor.cost(1 + arms, chain_rounds(bench, arms))))


def _front_rounds(bench: Workbench, members: int) -> int:
    return bench.rounds(2, bench.budget.total_s * FRONT_SHARE / (members * PAIRS))


def affordable_members(bench: Workbench, until: float) -> int:
    """Members for which there is time; 0: for none. One alone may use all of the time."""
    pairs = max(PAIRS, bench.least_pairs)
    for members in range(MOST_MEMBERS, 1, -1):
        pair_s = bench.executor.cost(2, _front_rounds(bench, members))
        if bench.budget.allows(members * pairs * pair_s, until):
            return members
    pair_s = bench.executor.cost(2, _front_rounds(bench, 1))
    return int(bench.budget.allows(bench.least_pairs * pair_s, PROVED_BY))


# ---- one attempt ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Attempt:
    bench: Workbench
    control: Arm
    chain: tuple[Arm, ...]
    alpha: float  # two-sided error of the claim
    plan: ProofPlan
    ledger: Ledger  # what is known
    is_member: bool = False  # two questions are asked of it

    @classmethod
    def of(
        cls, bench: Workbench, control: Arm, chain: Sequence[Arm], alpha: float, until: float
    ) -> _Attempt:
        """An attempt that may have begun in an earlier session: then it keeps to its plan."""
        plan = bench.ledger.plan_of(chain[:1])
        if plan is None:
            rounds = chain_rounds(bench, len(chain))
            pairs = int(bench.budget.left(until) / bench.executor.cost(1 + len(chain), rounds))
            had = len(bench.ledger.fresh(chain[0]).pairs)
            plan = ProofPlan(max(bench.least_pairs, had, pairs), rounds, bench.floor)
        return cls(bench, control, tuple(chain), alpha, plan, bench.ledger)

    def ended(self) -> Proof | None:
        """What it came to when it ended in an earlier session; None: it goes on, or begins."""
        ledger = self.bench.ledger
        blocks = ledger.proof_blocks(self.chain[:1])
        if not blocks:
            return None
        then = replace(self, ledger=ledger.until(blocks[-1]))
        time_is_up = then.wanted() is not None
        if time_is_up and not ledger.has_gone_on(blocks[-1]):
            return None
        return then.proof(is_last=time_is_up)

    def wanted(self) -> Wanted | None:
        """The control and what is open of the chain; see `bench.Inquiry`.

        Nothing behind a step that has failed, nor more than was planned of the first one: a step
        that was in vain may become hopeful again when more is known of the noise.
        """
        if len(self._fresh(self.chain[0]).pairs) >= self.plan.pairs:
            return None
        found: list[Arm] = []
        answers = self._answers(is_last=False)
        for arm, answer in zip(self.chain, answers, strict=True):
            if answer not in (None, "proved", "kept"):
                break
            found.append(arm)
        is_open = any(answer is None for answer in answers[: len(found)])
        if not found or (not is_open and self._is_done(found[-1])):
            return None
        return Wanted((self.control, *found), "confirm", self.plan.rounds, plan=self.plan)

    def _is_done(self, last: Arm) -> bool:
        """Whether more pairs would hardly tell more; asked at looks, or where giving up is."""
        if self.is_member:
            return all(each.is_settled() for each in self._gains(0, is_last=False))
        pairs = self._fresh(last).log_ratios
        if len(pairs) >= self.plan.pairs or len(pairs) not in planned_looks(self.plan.pairs):
            return len(pairs) >= self.plan.pairs
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
        """What is known of one step; where the default breaks the limit, keeping it is the gain."""
        record = self._fresh(self.chain[index])
        if record.failures:
            return "failed"
        asked = self._gains(index, is_last=is_last)
        must_save = self.ledger.default_breaks_limit and not self.is_member
        looks, rounds = asked[0].looks, self.plan.rounds
        memory, loss = limit_answer(self.ledger, record, self.alpha, looks, rounds)
        gains = any(each.answer == "yes" for each in asked)
        missing: ProofAnswer = "over_limit"
        if memory == "yes" or (memory == "open" and loss == "no"):
            missing = "over_loss"
        if (memory == "no" and (gains or must_save)) or (loss == "no" and gains and not must_save):
            return missing
        if memory == "yes" and (must_save or (gains and loss == "yes")):
            return "proved" if gains and loss == "yes" else "kept"
        if not is_last:
            hopeless = self._hopeless(record, asked, is_gain_enough=must_save or gains)
            if hopeless or len(record.pairs) < self.plan.pairs:
                return hopeless
        return missing if must_save or gains else "out_of_time"

    def _hopeless(
        self, record: ArmRecord, asked: Sequence[Question], *, is_gain_enough: bool
    ) -> ProofAnswer | None:
        """Why even a lucky truth would not be proved with all planned pairs; None: it might be."""
        pairs, limit = len(asked[0].values), self.ledger.limit
        if pairs not in futile_counts(self.plan.pairs):
            return None
        if limit is not None and len(record.pairs) >= FUTILE_FROM:
            kept = limit.question(record.excesses, asked[0].looks, self.alpha)
            if kept.answer != "yes" and (not kept.values or kept.is_futile()):
                return "over_limit"
        if is_gain_enough:
            return None
        is_over = pairs >= self.plan.pairs
        return "futile" if is_over or all(each.is_futile() for each in asked) else None

    def _gains(self, index: int, *, is_last: bool) -> list[Question]:
        """Does a step add speed to the one before it, or to the default? A member: save memory?"""
        arm, first = self.chain[index], self.chain[0]
        asked = self._against_control(arm, is_last=is_last)
        if index:
            added = self.ledger.fresh_logs(self.chain[index - 1], arm, first)
            return [replace(asked, values=added)]
        gain = replace(asked, error=self.alpha, least=self.plan.floor)
        if not self.is_member:
            return [gain]
        savings = [each.log_ratio for each in self._fresh(first).savings]
        looks = Looks.due(len(savings), self.bench.least_pairs, self.plan.pairs, is_last=is_last)
        return [gain, Question(savings, looks, self.alpha, least=LEAST_SAVING)]

    def _against_control(self, arm: Arm, *, is_last: bool) -> Question:
        pairs = self._fresh(arm).log_ratios
        looks = Looks.due(len(pairs), self.bench.least_pairs, self.plan.pairs, is_last=is_last)
        prior = self.ledger.noise().spread(self.plan.rounds)
        return Question(pairs, looks, REPORTED_ERROR, prior=prior)

    def _fresh(self, arm: Arm) -> ArmRecord:
        return self.ledger.fresh(arm, self.chain[0])

    def proof(self, *, is_last: bool) -> Proof:
        answers = [answer or "out_of_time" for answer in self._answers(is_last=is_last)]
        if self.is_member:
            return self._of_member(answers[0], is_last=is_last)
        steps = tuple(
            Step(
                arm,
                before,
                answer,
                self._gains(index, is_last=is_last)[0].claimed(),
                self._against_control(arm, is_last=is_last).claimed(),
            )
            for index, (arm, before, answer) in enumerate(
                zip(self.chain, (self.control, *self.chain), answers, strict=False)
            )
        )
        proved = [step for step in steps if step.succeeded]
        last = proved[-1] if proved else steps[0]
        return Proof(last.arm, last.answer, last.total, steps)

    def _of_member(self, answer: ProofAnswer, *, is_last: bool) -> Proof:
        speed, saving = self._gains(0, is_last=is_last)
        seen, saved = speed.claimed(), saving.claimed()
        if answer == "proved" and (seen is None or saved is None):
            answer = "futile"  # no profile could say what it is
        return Proof(
            self.chain[0],
            answer,
            seen,
            memory=saved and saved.reciprocal,
            is_faster=speed.answer == "yes",
            is_saving=saving.answer == "yes",
        )

    def tell(self) -> None:
        answers = self._answers(is_last=False)
        index = next((n for n, each in enumerate(answers) if each is None), 0)
        pairs = self._gains(index, is_last=False)[0].values
        few = len(pairs) < 2
        self.bench.tell(
            "prove",
            fmean(pairs) if pairs else 0.0,
            math.inf if few else fixed_interval(pairs, REPORTED_ERROR).half_width,
            pairs=len(pairs),
            planned=self.plan.pairs,
            subject=difference(self.chain[index], (self.control, *self.chain)[index]),
        )


def limit_answer(
    ledger: Ledger, record: ArmRecord, error: float, looks: Looks, rounds: int
) -> tuple[Answer, Answer]:
    """Is the memory limit kept, and what may be lost of speed? Without a limit the answer is yes.

    `error`: of a yes; a no is no claim, and has the error of what is reported.
    """
    limit, loss = ledger.limit, ledger.max_loss
    memory = limit.question(record.excesses, looks, error).answer if limit else "yes"
    if loss is None:
        return memory, "yes"
    noises = (ledger.noises_on(part).on(ledger.machine) for part in range(len(record.each)))
    priors = [noise.spread(rounds) for noise in noises]
    lost = loss.questions(record.each, looks, error, priors)
    return memory, all_of(asked.answer for asked in lost)


# ---- what is told --------------------------------------------------------------------------------


def changed(arm: Arm, before: Arm) -> dict[str, Value]:
    """The parameters that an arm changes and another one does not; another allocator."""
    if arm.allocator != before.allocator:
        return {"allocator": arm.allocator, **arm.config}
    had = before.config
    return {name: value for name, value in arm.params if had.get(name) != value}


def difference(arm: Arm, before: Arm) -> str:
    if arm.allocator != before.allocator:
        return arm.text
    return " ".join(f"{name}={value}" for name, value in changed(arm, before).items())
