"""Whether turns tell the truth about a server, found by measuring it: alone, then two of it.

What is compared. Load and server share the machine, so that what a server gains is diluted by the
load's own time: of a server that takes half of it, 10 % look like 5 %. In use, load comes from
elsewhere. So, as long as the two keep the CPUs busy, requests are counted for each second of the
server's own CPU time; nothing that the server does is missed then. Where they leave CPUs idle, the
server waits, for a lock perhaps, which costs no CPU time but time: the time of both is compared.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from hztune.measure.alternate import NumberReading
from hztune.measure.examine import TURN_MS, Finding, Tryout
from hztune.measure.identity import Fault
from hztune.measure.program import Program, Service, placeholders
from hztune.measure.server import LOAD_PATIENCE_S, LOAD_SPAN_S, refuse_fixed_time
from hztune.measure.stints import Met, Pace, Stint

_ONE_THREAD = 1.6
"""Busy threads up to which a server is measured on one CPU: the second did a third of the first's
work. A thread that cleans up by the clock does more of it the longer a load takes: memcached's is
a seventh on a quiet machine, 1.25 busy threads, and more beside other programs."""

_NUMBER_OFF = math.log(1.25)
"""How far what a load prints may be from what is expected of it, log units."""

_TIME_OFF = math.log(1.5)
_LEAST_S = 0.01
"""A server's CPU time below which that is not known well, seconds."""

_BUSY = 0.9
"""Share of the CPUs that server and load keep busy where the server's CPU time tells all."""


def fixed_port(program: Program, service: Service) -> str:
    """Returns why two copies of a server cannot live in one network, in words; "": they can."""
    if placeholders(*program.argv, program.prepare) and not service.port:
        return ""
    port = f"port {service.port}" if service.port else "the port that its command names"
    return (
        f"two copies of the server cannot both have {port}; write {{port}} in --server and --load "
        "in its place"
    )


class ServerTryout(Tryout):
    """A server that may be measured by turns, with its load."""

    waits = "server and load wait"
    least_copies = 8
    """As many as a large block has arms: what is compared by turns is not what is compared by runs,
    and a study must not mix them."""

    def alone(self) -> tuple[Stint | None, Fault | None]:
        """Runs the control alone, on one CPU; where its threads could use more, once more on all.

        A load that prints a number and goes on for long is told to end; if it then prints the
        number, that is how its runs end from then on. What hangs is not run again.
        """
        turns, program = self.turns, self.program
        turns.pace = Pace(TURN_MS, cpu=max(os.sched_getaffinity(0)))
        turns.tell_load(min(LOAD_PATIENCE_S, program.timeout_s / 2) if program.rate else 0.0)
        alone, fault = self.once()
        may_end_otherwise = fault is not None and fault.status != "hang"
        if program.rate and (may_end_otherwise or (alone is not None and alone.run.was_told)):
            turns.tell_load(LOAD_SPAN_S if alone else 0.0)
            alone, fault = self.once()
        else:
            turns.tell_load(0.0)
        if alone is not None and alone.busy_threads > _ONE_THREAD:
            turns.pace = Pace(TURN_MS, cpu=None)
            alone, fault = self.once()
        return alone, fault

    def copies(self, alone: Stint, met: Met) -> tuple[list[Stint], Fault | None]:
        """Puts two copies under load by turns, once."""
        return self.turns.try_out(self.control, 2, met=met)

    def by_time(self, alone: Stint, copies: Sequence[Stint]) -> Finding:
        """Judges by the server's CPU time under the load, which must be that of a run alone.

        Raises:
            HztuneError: The load takes a fixed time.
        """
        alone_s = max(_LEAST_S, alone.run.server_cpu_ns * 1e-9)
        turns_s = max(_LEAST_S, fmean(copy.run.server_cpu_ns for copy in copies) * 1e-9)
        refuse_fixed_time(alone.alive_s, fmean(copy.alive_s for copy in copies), turns_s / alone_s)
        if abs(math.log(turns_s / alone_s)) <= _TIME_OFF:
            return self._in_favour(NumberReading(), alone, copies)
        return self.against(
            f"by turns the server takes {turns_s:.2g} s of CPU time under the load, and alone "
            f"{alone_s:.2g} s",
            may_be_chance=True,
        )

    def by_number(self, alone: Stint, copies: Sequence[Stint]) -> Finding:
        """Judges by what the load prints: it counts requests over all its time, or is as it was.

        The first is seen in requests for each second of the server's CPU time, which no other
        program on the machine changes.
        """
        reference, *others = (self._told(stint) for stint in (alone, *copies))
        for counts_standing, of in ((True, 0), (False, 1)):
            off_by = fmean(told[of] - reference[of] for told in others)
            if abs(off_by) <= _NUMBER_OFF:
                return self._in_favour(NumberReading(counts_standing), alone, copies)
        return self.against(
            f"the number that the load prints is {math.exp(off_by):.2g} times as high by turns as "
            "alone, and the time that it stood still does not explain that",
            may_be_chance=True,
        )

    def _told(self, stint: Stint) -> tuple[float, float]:
        """Returns logarithms of requests for each second of the server's, and of the number itself.

        The first is what the number tells if it is a rate over all the time of the load.
        """
        rate = self.program.measure(stint.run.wall_s, stint.run.stdout)
        assert not isinstance(rate, Fault), "a run that is judged has a number"
        server_s = max(1e-6, stint.run.server_cpu_ns * 1e-9)
        return math.log(rate * stint.alive_s / server_s), math.log(rate)

    def _in_favour(self, reading: NumberReading, alone: Stint, copies: Sequence[Stint]) -> Finding:
        """Chooses what a second is, and says what server and load take."""
        runs = [stint.run for stint in (alone, *copies)]
        server_s = fmean(run.server_cpu_ns for run in runs) * 1e-9
        both_s = fmean(run.cpu_ns for run in runs) * 1e-9
        active_s = fmean(run.wall_s for run in runs)
        pace = self.turns.pace
        counts_all = self.program.rate is None or reading.counts_standing
        is_busy = pace.cpu is not None or both_s >= _BUSY * len(os.sched_getaffinity(0)) * active_s
        per_cpu = counts_all and is_busy and server_s > 0.0
        what = "the time of both, since they leave CPUs idle" if counts_all else "what it prints"
        remark = (
            f"under the load the server takes {server_s:.3g} s of CPU time, and the load "
            f"{both_s - server_s:.3g} s; compared is " + ("the server's own" if per_cpu else what)
        )
        return Finding("", pace, replace(reading, per_server_cpu=per_cpu), remark)
