"""Whole programs by runs: one process after the other, interleaved and counterbalanced.

The order of a round is random, and the next round has it reversed (ABBA), so that what drifts
evenly falls on all arms alike. Blocks of a study mostly have one round: two that follow each other
share an order, and the second has it reversed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from hztune.blocks import times_of
from hztune.machine import timed_window
from hztune.measure.disturbance import DisturbanceRule, Watch, repeats
from hztune.measure.identity import AllocatorIdentity, Fault, IdentityCheck
from hztune.measure.launch import Run
from hztune.measure.program import Program, hook
from hztune.measure.server import serve_once
from hztune.measure.timer import time_once
from hztune.measure.types import Accounting, Arm, Block, Outcome, Role, Turn
from hztune.store import Nowhere, Plan, Sink

_PADDING = "HZTUNE_PADDING"
_PADDING_BYTES = 4096
_SEEDS = 1 << 31
_SLOWEST = 20.0
_LEAST_TIMEOUT_S = 2.0
MEMORY_SHARE = 0.8
"""Of the machine's memory what the processes of a measurement may take before they are ended."""


class RunExecutor:
    """Measures arms on one program by whole runs."""

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
        self._run_s: list[float] = []
        self._accounting = Accounting()

    @property
    def accounting(self) -> Accounting:
        """Where the time went since the executor was made."""
        return self._accounting

    def cost(self, arms: int, rounds: int) -> float:
        """Returns the wall seconds expected for a block, from how long runs have taken so far.

        Before the first run there is nothing to go by: then a second for each.
        """
        return arms * rounds * (median(self._run_s) if self._run_s else 1.0)

    def recall(self, blocks: Sequence[Block]) -> None:
        """Learns how long runs take, the user's commands included, and what the control needs."""
        for block in blocks:
            self._control_kb = max(self._control_kb, block.control.rss_peak_kb)
            ((_, length_s),) = times_of([block])
            if runs := sum(len(outcome.turns) for outcome in block.outcomes):
                self._run_s.append(length_s / runs)

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        """Measures all arms in interleaved runs; see `Executor.measure`."""
        with timed_window():
            started = time.monotonic()
            self._sink.begin(Plan(number, role, tuple(arms), rounds))
            series = _Series(arms, self._program, self._identity, self._sink, self._limits())
            rng = random.Random(f"{self._seed} {number} {role}")
            warmup_s = self._warm_up(series, rng)
            series.play(rounds, self._order(len(arms), number), rng, repeating=self._is_calm())
            outcomes = series.outcomes()
            self._control_kb = series.limits.control_kb
            self._sink.end()
            spent = series.accounting(warmup_s, time.monotonic() - started)
        self._accounting += spent
        runs = sum(len(outcome.turns) for outcome in outcomes)
        if runs:
            self._run_s.append((spent.wall_s - warmup_s) / runs)
        return Block(number, role, outcomes)

    def _order(self, arms: int, number: int) -> list[int]:
        """Returns the order of a block's first round: of an odd block the one before, reversed."""
        order = random.Random(f"{self._seed} {number // 2}").sample(range(arms), arms)
        return order[::-1] if number % 2 else order

    def _is_calm(self) -> bool:
        """Whether a repetition promises more than the first run: most runs are undisturbed here."""
        return 2 * self._accounting.disturbed <= self._accounting.turns

    def _limits(self) -> _Limits:
        """Returns what a run may take; it hangs far beyond the usual time, once that is known."""
        limit_s = self._program.timeout_s
        if self._run_s:
            limit_s = min(limit_s, max(_LEAST_TIMEOUT_S, _SLOWEST * median(self._run_s)))
        return _Limits(limit_s, self._program.rss_limit_mb, self._memory_mb, self._control_kb)

    def _warm_up(self, series: _Series, rng: random.Random) -> float:
        """Fills the caches of the machine, before the first block only; returns the seconds."""
        started = time.monotonic()
        for _ in range(self._warmups):
            series.run_uncounted(rng)
        self._warmups = 0
        return time.monotonic() - started


@dataclass(slots=True)
class _Limits:
    """What a run may take before it is ended.

    Attributes:
        run_s: Most seconds.
        program_mb: Most memory of every run, MiB; 0: no limit.
        memory_mb: Memory of the machine, MiB; 0: it is no limit.
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
class _RunArm:
    """One arm's part of a block, as far as it has come."""

    arm: Arm
    changes: dict[str, str]
    fault: Fault | None = None
    pid: int = 0
    turns: list[Turn] = field(default_factory=list)
    rss_peak_kb: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, int] = field(default_factory=dict)
    idle_kb: int = 0


class _Series:
    """One block: its runs, in their order."""

    def __init__(
        self,
        arms: Sequence[Arm],
        program: Program,
        identity: IdentityCheck,
        sink: Sink,
        limits: _Limits,
    ) -> None:
        self._program = program
        self._identity = identity
        self._sink = sink
        self.limits = limits
        self._parts = [self._part(arm) for arm in arms]
        cores = len(os.sched_getaffinity(0))
        self._judge = DisturbanceRule(program.threads or cores + 1, cores)

    def _part(self, arm: Arm) -> _RunArm:
        """Prepares an arm."""
        prepared = self._identity.prepare(arm)
        if isinstance(prepared, Fault):
            return _RunArm(arm, {}, fault=prepared)
        return _RunArm(arm, prepared)

    def play(self, rounds: int, order: list[int], rng: random.Random, *, repeating: bool) -> None:
        """Plays all rounds, the first one in that order, and those again that were disturbed."""
        seed = rng.randrange(_SEEDS)
        done, until = 0, rounds
        while done < until:
            for position, index in enumerate(order):
                if self._parts[index].fault is None:
                    self._take(index, done, position, seed, rng)
            done += 1
            order = order[::-1] if done % 2 else rng.sample(order, len(order))
            if done == until and repeating:
                turns = [turn for part in self._parts for turn in part.turns]
                until += repeats(rounds, done, turns)

    def run_uncounted(self, rng: random.Random) -> None:
        """Runs the first arm that can run, and forgets what it showed."""
        for part in self._parts:
            if part.fault is None:
                self._run(part, rng.randrange(_SEEDS), rng)
                return

    def _take(self, index: int, number: int, position: int, seed: int, rng: random.Random) -> None:
        """Makes one run of an arm and puts it into the sink."""
        part = self._parts[index]
        run, watch = self._run(part, seed, rng)
        rate = self._rate(part, run)
        if isinstance(rate, Fault):
            part.fault = rate
            return
        part.counters, part.facts = self._program.counted(run.stdout)
        evidence = watch.seen(run.cpu_ns, run.idle_kb or run.rss_peak_kb)
        counted_ns = max(1, round(run.wall_s * 1e9))
        disturbed = self._judge.causes(evidence, watch.length_ns)
        ops = rate * counted_ns * 1e-9
        turn = Turn(number, position, watch.start_ns, counted_ns, ops, disturbed)
        part.pid = run.pid
        part.turns.append(turn)
        # The kernel counts a peak in batches of pages: it may lie below what was read at rest.
        at_rest_kb = part.facts.get("rss_idle_kb", 0)
        part.rss_peak_kb = max(part.rss_peak_kb, run.rss_peak_kb, at_rest_kb)
        part.idle_kb = max(part.idle_kb, run.idle_kb)
        self._sink.turn(index, run.pid, turn, evidence)

    def _run(self, part: _RunArm, seed: int, rng: random.Random) -> tuple[Run, Watch]:
        """Runs an arm between its hooks; returns the run and what watched it alone."""
        changes = {**part.changes, _PADDING: "x" * rng.randrange(_PADDING_BYTES)}
        is_control = part.arm == self._parts[0].arm
        limit_mb = self.limits.program_mb if is_control else self.limits.candidate_mb()
        hook("--prepare", self._program.prepare, self._identity.base)
        watch = Watch()
        run_once = serve_once if self._program.service else time_once
        run = run_once(
            replace(self._program.of(part.arm), rss_limit_mb=limit_mb),
            seed,
            self._identity.base,
            changes,
            self.limits.run_s,
            look=lambda running: self._identity.inspect(part.arm, running),
        )
        watch.stop()
        if is_control:
            self.limits.control_kb = max(self.limits.control_kb, run.rss_peak_kb)
        hook("--cleanup", self._program.cleanup, self._identity.base)
        return run, watch

    def _rate(self, part: _RunArm, run: Run) -> float | Fault:
        """Returns the rate of a run, or why the arm does not count."""
        if run.fault is not None:
            return run.fault
        fault = self._identity.judge(part.arm, run.library, run.stderr) or run.seen
        return fault or self._program.measure(run.wall_s, run.stdout)

    def outcomes(self) -> tuple[Outcome, ...]:
        """Returns what each arm came to, and puts it into the sink."""
        outcomes = tuple(self._outcome(part) for part in self._parts)
        for index, (part, outcome) in enumerate(zip(self._parts, outcomes, strict=True)):
            self._sink.outcome(index, part.pid, outcome)
        return outcomes

    def _outcome(self, part: _RunArm) -> Outcome:
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
            facts={**part.facts, **({"rss_idle_kb": part.idle_kb} if part.idle_kb else {})},
        )

    def accounting(self, warmup_s: float, wall_s: float) -> Accounting:
        """Returns where the time of the block went."""
        turns = [turn for part in self._parts for turn in part.turns]
        disturbed = sum(bool(turn.disturbed) for turn in turns)
        return Accounting(_seconds(turns), warmup_s, wall_s, len(turns), disturbed)


def _seconds(turns: Sequence[Turn]) -> float:
    """Returns the counted seconds of turns."""
    return sum(turn.counted_ns for turn in turns) * 1e-9
