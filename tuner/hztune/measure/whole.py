"""One block of arms that are measured at the same moment; and whole programs, run by run.

What every way of measuring shares is `BlockExecutor`; `turns` and `alternate` derive from it, too.
By runs, one process works after the other; each run that ends well is one turn of its arm, of which
its own time is the length. The order of a round of runs is random, and the next round has it
reversed (ABBA), so that what drifts evenly falls on all arms alike. Blocks of a study mostly have
one round: two that follow each other share an order, and the second has it reversed.
"""

from __future__ import annotations

import math
import os
import random
import time
import traceback
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from pathlib import Path
from statistics import median

from hztune.blocks import CPU_TIME, Arm, Block, Outcome, Role, Turn, overall_rate, times_of
from hztune.errors import HztuneError
from hztune.machine import timed_window
from hztune.measure import Accounting, Executor, disturbance
from hztune.measure.disturbance import Watch, repeats
from hztune.measure.identity import AllocatorIdentity, Fault
from hztune.measure.launch import Run, Unit
from hztune.measure.program import Program
from hztune.measure.server import run_once
from hztune.rests import Rested
from hztune.store import Evidence, Plan, Sink

PADDING = "HZTUNE_PADDING"
PADDING_BYTES = 4096  # each process gets an environment of random size

SEEDS = 1 << 31
_SLOWEST = 20.0
_LEAST_FIGURE = 1e-100  # that a function may return; its reciprocal is the greatest
_LEAST_TIMEOUT_S = 2.0
MEMORY_SHARE = 0.8  # of the machine's memory, what a measurement's processes may take

_NOT_RUN = Fault("failed", "it was not run: the control hangs")


@dataclass(slots=True)
class Part:
    """One arm's part of a block, as far as it has come."""

    arm: Arm
    is_control: bool
    changes: dict[str, str]
    fault: Fault | None = None
    pid: int = 0
    turns: list[Turn] = field(default_factory=list)
    rss_peak_kb: int = 0
    live_kb: int = 0
    cpu_ns: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, int] = field(default_factory=dict)
    rested: Rested | None = None
    unseen: str | None = None
    """What a run wrote to stderr that ended before its allocator was seen; None: all were seen."""


TurnPlace = tuple[int, int, int]  # the round of a turn, its position in it, and when it began


class BlockExecutor(Executor):
    def __init__(
        self, sink: Sink | None = None, *, seed: int, identity: AllocatorIdentity | None = None
    ) -> None:
        self.sink = sink or Sink()
        self.identity = identity or AllocatorIdentity()
        self._seed = seed

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        with timed_window():
            started = time.monotonic()
            self.sink.begin(Plan(number, role, tuple(arms), rounds))
            parts = self._parts_of(arms)
            rng = random.Random(f"{self._seed} {number} {role}")
            warmup_s = self._play(parts, rounds, number, rng)
            outcomes = tuple(map(self._outcome, parts))
            for index, outcome in enumerate(outcomes):
                self.sink.outcome(index, parts[index].pid, outcome)
            self.sink.end()
            wall_s = time.monotonic() - started
        spent = Accounting.of([turn for part in parts for turn in part.turns], warmup_s, wall_s)
        self._accounting += spent
        self._learn(outcomes, rounds, spent)
        return Block(number, role, outcomes)

    @abstractmethod
    def _play(self, parts: list[Part], rounds: int, number: int, rng: random.Random) -> float:
        """Measures all arms so often; returns the seconds of what does not count."""

    @abstractmethod
    def _learn(self, outcomes: Sequence[Outcome], rounds: int, spent: Accounting) -> None:
        """Takes note of what a block took."""

    def _parts_of(self, arms: Sequence[Arm]) -> list[Part]:
        parts = []
        for arm in arms:
            found = self.identity.prepare(arm)
            changes, fault = ({}, found) if isinstance(found, Fault) else (found, None)
            parts.append(Part(arm, arm == arms[0], changes, fault))
        return parts

    def _padded(self, part: Part, rng: random.Random) -> dict[str, str]:
        return {**part.changes, PADDING: "x" * rng.randrange(PADDING_BYTES)}

    def _last_fault(self, part: Part) -> Fault | None:
        """What is known to be wrong with an arm only when all its turns are over."""
        return None

    def _outcome(self, part: Part) -> Outcome:
        fault = part.fault or self._last_fault(part)
        return Outcome(
            arm=part.arm,
            status=fault.status if fault else "ok",
            detail=fault.detail if fault else "",
            ops_per_s=0.0 if fault else overall_rate(part.turns),
            turns=tuple(part.turns),
            rss_peak_kb=part.rss_peak_kb,
            live_kb=part.live_kb,
            counters=part.counters,
            facts=part.facts,
            rested=part.rested,
        )


class RunExecutor(BlockExecutor):
    # how the control was seen to hang before anything was measured: then nothing is run any more,
    # since each run would take as long. None: it does not
    hangs: Fault | None = None

    _is_warm = False

    def __init__(
        self,
        program: Program,
        sink: Sink | None = None,
        *,
        seed: int,
        identity: AllocatorIdentity | None = None,
        warmups: int | None = None,
        memory_mb: int = 0,
    ) -> None:
        super().__init__(sink, seed=seed, identity=identity)
        self.program = program
        # MiB of the machine: a candidate that takes nearly all is ended; 0: there is no such limit
        self.memory_mb = memory_mb
        self.control_kb = 0  # most that the control has taken so far
        self.seen: dict[Arm, str] = {}  # what provided malloc in the last run that was seen
        # uncounted runs of the first control, before the first block
        self._warmups = program.warmups if warmups is None else warmups
        self._run_s: list[float] = []
        self._planned_s: list[float] = []
        self.first_s = 1.0  # what an uncounted run took

    def tell_load(self, span_s: float) -> None:
        """Tells the load of a server to end after so many seconds; 0: it ends by itself."""
        self.program = replace(self.program, span_s=span_s)

    def limit_s(self) -> float:
        """What a run may take; it hangs far beyond the usual time, once that is known."""
        if not self._run_s:
            return self.program.timeout_s
        usual_s = max(_LEAST_TIMEOUT_S, _SLOWEST * median(self._run_s))
        return min(self.program.timeout_s, usual_s)

    def cost(self, arms: int, rounds: int) -> float:
        """From what runs have taken, repeated ones included; at first from an uncounted run."""
        if self.hangs is not None:
            return 0.0
        return arms * rounds * (median(self._planned_s) if self._planned_s else self.first_s)

    def recall(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            self.control_kb = max(self.control_kb, block.control.rss_peak_kb)
            ((_, length_s),) = times_of([block])
            rounds = max(outcome.rounds for outcome in block.outcomes)
            self._learn(block.outcomes, rounds, Accounting(wall_s=length_s))

    def _learn(self, outcomes: Sequence[Outcome], rounds: int, spent: Accounting) -> None:
        """Learns how long a run takes, and what is planned as one, repetitions included."""
        if runs := sum(len(outcome.turns) for outcome in outcomes):
            took_s = spent.wall_s - spent.warmup_s
            self._run_s.append(took_s / runs)
            self._planned_s.append(took_s / min(runs, rounds * len(outcomes)))

    def _own(self, part: Part, beside: int = 1) -> Program:
        """What is run for an arm beside others or alone, with the memory that it may take.

        Most of the machine's; or, where that is higher, halfway from what the control takes to all
        there is: where the control runs, a candidate that takes no more must run, too.
        """
        program, memory_mb = self.program.of(part.arm), self.memory_mb // beside
        if part.is_control or not memory_mb:
            return program
        halfway_mb = (self.control_kb // 1024 + memory_mb) // 2
        return replace(program, rss_limit_mb=max(round(MEMORY_SHARE * memory_mb), halfway_mb))

    def _unit(
        self, part: Part, program: Program, seed: int, rng: random.Random, limit_s: float
    ) -> Unit:
        look = partial(self.identity.inspect, part.arm)
        return Unit(program, self.identity.base, self._padded(part, rng), look, limit_s, seed)

    def _noted(self, part: Part, run: Run) -> Run:
        """Learns what the control takes; returns a run without memory that is no allocator's."""
        if part.is_control:
            self.control_kb = max(self.control_kb, run.rss_peak_kb)
        own_kb = self.program.own_kb(run.stdout) if self.program.own_kb else 0
        return replace(run, rss_peak_kb=max(0, run.rss_peak_kb - own_kb))

    def _rate(self, part: Part, run: Run) -> float | Fault:
        """Returns the rate of a run, or why the arm does not count.

        A run too short for its allocator to be seen has that of the arm's other runs, which have
        the same command and variables; if none is seen, that is told in the end.
        """
        if run.fault is not None:
            return run.fault
        if run.library:
            self.seen[part.arm] = run.library
        library = self.seen.get(part.arm, "")
        fault = self.identity.judge(part.arm, library, run.stderr) or run.seen
        if fault is not None and not library and run.seen is None:
            part.unseen, fault = run.stderr, None
        return fault or self.program.measure(run.wall_s, run.stdout)

    def _last_fault(self, part: Part) -> Fault | None:
        if part.unseen is None:
            return None
        return self.identity.judge(part.arm, self.seen.get(part.arm, ""), part.unseen)

    def _enter(
        self, index: int, part: Part, run: Run, place: TurnPlace, rate: float, evidence: Evidence,
        disturbed: str = "",
    ) -> None:  # fmt: skip
        counted_ns = max(1, round(run.wall_s * 1e9))
        turn = Turn(*place, counted_ns, rate * counted_ns * 1e-9, disturbed)
        counts = self.program.counts
        part.counters, facts = counts(run.stdout) if counts else ({}, {})
        part.pid = run.pid
        part.turns.append(turn)
        part.cpu_ns += run.server_cpu_ns or run.cpu_ns
        part.facts = {**facts, CPU_TIME: part.cpu_ns // len(part.turns) // 1000}
        # The kernel counts a peak in batches of pages: it may lie below what was read at rest.
        at_rest_kb = part.facts.get("rss_idle_kb", 0)
        part.rss_peak_kb = max(part.rss_peak_kb, run.rss_peak_kb, at_rest_kb)
        part.rested = run.rested
        self.sink.turn(index, run.pid, turn, evidence)

    def prepare(self, *arms: Arm) -> None:
        if self._run_s or self.hangs is not None:
            return
        self._warmups = max(0 if self._is_warm else 1, self._warmups)
        with timed_window():
            rng = random.Random(f"{self._seed} warm-up")
            warmup_s = self._warm_up(self._parts_of(arms[:1]), rng)
        self._accounting += Accounting(warmup_s=warmup_s, wall_s=warmup_s)

    def _play(self, parts: list[Part], rounds: int, number: int, rng: random.Random) -> float:
        warmup_s = self._warm_up(parts, rng) if self.hangs is None else 0.0
        if self.hangs is not None:
            for part in parts:
                part.fault = part.fault or (self.hangs if part.is_control else _NOT_RUN)
            return warmup_s
        # A run with a rest takes long, and what disturbs its load hardly changes what it keeps; and
        # a repetition promises more than the first run only where most runs are undisturbed.
        used = self._accounting
        repeating = 2 * used.disturbed <= used.turns and self.program.rest is None
        order = random.Random(f"{self._seed} {number // 2}").sample(range(len(parts)), len(parts))
        order = order[::-1] if number % 2 else order
        seed, done, until = rng.randrange(SEEDS), 0, rounds
        while done < until:
            for position, index in enumerate(order):
                if parts[index].fault is None:
                    self._take(index, parts[index], (done, position), seed, rng)
            done += 1
            order = order[::-1] if done % 2 else rng.sample(order, len(order))
            if done == until and repeating:
                turns = [turn for part in parts for turn in part.turns]
                until += repeats(rounds, done, turns)
        return warmup_s

    def _take(
        self, index: int, part: Part, place: tuple[int, int], seed: int, rng: random.Random
    ) -> None:
        """Runs an arm; `place` is the round, and the position in it."""
        run = self._run(part, seed, rng, counts=True)
        rate = self._rate(part, run)
        if isinstance(rate, Fault):
            part.fault = rate
            return
        memory_kb = run.rss_peak_kb
        if run.rested is not None:  # made better is its speed, or one over what it keeps
            rested = replace(run.rested, speed=run.rested.speed or rate)
            run, memory_kb = replace(run, rested=rested), rested.kept_kb
            rate = 1.0 / rested.kept_kb if self.program.seeks_kept else rested.speed
        evidence = Evidence(cpu_ns=run.cpu_ns, rss_kb=memory_kb, **run.passed)
        cores = len(os.sched_getaffinity(0))
        threads = self.program.threads or cores + 1
        disturbed = disturbance.causes(evidence, round(1e9 * run.alive_s), threads, cores)
        self._enter(index, part, run, (*place, run.start_ns), rate, evidence, disturbed)

    def _run(self, part: Part, seed: int, rng: random.Random, *, counts: bool = False) -> Run:
        program = replace(self._own(part), has_network=False)  # one server at a time needs none
        unit = self._unit(part, program, seed, rng, self.limit_s())
        return self._noted(part, run_once(unit, program.rest if counts else None))

    def _uncounted(self, parts: list[Part], rng: random.Random) -> Run:
        for part in parts:
            if part.fault is None:
                return self._run(part, rng.randrange(SEEDS), rng)
        return Run(parts[0].fault)

    def _warm_up(self, parts: list[Part], rng: random.Random) -> float:
        """Fills the caches of the machine, before the first block only; returns the seconds."""
        started, plan = time.monotonic(), self.program.rest
        for _ in range(self._warmups):
            began = time.monotonic()
            run = self._uncounted(parts, rng)
            took_s = self.program.span_s or time.monotonic() - began
            if plan is not None:  # what counts has rests, too
                loads = 1 if self.program.service is None else plan.rounds
                took_s = loads * took_s + plan.rounds * plan.idle_s
            self.first_s = took_s
            if run.fault is not None and run.fault.status == "hang":
                self.hangs = run.fault
                break
        self._warmups = 0
        return time.monotonic() - started


class CallExecutor(RunExecutor):
    """Measures by a function of the user's, which is given the environment of a fresh process."""

    _raised: BaseException | None = None  # by its last call

    def _run(self, part: Part, seed: int, rng: random.Random, *, counts: bool = False) -> Run:
        watch, began_ns = Watch(), time.monotonic_ns()
        value = self._called({**self.identity.base, **self._padded(part, rng)})
        took_s, passed = 1e-9 * max(1, time.monotonic_ns() - began_ns), watch.passed()
        fault = value if isinstance(value, Fault) else None
        if fault is not None and part.is_control:  # its block is not kept: a later session has it
            why = "mend it first: without the control nothing can be compared"
            raise HztuneError(f"{fault.detail}; {why}") from self._raised
        return Run(
            fault, os.getpid(), took_s, stdout=str(value), start_ns=began_ns, alive_s=took_s,
            passed=passed,
        )  # fmt: skip

    def _called(self, environment: dict[str, str]) -> float | Fault:
        assert self.program.call is not None
        own_pid, self._raised = os.getpid(), None
        try:
            value = self.program.call(environment)
        except (Exception, SystemExit) as error:
            self._raised, value = error, math.nan
        if os.getpid() != own_pid:
            os._exit(1)  # a child that it forked and did not end
        if (raised := self._raised) is not None:
            frame = traceback.extract_tb(raised.__traceback__, 2)[-1]
            told = " ".join("".join(traceback.format_exception_only(raised)).split())
            where = f"{Path(frame.filename).name}:{frame.lineno}"
            return Fault(
                "failed", f"your function {self.program.label} raised {told:.200} ({where})"
            )
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not is_number or not _LEAST_FIGURE < value < 1.0 / _LEAST_FIGURE:
            said = f"your function {self.program.label} returned {value!r:.80}"
            return Fault("bad_output", f"{said}; legal is a number above 0")
        return float(value)

    def _rate(self, part: Part, run: Run) -> float | Fault:
        if run.fault is not None:
            return run.fault
        return float(run.stdout) if self.program.rate else 1.0 / float(run.stdout)
