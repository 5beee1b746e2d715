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

from hztune.measure.alternate import AlternateExecutor, NumberReading
from hztune.measure.examine import TURN_MS, Finding, idle
from hztune.measure.holdings import Holdings
from hztune.measure.identity import Fault
from hztune.measure.program import Program, Service, placed_names
from hztune.measure.server import LOAD_PATIENCE_S, LOAD_SPAN_S, refuse_fixed_time
from hztune.measure.stints import Pace, Stint
from hztune.measure.types import Arm

_ONE_THREAD = 1.3
"""Busy threads up to which a server is measured on one CPU."""

_NUMBER_OFF = math.log(1.25)
"""How far what a load prints may be from what is expected of it, log units."""

_TIME_OFF = math.log(1.5)
_LEAST_S = 0.01
"""A server's CPU time below which that is not known well, seconds."""

_COPIES = 8
"""Copies that must fit into memory, as many as a large block has arms: what is compared by turns is
not what is compared by runs, and a study must not mix them."""

_BUSY = 0.9
"""Share of the CPUs that server and load keep busy where the server's CPU time tells all."""


def fixed_port(program: Program, service: Service) -> str:
    """Returns why two copies of a server cannot live at once, in words; "": they can."""
    if placed_names(*program.argv, program.prepare):
        return ""
    port = f"port {service.port}" if service.port else "the port that its command names"
    return (
        f"two copies of the server cannot both have {port}; write {{port}} in --server and --load "
        "in its place"
    )


def examine_server(turns: AlternateExecutor, program: Program, control: Arm) -> Finding:
    """Puts the control alone under load and then two copies of it by turns, and judges them.

    Raises:
        HztuneError: The load's time says nothing of the server.
    """
    alone, fault = _alone(turns, program, control)
    if alone is None:
        return Finding(f"it fails by itself: {fault}", turns.pace)
    turns.take_memory(alone.run.rss_peak_kb)
    if not turns.fits(_COPIES):
        return Finding(f"{_COPIES} copies of it take more memory than there is", turns.pace)
    holdings = Holdings()
    copies, failed = turns.try_out(control, 2, met=holdings.watching)
    if failed is not None:
        return Finding(f"a second copy of it beside the first fails: {failed.detail}", turns.pace)
    if shared := holdings.shared():
        return Finding(f"two copies of it share {shared[0]}", turns.pace)
    waiting = max(idle([alone], turns.pace), idle(copies, turns.pace))
    if waiting > 0.0:
        return Finding(
            f"server and load wait for something else than a CPU {waiting:.0%} of their time",
            turns.pace,
        )
    if program.rate is not None:
        found = _by_number(program, alone, copies, turns.pace)
    else:
        found = _by_time(alone, copies, turns.pace)
    return _read(program, found, [alone, *copies])


def _alone(turns: AlternateExecutor, program: Program, control: Arm) -> tuple[Stint | None, str]:
    """Runs the control alone, on one CPU; where its threads could use more, once more on all.

    A load that prints a number and goes on for long is told to end; if it then prints the number,
    that is how its runs end from then on.
    """
    turns.pace = Pace(TURN_MS, cpu=max(os.sched_getaffinity(0)))
    turns.tell_load(min(LOAD_PATIENCE_S, program.timeout_s / 2) if program.rate else 0.0)
    alone, fault = _once(turns, control)
    if program.rate and (alone is None or alone.run.was_told):
        turns.tell_load(LOAD_SPAN_S if alone else 0.0)
        alone, fault = _once(turns, control)
    else:
        turns.tell_load(0.0)
    if alone is not None and alone.busy_threads > _ONE_THREAD:
        turns.pace = Pace(TURN_MS, cpu=None)
        alone, fault = _once(turns, control)
    return alone, fault


def _once(turns: AlternateExecutor, control: Arm) -> tuple[Stint | None, str]:
    """Runs the control once; returns what it showed, or why it does not count."""
    stints, fault = turns.try_out(control, 1)
    if fault is not None or not stints:
        return None, fault.detail if fault else "it showed nothing"
    return stints[0], ""


def _by_time(alone: Stint, copies: Sequence[Stint], pace: Pace) -> Finding:
    """Judges by the server's CPU time under the load, which must be that of a run alone.

    Raises:
        HztuneError: The load takes a fixed time.
    """
    alone_s = max(_LEAST_S, alone.run.server_cpu_ns * 1e-9)
    turns_s = max(_LEAST_S, fmean(copy.run.server_cpu_ns for copy in copies) * 1e-9)
    refuse_fixed_time(alone.alive_s, fmean(copy.alive_s for copy in copies), turns_s / alone_s)
    if abs(math.log(turns_s / alone_s)) <= _TIME_OFF:
        return Finding("", pace)
    return Finding(
        f"by turns the server takes {turns_s:.2g} s of CPU time under the load, and alone "
        f"{alone_s:.2g} s",
        pace,
    )


def _by_number(program: Program, alone: Stint, copies: Sequence[Stint], pace: Pace) -> Finding:
    """Judges by what the load prints: it counts requests over all its time, or is as it was alone.

    The first is seen in requests for each second of the server's CPU time, which no other program
    on the machine changes.
    """
    reference, *others = (_told(program, stint) for stint in (alone, *copies))
    for counts_standing, place in ((True, 0), (False, 1)):
        off_by = fmean(told[place] - reference[place] for told in others)
        if abs(off_by) <= _NUMBER_OFF:
            return Finding("", pace, NumberReading(counts_standing))
    return Finding(
        f"the number that the load prints is {math.exp(off_by):.2g} times as high by turns as "
        "alone, and the time that it stood still does not explain that",
        pace,
    )


def _told(program: Program, stint: Stint) -> tuple[float, float]:
    """Returns the logarithms of requests for each second of the server's, and of the number itself.

    The first is what the number tells if it is a rate over all the time of the load.
    """
    rate = program.measure(stint.run.wall_s, stint.run.stdout)
    assert not isinstance(rate, Fault), "a run that is judged has a number"
    server_s = max(1e-6, stint.run.server_cpu_ns * 1e-9)
    return math.log(rate * stint.alive_s / server_s), math.log(rate)


def _read(program: Program, found: Finding, stints: Sequence[Stint]) -> Finding:
    """Chooses what a second is, and says what server and load take."""
    if found.reason:
        return found
    server_s = fmean(stint.run.server_cpu_ns for stint in stints) * 1e-9
    both_s = fmean(stint.run.cpu_ns for stint in stints) * 1e-9
    active_s = fmean(stint.run.wall_s for stint in stints)
    cpus = 1 if found.pace.cpu is not None else len(os.sched_getaffinity(0))
    counts_all = program.rate is None or found.reading.counts_standing
    is_busy = found.pace.cpu is not None or both_s >= _BUSY * cpus * active_s
    per_cpu = counts_all and is_busy and server_s > 0.0
    told = (
        f"under the load the server takes {server_s:.3g} s of CPU time, and the load "
        f"{both_s - server_s:.3g} s; compared is "
    )
    what = "the server's own"
    if not per_cpu:
        what = "the time of both, since they leave CPUs idle" if counts_all else "what it prints"
    reading = NumberReading(found.reading.counts_standing, per_cpu)
    return replace(found, reading=reading, remark=told + what)
