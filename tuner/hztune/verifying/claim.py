"""A profile's claim, measured again: fresh pairs of control and profile, on what it was tuned for.

How many pairs there will be is planned when the first of them has shown how long they take; they
are looked at three times, as every proof is. A claim is refuted when the interval lies below the
claimed one: a smaller gain is not the one that was promised. It holds when the interval lies above
MARGIN times the claimed lower end (a test of non-inferiority); that there is a gain at all is a
weaker answer, and is said as such. A profile that only promises to keep a memory limit must be
shown to keep it, and one that promises less memory to save at least MARGIN of what was claimed.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hztune.arguments import within
from hztune.blocks import MAY_BE_CHANCE, Arm
from hztune.errors import OutOfTime, UsageError
from hztune.machine import Machine
from hztune.measure.executors import executor_for
from hztune.measure.program import Program
from hztune.profile import Profile
from hztune.progress import Reporter
from hztune.rests import MemoryKind
from hztune.stats.intervals import (
    LEAST_PLANNED,
    MOST_TIMES,
    REPORTED_ERROR,
    Interval,
    Looks,
    Question,
    fixed_interval,
    ratio_json,
)
from hztune.study.bench import Budget, Wanted, Workbench, system_clock
from hztune.study.calibration import HEADROOM, PAIRS
from hztune.study.ledger import ArmRecord, Ledger
from hztune.study.limits import LossLimit, MemoryLimit, limits_of
from hztune.study.proof import difference
from hztune.workload import METRICS, TRACE, WorkloadSpec, find_trace, goal_of, is_trace

VerifyAnswer = Literal["holds", "does not hold", "cannot tell"]

MARGIN = 0.5
"""Share of the claimed lower end, in log units, that must be shown again: to show all of it takes
more pairs than the claim had, even where the true gain is in the middle of its interval."""

_NOT_SLOWER = "nothing shows that it is slower than was stated"

_LONGER = 3.0  # times the budget that is advised at least: few pairs often show too much gain

_PROBABLY = 1.8
"""Times the pairs with which an end of the interval lies at the margin in half of all cases: with
so many it does in three of four, ((1.96 + 0.67) / 1.96)^2, if the estimate is right."""

_LEAST_BUDGET_S = 0.5
_MOST_BUDGET_S = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class Verification:
    answer: VerifyAnswer
    why: str  # in one sentence
    interval: Interval | None  # 95 %, of the log ratio here; None: too few pairs
    rss_ratio: float | None  # peak memory, profile / control; None: not measured
    kept_ratio: float | None = None  # the same of what is kept at rest

    @property
    def measured(self) -> dict[str, float | int | None]:
        return ratio_json(self.interval)


@dataclass(frozen=True, slots=True)
class Promise:
    """What a profile promises, in log units."""

    control: Arm
    arm: Arm
    low: float  # lower end of the claimed interval
    limit: MemoryLimit | None
    is_gain: bool  # whether it promises to be better, not only to keep the limit
    max_loss: LossLimit | None = None  # what each of several workloads may lose, or the load
    memory: float | None = None  # where it promises less memory, the upper end of that interval
    weighed: MemoryKind = "rss"  # which memory that is

    @classmethod
    def of(cls, tuned: Profile) -> Promise:
        """The promise of a profile; UsageError: it makes none."""
        claim = tuned.claim
        if not tuned.makes_a_claim or claim.ci_low is None:
            raise UsageError(f"there is nothing to verify: the verdict is {claim.verdict}")
        limit, max_loss = limits_of(tuned.objective.limits)
        is_less = claim.verdict == "less_memory" and claim.memory is not None
        return cls(
            Arm(tuned.objective.control or tuned.allocator.name),
            tuned.arm,
            math.log(claim.ci_low),
            limit,
            claim.verdict == "improved",
            max_loss,
            math.log(claim.memory.ci_high) if is_less and claim.memory else None,
            claim.memory.of if claim.memory else "rss",
        )

    def gain(self, record: ArmRecord, looks: Looks) -> Question:
        """Is it as fast as was claimed? A no refutes it."""
        logs = record.log_ratios
        return Question(logs, looks, REPORTED_ERROR, margin=self.low, refusal=REPORTED_ERROR)

    def claim(self, record: ArmRecord, looks: Looks) -> Question:
        """Is what it promises true, to the claimed end: a gain, less memory, a limit kept?"""
        if self.is_gain:
            return self.gain(record, looks)
        if self.memory is not None:
            less = [-each for each in record.memory]
            return replace(self.gain(record, looks), values=less, margin=-self.memory)
        assert self.limit is not None  # or it would promise nothing
        return self.limit.question(record.excesses, looks, REPORTED_ERROR)

    def ledger(self) -> Ledger:
        of_load = self.max_loss if self.max_loss and self.max_loss.of_load else None
        return Ledger(self.limit, of_load, memory=self.weighed)


def verify(
    tuned: Profile,
    programs: Sequence[Program],
    budget_s: float,
    seed: int,
    reporter: Reporter,
    traces: Sequence[Path] = (),
) -> Verification:
    """Measures the claim of a profile again; see `api.verify`."""
    within("--budget", budget_s, _LEAST_BUDGET_S, _MOST_BUDGET_S)
    promise = Promise.of(tuned)
    inside = [tuned.allocator.as_installed()] if tuned.adapter.is_inside else []
    executor = executor_for(
        targets(tuned, programs, traces),
        seed=seed,
        machine=Machine.here(),
        processes=2,
        inside=inside,
    )
    budget = Budget(system_clock, budget_s)
    return measure(promise, Workbench(executor, promise.ledger(), budget, reporter))


# ---- on what -------------------------------------------------------------------------------------


def targets(
    tuned: Profile, programs: Sequence[Program], traces: Sequence[Path] = ()
) -> list[Program | WorkloadSpec]:
    """What a claim is measured on: programs that are given again, or the profile's workloads."""
    if programs and traces:
        raise UsageError("--trace and a program after -- exclude each other; give one of them")
    of = tuned.workload
    if not programs and of.kind == "bench":
        return [*_workloads(tuned, traces)]
    if of.kind == "bench":
        raise UsageError(
            f"the profile was made for the workload {of.name}, not for a program; "
            "leave the program out, or use `hztune compare`"
        )
    named = {program.label: program for program in programs}
    if tuned.shares and {*named} != {each.name for each in tuned.workloads}:
        names = " ".join(f"--command {each.name}='...'" for each in tuned.workloads)
        raise UsageError(f"the profile was made for several commands; give each again: {names}")
    if not tuned.shares and len(programs) != 1:
        raise UsageError(
            f"the profile was made for the program {of.name}: give its command again after --"
        )
    chosen = [named[each.name] for each in tuned.workloads] if tuned.shares else programs
    return [_as_proved(each, tuned) for each in chosen]


def _as_proved(program: Program, tuned: Profile) -> Program:
    goal = tuned.objective
    if (program.rate is not None) != (goal.metric == "metric"):
        raise UsageError(
            f"the profile's ratio is one of {goal.metric}; "
            "give the same --metric-regex or --metric-cmd as for tuning, or none"
        )
    if program.quota is not None and program.quota != goal.quota:
        where = f"in {goal.quota.text}" if goal.quota is not None else "without a container"
        options = " ".join(program.quota.options)
        raise UsageError(
            f"the profile was proved {where}, and {options} was given; leave these options out, "
            f"or compare there: hztune compare none PROFILE {options} -- ..."
        )
    if program.call is None and shutil.which(program.argv[0]) is None:
        raise UsageError(f"there is no program {program.argv[0]!r}; give a path, or a name in PATH")
    if goal.rest is not None:
        seeks_kept = goal.metric == METRICS["kept"]
        program = replace(program.resting(goal.rest), seeks_kept=seeks_kept)
    return replace(program, quota=goal.quota)


def _workloads(tuned: Profile, traces: Sequence[Path]) -> list[WorkloadSpec]:
    """The workloads of a profile; a trace is where it was named, or where its text says."""
    known = [find_trace(f"{TRACE}{path}") for path in traces]
    wanted = {of.setting for of in tuned.workloads if is_trace(of.name)}
    if others := [each for each in known if each.digest not in wanted]:
        made_for = " and ".join(of.text for of in tuned.workloads)
        raise UsageError(
            f"--trace {others[0].path.name}: its SHA-256 begins with {others[0].digest}, and the "
            f"profile was made for {made_for}"
        )
    placed = {each.digest: f"{TRACE}{each.path}" for each in known}
    goal, rest, quota = (
        goal_of(tuned.objective.metric), tuned.objective.rest, tuned.objective.quota
    )  # fmt: skip
    specs = []
    for of in tuned.workloads:
        text, params = placed.get(of.setting, of.text), [f"{k}={v}" for k, v in of.params.items()]
        threads = None if is_trace(text) else tuned.threads
        spec = WorkloadSpec.from_text(text, params, threads)
        spec = (spec if rest is None else spec.resting(rest)).by(goal)
        specs.append(spec if quota is None else spec.within(quota))
        specs[-1].check()
    return specs


# ---- measuring -----------------------------------------------------------------------------------


@dataclass(eq=False)
class _Recheck:
    """A claim while it is measured again; see `bench.Inquiry`."""

    promise: Promise
    bench: Workbench
    rounds: int = 1
    planned: int = 0  # pairs; 0: it is not known yet how long they take

    @property
    def record(self) -> ArmRecord:
        return self.bench.ledger.fresh(self.promise.arm)

    def wanted(self) -> Wanted | None:
        budget, pairs = self.bench.budget, len(self.record.pairs)
        if not self.planned:
            self.rounds = self.bench.rounds(2, budget.total_s / PAIRS)
            if self.bench.ledger.blocks:
                cost_s = self.bench.executor.cost(2, self.rounds) or math.inf  # it never ran
                self.planned = max(LEAST_PLANNED, pairs + int(budget.left() / cost_s))
        is_told = verification(self.promise, self.record, self.looks()).answer != "cannot tell"
        if is_told or 0 < self.planned <= pairs:
            return None
        return Wanted((self.promise.control, self.promise.arm), "confirm", self.rounds)

    def looks(self, *, is_last: bool = False) -> Looks:
        return Looks.due(len(self.record.pairs), LEAST_PLANNED, self.planned, is_last=is_last)

    def tell(self) -> None:
        if logs := self.record.log_ratios:
            seen, promise = fixed_interval(logs), self.promise
            self.bench.tell("verify", seen.estimate, seen.half_width, pairs=len(logs),
                            planned=self.planned,
                            subject=difference(promise.arm, promise.control))  # fmt: skip


def measure(promise: Promise, bench: Workbench) -> Verification:
    """Measures fresh pairs until a look has judged the claim, all are there, or time is up."""
    again = _Recheck(promise, bench)
    with bench.budget.running():
        with suppress(OutOfTime):  # then it is late, too
            bench.executor.prepare(promise.control)
        looks = again.looks(is_last=bool(bench.unanswered([again], bench.budget.total_s)))
    record = again.record
    finding = verification(promise, record, looks)
    if finding.answer != "cannot tell":
        return finding
    why = f"{finding.why}; {_more_time(again, looks)}"
    logs = record.log_ratios
    seen = finding.interval or (fixed_interval(logs) if len(logs) > 1 else None)
    return replace(finding, why=why, interval=seen)


def _more_time(again: _Recheck, looks: Looks) -> str:
    """The time that an answer would take: for pairs that exclude that the claim is true, or not."""
    promise, record, budget = again.promise, again.record, again.bench.budget
    least_s, spent_s = _LONGER * budget.total_s, budget.elapsed()
    if not looks.counts:
        cost_s = again.bench.executor.cost(2, again.rounds)
        needed_s = spent_s + HEADROOM * (LEAST_PLANNED - len(record.pairs)) * cost_s
        seconds = math.ceil(max(least_s, needed_s))
        return f"{LEAST_PLANNED} are the least: give --budget {seconds}s or more"
    claim, (least, *_) = promise.claim(record, looks), _supporting(promise, record, looks)
    seen = _newest(claim)
    farther = max(abs(seen.estimate - end) for end in (claim.margin, least.margin))
    times = _PROBABLY * seen.times_for(farther)
    enough_s = max(least_s, times * spent_s)
    if times > MOST_TIMES or enough_s > _MOST_BUDGET_S:
        return "it is too close to decide in a reasonable time"
    return f"--budget {math.ceil(enough_s)}s would probably tell"


# ---- judging -------------------------------------------------------------------------------------


def verification(promise: Promise, record: ArmRecord, looks: Looks) -> Verification:
    is_due = bool(looks.counts) and looks.counts[-1] == len(record.pairs)
    interval = _newest(promise.gain(record, looks.newest())) if is_due else None
    answer, why = _judged(promise, record, looks.newest(), interval)
    return Verification(answer, why, interval, record.ratio_of("rss"), record.ratio_of("kept"))


def _judged(
    promise: Promise, record: ArmRecord, looks: Looks, interval: Interval | None
) -> tuple[VerifyAnswer, str]:
    failed, of = record.failures, len(record.failures) + len(record.pairs)
    if failed and (failed[0].status not in MAY_BE_CHANCE or 3 <= len(failed) > of / 2):
        return "does not hold", f"the configuration does not run here ({failed[0].words})"
    if failed:
        return "cannot tell", f"it failed in {len(failed)} of {of} pairs ({failed[0].words})"
    if interval is None:
        return "cannot tell", f"too few pairs ({len(record.pairs)})"
    for question, words in _refuting(promise, record, interval, looks):
        if question.answer == "no":
            return "does not hold", words
    asked, shown, weaker = _supporting(promise, record, looks)
    is_last = looks.is_last or len(record.pairs) >= looks.planned
    if (is_last or interval.estimate >= promise.low) and asked.answer == "yes":
        return "holds", shown
    pairs = f"{interval.pairs} pairs"
    if weaker and _newest(asked).low > 0.0:
        return "cannot tell", weaker.format(pairs)
    return "cannot tell", f"{pairs} leave it open"


def _newest(asked: Question) -> Interval:
    """What the newest look sees; infinitely wide where there are no values."""
    seen = asked.seen(REPORTED_ERROR)
    return seen[-1] if seen else Interval(0.0, -math.inf, math.inf, 0)


def _refuting(
    promise: Promise, record: ArmRecord, interval: Interval, looks: Looks
) -> list[tuple[Question, str]]:
    """What refutes the claim if its answer is no, with the words for that."""
    limit, loss, found = promise.limit, promise.max_loss, []
    if limit is not None:
        kept = limit.question(record.excesses, looks, REPORTED_ERROR)
        found.append((kept, f"it takes more than {limit.words}"))
    if loss is not None:
        what = "its load" if loss.of_load else "one of its workloads"
        words = f"{what} loses more than {loss.text} of speed"
        priors = [None] * len(record.each)
        each = loss.questions(record.each, looks, REPORTED_ERROR, priors)
        found += [(one, words) for one in each]
    if promise.memory is not None:
        found.append((promise.claim(record, looks), "it saves less memory than was claimed"))
    words = "the gain is smaller than was claimed" if promise.is_gain else "it is slower"
    if interval.low <= 0.0 and promise.is_gain:
        there_is_less = interval.high > 0.0
        words = "there is no such gain" if there_is_less else "it is slower than the control"
    return [*found, (promise.gain(record, looks), words)]


def _supporting(promise: Promise, record: ArmRecord, looks: Looks) -> tuple[Question, str, str]:
    """What shows the claim if its answer is yes, the words for that, and those for less."""
    claim = promise.claim(record, looks)
    asked = replace(claim, margin=MARGIN * max(0.0, claim.margin))
    if promise.is_gain:
        why = f"the gain is there, and as large as was claimed: above {_half(promise.low)}"
        if promise.max_loss is not None:
            what = "its load is not" if promise.max_loss.of_load else "no workload is"
            why += f"; {what} shown to lose more than {promise.max_loss.text}"
        less = "the gain is there, but {} do not show that it is as large as was claimed"
        return asked, why, less
    if promise.memory is not None:
        why = f"it takes less memory, as much less as was claimed: below {_half(promise.memory)}"
        less = "it takes less memory, but {} do not show that it saves as much as was claimed"
        return asked, f"{why}; {_NOT_SLOWER}", less
    return asked, f"the memory limit is kept; {_NOT_SLOWER}", ""


def _half(end: float) -> str:
    """How a sentence names the margin; `end` is that of the claimed interval, in log units."""
    return f"{math.exp(MARGIN * end):.3f}x, half of the claimed {math.exp(end):.3f}x"
