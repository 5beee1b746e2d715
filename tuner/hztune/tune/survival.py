"""How little memory the default and the winner survive, each run in a container of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from hztune.allocator import Installed
from hztune.blocks import Arm
from hztune.machine import Machine
from hztune.measure import Executor
from hztune.measure.executors import programs_executor, workloads_executor
from hztune.progress import Reporter
from hztune.quota import LEAST_MEMORY_KB, Quota
from hztune.result import Survivor
from hztune.trial import Clock, Workbench, smallest_memory
from hztune.tune.request import TuneRequest

_MARGIN, _MARGIN_KB = 1.5, 8 * 1024
"""The search begins so far above the peak that was seen."""

_SLOWEST = 8.0
_LEAST_TIMEOUT_S = 5.0
"""A run that is as slow as that beside the usual one has not survived: it only reads its own pages
again and again."""


def survivors(
    request: TuneRequest,
    arms: Sequence[Arm],
    bench: Workbench,
    machine: Machine,
    inside: Sequence[Installed],
    reporter: Reporter,
) -> tuple[Survivor, ...]:
    """Seeks the smallest memory of each arm, in equal parts of the time that is set aside for it.

    Args:
        request: What was asked.
        arms: The control first.
        bench: What was measured of them so far.
        machine: Where it is measured.
        inside: The allocators that every program brings.
        reporter: Is told what was found.
    """
    found, clock = [], bench.budget.clock
    for arm in arms:
        deadline = clock.now() + request.division.smallest_s / len(arms)
        survives = _survival(request, arm, bench, machine, inside)
        is_early = partial(_is_before, clock, deadline)
        least = smallest_memory(survives, _start_kb(bench, arm), is_early)
        reporter.say(f"smallest memory of {arm.text}: {least.words}")
        found.append(Survivor(arm, least))
    return tuple(found)


def _is_before(clock: Clock, deadline: float) -> bool:
    return clock.now() < deadline


def _survival(
    request: TuneRequest,
    arm: Arm,
    bench: Workbench,
    machine: Machine,
    inside: Sequence[Installed],
) -> Callable[[int], bool]:
    """Makes one run of an arm within a limit."""
    usual_s = bench.run_s()
    runs = 0

    def survives(kb: int) -> bool:
        nonlocal runs
        runs += 1
        executor = _within(request, max(LEAST_MEMORY_KB, kb), usual_s, machine, inside)
        block = executor.measure([arm], role="explore", rounds=1, number=runs)
        return block.control.ok

    return survives


def _within(
    request: TuneRequest,
    kb: int,
    usual_s: float | None,
    machine: Machine,
    inside: Sequence[Installed],
) -> Executor:
    """What measures in a container with so much memory."""
    quota = Quota(request.quota.cpus if request.quota else None, kb)
    if request.program is None:
        specs = [spec.within(quota) for spec in request.workloads]
        return workloads_executor(specs, seed=request.seed, machine=machine, processes=1)
    programs = []
    for program in request.programs:
        limit_s = program.timeout_s
        if usual_s is not None:
            limit_s = min(limit_s, max(_LEAST_TIMEOUT_S, _SLOWEST * usual_s))
        programs.append(replace(program, quota=quota, warmups=0, timeout_s=limit_s, by=""))
    return programs_executor(programs, seed=request.seed, machine=machine, inside=inside)


def _start_kb(bench: Workbench, arm: Arm) -> int:
    """A limit that an arm should survive."""
    peaks = [
        outcome.rss_peak_kb
        for block in bench.ledger.blocks
        for outcome in block.outcomes
        if outcome.arm == arm
    ]
    return round(_MARGIN * max(peaks, default=0)) + _MARGIN_KB
