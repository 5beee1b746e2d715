"""Whole programs by turns: all arms alive at once, each going on while the others stand still.

They share the CPU, so that whatever makes it slow for a while makes all of them slow alike: a
second by turns is worth dozens of seconds by runs. Only a program that is busy with itself can be
measured so; see `measure.examine`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from hztune.measure.identity import Fault
from hztune.measure.program import hook
from hztune.measure.stints import Met, Pace, Stint, Unit, nothing_met, take_turns
from hztune.measure.types import Arm, Outcome, Turn
from hztune.measure.whole import MEMORY_SHARE, SEEDS, Part, Series, WholeExecutor
from hztune.store import Evidence

BY_TURNS = "by_turns"
"""The fact of an outcome that its runs were measured by turns."""

_PACE = Pace(turn_ms=10.0, cpu=None)


class AlternateExecutor(WholeExecutor):
    """Measures arms on one program by turns.

    Attributes:
        pace: How they alternate.
        counts_standing: Whether the program's own number counts the time that it stood still as if
            it had worked; it is then corrected.
    """

    pace: Pace = _PACE
    counts_standing: bool = False

    def fits(self, arms: int) -> bool:
        """Whether so many can live at once, as far as the control's memory tells."""
        most_kb = MEMORY_SHARE * self._memory_mb * 1024
        return not self._memory_mb or arms * self._control_kb <= most_kb

    def take_memory(self, control_kb: int) -> None:
        """Takes note of what the control takes, KiB."""
        self._control_kb = max(self._control_kb, control_kb)

    def try_out(
        self,
        control: Arm,
        copies: int,
        *,
        runs: int = 1,
        limit_s: float | None = None,
        met: Met = nothing_met,
    ) -> tuple[list[Stint], Fault | None]:
        """Runs copies of the control, uncounted, at today's pace.

        Returns:
            What they showed, and the first fault among them.
        """
        limits = self._limits(copies)
        limits.run_s = limits.run_s if limit_s is None else limit_s
        series = _Alternation([control] * copies, self._program, self._identity, self._sink, limits)
        return series.try_out(self.pace, runs, random.Random(self._seed), met)

    def _play(
        self, arms: Sequence[Arm], rounds: int, number: int, rng: random.Random
    ) -> tuple[Series, float]:
        """Runs all arms by turns."""
        limits = self._limits(len(arms))
        series = _Alternation(arms, self._program, self._identity, self._sink, limits)
        series.play(rounds, self.pace, rng, counts_standing=self.counts_standing)
        return series, 0.0


class _Alternation(Series):
    """One block: runs by turns."""

    def play(self, rounds: int, pace: Pace, rng: random.Random, *, counts_standing: bool) -> None:
        """Plays all rounds: one after the other where something is to be done between them."""
        together = not (self._program.prepare or self._program.cleanup)
        for first in range(0, rounds, rounds if together else 1):
            self._hooks("--prepare", self._program.prepare)
            stints = [*self._stints(pace, rounds if together else 1, rng)]
            for index, stint in without_strangers(stints):
                self._take(index, first + stint.number, stint, counts_standing)
            self._hooks("--cleanup", self._program.cleanup)

    def try_out(
        self, pace: Pace, runs: int, rng: random.Random, met: Met
    ) -> tuple[list[Stint], Fault | None]:
        """Runs all arms and enters nothing."""
        self._hooks("--prepare", self._program.prepare)
        found = [*self._stints(pace, runs, rng, met)]
        self._hooks("--cleanup", self._program.cleanup)
        rates = (self._rate(self._parts[index], stint.run) for index, stint in found)
        faults = (part.fault for part in self._parts if part.fault)
        first = next(faults, None) or next((r for r in rates if isinstance(r, Fault)), None)
        return [stint for _, stint in found], first

    def _stints(
        self, pace: Pace, runs: int, rng: random.Random, met: Met = nothing_met
    ) -> Iterator[tuple[int, Stint]]:
        """Yields each run with the number of its arm; arms at fault are left out."""
        living = [index for index, part in enumerate(self._parts) if part.fault is None]
        if not living:
            return
        units = [self._unit(self._parts[index], rng) for index in living]
        seed, limit_s = rng.randrange(SEEDS), self.limits.run_s
        for stint in take_turns(
            units, self._identity.base, pace, runs=runs, seed=seed, limit_s=limit_s, met=met
        ):
            yield living[stint.unit], stint

    def _unit(self, part: Part, rng: random.Random) -> Unit:
        """Returns what is run for an arm."""
        return Unit(
            replace(self._program.of(part.arm), rss_limit_mb=self._limit_mb(part)),
            self._changes(part, rng),
            partial(self._identity.inspect, part.arm),
        )

    def _hooks(self, option: str, command: str) -> None:
        """Runs a command of the user's for every arm."""
        for part in self._parts:
            if part.fault is None:
                hook(option, command, self._identity.base)

    def _take(self, index: int, number: int, stint: Stint, counts_standing: bool) -> None:
        """Takes in one run of an arm."""
        part, run = self._parts[index], stint.run
        self._note_memory(part, run)
        if part.fault is not None:
            return
        rate = self._rate(part, run)
        if isinstance(rate, Fault):
            part.fault = rate
            return
        if counts_standing:
            rate *= stint.alive_s / run.wall_s
        counted_ns = max(1, round(run.wall_s * 1e9))
        turn = Turn(number, stint.position, stint.start_ns, counted_ns, rate * counted_ns * 1e-9)
        self._enter(index, run, turn, Evidence(cpu_ns=run.cpu_ns, rss_kb=run.rss_peak_kb))

    def _outcome(self, part: Part) -> Outcome:
        """Returns what an arm came to, and that it came to it by turns."""
        outcome = super()._outcome(part)
        return replace(outcome, facts={**outcome.facts, BY_TURNS: 1})


def without_strangers(stints: Sequence[tuple[int, Stint]]) -> list[tuple[int, Stint]]:
    """Returns runs without the time that other programs of the machine took from their turns.

    That is known of the first thread of a process. So it holds where no run of the block had more:
    all runs that are compared are treated alike.
    """
    if any(stint.threads > 1 or stint.processes > 1 for _, stint in stints):
        return [*stints]
    return [
        (index, replace(stint, run=replace(stint.run, wall_s=stint.own_s)))
        for index, stint in stints
    ]
