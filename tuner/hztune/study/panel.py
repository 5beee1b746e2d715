"""The panel: what a winner does to programs that it was not tuned for, and which step does it.

Harm is found by pairs of the winner and the control. The test is one of non-inferiority: a loss
within a margin is none. Harm is claimed only where the estimate is beyond the margin and the 95 %
interval excludes "no difference"; a workload is safe where the interval excludes more than the
margin; else nothing is said. A warning that might be noise teaches users to ignore all warnings.
The intervals hold at every scheduled look together, see `stats.intervals`; what one look has shown
stays shown.

On a workload with harm, the shorter configurations of the proved chain are measured likewise, the
longest first: where one is safe, the step behind it harms. What the profile emits ends before that
step, which is a proved gain by itself, unless the step is worth its place, or is the first; then it
stays, and a line says what it does. A decision is a function of the ledger, so that an examination
that was interrupted goes on with its next block.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal

from hztune.blocks import Arm, Block, Outcome, Role
from hztune.errors import HztuneError, StoppedByUser
from hztune.machine import Machine
from hztune.measure import Accounting, Around, WorkloadSink
from hztune.measure.executors import executor_for
from hztune.profile import Caution
from hztune.stats.intervals import (
    Interval,
    critical_values,
    normal_tail,
    t_quantile,
)
from hztune.stats.ratios import log_memory_ratio, pair_ratio
from hztune.store import Nowhere, Sink
from hztune.study.bench import Wanted, Workbench
from hztune.study.counters import Pair
from hztune.study.proof import Step
from hztune.workload import WorkloadSpec

SPEED_MARGIN = -math.log(0.95)  # log loss of speed that is none: 5 %, as of a fresh build

MEMORY_MARGIN = math.log(1.25)  # log growth of peak memory that is none: 25 %, as of rounded sizes

LEAST_EXTRA_KB = 4096.0  # growth of peak memory that is none: what an allocator has for itself

LOOKS = (3, 5, 8, 13, 20)
"""Pairs at which a workload may be judged: harm that matters is large, and shows in few."""

ERROR = 0.05

WORTH = SPEED_MARGIN
"""Log gain on the user's own workload above which a step stays: a loss as large is called harm."""

MOST_VOID = 2  # blocks in which the control failed, after which a workload is given up

_RUN_S = 0.1  # length of a run of burst-idle: a dozen bursts

_TIMEOUT_S = 5.0  # a run of it hangs then; else a winner that hangs would cost ten minutes

_TURNS = 8  # of a process: its start and warm-up take about as long as they do

_THREADS = 2

WORKLOADS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("large", "programs with large blocks", ()),
    ("burst-idle", "programs that allocate in bursts", ("idle=0",)),
    ("mstress", "programs with blocks of many sizes and ages", ()),
)
"""Name, the programs that it stands for, parameters. Harm by allocators was seen there: pages that
are faulted in again, memory that is given back at each burst, heaps that fragment."""

State = Literal["harmed", "safe", "open"]
What = Literal["speed", "memory", "failure"]

MARGINS: dict[What, float] = {"speed": SPEED_MARGIN, "memory": MEMORY_MARGIN}


# ---- what measures -------------------------------------------------------------------------------


@dataclass
class PanelExecutor(Around):
    workload: str  # as blocks and samples call it
    phrase: str  # the kind of programs that it stands for, behind the word "on"
    rounds: int = _TURNS  # turns or runs of each process

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        """Measures a block; see `Executor.measure`.

        Where the measuring itself fails, the block says so of every arm: the winner is proved, and
        a strange workload that cannot be measured must not cost the study its answer.
        """
        try:
            block = self.inner.measure(arms, role=role, rounds=rounds, number=number)
        except StoppedByUser:
            raise
        except HztuneError as error:
            block = Block(number, role, tuple(Outcome(arm, "failed", str(error)) for arm in arms))
        return replace(block, workload=self.workload)


def make(
    sink: Sink | None, *, seed: int, machine: Machine, threads: int, tuned: Collection[str]
) -> tuple[PanelExecutor, ...]:
    """Makes what measures the panel, but for tuned workloads; `threads` 0: the program decides."""
    count = max(1, min(threads or _THREADS, len(os.sched_getaffinity(0))))
    made = []
    for name, phrase, params in WORKLOADS:
        if name not in tuned:
            spec = WorkloadSpec.from_text(name, params, count)
            inner = executor_for(
                [spec],
                WorkloadSink(sink or Nowhere(), name),
                seed=seed,
                machine=machine,
                processes=2,
                run_s=_RUN_S,
                timeout_s=_TIMEOUT_S,
            )
            made.append(PanelExecutor(inner, name, phrase, _TURNS if spec.steady else 1))
    return tuple(made)


# ---- what pairs show -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Harm:
    what: What
    workload: str
    phrase: str
    interval: Interval | None = None  # of the log ratio, winner / control; None of a failure
    step: Step | None = None  # of the winner's chain, that does it; None: not found

    @property
    def caution(self) -> Caution:
        ratio, low, high = self.interval.ratio if self.interval else (None, None, None)
        step = self.step
        params = {name: step.arm.config[name] for name in step.added} if step else {}
        return Caution(self.what, self.phrase, self.workload, params, ratio, low, high)


@dataclass(frozen=True, slots=True)
class Seen:
    workload: str
    phrase: str
    state: State
    speed: Interval | None = None  # 95 %, of its log ratio to the control; None: too few pairs
    memory: Interval | None = None  # the same of peak memory; above 0 it takes more
    failure: str = ""  # how a process of it failed
    missing: str = ""  # why nothing was measured
    harms: tuple[Harm, ...] = ()


def seen_in(
    blocks: Sequence[Block], arm: Arm, workload: str, phrase: str, *, is_last: bool
) -> Seen:
    """Judges the pairs of a configuration with the control, which stand in order of time.

    Where the control failed, too, the configuration is blamed only if it fails more often.
    `is_last`: time is up: there is one more look, whose moment is not the data's.
    """
    void = [block.control for block in blocks if not block.control.ok]
    pairs = _pairs_of(blocks, arm)
    failed = [_how(outcome) for _, outcome in pairs if not outcome.ok]
    if len(failed) > len(void):
        harms = (Harm("failure", workload, phrase),)
        return Seen(workload, phrase, "harmed", failure=failed[0], harms=harms)
    pairs = [pair for pair in pairs if pair[1].ok]
    if not pairs:
        missing = "no time was left for it"
        if void:
            missing = f"the default failed on it ({_how(void[-1])})"
        return Seen(workload, phrase, "open", missing=missing)
    for count in (*(look for look in LOOKS if look <= len(pairs)), len(pairs)):
        shown = {what: panel_interval(_worse_in(what, pairs[:count])) for what in MARGINS}
        states = {what: _state(what, shown[what], pairs[:count]) for what in MARGINS}
        found = {*states.values()} if is_last or count in LOOKS else {"open"}
        if "harmed" in found or found == {"safe"}:
            break
    speed, memory = shown["speed"] and shown["speed"].reciprocal, shown["memory"]
    told: dict[What, Interval | None] = {"speed": speed, "memory": memory}
    harmed = [what for what in told if "harmed" in found and states[what] == "harmed"]
    state: State = "harmed" if harmed else "safe" if found == {"safe"} else "open"
    every = tuple(Harm(what, workload, phrase, told[what]) for what in harmed)
    return Seen(workload, phrase, state, speed, memory, harms=every)


def _pairs_of(blocks: Sequence[Block], arm: Arm) -> list[Pair]:
    """The control and a configuration in each block that has both, if the control ran well."""
    ran = [block for block in blocks if block.control.ok]
    return [(block.control, block.outcomes[1]) for block in ran if block.outcomes[1].arm == arm]


def _how(failed: Outcome) -> str:
    return f"{failed.status}: {failed.detail}" if failed.detail else failed.status


def _worse_in(what: What, pairs: Sequence[Pair]) -> list[float]:
    """How much worse the second of each two outcomes is, log units, where that is known."""
    if what == "memory":
        grown = (log_memory_ratio(*pair) for pair in pairs)
        return [value for value in grown if value is not None]
    rates = (pair_ratio(*pair) for pair in pairs)
    return [-rate.log_ratio for rate in rates if rate is not None]


def _state(what: What, shown: Interval | None, pairs: Sequence[Pair]) -> State:
    """Memory that hardly grew, or that no process reports, harms nothing that could be shown."""
    grown_kb = fmean(tuned.rss_peak_kb - control.rss_peak_kb for control, tuned in pairs)
    if what == "memory" and (shown is None or grown_kb < LEAST_EXTRA_KB):
        return "safe"
    if shown is None:
        return "open"
    if shown.estimate > MARGINS[what] and shown.low > 0.0:
        return "harmed"
    return "safe" if shown.high < MARGINS[what] else "open"


def panel_interval(values: Sequence[float]) -> Interval | None:
    count = len(values)
    if count < LOOKS[0]:
        return None
    looks = (*(look for look in LOOKS if look < count), count)
    z = critical_values(looks, ERROR)[-1]
    half = t_quantile(normal_tail(z), count - 1) * stdev(values) / math.sqrt(count)
    mean = fmean(values)
    return Interval(mean, mean - half, mean + half, count)


# ---- the examination -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Examination:
    winner: Arm
    steps: tuple[Step, ...]  # what is left of its chain, with what each adds; never empty
    left_out: tuple[Harm, ...] = ()  # that the steps did that went, in order
    seen: tuple[Seen, ...] = ()  # what is left, on each workload

    @property
    def arm(self) -> Arm:
        return self.steps[-1].arm

    @property
    def cautions(self) -> tuple[Caution, ...]:
        return tuple(harm.caution for seen in self.seen for harm in seen.harms)


@dataclass
class Panel:
    executors: Sequence[PanelExecutor]

    @property
    def accounting(self) -> Accounting:
        return sum((each.accounting for each in self.executors), Accounting())

    def examine(
        self,
        bench: Workbench,
        control: Arm,
        steps: Sequence[Step],
        *,
        until_s: float,
        may_remove: bool = True,
    ) -> Examination:
        """Measures a winner on the panel, and what is left of it where a step goes.

        `steps`: proved; the last one is the winner. `until_s`: second of the budget by which it
        ends; when past, nothing is measured. StoppedByUser: every block is kept.
        """
        gone, left = list[Harm](), tuple(steps)
        while True:
            course = _Course(bench, control, left, self.executors, until_s)
            bench.unanswered([course], until_s)
            seen = course.seen()
            going = (harm for one in seen for harm in one.harms if _goes(harm, left))
            if not may_remove or (found := next(going, None)) is None or found.step is None:
                return Examination(steps[-1].arm, left, tuple(gone), tuple(seen))
            gone.append(found)
            left = left[: left.index(found.step)]
            bench.reporter.say(f"left out: {found.caution.text}")


def _goes(harm: Harm, steps: Sequence[Step]) -> bool:
    """Whether the chain ends before the step that harms; none is worth a failure."""
    if harm.step is None or harm.step == steps[0]:
        return False
    gain = harm.step.interval.estimate if harm.step.interval else 0.0
    return harm.what == "failure" or gain <= WORTH


@dataclass(eq=False)
class _Course:
    """What the last of a chain does on each workload; see `bench.Inquiry`."""

    bench: Workbench
    control: Arm
    steps: Sequence[Step]
    executors: Sequence[PanelExecutor]
    until_s: float

    def __post_init__(self) -> None:
        arm, left_s = self.steps[-1].arm, self.until_s - self.bench.budget.elapsed()
        self.chosen: list[PanelExecutor] = []
        for each in sorted(self.executors, key=lambda one: -len(self._pairs(one, arm))):
            missing = max(0, LOOKS[0] - len(self._pairs(each, arm)))
            left_s -= missing * each.cost(2, each.rounds)
            if left_s >= 0.0:  # there is time for the fewest pairs
                self.chosen.append(each)

    def wanted(self) -> Wanted | None:
        """Where there is harm, its cause is sought before anything else."""
        arm = self.steps[-1].arm
        judged = [(each, self._judged(each, is_last=False)) for each in self.executors]
        for each, seen in judged:
            for harm in seen.harms:
                _, suspect = self._cause(harm, each)
                if suspect is not None:
                    return self._pair(each, suspect)
        unclear = [
            each
            for each, seen in judged
            if each in self.chosen and seen.state == "open" and self._has_room(each, arm)
        ]
        next_one = min(unclear, key=lambda one: len(self._pairs(one, arm)), default=None)
        return self._pair(next_one, arm) if next_one else None

    def tell(self) -> None:
        self.bench.tell("panel")

    def seen(self) -> list[Seen]:
        found = []
        for each in self.executors:
            seen = self._judged(each, is_last=True)
            harms = (replace(harm, step=self._cause(harm, each)[0]) for harm in seen.harms)
            found.append(replace(seen, harms=tuple(harms)))
        return found

    def _cause(self, harm: Harm, executor: PanelExecutor) -> tuple[Step | None, Arm | None]:
        """The step that does it: the longest chain without it is clear of the harm.

        None: it is not known. The second is the configuration whose pairs would tell more.
        """
        for before, after in zip(self.steps[-2::-1], self.steps[:0:-1], strict=True):
            is_clear = self._is_clear(before.arm, harm, executor)
            if is_clear is None:
                return None, before.arm if self._has_room(executor, before.arm) else None
            if is_clear:
                return after, None
        return self.steps[0], None

    def _is_clear(self, arm: Arm, harm: Harm, executor: PanelExecutor) -> bool | None:
        """Whether a configuration does less than half of a harm; None: not known yet."""
        pairs = self._pairs(executor, arm)
        if harm.interval is None:
            if not all(other.ok for _, other in pairs):
                return False
            return True if len(pairs) >= LOOKS[0] else None
        shown, half = panel_interval(_worse_in(harm.what, pairs)), 0.5 * abs(harm.interval.estimate)
        if shown is None or shown.low <= half <= shown.high:
            return None
        return shown.high < half

    def _has_room(self, executor: PanelExecutor, arm: Arm) -> bool:
        """Whether one more block is not too many, nor too late."""
        void = sum(not block.control.ok for block in self._blocks(executor))
        is_enough = void >= MOST_VOID or len(self._pairs(executor, arm)) >= LOOKS[-1]
        ends_s = self.bench.budget.elapsed() + executor.cost(2, executor.rounds)
        return not is_enough and ends_s <= self.until_s

    def _pair(self, executor: PanelExecutor, arm: Arm) -> Wanted:
        return Wanted((self.control, arm), "panel", executor.rounds, executor)

    def _judged(self, executor: PanelExecutor, *, is_last: bool) -> Seen:
        blocks, arm = self._blocks(executor), self.steps[-1].arm
        return seen_in(blocks, arm, executor.workload, executor.phrase, is_last=is_last)

    def _pairs(self, executor: PanelExecutor, arm: Arm) -> list[Pair]:
        return _pairs_of(self._blocks(executor), arm)

    def _blocks(self, executor: PanelExecutor) -> list[Block]:
        own = filter(self.bench.ledger.is_own, self.bench.ledger.panel)
        return [block for block in own if block.workload == executor.workload]
