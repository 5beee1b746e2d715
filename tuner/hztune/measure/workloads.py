"""The executor that suits a built-in workload: turns where it is steady, whole runs elsewhere."""

from __future__ import annotations

from hztune.machine import Machine
from hztune.measure.program import bench_program
from hztune.measure.proof import Proof
from hztune.measure.runs import RunExecutor
from hztune.measure.turns import TurnExecutor, tempo_for
from hztune.measure.types import Executor
from hztune.samples import Sink
from hztune.workload import WorkloadSpec

_MEMORY_SHARE = 0.8


def workload_executor(
    spec: WorkloadSpec,
    sink: Sink | None = None,
    *,
    seed: int,
    machine: Machine,
    processes: int,
    proof: Proof | None = None,
) -> Executor:
    """Returns what measures a workload here.

    Args:
        spec: The workload.
        sink: Where every turn goes as soon as it exists; None: nowhere.
        seed: Of requests, orders and environment sizes.
        machine: Whose memory the processes share.
        processes: Most that live at once where turns measure it.
        proof: None: by the allocators' adapters.
    """
    if spec.steady:
        tempo = tempo_for(spec, _rss_limit_mb(machine, processes))
        return TurnExecutor(spec, sink, seed=seed, tempo=tempo, proof=proof)
    whole = bench_program(spec, rss_limit_mb=_rss_limit_mb(machine, processes=1))
    return RunExecutor(whole, sink, seed=seed, proof=proof)


def _rss_limit_mb(machine: Machine, processes: int) -> int:
    """What one of several processes may take before it is ended: a share of most of the memory."""
    total_mb = machine.memory_gib * 1024
    if machine.memory_limit_kb is not None:
        total_mb = min(total_mb or machine.memory_limit_kb, machine.memory_limit_kb // 1024)
    return int(_MEMORY_SHARE * total_mb / processes)
