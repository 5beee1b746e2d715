"""Whole programs by runs: one process after the other, interleaved and counterbalanced.

The order of a round is random, and the next round has it reversed (ABBA), so that what drifts
evenly falls on all arms alike. Blocks of a study mostly have one round: two that follow each other
share an order, and the second has it reversed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial

from hztune.machine import timed_window
from hztune.measure import Accounting, Arm, Turn
from hztune.measure.disturbance import DisturbanceRule, Watch, repeats
from hztune.measure.identity import Fault
from hztune.measure.launch import Run
from hztune.measure.port_and_dir import with_port_and_dir
from hztune.measure.program import Program
from hztune.measure.rest_rounds import limit_with_rests, rest_once, use_and_rest
from hztune.measure.server import (
    LOAD_PATIENCE_S,
    LOAD_SPAN_S,
    ends_well,
    refuse_fixed_time,
    serve_once,
)
from hztune.measure.timed_run import time_once
from hztune.measure.whole import SEEDS, Part, Series, WholeExecutor
from hztune.rests import Rested

_NOT_RUN = Fault("failed", "it was not run: the control hangs")


class RunExecutor(WholeExecutor):
    """Measures arms on one program by whole runs.

    Attributes:
        hangs: How the control was seen to hang before anything was measured: then nothing is run
            any more, since each run would take as long. None: it does not.
    """

    hangs: Fault | None = None

    _is_warm = False

    def take_warmup(self, took_s: float) -> None:
        """Takes a run that was seen already, and took so many seconds, for the first warm-up."""
        self.take_time(took_s)
        self._warmups, self._is_warm = max(0, self._warmups - 1), True

    def prepare(self, control: Arm) -> None:
        """Makes the warm-up runs, one at least: they show what a run takes."""
        if self._run_s or self.hangs is not None:
            return
        self._warmups = max(0 if self._is_warm else 1, self._warmups)
        series = _RunSeries(
            [control], self._program, self._identity, self._sink, self._limits(), self._seen
        )
        with timed_window():
            warmup_s = self._warm_up(series, random.Random(f"{self._seed} warm-up"))
        self._accounting += Accounting(warmup_s=warmup_s, wall_s=warmup_s)

    def cost(self, arms: int, rounds: int) -> float:
        """Returns the wall seconds expected for a block; see `WholeExecutor.cost`."""
        return 0.0 if self.hangs is not None else super().cost(arms, rounds)

    def _play(
        self, arms: Sequence[Arm], rounds: int, number: int, rng: random.Random
    ) -> tuple[Series, float]:
        """Runs all arms in interleaved runs."""
        series = _RunSeries(
            arms, self._program, self._identity, self._sink, self._limits(), self._seen
        )
        warmup_s = self._warm_up(series, rng) if self.hangs is None else 0.0
        if self.hangs is not None:
            series.give_up(self.hangs)
        # A run with a rest takes long, and what disturbs its load hardly changes what it keeps.
        repeating = self._is_calm() and self._program.rest is None
        series.play(rounds, self._order(len(arms), number), rng, repeating=repeating)
        return series, warmup_s

    def _order(self, arms: int, number: int) -> list[int]:
        """Returns the order of a block's first round: of an odd block the one before, reversed."""
        order = random.Random(f"{self._seed} {number // 2}").sample(range(arms), arms)
        return order[::-1] if number % 2 else order

    def _is_calm(self) -> bool:
        """Whether a repetition promises more than the first run: most runs are undisturbed here."""
        return 2 * self._accounting.disturbed <= self._accounting.turns

    def _warm_up(self, series: _RunSeries, rng: random.Random) -> float:
        """Fills the caches of the machine, before the first block only; returns the seconds."""
        started = time.monotonic()
        for number in range(self._warmups):
            tries_load = number == 0 and self._program.service is not None
            began = time.monotonic()
            run = self._try_load(series, rng) if tries_load else series.run_uncounted(rng)
            took_s = run.wall_s if tries_load else time.monotonic() - began
            self.take_time(self._with_rests(self._program.span_s or took_s))
            if run.fault is not None and run.fault.status == "hang":
                self.hangs = run.fault
                break
        self._warmups = 0
        return time.monotonic() - started

    def _with_rests(self, seconds: float) -> float:
        """Seconds of a run that counts, from those of one that does not: that has no rests."""
        plan = self._program.rest
        if plan is None:
            return seconds
        loads = 1 if self._program.service is None else plan.rounds
        return loads * seconds + plan.rounds * plan.idle_s

    def _try_load(self, series: _RunSeries, rng: random.Random) -> Run:
        """Finds out how the load of a server ends: by itself, or when it is told to.

        Returns:
            The run of it alone.

        Raises:
            HztuneError: It takes a fixed time, and that is all that is measured.
        """
        if self._program.rate is None:
            alone = series.run_uncounted(rng)
            if alone.fault is not None:
                return alone
            longer = series.run_uncounted(rng, standing=True)
            if longer.fault is None:
                worked = longer.server_cpu_ns / max(1, alone.server_cpu_ns)
                refuse_fixed_time(alone.wall_s, longer.wall_s, worked)
            return alone
        series.tell_load(min(LOAD_PATIENCE_S, self._program.timeout_s / 2))
        alone = series.run_uncounted(rng)
        if alone.was_told and ends_well(self._program, alone):
            self.tell_load(LOAD_SPAN_S)
        series.tell_load(self._program.span_s)
        return alone


class _RunSeries(Series):
    """One block: its runs, in their order."""

    @cached_property
    def _judge(self) -> DisturbanceRule:
        cores = len(os.sched_getaffinity(0))
        return DisturbanceRule(self._program.threads or cores + 1, cores)

    def play(self, rounds: int, order: list[int], rng: random.Random, *, repeating: bool) -> None:
        """Plays all rounds, the first one in that order, and those again that were disturbed."""
        seed = rng.randrange(SEEDS)
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

    def give_up(self, hangs: Fault) -> None:
        """Lets every arm fail that has not failed yet: the control hangs in this way."""
        for part in self._parts:
            part.fault = part.fault or (hangs if self._is_control(part) else _NOT_RUN)

    def run_uncounted(self, rng: random.Random, *, standing: bool = False) -> Run:
        """Runs the first arm that can run, and enters nothing; see `serve_once` for `standing`."""
        for part in self._parts:
            if part.fault is None:
                return self._run(part, rng.randrange(SEEDS), rng, standing=standing)[0]
        return Run(self._parts[0].fault)

    def _take(self, index: int, number: int, position: int, seed: int, rng: random.Random) -> None:
        """Makes one run of an arm and puts it into the sink."""
        part = self._parts[index]
        run, watch = self._run(part, seed, rng, resting=self._program.rest is not None)
        rate = self._rate(part, run)
        if isinstance(rate, Fault):
            part.fault = rate
            return
        if (rested := run.rested) is not None:
            rested = replace(rested, speed=rested.speed or rate)
            run, rate = replace(run, rested=rested), self._rate_at_rest(rested)
        evidence = watch.seen(run.cpu_ns, rested.kept_kb if rested else run.rss_peak_kb)
        counted_ns = max(1, round(run.wall_s * 1e9))
        disturbed = self._judge.causes(evidence, watch.length_ns)
        ops = rate * counted_ns * 1e-9
        turn = Turn(number, position, watch.start_ns, counted_ns, ops, disturbed)
        self._enter(index, run, turn, evidence)

    def _rate_at_rest(self, rested: Rested) -> float:
        """What is made better of a run with rests: its speed, or one over what it keeps."""
        return 1.0 / rested.kept_kb if self._program.seeks_kept else rested.speed

    def _run(
        self,
        part: Part,
        seed: int,
        rng: random.Random,
        *,
        standing: bool = False,
        resting: bool = False,
    ) -> tuple[Run, Watch]:
        """Runs an arm between its hooks; returns the run and what watched it alone."""
        changes = self._changes(part, rng)
        own = replace(self._program.of(part.arm), rss_limit_mb=self._limit_mb(part))
        with with_port_and_dir(own) as program:
            self._hook("--prepare", program.prepare)
            watch = Watch()
            run_once = _way_to_run(program, self.limits.run_s, standing, resting)
            run = run_once(
                program,
                seed,
                self._identity.base,
                changes,
                self.limits.run_s,
                look=lambda running: self._identity.inspect(part.arm, running),
            )
            watch.stop()
            self._note_memory(part, run)
            self._hook("--cleanup", program.cleanup)
        return self._without_own(run), watch


def _way_to_run(
    program: Program, limit_s: float, standing: bool, resting: bool
) -> Callable[..., Run]:
    """What runs a program once, each time with the same arguments."""
    if program.service is None:
        return rest_once if resting else time_once
    if resting:
        return partial(serve_once, use=use_and_rest, most_s=limit_with_rests(program, limit_s))
    return partial(serve_once, standing=standing)
