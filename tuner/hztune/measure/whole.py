"""Whole programs: what measuring them by runs and by turns have in common.

A program is run once or several times for each arm of a block; each run that ends well is one turn
of its arm, of which its own time is the length.
"""

from __future__ import annotations

import random
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from types import MappingProxyType
from typing import ClassVar

from hztune.blocks import CPU_TIME, times_of
from hztune.machine import timed_window
from hztune.measure import Accounting, Arm, Block, Executor, Outcome, Role, Turn
from hztune.measure.identity import AllocatorIdentity, Fault, IdentityCheck
from hztune.measure.launch import Run
from hztune.measure.program import Program, hook
from hztune.rests import Rested
from hztune.store import Evidence, Nowhere, Plan, Sink

_PADDING = "HZTUNE_PADDING"
_PADDING_BYTES = 4096
SEEDS = 1 << 31
_SLOWEST = 20.0
_LEAST_TIMEOUT_S = 2.0
MEMORY_SHARE = 0.8
"""Of the machine's memory what the processes of a measurement may take before they are ended."""


@dataclass(slots=True)
class Limits:
    """What a run may take before it is ended.

    Attributes:
        run_s: Most seconds.
        program_mb: Most memory of every run, MiB; 0: no limit.
        memory_mb: Memory that a run may have of the machine's, MiB; 0: it is no limit.
        control_kb: Most that the control has taken so far, KiB.
    """

    run_s: float
    program_mb: int
    memory_mb: int
    control_kb: int

    def candidate_mb(self) -> int:
        """Returns the limit of a candidate, MiB; 0: none.

        That is most of the memory; or, where that is higher, halfway from what the control takes to
        all there is: where the control runs, a candidate that takes no more must run, too.
        """
        if not self.memory_mb:
            return self.program_mb
        return max(
            round(MEMORY_SHARE * self.memory_mb), (self.control_kb // 1024 + self.memory_mb) // 2
        )


@dataclass(slots=True)
class Part:
    """One arm's part of a block, as far as it has come."""

    arm: Arm
    changes: dict[str, str]
    fault: Fault | None = None
    pid: int = 0
    turns: list[Turn] = field(default_factory=list)
    rss_peak_kb: int = 0
    cpu_ns: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, int] = field(default_factory=dict)
    rested: Rested | None = None
    unseen: str | None = None
    """What a run wrote to stderr that ended before its allocator was seen; None: all were seen."""


class Series:
    """One block: the runs of its arms, and what they came to.

    Attributes:
        facts: What every outcome says of how it was measured.
        limits: What a run may take.
    """

    facts: ClassVar[Mapping[str, int]] = MappingProxyType({})

    def __init__(
        self,
        arms: Sequence[Arm],
        program: Program,
        identity: IdentityCheck,
        sink: Sink,
        limits: Limits,
        seen: dict[Arm, str],
    ) -> None:
        """Prepares the arms; none is run yet.

        Args:
            arms: What is compared; the control stands first.
            program: What is run.
            identity: Judges the processes.
            sink: Where every run goes as soon as it exists.
            limits: What a run may take.
            seen: The file that provided malloc in the last run of an arm where that was seen. What
                is seen here is added.
        """
        self._program = program
        self._identity = identity
        self._sink = sink
        self.limits = limits
        self._seen = seen
        self._parts = [self._part(arm) for arm in arms]
        self._hooks_s = 0.0

    def tell_load(self, span_s: float) -> None:
        """Tells the load of a server to end after so many seconds; 0: it ends by itself."""
        self._program = replace(self._program, span_s=span_s)

    def _hook(self, option: str, command: str) -> None:
        """Runs a command of the user's before or after a run, and takes note of its time."""
        started = time.monotonic()
        hook(option, command, self._identity.base)
        self._hooks_s += time.monotonic() - started

    def _part(self, arm: Arm) -> Part:
        """Prepares an arm."""
        prepared = self._identity.prepare(arm)
        if isinstance(prepared, Fault):
            return Part(arm, {}, fault=prepared)
        return Part(arm, prepared)

    def _changes(self, part: Part, rng: random.Random) -> dict[str, str]:
        """Returns the variables of one run: those of its arm, and an environment of random size."""
        return {**part.changes, _PADDING: "x" * rng.randrange(_PADDING_BYTES)}

    def _is_control(self, part: Part) -> bool:
        return part.arm == self._parts[0].arm

    def _limit_mb(self, part: Part) -> int:
        """Returns the memory that a run may take, MiB; 0: no limit."""
        return self.limits.program_mb if self._is_control(part) else self.limits.candidate_mb()

    def _note_memory(self, part: Part, run: Run) -> None:
        """Learns what the control takes, whether or not its run counts."""
        if self._is_control(part):
            self.limits.control_kb = max(self.limits.control_kb, run.rss_peak_kb)

    def _without_own(self, run: Run) -> Run:
        """Returns a run without the memory that is no allocator's."""
        if self._program.own_kb is None:
            return run
        own_kb = self._program.own_kb(run.stdout)
        return replace(run, rss_peak_kb=max(0, run.rss_peak_kb - own_kb))

    def _rate(self, part: Part, run: Run) -> float | Fault:
        """Returns the rate of a run, or why the arm does not count.

        What is over before its allocator can be seen has that of the arm's other runs, which the
        same command with the same variables has; if none is seen, that is told in the end.
        """
        if run.fault is not None:
            return run.fault
        if run.library:
            self._seen[part.arm] = run.library
        library = self._seen.get(part.arm, "")
        fault = self._identity.judge(part.arm, library, run.stderr) or run.seen
        if fault is not None and not library and run.seen is None:
            part.unseen, fault = run.stderr, None
        return fault or self._program.measure(run.wall_s, run.stdout)

    def _enter(self, index: int, run: Run, turn: Turn, evidence: Evidence) -> None:
        """Takes a run that counts, and puts it into the sink."""
        part = self._parts[index]
        part.counters, facts = self._program.counted(run.stdout)
        part.pid = run.pid
        part.turns.append(turn)
        part.cpu_ns += run.server_cpu_ns or run.cpu_ns
        part.facts = {**facts, CPU_TIME: part.cpu_ns // len(part.turns) // 1000}
        # The kernel counts a peak in batches of pages: it may lie below what was read at rest.
        at_rest_kb = part.facts.get("rss_idle_kb", 0)
        part.rss_peak_kb = max(part.rss_peak_kb, run.rss_peak_kb, at_rest_kb)
        part.rested = run.rested
        self._sink.turn(index, run.pid, turn, evidence)

    def outcomes(self) -> tuple[Outcome, ...]:
        """Returns what each arm came to, and puts it into the sink."""
        for part in self._parts:
            if part.fault is None and part.unseen is not None:
                library = self._seen.get(part.arm, "")
                part.fault = self._identity.judge(part.arm, library, part.unseen)
        outcomes = tuple(self._outcome(part) for part in self._parts)
        for index, (part, outcome) in enumerate(zip(self._parts, outcomes, strict=True)):
            self._sink.outcome(index, part.pid, outcome)
        return outcomes

    def _outcome(self, part: Part) -> Outcome:
        """Returns what an arm came to."""
        counted = [turn for turn in part.turns if not turn.disturbed] or part.turns
        return Outcome(
            arm=part.arm,
            status="ok" if part.fault is None else part.fault.status,
            detail="" if part.fault is None else part.fault.detail,
            ops_per_s=0.0 if part.fault else sum(t.ops for t in counted) / _seconds(counted),
            turns=tuple(part.turns),
            rss_peak_kb=part.rss_peak_kb,
            counters=part.counters,
            facts={**part.facts, **self.facts},
            rested=part.rested,
        )

    def accounting(self, warmup_s: float, wall_s: float) -> Accounting:
        """Returns where the time of the block went."""
        turns = [turn for part in self._parts for turn in part.turns]
        disturbed = sum(bool(turn.disturbed) for turn in turns)
        return Accounting(
            _seconds(turns), warmup_s, wall_s, len(turns), disturbed, hooks_s=self._hooks_s
        )


class WholeExecutor(Executor):
    """Measures arms on one program, run by run; a class derived from it says in which manner."""

    def __init__(
        self,
        program: Program,
        sink: Sink | None = None,
        *,
        seed: int,
        identity: IdentityCheck | None = None,
        warmups: int | None = None,
        memory_mb: int = 0,
    ) -> None:
        """Makes the executor of a study.

        Args:
            program: What is run.
            sink: Where every run goes as soon as it exists; None: nowhere.
            seed: Of orders, requests and environment sizes; a block's are its own.
            identity: None: by the allocators' adapters.
            warmups: Uncounted runs of the first control, before the first block; None: the
                program's own number.
            memory_mb: What the machine has, MiB: a candidate that takes nearly all of it is ended,
                the control never is. 0: only the program's own limit holds.
        """
        self._program = program
        self._sink = sink or Nowhere()
        self._seed = seed
        self._identity = identity or AllocatorIdentity()
        self._warmups = program.warmups if warmups is None else warmups
        self._memory_mb = memory_mb
        self._control_kb = 0
        self._seen: dict[Arm, str] = {}
        self._run_s: list[float] = []
        self._planned_s: list[float] = []
        self._first_s = 1.0

    def tell_load(self, span_s: float) -> None:
        """Tells the load of a server to end after so many seconds; 0: it ends by itself."""
        self._program = replace(self._program, span_s=span_s)

    def take_time(self, first_s: float) -> None:
        """Takes note of what an uncounted run took, seconds."""
        self._first_s = first_s

    def cost(self, arms: int, rounds: int) -> float:
        """Returns the wall seconds expected for a block, from what runs have taken so far.

        With what was repeated, as disturbed. Before the first block an uncounted run tells; without
        one, it is a second for each.
        """
        return arms * rounds * (median(self._planned_s) if self._planned_s else self._first_s)

    def recall(self, blocks: Sequence[Block]) -> None:
        """Learns how long runs take, the user's commands included, and what the control needs."""
        for block in blocks:
            self._control_kb = max(self._control_kb, block.control.rss_peak_kb)
            ((_, length_s),) = times_of([block])
            self._learn(block.outcomes, max(o.rounds for o in block.outcomes), length_s)

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        """Measures all arms; see `Executor.measure`."""
        with timed_window():
            started = time.monotonic()
            self._sink.begin(Plan(number, role, tuple(arms), rounds))
            series, warmup_s = self._play(
                arms, rounds, number, random.Random(f"{self._seed} {number} {role}")
            )
            outcomes = series.outcomes()
            self._control_kb = series.limits.control_kb
            self._sink.end()
            spent = series.accounting(warmup_s, time.monotonic() - started)
        self._accounting += spent
        self._learn(outcomes, rounds, spent.wall_s - warmup_s)
        return Block(number, role, outcomes)

    def _learn(self, outcomes: Sequence[Outcome], rounds: int, took_s: float) -> None:
        """Learns how long a run takes, and what is planned as one, repetitions included."""
        if runs := sum(len(outcome.turns) for outcome in outcomes):
            self._run_s.append(took_s / runs)
            self._planned_s.append(took_s / min(runs, rounds * len(outcomes)))

    @abstractmethod
    def _play(
        self, arms: Sequence[Arm], rounds: int, number: int, rng: random.Random
    ) -> tuple[Series, float]:
        """Runs all arms so often; returns the runs, and the seconds of those that do not count."""

    def _limits(self, arms: int = 1) -> Limits:
        """Returns what a run may take; it hangs far beyond the usual time, once that is known.

        Args:
            arms: How many live at once, and share the memory.
        """
        limit_s = self._program.timeout_s
        if self._run_s:
            limit_s = min(limit_s, max(_LEAST_TIMEOUT_S, _SLOWEST * median(self._run_s)))
        return Limits(
            limit_s, self._program.rss_limit_mb, self._memory_mb // arms, self._control_kb
        )


def _seconds(turns: Sequence[Turn]) -> float:
    """Returns the counted seconds of turns."""
    return sum(turn.counted_ns for turn in turns) * 1e-9
