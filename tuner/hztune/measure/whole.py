"""Whole programs: by runs, one process after the other, and what by turns is alike.

A program is run once or several times for each arm of a block; each run that ends well is one turn
of its arm, of which its own time is the length.

The order of a round of runs is random, and the next round has it reversed (ABBA), so that what
drifts evenly falls on all arms alike. Blocks of a study mostly have one round: two that follow each
other share an order, and the second has it reversed.
"""

from __future__ import annotations

import os
import random
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from types import MappingProxyType
from typing import ClassVar

from hztune.blocks import CPU_TIME, overall_rate, times_of
from hztune.machine import timed_window
from hztune.measure import Accounting, Arm, Block, Executor, Outcome, Role, Turn
from hztune.measure.disturbance import DisturbanceRule, Watch, repeats
from hztune.measure.identity import AllocatorIdentity, Fault, IdentityCheck
from hztune.measure.launch import Run, Unit, time_once
from hztune.measure.program import Program, hook
from hztune.measure.rest import rest_once
from hztune.measure.server import (
    LOAD_PATIENCE_S,
    LOAD_SPAN_S,
    refuse_fixed_time,
    serve_once,
    with_port_and_dir,
)
from hztune.rests import Rested
from hztune.store import Evidence, Nowhere, Plan, Sink

PADDING = "HZTUNE_PADDING"
PADDING_BYTES = 4096
"""Each process gets an environment of random size."""

SEEDS = 1 << 31
_SLOWEST = 20.0
_LEAST_TIMEOUT_S = 2.0
MEMORY_SHARE = 0.8
"""Of the machine's memory what the processes of a measurement may take before they are ended."""

_NOT_RUN = Fault("failed", "it was not run: the control hangs")


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

    @classmethod
    def of(cls, arm: Arm, identity: IdentityCheck) -> Part:
        """Prepares an arm."""
        prepared = identity.prepare(arm)
        return cls(arm, {}, prepared) if isinstance(prepared, Fault) else cls(arm, prepared)


class WholeExecutor(Executor):
    """Measures arms on one program, run by run; a class derived from it says in which manner.

    Attributes:
        program: What is run.
        control_kb: Most that the control has taken so far, KiB.
        seen: The file that provided malloc in the last run of an arm where that was seen.
    """

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
        self.program = program
        self.sink = sink or Nowhere()
        self.identity = identity or AllocatorIdentity()
        self.memory_mb = memory_mb
        self.control_kb = 0
        self.seen: dict[Arm, str] = {}
        self._seed = seed
        self._warmups = program.warmups if warmups is None else warmups
        self._run_s: list[float] = []
        self._planned_s: list[float] = []
        self._first_s = 1.0

    def tell_load(self, span_s: float) -> None:
        """Tells the load of a server to end after so many seconds; 0: it ends by itself."""
        self.program = replace(self.program, span_s=span_s)

    def take_time(self, first_s: float) -> None:
        """Takes note of what an uncounted run took, seconds."""
        self._first_s = first_s

    def limit_s(self) -> float:
        """Returns what a run may take; it hangs far beyond the usual time, once that is known."""
        if not self._run_s:
            return self.program.timeout_s
        usual_s = max(_LEAST_TIMEOUT_S, _SLOWEST * median(self._run_s))
        return min(self.program.timeout_s, usual_s)

    def cost(self, arms: int, rounds: int) -> float:
        """Returns the wall seconds expected for a block, from what runs have taken so far.

        With what was repeated, as disturbed. Before the first block an uncounted run tells; without
        one, it is a second for each.
        """
        return arms * rounds * (median(self._planned_s) if self._planned_s else self._first_s)

    def recall(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            self.control_kb = max(self.control_kb, block.control.rss_peak_kb)
            ((_, length_s),) = times_of([block])
            self._learn(block.outcomes, max(o.rounds for o in block.outcomes), length_s)

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        with timed_window():
            started = time.monotonic()
            self.sink.begin(Plan(number, role, tuple(arms), rounds))
            rng = random.Random(f"{self._seed} {number} {role}")
            series, warmup_s = self._play(arms, rounds, number, rng)
            outcomes = series.outcomes()
            self.sink.end()
            wall_s = time.monotonic() - started
        turns = [turn for part in series.parts for turn in part.turns]
        self._accounting += Accounting.of(turns, warmup_s, wall_s, series.hooks_s)
        self._learn(outcomes, rounds, wall_s - warmup_s)
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


class Series:
    """One block: the runs of its arms, and what they came to.

    Attributes:
        facts: What every outcome says of how it was measured.
        parts: The arms, the control first.
        hooks_s: Seconds in the user's commands.
    """

    facts: ClassVar[Mapping[str, int]] = MappingProxyType({})

    def __init__(self, of: WholeExecutor, arms: Sequence[Arm], limit_s: float) -> None:
        self._of, self._limit_s = of, limit_s
        self._beside = 1
        self.parts = [Part.of(arm, of.identity) for arm in arms]
        self.hooks_s = 0.0

    def _hook(self, option: str, command: str) -> None:
        """Runs a command of the user's before or after a run, and takes note of its time."""
        started = time.monotonic()
        hook(option, command, self._of.identity.base)
        self.hooks_s += time.monotonic() - started

    def _own(self, part: Part) -> Program:
        """What is run for an arm, with the memory that it may take.

        A candidate may take most of the memory; or, where that is higher, halfway from what the
        control takes to all there is: where the control runs, a candidate that takes no more must
        run, too.
        """
        program = self._of.program.of(part.arm)
        memory_mb = self._of.memory_mb // self._beside
        if self._is_control(part) or not memory_mb:
            return program
        halfway_mb = (self._of.control_kb // 1024 + memory_mb) // 2
        return replace(program, rss_limit_mb=max(round(MEMORY_SHARE * memory_mb), halfway_mb))

    def _unit(self, part: Part, program: Program, seed: int, rng: random.Random) -> Unit:
        """What is run for an arm, in its place."""
        identity = self._of.identity
        changes = {**part.changes, PADDING: "x" * rng.randrange(PADDING_BYTES)}
        look = partial(identity.inspect, part.arm)
        return Unit(program, identity.base, changes, look, self._limit_s, seed)

    def _is_control(self, part: Part) -> bool:
        return part.arm == self.parts[0].arm

    def _noted(self, part: Part, run: Run) -> Run:
        """Learns what the control takes; returns a run without memory that is no allocator's."""
        if self._is_control(part):
            self._of.control_kb = max(self._of.control_kb, run.rss_peak_kb)
        own_kb = self._of.program.own_kb(run.stdout) if self._of.program.own_kb else 0
        return replace(run, rss_peak_kb=max(0, run.rss_peak_kb - own_kb)) if own_kb else run

    def _rate(self, part: Part, run: Run) -> float | Fault:
        """Returns the rate of a run, or why the arm does not count.

        What is over before its allocator can be seen has that of the arm's other runs, which the
        same command with the same variables has; if none is seen, that is told in the end.
        """
        if run.fault is not None:
            return run.fault
        if run.library:
            self._of.seen[part.arm] = run.library
        library = self._of.seen.get(part.arm, "")
        fault = self._of.identity.judge(part.arm, library, run.stderr) or run.seen
        if fault is not None and not library and run.seen is None:
            part.unseen, fault = run.stderr, None
        return fault or self._of.program.measure(run.wall_s, run.stdout)

    def _enter(self, index: int, run: Run, turn: Turn, evidence: Evidence) -> None:
        """Takes a run that counts, and puts it into the sink."""
        part, counts = self.parts[index], self._of.program.counts
        part.counters, facts = counts(run.stdout) if counts else ({}, {})
        part.pid = run.pid
        part.turns.append(turn)
        part.cpu_ns += run.server_cpu_ns or run.cpu_ns
        part.facts = {**facts, CPU_TIME: part.cpu_ns // len(part.turns) // 1000}
        # The kernel counts a peak in batches of pages: it may lie below what was read at rest.
        at_rest_kb = part.facts.get("rss_idle_kb", 0)
        part.rss_peak_kb = max(part.rss_peak_kb, run.rss_peak_kb, at_rest_kb)
        part.rested = run.rested
        self._of.sink.turn(index, run.pid, turn, evidence)

    def outcomes(self) -> tuple[Outcome, ...]:
        """Returns what each arm came to, and puts it into the sink."""
        found = []
        for index, part in enumerate(self.parts):
            if part.fault is None and part.unseen is not None:
                library = self._of.seen.get(part.arm, "")
                part.fault = self._of.identity.judge(part.arm, library, part.unseen)
            outcome = Outcome(
                arm=part.arm,
                status="ok" if part.fault is None else part.fault.status,
                detail="" if part.fault is None else part.fault.detail,
                ops_per_s=0.0 if part.fault else overall_rate(part.turns),
                turns=tuple(part.turns),
                rss_peak_kb=part.rss_peak_kb,
                counters=part.counters,
                facts={**part.facts, **self.facts},
                rested=part.rested,
            )
            found.append(outcome)
            self._of.sink.outcome(index, part.pid, outcome)
        return tuple(found)


# ---- by runs -------------------------------------------------------------------------------------


class RunExecutor(WholeExecutor):
    """Measures arms on one program by whole runs."""

    # how the control was seen to hang before anything was measured: then nothing is run any more,
    # since each run would take as long. None: it does not
    hangs: Fault | None = None

    _is_warm = False

    def take_warmup(self, took_s: float) -> None:
        """Takes a run that was seen already, and took so many seconds, for the first warm-up."""
        self.take_time(took_s)
        self._warmups, self._is_warm = max(0, self._warmups - 1), True

    def prepare(self, control: Arm) -> None:
        if self._run_s or self.hangs is not None:
            return
        self._warmups = max(0 if self._is_warm else 1, self._warmups)
        with timed_window():
            series = _RunSeries(self, [control], self.limit_s())
            warmup_s = self._warm_up(series, random.Random(f"{self._seed} warm-up"))
        self._accounting += Accounting(warmup_s=warmup_s, wall_s=warmup_s)

    def cost(self, arms: int, rounds: int) -> float:
        return 0.0 if self.hangs is not None else super().cost(arms, rounds)

    def _play(
        self, arms: Sequence[Arm], rounds: int, number: int, rng: random.Random
    ) -> tuple[Series, float]:
        series = _RunSeries(self, arms, self.limit_s())
        warmup_s = self._warm_up(series, rng) if self.hangs is None else 0.0
        if self.hangs is not None:
            series.give_up(self.hangs)
        # A run with a rest takes long, and what disturbs its load hardly changes what it keeps; and
        # a repetition promises more than the first run only where most runs are undisturbed.
        used = self._accounting
        repeating = 2 * used.disturbed <= used.turns and self.program.rest is None
        order = random.Random(f"{self._seed} {number // 2}").sample(range(len(arms)), len(arms))
        series.play(rounds, order[::-1] if number % 2 else order, rng, repeating=repeating)
        return series, warmup_s

    def _warm_up(self, series: _RunSeries, rng: random.Random) -> float:
        """Fills the caches of the machine, before the first block only; returns the seconds."""
        started, plan = time.monotonic(), self.program.rest
        for number in range(self._warmups):
            tries_load = number == 0 and self.program.service is not None
            began = time.monotonic()
            run = self._try_load(series, rng) if tries_load else series.run_uncounted(rng)
            took_s = run.wall_s if tries_load else time.monotonic() - began
            took_s = self.program.span_s or took_s
            if plan is not None:  # what counts has rests, too
                loads = 1 if self.program.service is None else plan.rounds
                took_s = loads * took_s + plan.rounds * plan.idle_s
            self.take_time(took_s)
            if run.fault is not None and run.fault.status == "hang":
                self.hangs = run.fault
                break
        self._warmups = 0
        return time.monotonic() - started

    def _try_load(self, series: _RunSeries, rng: random.Random) -> Run:
        """Finds out how the load of a server ends: by itself, or when it is told to."""
        program = self.program
        if program.rate is None:
            alone = series.run_uncounted(rng)
            longer = series.run_uncounted(rng, standing=True) if alone.fault is None else alone
            if longer.fault is None:
                worked = longer.server_cpu_ns / max(1, alone.server_cpu_ns)
                refuse_fixed_time(alone.wall_s, longer.wall_s, worked)
            return alone
        self.tell_load(min(LOAD_PATIENCE_S, program.timeout_s / 2))
        alone = series.run_uncounted(rng)
        ends_well = alone.fault is None and not isinstance(
            program.measure(alone.wall_s, alone.stdout), Fault
        )
        self.tell_load(LOAD_SPAN_S if alone.was_told and ends_well else program.span_s)
        return alone


class _RunSeries(Series):
    """One block: its runs, in their order."""

    def play(self, rounds: int, order: list[int], rng: random.Random, *, repeating: bool) -> None:
        """Plays all rounds, the first one in that order, and those again that were disturbed."""
        seed = rng.randrange(SEEDS)
        cores = len(os.sched_getaffinity(0))
        rule = DisturbanceRule(self._of.program.threads or cores + 1, cores)
        done, until = 0, rounds
        while done < until:
            for position, index in enumerate(order):
                if self.parts[index].fault is None:
                    self._take(index, done, position, seed, rng, rule)
            done += 1
            order = order[::-1] if done % 2 else rng.sample(order, len(order))
            if done == until and repeating:
                turns = [turn for part in self.parts for turn in part.turns]
                until += repeats(rounds, done, turns)

    def give_up(self, hangs: Fault) -> None:
        """Lets every arm fail that has not failed yet: the control hangs in this way."""
        for part in self.parts:
            part.fault = part.fault or (hangs if self._is_control(part) else _NOT_RUN)

    def run_uncounted(self, rng: random.Random, *, standing: bool = False) -> Run:
        """Runs the first arm that can run, and enters nothing; see `serve_once` for `standing`."""
        for part in self.parts:
            if part.fault is None:
                return self._run(part, rng.randrange(SEEDS), rng, standing=standing)[0]
        return Run(self.parts[0].fault)

    def _take(
        self,
        index: int,
        number: int,
        position: int,
        seed: int,
        rng: random.Random,
        rule: DisturbanceRule,
    ) -> None:
        part, program = self.parts[index], self._of.program
        run, watch = self._run(part, seed, rng, counts=True)
        rate = self._rate(part, run)
        if isinstance(rate, Fault):
            part.fault = rate
            return
        memory_kb = run.rss_peak_kb
        if run.rested is not None:  # made better is its speed, or one over what it keeps
            rested = replace(run.rested, speed=run.rested.speed or rate)
            run, memory_kb = replace(run, rested=rested), rested.kept_kb
            rate = 1.0 / rested.kept_kb if program.seeks_kept else rested.speed
        evidence = watch.seen(run.cpu_ns, memory_kb)
        counted_ns = max(1, round(run.wall_s * 1e9))
        disturbed = rule.causes(evidence, watch.length_ns)
        ops = rate * counted_ns * 1e-9
        turn = Turn(number, position, watch.start_ns, counted_ns, ops, disturbed)
        self._enter(index, run, turn, evidence)

    def _run(
        self,
        part: Part,
        seed: int,
        rng: random.Random,
        *,
        standing: bool = False,
        counts: bool = False,
    ) -> tuple[Run, Watch]:
        """Runs an arm between its hooks; returns the run and what watched it alone."""
        with with_port_and_dir(self._own(part)) as program:
            unit = self._unit(part, program, seed, rng)
            rest = program.rest if counts else None
            self._hook("--prepare", program.prepare)
            watch = Watch()
            if program.service is not None:
                run = serve_once(unit, standing=standing, rest=rest)
            else:
                run = rest_once(unit) if rest else time_once(unit)
            watch.stop()
            run = self._noted(part, run)
            self._hook("--cleanup", program.cleanup)
        return run, watch
