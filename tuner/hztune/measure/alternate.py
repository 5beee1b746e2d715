"""Whole programs by turns: all arms alive at once, each going on while the others stand still.

They share the CPU, so that whatever makes it slow for a while makes all of them slow alike: a
second by turns is worth dozens of seconds by runs. Only a program that is busy with itself can be
measured so; see `measure.examine`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from hztune.measure import Arm, Turn
from hztune.measure.identity import Fault
from hztune.measure.port_and_dir import with_port_and_dir
from hztune.measure.program import Program
from hztune.measure.stints import Met, Pace, Stint, Unit, nothing_met, take_turns
from hztune.measure.whole import MEMORY_SHARE, SEEDS, Limits, Series, WholeExecutor
from hztune.store import Evidence

BY_TURNS = "by_turns"
"""The fact of an outcome that its runs were measured by turns."""

_PACE = Pace(turn_ms=10.0, cpu=None)


@dataclass(frozen=True, slots=True)
class NumberReading:
    """How the speed of a run by turns is read.

    Attributes:
        counts_standing: Whether the program's own number counts the time that it stood still as if
            it had worked; it is then corrected.
        per_server_cpu: Whether a second is one of the server's own CPU time, not one of the unit's.
    """

    counts_standing: bool = False
    per_server_cpu: bool = False

    def rate(self, told: float, stint: Stint) -> float:
        """Returns the rate of a run from what its time, or what it printed, tells of it."""
        run = stint.run
        counted_s = stint.alive_s if self.counts_standing else run.wall_s
        return told * counted_s / (run.server_cpu_ns * 1e-9 if self.per_server_cpu else run.wall_s)


class AlternateExecutor(WholeExecutor):
    """Measures arms on one program by turns.

    Attributes:
        pace: How they alternate.
        reading: How a run's speed is read.
    """

    pace: Pace = _PACE
    reading: NumberReading = NumberReading()

    def fits(self, arms: int) -> bool:
        """Whether so many can live at once, as far as the control's memory tells."""
        most_kb = MEMORY_SHARE * self._memory_mb * 1024
        return not self._memory_mb or arms * self._control_kb <= most_kb

    def give_networks(self) -> Program:
        """Gives each copy of a server, and its load, a network of its own; returns the server."""
        self._program = replace(self._program, has_network=True)
        return self._program

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
        series = self._series([control] * copies, limits)
        return series.try_out(self.pace, runs, random.Random(self._seed), met)

    def _play(
        self, arms: Sequence[Arm], rounds: int, number: int, rng: random.Random
    ) -> tuple[Series, float]:
        """Runs all arms by turns."""
        series = self._series(arms, self._limits(len(arms)))
        series.play(rounds, self.pace, rng, self.reading)
        return series, 0.0

    def _series(self, arms: Sequence[Arm], limits: Limits) -> _Alternation:
        return _Alternation(arms, self._program, self._identity, self._sink, limits, self._seen)


class _Alternation(Series):
    """One block: runs by turns."""

    facts = MappingProxyType({BY_TURNS: 1})

    def play(self, rounds: int, pace: Pace, rng: random.Random, reading: NumberReading) -> None:
        """Plays all rounds: one after the other where something is to be done between them."""
        program = self._program
        together = not (program.prepare or program.cleanup or program.service)
        for first in range(0, rounds, rounds if together else 1):
            with self._units(rng) as units:
                stints = [*self._stints(units, pace, rounds if together else 1, rng)]
                for index, stint in without_strangers(stints):
                    self._take(index, first + stint.number, stint, reading)

    def try_out(
        self, pace: Pace, runs: int, rng: random.Random, met: Met
    ) -> tuple[list[Stint], Fault | None]:
        """Runs all arms and enters nothing."""
        with self._units(rng) as units:
            found = [*self._stints(units, pace, runs, rng, met)]
        rates = (self._rate(self._parts[index], stint.run) for index, stint in found)
        faults = (part.fault for part in self._parts if part.fault)
        first = next(faults, None) or next((r for r in rates if isinstance(r, Fault)), None)
        return [stint for _, stint in found], first

    @contextmanager
    def _units(self, rng: random.Random) -> Iterator[dict[int, Unit]]:
        """Gives what is run for each arm, by its number, between the user's commands.

        Arms at fault are left out.
        """
        with ExitStack() as stack:
            units = {}
            for index, part in enumerate(self._parts):
                if part.fault is None:
                    limited = replace(self._program.of(part.arm), rss_limit_mb=self._limit_mb(part))
                    program = stack.enter_context(with_port_and_dir(limited))
                    self._hook("--prepare", program.prepare)
                    look = partial(self._identity.inspect, part.arm)
                    units[index] = Unit(program, self._changes(part, rng), look)
            yield units
            for unit in units.values():
                self._hook("--cleanup", unit.program.cleanup)

    def _stints(
        self,
        units: Mapping[int, Unit],
        pace: Pace,
        runs: int,
        rng: random.Random,
        met: Met = nothing_met,
    ) -> Iterator[tuple[int, Stint]]:
        """Yields each run with the number of its arm."""
        if not units:
            return
        numbers, seed, limit_s = [*units], rng.randrange(SEEDS), self.limits.run_s
        for stint in take_turns(
            [*units.values()],
            self._identity.base,
            pace,
            runs=runs,
            seed=seed,
            limit_s=limit_s,
            met=met,
        ):
            yield numbers[stint.unit], stint

    def _take(self, index: int, number: int, stint: Stint, reading: NumberReading) -> None:
        """Takes in one run of an arm."""
        part, run = self._parts[index], stint.run
        self._note_memory(part, run)
        if part.fault is not None:
            return
        rate, run = self._rate(part, run), self._without_own(run)
        if isinstance(rate, Fault):
            part.fault = rate
            return
        counted_ns = max(1, round(run.wall_s * 1e9))
        ops = reading.rate(rate, stint) * counted_ns * 1e-9
        turn = Turn(number, stint.position, stint.start_ns, counted_ns, ops)
        self._enter(index, run, turn, Evidence(cpu_ns=run.cpu_ns, rss_kb=run.rss_peak_kb))


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
