"""The panel: what a winner does to programs that it was not tuned for, and which step does it.

Harm is found by pairs of the winner and the control. The test is one of non-inferiority: a loss
within a margin is none. Harm is claimed only where the estimate is beyond the margin and the 95 %
interval excludes "no difference"; a workload is safe where the interval excludes more than the
margin; else nothing is said. A warning that might be noise teaches users to ignore all warnings.
The intervals hold at every scheduled look together, see `stats.intervals`; what one look has shown
stays shown.

On a workload with harm, blocks then hold the control, the winner and the shorter configurations of
its proved chain side by side: the first that carries most of the harm is the step that harms. What
the profile emits ends before that step, which is a proved gain by itself, unless the step is worth
its place, or is the first; then it stays, and a line says what it does. A decision is a function of
the ledger, so that an examination that was interrupted goes on with its next block.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal

from hztune.blocks import Arm, Block, Outcome, spent_s
from hztune.caution import Caution
from hztune.errors import HztuneError, StoppedByUser
from hztune.machine import Machine
from hztune.measure import Accounting, Around, Role, WorkloadSink
from hztune.measure.executors import executor_for
from hztune.stats.intervals import (
    Interval,
    critical_values,
    fixed_interval,
    normal_tail,
    t_quantile,
)
from hztune.stats.ratios import log_memory_ratio, pair_ratio
from hztune.store import Nowhere, Sink
from hztune.study.bench import Workbench
from hztune.study.counters import Pair
from hztune.study.proof import Step
from hztune.workload import WorkloadSpec

SPEED_MARGIN = -math.log(0.95)
"""Log loss of speed that is none: 5 %, about what a fresh build or another address layout does."""

MEMORY_MARGIN = math.log(1.25)
"""Log growth of peak memory that is none: 25 %, about what sizes rounded up to classes cost."""

LEAST_EXTRA_KB = 4096.0
"""Growth of peak memory that is none, whatever the ratio: what an allocator has for itself."""

LOOKS = (3, 5, 8, 13, 20)
"""Pairs at which a workload may be judged: harm that matters is large, and shows in few."""

ERROR = 0.05

WORTH = SPEED_MARGIN
"""Log gain on the user's own workload above which a step stays: a loss of that size elsewhere would
be called harm, so that a gain of that size is called worth it."""

_SUSPICIOUS = 2.0
"""Margins beyond which an estimate is looked into before harm is shown, if a plain 95 % interval
excludes zero: its cause takes pairs, too, and they count."""

MOST_BLAME_BLOCKS = 8
"""Blocks in which a cause is sought; one that is not found in them is told as not found."""

MOST_VOID = 2
"""Blocks in which the control failed, after which a workload is given up."""

_PART = 0.5
"""Part of a harm that is gone without the step that does it, at least."""

_FAILURES = 2
"""Blocks in which a configuration failed that carries a failure."""

_SHORTER = 3
"""Configurations of a chain that stand beside control and winner in a block: all live at once."""

_RUN_S = 0.1
"""Length of a run of burst-idle: a dozen bursts."""

_TIMEOUT_S = 5.0
"""After which a run of it hangs: without that, a winner that hangs would cost ten minutes."""

_TURNS = 8
"""Turns of a process: its start and warm-up take about as long as they do."""

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

_MARGINS: dict[What, float] = {"speed": SPEED_MARGIN, "memory": MEMORY_MARGIN}


# ---- what measures -------------------------------------------------------------------------------


@dataclass
class PanelExecutor(Around):
    """What measures one workload of the panel; its blocks say on which they were measured."""

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
    """Makes what measures the panel.

    `sink`: Where every turn goes as soon as it exists; None: nowhere.
    `threads`: Of the workload that is tuned; 0: the program decides.
    `tuned`: Names of the workloads that are tuned: they are no strangers.
    """
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
                processes=2 + _SHORTER,
                run_s=_RUN_S,
                timeout_s=_TIMEOUT_S,
            )
            made.append(PanelExecutor(inner, name, phrase, _TURNS if spec.steady else 1))
    return tuple(made)


# ---- what pairs show -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Harm:
    """Harm that was shown on one workload."""

    what: What
    workload: str
    phrase: str
    interval: Interval | None = None  # of the log ratio, winner / control; None of a failure
    step: Step | None = None  # of the winner's chain, that does it; None: not found

    @property
    def caution(self) -> Caution:
        """What is told of it."""
        ratio, low, high = self.interval.ratio if self.interval else (None, None, None)
        step = self.step
        params = {name: step.arm.config[name] for name in step.added} if step else {}
        return Caution(self.what, self.phrase, self.workload, params, ratio, low, high)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a winner was seen to do on one workload."""

    workload: str
    phrase: str
    state: State
    speed: Interval | None = None  # 95 %, of its log ratio to the control; None: too few pairs
    memory: Interval | None = None  # the same of peak memory; above 0 it takes more
    failure: str = ""  # how a process of the winner failed
    missing: str = ""  # why nothing was measured
    harms: tuple[Harm, ...] = ()
    is_cause_open: bool = False  # of harm, or of what looks like it


def seen_in(
    blocks: Sequence[Block], steps: Sequence[Step], workload: str, phrase: str, *, is_last: bool
) -> Seen:
    """Judges the pairs of a winner with the control.

    Where the control failed, too, the winner is blamed only if it fails more often.

    Args:
        blocks: Of one workload, in order of time; those count in which the winner is behind the
            control.
        steps: Of its chain, the winner the last.
        workload: Of the panel.
        phrase: The kind of programs.
        is_last: Whether time is up: then there is one more look, whose moment is not the data's.
    """
    void = [block.control for block in blocks if not block.control.ok]
    own = [b for b in blocks if b.control.ok and b.outcomes[1].arm == steps[-1].arm]
    pairs = [(block.control, block.outcomes[1]) for block in own]
    each = [{outcome.arm: outcome for outcome in block.outcomes[1:]} for block in own]
    beside = [found for found in each if all(step.arm in found for step in steps)]

    def told(state: State, found: Sequence[Harm], hints: Sequence[Harm] = ()) -> Seen:
        blamed = [_blame(harm, steps, beside) for harm in (*found, *hints)]
        harms = [replace(harm, step=step) for harm, (step, _) in zip(found, blamed, strict=False)]
        is_open = any(is_open for _, is_open in blamed)
        return Seen(workload, phrase, state, harms=tuple(harms), is_cause_open=is_open)

    failed = [_how(outcome) for _, outcome in pairs if not outcome.ok]
    if len(failed) > len(void):
        return replace(told("harmed", [Harm("failure", workload, phrase)]), failure=failed[0])
    pairs = [pair for pair in pairs if pair[1].ok]
    if not pairs:
        missing = "no time was left for it"
        if void:
            missing = f"the default failed on it ({_how(void[-1])})"
        return Seen(workload, phrase, "open", missing=missing)
    for count in (*(look for look in LOOKS if look <= len(pairs)), len(pairs)):
        shown = {what: panel_interval(_worse_in(what, pairs[:count])) for what in _MARGINS}
        states = {what: _state(what, shown[what], pairs[:count]) for what in _MARGINS}
        is_look = count in LOOKS or is_last
        if is_look and (found := [what for what in _MARGINS if states[what] == "harmed"]):
            intervals = {"speed": _reciprocal(shown["speed"]), "memory": shown["memory"]}
            harms = [Harm(what, workload, phrase, intervals[what]) for what in found]
            seen = told("harmed", harms)
            break
        if is_look and {*states.values()} == {"safe"}:
            seen = told("safe", [])
            break
    else:
        seen = told("open", [], [Harm(*hint) for hint in _hints(pairs, workload, phrase)])
    return replace(seen, speed=_reciprocal(shown["speed"]), memory=shown["memory"])


def _reciprocal(worse: Interval | None) -> Interval | None:
    return worse and worse.reciprocal


def _how(failed: Outcome) -> str:
    """How a process failed, in words."""
    return f"{failed.status}: {failed.detail}" if failed.detail else failed.status


def _worse(what: What, one: Outcome, other: Outcome) -> float | None:
    """How much worse the second of two outcomes is, log units; None: one of them failed."""
    if what == "memory":
        return log_memory_ratio(one, other)
    pair = pair_ratio(one, other)
    return None if pair is None else -pair.log_ratio


def _worse_in(what: What, pairs: Sequence[Pair]) -> list[float]:
    return [value for pair in pairs if (value := _worse(what, *pair)) is not None]


def _is_small(what: What, pairs: Sequence[Pair]) -> bool:
    """Whether it is memory that hardly grew."""
    grown = fmean(tuned.rss_peak_kb - control.rss_peak_kb for control, tuned in pairs)
    return what == "memory" and grown < LEAST_EXTRA_KB


def _state(what: What, shown: Interval | None, pairs: Sequence[Pair]) -> State:
    """Memory that no process reports harms nothing that could be shown."""
    if _is_small(what, pairs) or (shown is None and what == "memory"):
        return "safe"
    if shown is None:
        return "open"
    if shown.estimate > _MARGINS[what] and shown.low > 0.0:
        return "harmed"
    return "safe" if shown.high < _MARGINS[what] else "open"


def _hints(
    pairs: Sequence[Pair], workload: str, phrase: str
) -> Iterator[tuple[What, str, str, Interval]]:
    """Yields what looks like harm, the interval being a plain one."""
    for what, margin in _MARGINS.items():
        values = _worse_in(what, pairs)
        if len(values) >= LOOKS[0] and not _is_small(what, pairs):
            shown = fixed_interval(values, ERROR)
            if shown.estimate > _SUSPICIOUS * margin and shown.low > 0.0:
                yield what, workload, phrase, shown


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


def _blame(
    harm: Harm, steps: Sequence[Step], beside: Sequence[dict[Arm, Outcome]]
) -> tuple[Step | None, bool]:
    """The step that harms; None: not found. And whether more blocks may show it."""
    for step in steps[:-1]:
        pairs = [(outcomes[step.arm], outcomes[steps[-1].arm]) for outcomes in beside]
        carries = _carries(harm, pairs)
        if carries is None:
            return None, len(beside) < MOST_BLAME_BLOCKS
        if carries:
            return step, False
    return steps[-1], False


def _carries(harm: Harm, pairs: Sequence[Pair]) -> bool | None:
    """Whether a shorter configuration does most of what the winner does; None: not known.

    The harm itself is shown elsewhere, so that the interval may be a plain one.
    """
    if harm.interval is None:
        shorter, winner = (sum(not pair[side].ok for pair in pairs) for side in (0, 1))
        if max(winner, shorter) < _FAILURES or 0 < shorter < _FAILURES:
            return None
        return shorter > 0
    known = _worse_in(harm.what, pairs)
    if len(known) < LOOKS[0]:
        return None
    added, least = fixed_interval(known), _PART * abs(harm.interval.estimate)
    if added.low > 0.0 and added.estimate >= least:
        return False
    return True if added.high < least else None


# ---- the examination -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Examination:
    """What the panel has shown."""

    winner: Arm
    steps: tuple[Step, ...]  # what is left of its chain, with what each adds; never empty
    harms: tuple[Harm, ...] = ()  # that what is left does
    left_out: tuple[Harm, ...] = ()  # that the steps did that went, in order
    seen: tuple[Seen, ...] = ()  # what is left, on each workload

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

        `steps`: Of its proof, each proved to add something; the last one is the winner.
        `seconds`: For all of it, with what an earlier session spent.
        `until_s`: Second of the budget before which it need not end: a proof that ended
        early has left that time.
        `may_remove`: Whether anything may go.

        Raises:
            StoppedByUser: The user asked to stop; every block is kept.
        """
        left_s = seconds - spent_s(filter(bench.ledger.is_own, bench.ledger.panel))
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
            is_last = self._measure(steps) is None
            seen = [self._seen(steps, each, is_last=is_last) for each in self.executors]
            harms = [harm for one in seen for harm in one.harms]
            found = next((harm for harm in harms if self._goes(harm, steps)), None)
            if found is None or found.step is None:
                break
            gone.append(found)
            steps = steps[: steps.index(found.step)]
            self.bench.reporter.say(f"left out: {found.caution.text}")
        return Examination(winner, steps, tuple(harms), tuple(gone), tuple(seen))

    def _measure(self, steps: tuple[Step, ...]) -> Harm | None:
        """Measures on each workload by turns, until something is found that goes."""
        waiting = self._affordable(steps)
        while True:
            every = [self._seen(steps, each) for each in self.executors]
            for harm in (harm for seen in every for harm in seen.harms):
                if self._goes(harm, steps):
                    return harm
            waiting = [each for each in waiting if self._is_open(steps, each)]
            for each in waiting:
                arms, spare_s = [self.control, steps[-1].arm], 0.0
                if self._seen(steps, each).is_cause_open:
                    spare_s = LOOKS[0] * each.cost(2, each.rounds)
                    arms += [step.arm for step in steps[:-1]]
                cost_s = each.cost(len(arms), each.rounds)
                if self.bench.budget.elapsed() + cost_s > self.until_s - spare_s:
                    return None
                self.bench.measure(arms, "panel", each.rounds, each)
                total = steps[-1].total
                self.bench.tell("panel", total.estimate if total else 0.0)
            if not waiting:
                return None

    def _affordable(self, steps: tuple[Step, ...]) -> list[PanelExecutor]:
        """The workloads that have time for the fewest pairs, those that were begun first."""
        left_s = self.until_s - self.bench.budget.elapsed()
        chosen = []
        for each in sorted(self.executors, key=lambda one: not self._pairs(steps, one)):
            more = max(0, LOOKS[0] - self._pairs(steps, each))
            left_s -= more * each.cost(2, each.rounds)
            if left_s >= 0.0:
                chosen.append(each)
        return chosen

    def _is_open(self, steps: tuple[Step, ...], executor: PanelExecutor) -> bool:
        """Whether more blocks may still tell something."""
        if sum(not block.control.ok for block in self._blocks(executor)) >= MOST_VOID:
            return False
        seen, few = self._seen(steps, executor), self._pairs(steps, executor) < LOOKS[-1]
        return (few and seen.state == "open") or seen.is_cause_open

    def _goes(self, harm: Harm, steps: tuple[Step, ...]) -> bool:
        """Whether the chain ends before the step that harms; none is worth a failure."""
        if not self.may_remove or harm.step is None or harm.step == steps[0]:
            return False
        gain = harm.step.interval.estimate if harm.step.interval else 0.0
        return harm.what == "failure" or gain <= WORTH

    def _blocks(self, executor: PanelExecutor) -> list[Block]:
        """Those of this machine on one workload."""
        own = filter(self.bench.ledger.is_own, self.bench.ledger.panel)
        return [block for block in own if block.workload == executor.workload]

    def _pairs(self, steps: tuple[Step, ...], executor: PanelExecutor) -> int:
        """How many of them the winner has with the control."""
        found = (block for block in self._blocks(executor) if block.control.ok)
        return sum(block.outcomes[1].arm == steps[-1].arm for block in found)

    def _seen(
        self, steps: tuple[Step, ...], executor: PanelExecutor, *, is_last: bool = False
    ) -> Seen:
        blocks = self._blocks(executor)
        return seen_in(blocks, steps, executor.workload, executor.phrase, is_last=is_last)
