"""A profile's claim, measured again: fresh pairs of control and profile, on what it was tuned for.

How many pairs there will be is planned when the first of them has shown how long they take; they
are looked at three times, as every proof is (see `confirm.proof`). A claim is refuted when the
interval lies below the claimed one: a smaller gain is not the one that was promised. It holds when
the interval lies above MARGIN times the claimed lower end (a test of non-inferiority); that there
is a gain at all is a weaker answer, and is said as such. A profile that only promises to keep a
memory limit must be shown to keep it, and one that promises less memory to save at least MARGIN of
what was claimed.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hztune import trace_file
from hztune.blocks import Arm
from hztune.errors import OutOfTime, UsageError
from hztune.machine import Machine
from hztune.measure import Executor
from hztune.measure.executors import executor_for
from hztune.measure.program import Program
from hztune.profile import Profile
from hztune.progress import Reporter, StudyStatus
from hztune.quota import Quota
from hztune.rests import MemoryKind
from hztune.stats.intervals import LEAST_PLANNED, MOST_TIMES, Interval, fixed_interval
from hztune.stats.question import REPORTED_ERROR, Looks, Question
from hztune.study.bench import Budget, SystemClock, Workbench
from hztune.study.calibration import HEADROOM, PAIRS
from hztune.study.ledger import ArmRecord, Ledger
from hztune.study.limits import LossLimit, MemoryLimit, limits_of
from hztune.study.proof import difference
from hztune.workload import METRICS, WorkloadSpec, goal_of

VerifyAnswer = Literal["holds", "does not hold", "cannot tell"]

MARGIN = 0.5
"""Share of the claimed lower end, in log units, that must be shown again.

To show the lower end itself again takes more pairs than the claim had, even where the true gain is
in the middle of the claimed interval.
"""

_NOT_SLOWER = "nothing shows that it is slower than was stated"

_LONGER = 3.0
"""Times the budget that is advised at least: few pairs often show more gain than there is."""

_PROBABLY = 1.8
"""Times the pairs with which an end of the interval lies at the margin in half of all cases: with
so many it does in three of four, ((1.96 + 0.67) / 1.96)^2, if the estimate is right."""

_LEAST_BUDGET_S = 0.5
_MOST_BUDGET_S = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class Verification:
    """What measuring a claim again has shown.

    Attributes:
        answer: In words.
        why: The reason, in one sentence.
        interval: 95 % interval of the log ratio here; None: too few pairs.
        rss_ratio: Peak memory, profile / control; None: not measured.
        kept_ratio: The same of what is kept at rest.
    """

    answer: VerifyAnswer
    why: str
    interval: Interval | None
    rss_ratio: float | None
    kept_ratio: float | None = None

    @property
    def measured(self) -> dict[str, float | int | None]:
        """The ratio, the ends of its interval, and the pairs, named as in a profile's claim."""
        ratio, low, high = self.interval.ratio if self.interval else (None, None, None)
        pairs = self.interval.pairs if self.interval else 0
        return {"ratio": ratio, "ci_low": low, "ci_high": high, "pairs": pairs}


@dataclass(frozen=True, slots=True)
class Promise:
    """What a profile promises, in log units.

    Attributes:
        control: What its ratio is to.
        arm: The configuration.
        low: Lower end of the claimed interval.
        limit: The memory limit that it keeps; None: there is none.
        max_loss: What each of several workloads may lose; None: there is one only.
        is_gain: Whether it promises to be better, not only to keep the limit.
        memory: Upper end of the claimed interval of its log ratio of peak memory, where less memory
            is what it promises; None: it promises something else.
        weighed: Which memory that is.
    """

    control: Arm
    arm: Arm
    low: float
    limit: MemoryLimit | None
    is_gain: bool
    max_loss: LossLimit | None = None
    memory: float | None = None
    weighed: MemoryKind = "rss"

    @classmethod
    def of(cls, tuned: Profile) -> Promise:
        """The promise of a profile that makes one.

        Raises:
            UsageError: It makes none, so that there is nothing to verify.
        """
        if not tuned.makes_a_claim or tuned.claim.ci_low is None:
            raise UsageError(f"there is nothing to verify: the verdict is {tuned.claim.verdict}")
        limit, max_loss = limits_of(tuned.objective.limits)
        memory = tuned.claim.memory if tuned.claim.verdict == "less_memory" else None
        return cls(
            control=Arm(tuned.objective.control or tuned.allocator.name),
            arm=Arm.of(tuned.allocator.name, tuned.params),
            low=math.log(tuned.claim.ci_low),
            limit=limit,
            is_gain=tuned.claim.verdict == "improved",
            max_loss=max_loss,
            memory=math.log(memory.ci_high) if memory else None,
            weighed=tuned.claim.memory.of if tuned.claim.memory else "rss",
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
        """Where the pairs that judge it are entered."""
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
    """Measures the claim of a profile again.

    Args:
        tuned: The profile.
        programs: The programs that it was made for; empty: it was made for workloads.
        budget_s: Seconds for it.
        seed: Of every random choice.
        reporter: Is told how it goes.
        traces: Where the traces stand that it was made for; those that are missing are looked for
            by name in the present folder.

    Raises:
        UsageError: It makes no claim, or was made for something else, or there is no time;
            nothing was measured.
        HztuneError: The control does not run.
    """
    if not _LEAST_BUDGET_S <= budget_s <= _MOST_BUDGET_S:
        raise UsageError(
            f"--budget is {budget_s:g} s; legal is from {_LEAST_BUDGET_S:g} s to 7 days"
        )
    promise = Promise.of(tuned)
    if programs and traces:
        raise UsageError("--trace and a program after -- exclude each other; give one of them")
    executor = _on(programs, tuned, seed) if programs else _on_workload(tuned, seed, traces)
    budget = Budget(SystemClock(), budget_s)
    return measure(promise, Workbench(executor, promise.ledger(), budget, reporter))


def _on_workload(tuned: Profile, seed: int, traces: Sequence[Path]) -> Executor:
    """What measures the workload of a profile, or all of several together."""
    if tuned.workload.kind == "program":
        if tuned.shares:
            raise UsageError(_each_command(tuned))
        raise UsageError(
            f"the profile was made for the program {tuned.workload.name}: "
            "give its command again after --"
        )
    goal = goal_of(tuned.objective.metric)
    texts = _placed_texts(tuned, traces)
    specs = [
        WorkloadSpec.from_text(
            text,
            [f"{k}={v}" for k, v in of.params.items()],
            None if trace_file.is_trace(text) else tuned.threads,
        )
        for text, of in zip(texts, tuned.workloads, strict=True)
    ]
    rest = tuned.objective.rest
    specs = [(spec if rest is None else spec.resting(rest)).by(goal) for spec in specs]
    if (quota := tuned.objective.quota) is not None:
        specs = [spec.within(quota) for spec in specs]
    for spec in specs:
        spec.check()
    return executor_for(specs, seed=seed, machine=Machine.here(), processes=2)


def _placed_texts(tuned: Profile, traces: Sequence[Path]) -> list[str]:
    """The workloads of a profile as a command line names them, traces by where they stand here."""
    known = {trace_file.find(f"{trace_file.PREFIX}{path}") for path in traces}
    by_digest = {each.digest: each for each in known}
    texts = [of.text for of in tuned.workloads]
    wanted = {of.setting for of in tuned.workloads if trace_file.is_trace(of.name)}
    if others := [each for each in known if each.digest not in wanted]:
        made_for = " and ".join(texts)
        raise UsageError(
            f"--trace {others[0].path.name}: its SHA-256 begins with {others[0].digest}, and the "
            f"profile was made for {made_for}"
        )
    return [
        f"{trace_file.PREFIX}{by_digest[of.setting].path}" if of.setting in by_digest else text
        for text, of in zip(texts, tuned.workloads, strict=True)
    ]


def _each_command(tuned: Profile) -> str:
    """How to name the programs of a profile that was made for several."""
    names = " ".join(f"--command {of.name}='...'" for of in tuned.workloads)
    return f"the profile was made for several commands; give each again: {names}"


def _on(programs: Sequence[Program], tuned: Profile, seed: int) -> Executor:
    """What measures the programs that a profile was made for."""
    of = tuned.workload
    if of.kind == "bench":
        raise UsageError(
            f"the profile was made for the workload {of.name}, not for a program; "
            "leave the program out, or use `hztune compare`"
        )
    named = {program.label: program for program in programs}
    if tuned.shares and set(named) != {each.name for each in tuned.workloads}:
        raise UsageError(_each_command(tuned))
    if not tuned.shares and len(programs) > 1:
        raise UsageError(f"the profile was made for one program, {of.name}; give it after --")
    chosen = [named[each.name] for each in tuned.workloads] if tuned.shares else list(programs)
    if (chosen[0].rate is not None) != (tuned.objective.metric == "metric"):
        raise UsageError(
            f"the profile's ratio is one of {tuned.objective.metric}; "
            "give the same --metric-regex or --metric-cmd as for tuning, or none"
        )
    for word in (program.argv[0] for program in chosen):
        if shutil.which(word) is None:
            raise UsageError(f"there is no program {word!r}; give a path, or a name in PATH")
    if (rest := tuned.objective.rest) is not None:
        seeks_kept = tuned.objective.metric == METRICS["kept"]
        chosen = [replace(each.resting(rest), seeks_kept=seeks_kept) for each in chosen]
    chosen = [replace(each, quota=_same_quota(each, tuned)) for each in chosen]
    inside = [tuned.allocator.as_installed()] if tuned.adapter.is_inside else []
    return executor_for(chosen, seed=seed, machine=Machine.here(), inside=inside)


def _same_quota(program: Program, tuned: Profile) -> Quota | None:
    """The container of the claim, in which it is measured again."""
    proved = tuned.objective.quota
    if program.quota is not None and program.quota != proved:
        where = f"in {proved.text}" if proved is not None else "without a container"
        raise UsageError(
            f"the profile was proved {where}, and {' '.join(program.quota.options)} was given; "
            "leave these options out, or compare there: hztune compare none PROFILE "
            f"{' '.join(program.quota.options)} -- ..."
        )
    return proved


def measure(promise: Promise, bench: Workbench) -> Verification:
    """Measures fresh pairs until a look has judged the claim, all are there, or time is up.

    Args:
        promise: What to judge; `bench.ledger` has its memory limit.
        bench: Where pairs are measured.

    Raises:
        HztuneError: The control does not run, so that nothing can be compared with it.
    """
    with bench.budget.running():
        with suppress(OutOfTime):  # then it is late, too
            bench.executor.prepare(promise.control)
        return _measured(promise, bench)


def _measured(promise: Promise, bench: Workbench) -> Verification:
    planned, budget, arms = 0, bench.budget, [promise.control, promise.arm]
    while True:
        record = bench.ledger.fresh(promise.arm)
        pairs, logs = len(record.pairs), record.log_ratios
        if not planned:
            rounds = bench.rounds(2, budget.total_s / PAIRS)
            cost_s = bench.executor.cost(2, rounds)
        if not planned and bench.ledger.blocks:
            planned = max(LEAST_PLANNED, pairs + int(budget.left() / cost_s))
        cost_s = bench.executor.cost(2, rounds)
        is_late = not budget.allows(cost_s)
        looks = Looks.due(pairs, LEAST_PLANNED, planned, is_last=is_late)
        finding = verification(promise, record, looks)
        if finding.answer != "cannot tell":
            return finding
        if is_late or (planned and pairs >= planned):
            why = f"{finding.why}; {_more_time(promise, record, looks, budget, cost_s)}"
            seen = finding.interval or (fixed_interval(logs) if len(logs) > 1 else None)
            return replace(finding, why=why, interval=seen)
        with suppress(OutOfTime):
            bench.measure(arms, "confirm", rounds)
        record = bench.ledger.fresh(promise.arm)
        logs = record.log_ratios
        bench.reporter.update(
            StudyStatus(
                phase="verify",
                trials=len(logs),
                failed=len(record.failures),
                best=sum(logs) / max(1, len(logs)),
                error=fixed_interval(logs).half_width if logs else math.inf,
                floor=0.0,
                left_s=budget.left(),
                share=budget.elapsed() / budget.total_s,
                pairs=len(logs),
                planned=planned,
                subject=difference(promise.arm, promise.control),
            )
        )


def verification(promise: Promise, record: ArmRecord, looks: Looks) -> Verification:
    """What the pairs so far say; an early "holds" needs an estimate within the claim.

    Args:
        promise: What to judge.
        record: The fresh pairs.
        looks: That were due so far; between two of them only a failure is told.
    """
    is_due = bool(looks.counts) and looks.counts[-1] == len(record.pairs)
    looks = looks.newest()
    interval = _newest(promise.gain(record, looks)) if is_due else None

    def finding(answer: VerifyAnswer, why: str) -> Verification:
        return Verification(answer, why, interval, record.rss_ratio, record.kept_ratio)

    if record.failures:
        failure = record.failures[0]
        why = f"the configuration does not run here ({failure.status}: {failure.detail})"
        return finding("does not hold", why)
    if interval is None:
        return finding("cannot tell", f"too few pairs ({len(record.pairs)})")
    for asked, words in _refuting(promise, record, interval, looks):
        if asked.answer == "no":
            return finding("does not hold", words)
    asked, words = _supporting(promise, record, looks)
    is_last = looks.is_last or len(record.pairs) >= looks.planned
    if (is_last or interval.estimate >= promise.low) and asked.answer == "yes":
        return finding("holds", words)
    return finding("cannot tell", _weaker(promise, record, interval, looks))


def _newest(asked: Question) -> Interval:
    """What the newest look sees; infinitely wide where there are no values."""
    seen = asked.seen(REPORTED_ERROR)
    return seen[-1] if seen else Interval(0.0, -math.inf, math.inf, 0)


def _more_time(
    promise: Promise, record: ArmRecord, looks: Looks, budget: Budget, cost_s: float
) -> str:
    """What is told of the time that an answer would take.

    About as many times as many pairs as exclude one of two: that the claim is true, or not.
    """
    least_s, spent_s = _LONGER * budget.total_s, budget.elapsed()
    if not looks.counts:
        needed_s = spent_s + HEADROOM * (LEAST_PLANNED - len(record.pairs)) * cost_s
        seconds = math.ceil(max(least_s, needed_s))
        return f"{LEAST_PLANNED} are the least: give --budget {seconds}s or more"
    claim, least = promise.claim(record, looks), _supporting(promise, record, looks)[0]
    interval = _newest(claim)
    farther = max(abs(interval.estimate - end) for end in (claim.margin, least.margin))
    times = _PROBABLY * interval.times_for(farther)
    enough_s = max(least_s, times * spent_s)
    if times > MOST_TIMES or enough_s > _MOST_BUDGET_S:
        return "it is too close to decide in a reasonable time"
    return f"--budget {math.ceil(enough_s)}s would probably tell"


def _refuting(
    promise: Promise, record: ArmRecord, interval: Interval, looks: Looks
) -> Iterator[tuple[Question, str]]:
    """Yields what refutes the claim if its answer is no, with the words for that."""
    limit, loss = promise.limit, promise.max_loss
    if limit is not None:
        over = f"it takes more than {limit.words}"
        yield limit.question(record.excesses, looks, REPORTED_ERROR), over
    if loss is not None:
        what = "its load" if loss.of_load else "one of its workloads"
        priors = [None] * len(record.each)
        for each in loss.questions(record.each, looks, REPORTED_ERROR, priors):
            yield each, f"{what} loses more than {loss.text} of speed"
    if promise.memory is not None:
        yield promise.claim(record, looks), "it saves less memory than was claimed"
    words = "the gain is smaller than was claimed" if promise.is_gain else "it is slower"
    if interval.low <= 0.0 and promise.is_gain:
        there_is_less = interval.high > 0.0
        words = "there is no such gain" if there_is_less else "it is slower than the control"
    yield promise.gain(record, looks), words


def _supporting(promise: Promise, record: ArmRecord, looks: Looks) -> tuple[Question, str]:
    """What shows that the claim is true if its answer is yes, with the words for that."""
    claim = promise.claim(record, looks)
    asked = replace(claim, margin=MARGIN * max(0.0, claim.margin))
    if promise.is_gain:
        why = f"the gain is there, and as large as was claimed: above {_half(promise.low)}"
        if promise.max_loss is not None:
            what = "its load is not" if promise.max_loss.of_load else "no workload is"
            why += f"; {what} shown to lose more than {promise.max_loss.text}"
        return asked, why
    if promise.memory is not None:
        why = f"it takes less memory, as much less as was claimed: below {_half(promise.memory)}"
        return asked, f"{why}; {_NOT_SLOWER}"
    return claim, f"the memory limit is kept; {_NOT_SLOWER}"


def _half(end: float) -> str:
    """How a sentence names the margin; `end` is that of the claimed interval, in log units."""
    return f"{math.exp(MARGIN * end):.3f}x, half of the claimed {math.exp(end):.3f}x"


def _weaker(promise: Promise, record: ArmRecord, interval: Interval, looks: Looks) -> str:
    """What is shown of a claim that is neither shown to be true nor refuted."""
    pairs = f"{interval.pairs} pairs"
    if promise.is_gain and interval.low > 0.0:
        return f"the gain is there, but {pairs} do not show that it is as large as was claimed"
    if promise.memory is not None and _newest(promise.claim(record, looks)).low > 0.0:
        return f"it takes less memory, but {pairs} do not show that it saves as much as was claimed"
    return f"{pairs} leave it open"
