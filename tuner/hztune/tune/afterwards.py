"""What is measured when the verdict stands: the smallest memory, and live bytes; it changes none.

Who stops it here has the verdict all the same, without what was still to come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hztune.allocator import Installed
from hztune.blocks import Arm
from hztune.errors import HztuneError, StoppedByUser
from hztune.machine import Machine
from hztune.measure.executors import RUN_S, program_identity
from hztune.measure.identity import AllocatorIdentity, IdentityCheck
from hztune.measure.live_share import live_shares
from hztune.measure.program import Program, bench_program
from hztune.progress import Reporter
from hztune.result import LiveMemory, Survivor
from hztune.result.decision import Decision
from hztune.trial import Workbench
from hztune.tune.request import TuneRequest
from hztune.tune.survival import survivors

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
    """Measures what does not change the verdict.

    Args:
        request: What was asked.
        bench: Where everything else was measured.
        control: What was compared with.
        decision: How the study ended.
        machine: Where it is measured.
        inside: The allocators that every program brings.
        reporter: Is told what was found.
    """
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

    Args:
        request: What was asked.
        bench: Knows how long a run takes, and how much time is left.
        arms: The control first.
        inside: The allocators that every program brings.
        on_program: Whether the claim is of the program itself, and the rest of its trace.
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
