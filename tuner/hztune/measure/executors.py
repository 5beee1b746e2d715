"""The executor that suits what is measured: turns where it is steady, whole runs elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hztune.allocator import Installed
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.measure import Executor, SeveralExecutor
from hztune.measure.alternate import AlternateExecutor
from hztune.measure.identity import AllocatorIdentity, IdentityCheck
from hztune.measure.program import DEFAULT_TIMEOUT_S, Program, bench_program
from hztune.measure.runs import RunExecutor
from hztune.measure.turns import TurnExecutor, tempo_for
from hztune.measure.turns_or_runs import ProgramExecutor, Say, say_nothing
from hztune.measure.whole import MEMORY_SHARE
from hztune.store import Sink
from hztune.workload import WorkloadSpec

RUN_S = 1.0
"""Seconds of a run of a workload that turns cannot measure."""


def program_executor(
    program: Program,
    sink: Sink | None = None,
    *,
    seed: int,
    machine: Machine,
    identity: IdentityCheck | None = None,
    inside: Sequence[Installed] = (),
    say: Say = say_nothing,
) -> Executor:
    """Returns what measures a program of the user's here.

    Args:
        program: The program.
        sink: Where every run goes as soon as it exists; None: nowhere.
        seed: Of requests, orders and environment sizes.
        machine: Whose memory the processes share.
        identity: None: by the allocators' adapters.
        inside: The allocators that were found in it.
        say: Tells the user how it is measured, and why.
    """
    identity = identity or program_identity(program, inside)
    memory_mb = _memory_mb(machine)
    runs = RunExecutor(program, sink, seed=seed, identity=identity, memory_mb=memory_mb)
    turns = AlternateExecutor(program, sink, seed=seed, identity=identity, memory_mb=memory_mb)
    return ProgramExecutor(program, runs, turns, say)


def program_identity(program: Program, inside: Sequence[Installed] = ()) -> IdentityCheck:
    """Returns the check by the allocators' adapters, whose probes run as the program does."""
    path = shutil.which(program.argv[0])
    return AllocatorIdentity(Path(path) if path else None, inside)


def programs_executor(
    programs: Sequence[Program],
    sink: Sink | None = None,
    *,
    seed: int,
    machine: Machine,
    inside: Sequence[Installed] = (),
    say: Say = say_nothing,
) -> Executor:
    """Returns what measures one program, or several together; arguments as above."""

    def make(program: Program, sink: Sink | None) -> Executor:
        return program_executor(
            program,
            sink,
            seed=seed,
            machine=machine,
            inside=inside,
            say=say if len(programs) == 1 else lambda words: say(f"{program.label}: {words}"),
        )

    if len(programs) == 1:
        return make(programs[0], sink)
    return SeveralExecutor([(each.label, partial(make, each)) for each in programs], sink)


def workload_executor(
    spec: WorkloadSpec,
    sink: Sink | None = None,
    *,
    seed: int,
    machine: Machine,
    processes: int,
    identity: IdentityCheck | None = None,
    run_s: float = RUN_S,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Executor:
    """Returns what measures a workload here.

    Args:
        spec: The workload.
        sink: Where every turn goes as soon as it exists; None: nowhere.
        seed: Of requests, orders and environment sizes.
        machine: Whose memory the processes share.
        processes: Most that live at once where turns measure it.
        identity: None: by the allocators' adapters.
        run_s: Seconds of a run where turns do not measure it, without what it does at its end.
        timeout_s: Seconds after which such a run hangs.
    """
    if spec.steady:
        tempo = tempo_for(spec, _rss_limit_mb(machine, processes))
        return TurnExecutor(spec, sink, seed=seed, tempo=tempo, identity=identity)
    whole = bench_program(spec, run_s, _rss_limit_mb(machine, processes=1), timeout_s)
    return RunExecutor(whole, sink, seed=seed, identity=identity)


def refuse_mixture(specs: Sequence[WorkloadSpec]) -> None:
    """Sees to it that several workloads can be measured together.

    Raises:
        UsageError: Some are measured by turns and some by whole runs, which do not share one number
            of rounds; or one stands twice.
    """
    labels = [spec.label for spec in specs]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise UsageError(f"--workload names {twice} twice; once is enough")
    if len({spec.steady for spec in specs}) > 1:
        unsteady = next(spec.name for spec in specs if not spec.steady)
        raise UsageError(
            f"{unsteady} is measured by whole runs and the others by turns, so that they cannot "
            "be tuned for together; leave it out, or tune for it alone"
        )


def workloads_executor(
    specs: Sequence[WorkloadSpec],
    sink: Sink | None = None,
    *,
    seed: int,
    machine: Machine,
    processes: int,
    run_s: float = RUN_S,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Executor:
    """Returns what measures one workload, or several together; arguments as above."""
    refuse_mixture(specs)

    def make(spec: WorkloadSpec, sink: Sink | None) -> Executor:
        return workload_executor(
            spec,
            sink,
            seed=seed,
            machine=machine,
            processes=processes,
            run_s=run_s,
            timeout_s=timeout_s,
        )

    if len(specs) == 1:
        return make(specs[0], sink)
    return SeveralExecutor([(spec.label, partial(make, spec)) for spec in specs], sink)


def _rss_limit_mb(machine: Machine, processes: int) -> int:
    """What one of several processes may take before it is ended: a share of most of the memory."""
    return int(MEMORY_SHARE * _memory_mb(machine) / processes)


def _memory_mb(machine: Machine) -> int:
    """Memory of the machine, or of its control group, MiB; 0: unknown."""
    total_mb = machine.memory_gib * 1024
    if machine.memory_limit_kb is not None:
        total_mb = min(total_mb or machine.memory_limit_kb, machine.memory_limit_kb // 1024)
    return total_mb
