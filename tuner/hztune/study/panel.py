"""The workloads of the panel, what programs each one stands for, and what measures them.

From the pairs of a winner on a strange workload to what they show: harmed, safe, or open.

The test is one of non-inferiority: a loss within a margin is none. Harm is claimed only where the
estimate is beyond the margin and the 95 % interval excludes "no difference"; a workload is safe
where the interval excludes more than the margin; else nothing is said. A warning that might be
noise teaches users to ignore all warnings. The intervals hold at every scheduled look together,
see stats.sequential; what one look has shown stays shown.

The examination of a winner on the panel: what is harmed, which step does it, what is left out.

Harm is found by pairs of the winner and the control. On a workload with harm, blocks then hold the
control, the winner and the shorter configurations of its proved chain side by side: the first that
carries most of the harm is the step that harms. What the profile emits ends before that step, which
is a proved gain by itself, unless the step is worth its place, or is the first; then it stays, and
a line says what it does. A decision is a function of the ledger, so that an examination that was
interrupted goes on with its next block.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal

from hztune.blocks import Arm, Block, Outcome, times_of
from hztune.caution import Caution
from hztune.errors import HztuneError, StoppedByUser
from hztune.machine import Machine
from hztune.measure import Accounting, Around, Executor, Role, WorkloadSink
from hztune.measure.executors import workloads_executor
from hztune.stats.intervals import (
    Interval,
    critical_values,
    fixed_interval,
    normal_tail,
    t_quantile,
)
from hztune.stats.ratios import log_rss_ratio, pair_ratio
from hztune.store import Nowhere, Sink
from hztune.study.bench import Workbench
from hztune.study.proof import Step
from hztune.workload import WorkloadSpec

_SHORTER = 3
"""Configurations of a chain that stand beside control and winner in a block: all live at once."""

_RUN_S = 0.1
"""Length of a run of burst-idle: a dozen bursts."""

_TIMEOUT_S = 5.0
"""After which a run of it hangs: without that, a winner that hangs would cost ten minutes."""

_TURNS = 8
"""Turns of a process: its start and warm-up take about as long as they do."""

_THREADS = 2


@dataclass(frozen=True, slots=True)
class PanelWorkload:
    """A workload that stands for a kind of programs.

    Attributes:
        name: As `--workload` names it.
        phrase: The kind of programs, behind the word "on".
        params: "KEY=VALUE" of the workload.
    """

    name: str
    phrase: str
    params: tuple[str, ...] = ()


WORKLOADS = (
    PanelWorkload("large", "programs with large blocks"),
    PanelWorkload("burst-idle", "programs that allocate in bursts", ("idle=0",)),
    PanelWorkload("mstress", "programs with blocks of many sizes and ages"),
)
"""Where harm by parameters of allocators was seen: pages that are faulted in again, memory that is
given back at each burst, heaps that fragment."""


@dataclass
class PanelExecutor(Around):
    """What measures one workload of the panel; its blocks say on which they were measured.

    Attributes:
        workload: What it is called in blocks and samples.
        phrase: The kind of programs that it stands for.
        rounds: Turns or runs of each process.
    """

    workload: str
    phrase: str
    rounds: int = _TURNS

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
    """Makes what measures the panel.

    Args:
        sink: Where every turn goes as soon as it exists; None: nowhere.
        seed: As of the study.
        machine: Where it is measured.
        threads: Of the workload that is tuned; 0: the program decides.
        tuned: Names of the workloads that are tuned: they are no strangers.
    """
    cpus = len(os.sched_getaffinity(0))
    count = max(1, min(threads or _THREADS, cpus))
    return tuple(
        _executor(one, sink, seed, machine, count) for one in WORKLOADS if one.name not in tuned
    )


def _executor(
    one: PanelWorkload, sink: Sink | None, seed: int, machine: Machine, threads: int
) -> PanelExecutor:
    spec = WorkloadSpec.from_text(one.name, one.params, threads)
    inner: Executor = workloads_executor(
        [spec],
        WorkloadSink(sink or Nowhere(), one.name),
        seed=seed,
        machine=machine,
        processes=2 + _SHORTER,
        run_s=_RUN_S,
        timeout_s=_TIMEOUT_S,
    )
    return PanelExecutor(inner, one.name, one.phrase, _TURNS if spec.steady else 1)


SPEED_MARGIN = -math.log(0.95)
"""Log loss of speed that is none: 5 %, about what a fresh build or another address layout does."""

MEMORY_MARGIN = math.log(1.25)
"""Log growth of peak memory that is none: 25 %, about what sizes rounded up to classes cost."""

LEAST_EXTRA_KB = 4096.0
"""Growth of peak memory that is none, whatever the ratio: what an allocator has for itself."""

LOOKS = (3, 5, 8, 13, 20)
"""Pairs at which a workload may be judged: harm that matters is large, and shows in few."""

ERROR = 0.05

_SUSPICIOUS = 2.0
"""Margins beyond which an estimate is looked into before harm is shown, if a plain 95 % interval
excludes zero: its cause takes pairs, too, and they count."""

_NO_TIME = "no time was left for it"

State = Literal["harmed", "safe", "open"]


@dataclass(frozen=True, slots=True)
class Harm:
    """Harm that was shown on one workload.

    Attributes:
        what: Less speed, more memory, or a process that failed.
        workload: Of the panel.
        phrase: The kind of programs.
        interval: Of the log ratio of speed or peak memory, winner / control; None of a failure.
        step: The step of the winner's chain that does it; None: not found.
    """

    what: Literal["speed", "memory", "failure"]
    workload: str
    phrase: str
    interval: Interval | None = None
    step: Step | None = None

    @property
    def caution(self) -> Caution:
        """What is told of it."""
        ratio, low, high = self.interval.ratio if self.interval else (None, None, None)
        step = self.step
        params = {name: step.arm.config[name] for name in step.added} if step else {}
        return Caution(self.what, self.phrase, self.workload, params, ratio, low, high)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a winner was seen to do on one workload.

    Attributes:
        workload: Of the panel.
        phrase: The kind of programs.
        state: What is shown.
        speed: 95 % interval of its log ratio of speed to the control; None: too few pairs.
        memory: The same of peak memory; above 0 it takes more.
        extra_kb: Mean growth of peak memory, KiB.
        failure: How a process of the winner failed; "": none did.
        hints: What looks like harm, and is not shown.
        missing: Why nothing was measured; "": something was.
    """

    workload: str
    phrase: str
    state: State
    speed: Interval | None = None
    memory: Interval | None = None
    extra_kb: float = 0.0
    failure: str = ""
    hints: tuple[Harm, ...] = ()
    missing: str = ""

    @property
    def harms(self) -> tuple[Harm, ...]:
        """Every harm that is shown."""
        if self.state != "harmed":
            return ()
        if self.failure:
            return (Harm("failure", self.workload, self.phrase),)
        found = []
        if _speed_state(self.speed) == "harmed":
            found.append(Harm("speed", self.workload, self.phrase, self.speed))
        if _memory_state(self.memory, self.extra_kb) == "harmed":
            found.append(Harm("memory", self.workload, self.phrase, self.memory))
        return tuple(found)


def seen_in(
    blocks: Sequence[Block], arm: Arm, workload: str, phrase: str, *, is_last: bool
) -> Seen:
    """Judges the pairs of an arm with the control.

    Where the control failed, too, the arm is blamed only if it fails more often.

    Args:
        blocks: Of one workload, in order of time; the first outcome behind the control counts.
        arm: Whose pairs they are.
        workload: Of the panel.
        phrase: The kind of programs.
        is_last: Whether time is up: then there is one more look, whose moment is not the data's.
    """
    void = [block.control for block in blocks if not block.control.ok]
    pairs = [
        (b.control, b.outcomes[1]) for b in blocks if b.control.ok and b.outcomes[1].arm == arm
    ]
    failed = [outcome for _, outcome in pairs if not outcome.ok]
    if len(failed) > len(void):
        return Seen(workload, phrase, "harmed", failure=_how(failed[0]))
    pairs = [pair for pair in pairs if pair[1].ok]
    if not pairs:
        missing = f"the default failed on it ({_how(void[-1])})" if void else _NO_TIME
        return Seen(workload, phrase, "open", missing=missing)
    for count in (*(look for look in LOOKS if look <= len(pairs)), *([len(pairs)] * is_last)):
        seen = _look(pairs[:count], workload, phrase)
        if seen.state != "open":
            return seen
    hints = tuple(_hints(pairs, workload, phrase))
    return replace(_look(pairs, workload, phrase), state="open", hints=hints)


def _how(failed: Outcome) -> str:
    """How a process failed, in words."""
    return f"{failed.status}: {failed.detail}" if failed.detail else failed.status


def _look(pairs: Sequence[tuple[Outcome, Outcome]], workload: str, phrase: str) -> Seen:
    """What so many pairs show."""
    speed, memory = panel_interval(_speeds(pairs)), panel_interval(_growths(pairs))
    extra_kb = _extra_kb(pairs)
    states = {_speed_state(speed), _memory_state(memory, extra_kb)}
    state: State = "harmed" if "harmed" in states else "open" if "open" in states else "safe"
    return Seen(workload, phrase, state, speed, memory, extra_kb)


def _hints(pairs: Sequence[tuple[Outcome, Outcome]], workload: str, phrase: str) -> Iterator[Harm]:
    """Yields what looks like harm, the interval being a plain one."""
    speeds, growths = _speeds(pairs), _growths(pairs)
    if len(speeds) >= LOOKS[0]:
        speed = fixed_interval(speeds, ERROR)
        if speed.estimate < -_SUSPICIOUS * SPEED_MARGIN and speed.high < 0.0:
            yield Harm("speed", workload, phrase, speed)
    if len(growths) >= LOOKS[0] and _extra_kb(pairs) >= LEAST_EXTRA_KB:
        memory = fixed_interval(growths, ERROR)
        if memory.estimate > _SUSPICIOUS * MEMORY_MARGIN and memory.low > 0.0:
            yield Harm("memory", workload, phrase, memory)


def _speeds(pairs: Sequence[tuple[Outcome, Outcome]]) -> list[float]:
    """Log ratios of speed."""
    return [pair.log_ratio for one in pairs if (pair := pair_ratio(*one)) is not None]


def _growths(pairs: Sequence[tuple[Outcome, Outcome]]) -> list[float]:
    """Log ratios of peak memory, where it is known."""
    return [growth for one in pairs if (growth := log_rss_ratio(*one)) is not None]


def _extra_kb(pairs: Sequence[tuple[Outcome, Outcome]]) -> float:
    """Mean growth of peak memory, KiB."""
    return fmean(b.rss_peak_kb - a.rss_peak_kb for a, b in pairs) if pairs else 0.0


def _speed_state(speed: Interval | None) -> State:
    if speed is None:
        return "open"
    if speed.estimate < -SPEED_MARGIN and speed.high < 0.0:
        return "harmed"
    return "safe" if speed.low > -SPEED_MARGIN else "open"


def _memory_state(memory: Interval | None, extra_kb: float) -> State:
    """Memory that no process reports harms nothing that could be shown."""
    if memory is None or extra_kb < LEAST_EXTRA_KB:
        return "safe"
    if memory.estimate > MEMORY_MARGIN and memory.low > 0.0:
        return "harmed"
    return "safe" if memory.high < MEMORY_MARGIN else "open"


def panel_interval(values: Sequence[float]) -> Interval | None:
    """The repeated confidence interval at the looks of the panel; None before the first one."""
    count = len(values)
    if count < LOOKS[0]:
        return None
    looks = (*(look for look in LOOKS if look < count), count)
    z = critical_values(looks, ERROR)[-1]
    half = t_quantile(normal_tail(z), count - 1) * stdev(values) / math.sqrt(count)
    mean = fmean(values)
    return Interval(mean, mean - half, mean + half, count)


def relief(harm: Harm, winner: Outcome, shorter: Outcome) -> float | None:
    """How much less of a harm a shorter configuration does, log units; None: one has failed."""
    if harm.what == "memory":
        growth = log_rss_ratio(winner, shorter)
        return None if growth is None else -growth
    pair = pair_ratio(winner, shorter)
    return None if pair is None else pair.log_ratio


WORTH = SPEED_MARGIN
"""Log gain on the user's own workload above which a step stays: a loss of that size elsewhere would
be called harm, so that a gain of that size is called worth it."""

MOST_BLAME_BLOCKS = 8
"""Blocks in which a cause is sought; one that is not found in them is told as not found."""

MOST_VOID = 2
"""Blocks in which the control failed, after which a workload is given up."""

_PART = 0.5
"""Part of a harm that is gone without the step that does it, at least."""

_FAILURES = 2
"""Blocks in which a configuration failed that carries a failure."""


@dataclass(frozen=True, slots=True)
class Examination:
    """What the panel has shown.

    Attributes:
        winner: What was examined.
        steps: What is left of its chain, with what each adds; never empty.
        harms: Harm that what is left does.
        left_out: Harm that the steps did that went, in order.
        seen: What it was seen to do on each workload, or why nothing was measured there.
    """

    winner: Arm
    steps: tuple[Step, ...]
    harms: tuple[Harm, ...] = ()
    left_out: tuple[Harm, ...] = ()
    seen: tuple[Seen, ...] = ()

    @property
    def arm(self) -> Arm:
        """What is left of the winner."""
        return self.steps[-1].arm

    @property
    def cautions(self) -> tuple[Caution, ...]:
        """What is to be told of what is left."""
        found = [harm.caution for harm in self.harms]
        return tuple(one for at, one in enumerate(found) if one not in found[:at])

    @property
    def gone(self) -> tuple[Caution, ...]:
        """The harm that what was left out did."""
        return tuple(harm.caution for harm in self.left_out)


@dataclass
class Panel:
    """Other workloads on which a winner is examined, each with what measures it."""

    executors: Sequence[PanelExecutor]

    @property
    def accounting(self) -> Accounting:
        """Where the time on all of them went."""
        return sum((each.accounting for each in self.executors), Accounting())

    def examine(
        self,
        bench: Workbench,
        control: Arm,
        steps: Sequence[Step],
        *,
        seconds: float,
        until_s: float = 0.0,
        may_remove: bool = True,
    ) -> Examination:
        """Measures a winner on the panel.

        Args:
            bench: Where blocks are entered; its reporter is told, its stop is asked.
            control: What the winner was proved against.
            steps: Of its proof, each proved to add something; the last one is the winner.
            seconds: For all of it, with what an earlier session spent.
            until_s: Second of the budget before which it need not end: a proof that ended early has
                left that time.
            may_remove: Whether anything may go.

        Raises:
            StoppedByUser: The user asked to stop; every block is kept.
        """
        spent = times_of(block for block in bench.ledger.panel if bench.ledger.is_own(block))
        left_s = seconds - max((end for _, end in spent), default=0.0)
        until_s = max(until_s, bench.budget.elapsed() + left_s)
        return _Course(bench, control, self.executors, until_s, may_remove).run(tuple(steps))

    def known(self, bench: Workbench, control: Arm, steps: Sequence[Step]) -> Examination:
        """What the blocks that are there show of a winner; nothing is measured, nothing goes."""
        return _Course(bench, control, self.executors, -math.inf, False).run(tuple(steps))


@dataclass
class _Course:
    """One examination."""

    bench: Workbench
    control: Arm
    executors: Sequence[PanelExecutor]
    until_s: float
    may_remove: bool

    def run(self, steps: tuple[Step, ...]) -> Examination:
        """Examines, leaves out and examines what is left, until nothing more goes."""
        winner, gone = steps[-1].arm, list[Harm]()
        while True:
            is_last = not self._measure(steps)
            harms = [*self._shown(steps, is_last=is_last)]
            found = next((harm for harm in harms if self._goes(harm, steps)), None)
            if found is None or found.step is None:
                break
            gone.append(found)
            steps = steps[: steps.index(found.step)]
            self.bench.reporter.say(f"left out: {found.caution.text}")
        seen = tuple(self._seen(steps, each, is_last=True) for each in self.executors)
        return Examination(winner, steps, tuple(harms), tuple(gone), seen)

    def _measure(self, steps: tuple[Step, ...]) -> bool:
        """Measures on each workload by turns; returns whether something is found that goes."""
        waiting = self._affordable(steps)
        while not any(self._goes(harm, steps) for harm in self._shown(steps)):
            waiting = [each for each in waiting if self._is_open(steps, each)]
            for each in waiting:
                arms, spare_s = [self.control, steps[-1].arm], 0.0
                if self._is_cause_open(steps, each):
                    spare_s = LOOKS[0] * each.cost(2, each.rounds)
                    arms += [step.arm for step in steps[:-1]]
                cost_s = each.cost(len(arms), each.rounds)
                if self.bench.budget.elapsed() + cost_s > self.until_s - spare_s:
                    return False
                self.bench.measure(arms, "panel", each.rounds, each)
                total = steps[-1].total
                self.bench.tell("panel", total.estimate if total else 0.0)
            if not waiting:
                return False
        return True

    def _affordable(self, steps: tuple[Step, ...]) -> list[PanelExecutor]:
        """The workloads that have time for the fewest pairs, those that were begun first."""
        left_s = self.until_s - self.bench.budget.elapsed()
        chosen = []
        for each in sorted(self.executors, key=lambda one: not self._pairs(steps, one)):
            more = max(0, LOOKS[0] - len(self._pairs(steps, each)))
            left_s -= more * each.cost(2, each.rounds)
            if left_s >= 0.0:
                chosen.append(each)
        return chosen

    def _is_open(self, steps: tuple[Step, ...], executor: PanelExecutor) -> bool:
        """Whether more blocks may still tell something."""
        if sum(not block.control.ok for block in self._blocks(executor)) >= MOST_VOID:
            return False
        seen, few = self._seen(steps, executor), len(self._pairs(steps, executor)) < LOOKS[-1]
        return (few and seen.state == "open") or self._is_cause_open(steps, executor)

    def _is_cause_open(self, steps: tuple[Step, ...], executor: PanelExecutor) -> bool:
        """Whether harm, or what looks like it, has a cause that more blocks may still show."""
        seen = self._seen(steps, executor)
        if len(self._beside(steps, executor)) >= MOST_BLAME_BLOCKS:
            return False
        return any(self._blame(harm, steps, executor)[1] for harm in (*seen.harms, *seen.hints))

    def _shown(self, steps: tuple[Step, ...], *, is_last: bool = False) -> Iterator[Harm]:
        """Yields the harm that is shown by now, with its cause; `is_last`: time is up."""
        for each in self.executors:
            for harm in self._seen(steps, each, is_last=is_last).harms:
                yield replace(harm, step=self._blame(harm, steps, each)[0])

    def _goes(self, harm: Harm, steps: tuple[Step, ...]) -> bool:
        """Whether the chain ends before the step that harms; none is worth a failure."""
        if not self.may_remove or harm.step is None or harm.step == steps[0]:
            return False
        gain = harm.step.interval.estimate if harm.step.interval else 0.0
        return harm.what == "failure" or gain <= WORTH

    # ---- what the blocks say ---------------------------------------------------------------------

    def _blocks(self, executor: PanelExecutor) -> list[Block]:
        """Those of this machine on one workload."""
        own = (block for block in self.bench.ledger.panel if self.bench.ledger.is_own(block))
        return [block for block in own if block.workload == executor.workload]

    def _pairs(self, steps: tuple[Step, ...], executor: PanelExecutor) -> list[Block]:
        """Those of the winner in which the control ran."""
        winner = steps[-1].arm
        return [
            block
            for block in self._blocks(executor)
            if block.control.ok and block.outcomes[1].arm == winner
        ]

    def _beside(self, steps: tuple[Step, ...], executor: PanelExecutor) -> list[dict[Arm, Outcome]]:
        """Those of them that hold the shorter configurations, too: outcomes by arm."""
        blocks = self._pairs(steps, executor)
        each = [{outcome.arm: outcome for outcome in block.outcomes[1:]} for block in blocks]
        return [found for found in each if all(step.arm in found for step in steps)]

    def _seen(
        self, steps: tuple[Step, ...], executor: PanelExecutor, *, is_last: bool = False
    ) -> Seen:
        blocks = self._blocks(executor)
        return seen_in(blocks, steps[-1].arm, executor.workload, executor.phrase, is_last=is_last)

    def _blame(
        self, harm: Harm, steps: tuple[Step, ...], executor: PanelExecutor
    ) -> tuple[Step | None, bool]:
        """The step that harms; None: not found. And whether more blocks may show it."""
        if len(steps) == 1:
            return steps[0], False
        found = self._beside(steps, executor)
        for step in steps[:-1]:
            pairs = [(outcomes[steps[-1].arm], outcomes[step.arm]) for outcomes in found]
            if (carries := _carries(harm, pairs)) is None:
                return None, len(found) < MOST_BLAME_BLOCKS
            if carries:
                return step, False
        return steps[-1], False


def _carries(harm: Harm, pairs: Sequence[tuple[Outcome, Outcome]]) -> bool | None:
    """Whether a shorter configuration does most of what the winner does; None: not known.

    The harm itself is shown elsewhere, so that the interval may be a plain one.
    """
    if harm.interval is None:
        winner, shorter = (sum(not pair[side].ok for pair in pairs) for side in (0, 1))
        if max(winner, shorter) < _FAILURES or (0 < shorter < _FAILURES):
            return None
        return shorter > 0
    known = [value for pair in pairs if (value := relief(harm, *pair)) is not None]
    if len(known) < LOOKS[0]:
        return None
    gone, least = fixed_interval(known), _PART * abs(harm.interval.estimate)
    if gone.low > 0.0 and gone.estimate >= least:
        return False
    return True if gone.high < least else None
