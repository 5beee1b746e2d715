"""The panel: what a winner does to programs that it was not tuned for, and which step does it.

Pairs of the winner and the control are tested for non-inferiority: a loss within a margin is no
harm. Harm is claimed only where the estimate is beyond the margin and the 95 % interval excludes
"no difference"; a workload is safe where the interval excludes more than the margin; else nothing
is said. A warning that might be noise teaches users to ignore all warnings. The intervals hold at
every scheduled look together, see `stats.intervals`; what one look has shown stays shown.

On a workload with harm, the shorter configurations of the proved chain are measured side by side:
the step behind the longest one that does less than half of the harm is its cause. What the profile
emits ends before that step, which is a proved gain by itself, unless the step is worth its place,
or is the first; then it stays, and a line says what it does.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal

from msgspec import structs

from hztune.blocks import Arm, Block, Outcome, Pair, Role
from hztune.errors import HztuneError, StoppedByUser
from hztune.machine import Machine
from hztune.measure import Around, WorkloadSink
from hztune.measure.executors import executor_for
from hztune.profile import Caution
from hztune.stats.intervals import (
    Interval,
    critical_values,
    normal_tail,
    t_quantile,
)
from hztune.stats.ratios import logs_of
from hztune.store import Sink
from hztune.study.bench import Wanted, Workbench
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
        """Where measuring itself fails, all arms count as failed: the study keeps its answer."""
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
                WorkloadSink(sink or Sink(), name),
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
class Seen:
    workload: str
    phrase: str
    state: State
    speed: Interval | None = None  # 95 %, of its log ratio to the control; None: too few pairs
    memory: Interval | None = None  # the same of peak memory; above 0 it takes more
    failure: str = ""  # how a process of it failed
    missing: str = ""  # why nothing was measured
    harms: tuple[Caution, ...] = ()  # with the parameters of the step that does each, if found


def seen_in(
    blocks: Sequence[Block], arm: Arm, workload: str, phrase: str, *, is_last: bool
) -> Seen:
    """Judges the pairs of a configuration with the control, which stand in order of time.

    Where the control failed, too, the configuration is blamed only if it fails more often.
    `is_last`: time is up: there is one more look, whose moment is not the data's.
    """
    void = [block.control for block in blocks if not block.control.ok]
    pairs = _pairs_of(blocks, arm)
    failed = [outcome.words for _, outcome in pairs if not outcome.ok]
    if len(failed) > len(void):
        harm = Caution("failure", phrase, workload)
        return Seen(workload, phrase, "harmed", failure=failed[0], harms=(harm,))
    pairs = [pair for pair in pairs if pair[1].ok]
    if not pairs:
        missing = "no time was left for it"
        if void:
            missing = f"the default failed on it ({void[-1].words})"
        return Seen(workload, phrase, "open", missing=missing)
    for count in (*(look for look in LOOKS if look <= len(pairs)), len(pairs)):
        shown = {what: panel_interval(_worse_in(what, pairs[:count])) for what in MARGINS}
        states = {what: _state(what, shown[what], pairs[:count]) for what in MARGINS}
        found = {*states.values()} if is_last or count in LOOKS else {"open"}
        if "harmed" in found or found == {"safe"}:
            break
    speed, memory = shown["speed"] and shown["speed"].reciprocal, shown["memory"]
    told: dict[What, Interval | None] = {"speed": speed, "memory": memory}
    harms = tuple(
        Caution(what, phrase, workload, {}, *seen.ratio)
        for what, seen in told.items()
        if "harmed" in found and states[what] == "harmed" and seen
    )
    state: State = "harmed" if harms else "safe" if found == {"safe"} else "open"
    return Seen(workload, phrase, state, speed, memory, harms=harms)


def _pairs_of(blocks: Sequence[Block], arm: Arm) -> list[Pair]:
    ran = [block for block in blocks if block.control.ok]
    return [
        (block.control, outcome)
        for block in ran
        for outcome in block.outcomes[1:]
        if outcome.arm == arm
    ]


def _worse_in(what: What, pairs: Sequence[Pair]) -> list[float]:
    """How much worse the second of each two outcomes is, log units, where that is known."""
    if what == "memory":
        return logs_of("rss", pairs)
    return [-each for each in logs_of("speed", pairs)]


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


def cause_of(harm: Caution, steps: Sequence[Step], blocks: Sequence[Block]) -> Step | None:
    """The step that does it: the longest chain without it does less than half; None: not known."""
    for before, after in zip(steps[-2::-1], steps[:0:-1], strict=True):
        pairs = _pairs_of(blocks, before.arm)
        if harm.ratio is None:
            if all(other.ok for _, other in pairs):
                return after if len(pairs) >= LOOKS[0] else None
            continue
        what: What = "memory" if harm.what == "memory" else "speed"
        shown, half = panel_interval(_worse_in(what, pairs)), 0.5 * abs(math.log(harm.ratio))
        if shown is None or shown.low <= half <= shown.high:
            return None
        if shown.high < half:
            return after
    return steps[0]


# ---- the examination -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Examination:
    winner: Arm
    steps: tuple[Step, ...]  # what is left of its chain, with what each adds; never empty
    left_out: tuple[Caution, ...] = ()  # what the steps did that went, in order
    seen: tuple[Seen, ...] = ()  # what is left, on each workload

    @property
    def arm(self) -> Arm:
        return self.steps[-1].arm

    @property
    def cautions(self) -> tuple[Caution, ...]:
        return tuple(harm for seen in self.seen for harm in seen.harms)


@dataclass(eq=False)
class Panel:
    """Examines a winner, and what is left of it where a step goes; see `bench.Inquiry`.

    `until_s`: second of the budget by which it ends; when past, nothing is measured. StoppedByUser:
    every block is kept.
    """

    bench: Workbench
    control: Arm
    steps: Sequence[Step]  # proved; the last one is the winner
    executors: Sequence[PanelExecutor]
    until_s: float
    may_remove: bool = True

    def examine(self) -> Examination:
        self.bench.unanswered([self], self.until_s)
        found = self._examination(is_last=True)
        for harm in found.left_out:
            self.bench.reporter.say(f"left out: {harm.text}")
        return found

    def wanted(self) -> Wanted | None:
        """Where there is harm, its cause is sought before anything else."""
        found = self._examination(is_last=False)
        shorter = [step.arm for step in found.steps[:-1]]
        open_to: list[tuple[int, PanelExecutor]] = []
        for each, seen in zip(self.executors, found.seen, strict=True):
            blocks = self._blocks(each)
            if not all(cause_of(harm, found.steps, blocks) for harm in seen.harms):
                if self._has_room(each, shorter[-1], len(shorter)):
                    return Wanted((self.control, *shorter), "panel", each.rounds, each)
            elif seen.state == "open" and self._has_room(each, found.arm):
                pairs = len(_pairs_of(blocks, found.arm))
                open_to.append((pairs if pairs >= LOOKS[0] else -pairs, each))
        if not open_to:
            return None
        _, each = min(open_to, key=lambda one: one[0])
        return Wanted((self.control, found.arm), "panel", each.rounds, each)

    def tell(self) -> None:
        self.bench.tell("panel")

    def _has_room(self, executor: PanelExecutor, arm: Arm, arms: int = 1) -> bool:
        """Whether one more block is not too many, nor so late that nothing could be judged."""
        blocks = self._blocks(executor)
        pairs = len(_pairs_of(blocks, arm))
        void = sum(not block.control.ok for block in blocks)
        cost_s = max(1, LOOKS[0] - pairs) * executor.cost(1 + arms, executor.rounds)
        is_enough = void >= MOST_VOID or pairs >= LOOKS[-1]
        return not is_enough and self.bench.budget.elapsed() + cost_s <= self.until_s

    def _blocks(self, executor: PanelExecutor) -> list[Block]:
        own = filter(self.bench.ledger.is_own, self.bench.ledger.panel)
        return [block for block in own if block.workload == executor.workload]

    def _examination(self, *, is_last: bool) -> Examination:
        gone, left = list[Caution](), tuple(self.steps)
        while True:
            seen = tuple(self._seen(each, left, is_last=is_last) for each in self.executors)
            harms = (harm for one in seen for harm in one.harms)
            going = [(harm, step) for harm in harms if (step := _leaving(harm, left))]
            if not self.may_remove or not going:
                return Examination(self.steps[-1].arm, left, tuple(gone), seen)
            harm, step = going[0]
            gone.append(harm)
            left = left[: left.index(step)]

    def _seen(self, executor: PanelExecutor, steps: Sequence[Step], *, is_last: bool) -> Seen:
        blocks, arm = self._blocks(executor), steps[-1].arm
        seen = seen_in(blocks, arm, executor.workload, executor.phrase, is_last=is_last)
        causes = [(harm, cause_of(harm, steps, blocks)) for harm in seen.harms]
        harms = tuple(
            structs.replace(harm, params={name: cause.arm.config[name] for name in cause.added})
            if cause
            else harm
            for harm, cause in causes
        )
        return replace(seen, harms=harms)


def _leaving(harm: Caution, steps: Sequence[Step]) -> Step | None:
    """The step of that harm, where the chain ends before it; none is worth a failure."""
    step = next((each for each in steps[1:] if {*each.added} == harm.params.keys()), None)
    gain = step.interval.estimate if step and step.interval else 0.0
    return step if harm.what == "failure" or gain <= WORTH else None
