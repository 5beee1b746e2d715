"""The smallest memory in which something survives: bisection, and then confirmation.

Whether a run survives near the limit is partly chance: what was found by one run for each step is
the start. Then the limit must be survived several times in a row; where it is not, it is raised.

How little memory the default and the winner survive, each run in a container of its own.

What is measured when the verdict stands: the smallest memory, and live bytes; it changes none.

Who stops it here has the verdict all the same, without what was still to come.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

from hztune.allocator import Installed
from hztune.blocks import Arm
from hztune.errors import HztuneError, StoppedByUser
from hztune.machine import Machine
from hztune.measure import Executor
from hztune.measure.executors import RUN_S, program_identity, programs_executor, workloads_executor
from hztune.measure.identity import AllocatorIdentity, IdentityCheck
from hztune.measure.live_share import live_shares
from hztune.measure.program import Program, bench_program
from hztune.progress import Reporter
from hztune.quota import LEAST_MEMORY_KB, Quota
from hztune.result import CONFIRMED_BY, Decision, LiveMemory, SmallestMemory, Survivor
from hztune.study.bench import Clock, Workbench
from hztune.tune.request import TuneRequest

PRECISION = 0.02
"""Ratio less one of the limits between which the search ends, and by which one is raised."""

_PAGE_KB = 4
_MOST_DOUBLINGS = 4

Survives = Callable[[int], bool]
"""Runs it with a limit, KiB, and says whether it survived."""


def smallest_memory(
    survives: Survives, start_kb: int, has_time: Callable[[], bool]
) -> SmallestMemory:
    """Seeks the smallest limit.

    Args:
        survives: Makes one run.
        start_kb: A limit that it should survive; it is doubled a few times if it does not.
        has_time: Whether there is time for another run.
    """
    seen: list[bool] = []

    def run(kb: int) -> bool | None:
        """Whether a run survives; None: there is no time for one."""
        if not has_time():
            return None
        seen.append(survives(kb))
        return seen[-1]

    high, low = _pages(start_kb), 0
    for _ in range(_MOST_DOUBLINGS):
        if run(high) is not False:
            break
        low, high = high, 2 * high
    if not any(seen):
        return SmallestMemory(0, low, len(seen), is_confirmed=False)
    while high > (1.0 + PRECISION) * low + _PAGE_KB:
        middle = _pages((low + high) // 2)
        if middle in (low, high) or (survived := run(middle)) is None:
            break
        low, high = (low, middle) if survived else (middle, high)
    in_a_row = 0
    while in_a_row < CONFIRMED_BY and (survived := run(high)) is not None:
        in_a_row = in_a_row + 1 if survived else 0
        if not survived:
            low, high = high, _pages(round(high * (1.0 + PRECISION))) + _PAGE_KB
    return SmallestMemory(high, low, len(seen), is_confirmed=in_a_row == CONFIRMED_BY)


def _pages(kb: int) -> int:
    return max(_PAGE_KB, kb // _PAGE_KB * _PAGE_KB)


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

    `arms`: The control first.
    """
    found, clock, usual_s, numbers = [], bench.budget.clock, bench.run_s(), count(1)
    for arm in arms:
        deadline = clock.now() + request.division.smallest_s / len(arms)

        def survives(kb: int, arm: Arm = arm) -> bool:
            executor = _within(request, max(LEAST_MEMORY_KB, kb), usual_s, machine, inside)
            block = executor.measure([arm], role="explore", rounds=1, number=next(numbers))
            return block.control.ok

        outcomes = (each for block in bench.ledger.blocks for each in block.outcomes)
        peak_kb = max((each.rss_peak_kb for each in outcomes if each.arm == arm), default=0)
        start_kb = round(_MARGIN * peak_kb) + _MARGIN_KB
        least = smallest_memory(survives, start_kb, partial(_is_before, clock, deadline))
        reporter.say(f"smallest memory of {arm.text}: {least.words}")
        found.append(Survivor(arm, least))
    return tuple(found)


def _is_before(clock: Clock, deadline: float) -> bool:
    return clock.now() < deadline


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
    most_s = math.inf if usual_s is None else max(_LEAST_TIMEOUT_S, _SLOWEST * usual_s)
    programs = [
        replace(each, quota=quota, warmups=0, timeout_s=min(each.timeout_s, most_s), by="")
        for each in request.programs
    ]
    return programs_executor(programs, seed=request.seed, machine=machine, inside=inside)


ASKED_SHARES = (0.03, 0.1)
"""Least and most time for the questions, as parts of the budget: more than the least only where the
study has left it."""


def afterwards(
    request: TuneRequest,
    bench: Workbench,
    control: Arm,
    decision: Decision,
    machine: Machine,
    inside: Sequence[Installed],
    reporter: Reporter,
) -> tuple[tuple[Survivor, ...], tuple[LiveMemory, ...]]:
    """Measures what does not change the verdict."""
    found: tuple[Survivor, ...] = ()
    if decision.verdict in ("interrupted", "not_enough_data"):
        return found, ()
    arms = list(dict.fromkeys([control, decision.arm]))
    try:
        if request.smallest_memory:
            found = survivors(request, arms, bench, machine, inside, reporter)
        return found, ask_arms(request, bench, arms, inside, on_program=decision.on_program)
    except (KeyboardInterrupt, StoppedByUser):
        reporter.say("stopped; the verdict stands, and nothing more is measured")
    except HztuneError as error:
        reporter.say(f"the verdict stands, and nothing more can be measured: {error}")
    return found, ()


def ask_arms(
    request: TuneRequest,
    bench: Workbench,
    arms: Sequence[Arm],
    inside: Sequence[Installed],
    *,
    on_program: bool,
) -> tuple[LiveMemory, ...]:
    """Runs each arm once more, and asks it how much of its allocator's memory the program has.

    `arms`: The control first.
    `on_program`: Whether the claim is of the program itself, and the rest of its trace.
    """
    targets = [*_targets(request, inside, on_program=on_program)]
    least_s, most_s = (share * request.budget_s for share in ASKED_SHARES)
    seconds = max(least_s, min(most_s, bench.budget.left())) / len(targets)
    usual_s = (bench.run_s() or 0.0) if request.program is not None else 0.0
    found = []
    for name, program, identity in targets:
        shares = live_shares(
            program, arms, identity, seed=request.seed, seconds=seconds, usual_s=usual_s
        )
        label = name if len(targets) > 1 else ""
        found += [LiveMemory(arm, label, each) for arm, each in zip(arms, shares, strict=True)]
    return tuple(found)


def _targets(
    request: TuneRequest, inside: Sequence[Installed], *, on_program: bool
) -> Iterator[tuple[str, Program, IdentityCheck]]:
    """Yields what runs, with its name and the check that prepares its processes."""
    if on_program and request.prove_on is not None:
        yield request.prove_on.label, request.prove_on, program_identity(request.prove_on)
        return
    for program in request.programs:
        yield program.label, replace(program, warmups=0), program_identity(program, inside)
    for spec in request.workloads:
        yield spec.label, bench_program(spec, RUN_S), AllocatorIdentity()
