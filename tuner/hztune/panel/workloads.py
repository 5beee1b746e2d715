"""The workloads of the panel, what programs each one stands for, and what measures them."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from hztune.errors import HztuneError, StoppedByUser
from hztune.machine import Machine
from hztune.measure import Arm, Around, Block, Executor, Outcome, Role, WorkloadSink
from hztune.measure.executors import workloads_executor
from hztune.store import Nowhere, Sink
from hztune.workload import WorkloadSpec

_SHORTER = 3
"""Configurations of a chain that stand beside control and winner in a block: all live at once."""

_RUN_S = 0.1
"""Length of a run of burst-idle: a dozen bursts."""

_TIMEOUT_S = 5.0
"""After which a run of it hangs: without that, a winner that hangs would cost ten minutes."""

_TURNS = 8
"""Turns of a process: its start and warm-up take about as long as they do."""

_THREADS = 2


@dataclass(frozen=True, slots=True)
class PanelWorkload:
    """A workload that stands for a kind of programs.

    Attributes:
        name: As `--workload` names it.
        phrase: The kind of programs, behind the word "on".
        params: "KEY=VALUE" of the workload.
    """

    name: str
    phrase: str
    params: tuple[str, ...] = ()


WORKLOADS = (
    PanelWorkload("large", "programs with large blocks"),
    PanelWorkload("burst-idle", "programs that allocate in bursts", ("idle=0",)),
    PanelWorkload("mstress", "programs with blocks of many sizes and ages"),
)
"""Where harm by parameters of allocators was seen: pages that are faulted in again, memory that is
given back at each burst, heaps that fragment."""


@dataclass
class PanelExecutor(Around):
    """What measures one workload of the panel; its blocks say on which they were measured.

    Attributes:
        workload: What it is called in blocks and samples.
        phrase: The kind of programs that it stands for.
        rounds: Turns or runs of each process.
    """

    workload: str
    phrase: str
    rounds: int = _TURNS

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        """Measures a block; see `Executor.measure`.

        Where the measuring itself fails, the block says so of every arm: the winner is proved, and
        a strange workload that cannot be measured must not cost the study its answer.
        """
        try:
            block = self.inner.measure(arms, role=role, rounds=rounds, number=number)
        except StoppedByUser:
            raise
        except HztuneError as error:
            block = Block(number, role, tuple(Outcome(arm, "failed", str(error)) for arm in arms))
        return replace(block, workload=self.workload)


def make(
    sink: Sink | None, *, seed: int, machine: Machine, threads: int, tuned: Collection[str]
) -> tuple[PanelExecutor, ...]:
    """Makes what measures the panel.

    Args:
        sink: Where every turn goes as soon as it exists; None: nowhere.
        seed: As of the study.
        machine: Where it is measured.
        threads: Of the workload that is tuned; 0: the program decides.
        tuned: Names of the workloads that are tuned: they are no strangers.
    """
    cpus = len(os.sched_getaffinity(0))
    count = max(1, min(threads or _THREADS, cpus))
    return tuple(
        _executor(one, sink, seed, machine, count) for one in WORKLOADS if one.name not in tuned
    )


def _executor(
    one: PanelWorkload, sink: Sink | None, seed: int, machine: Machine, threads: int
) -> PanelExecutor:
    spec = WorkloadSpec.from_text(one.name, one.params, threads)
    inner: Executor = workloads_executor(
        [spec],
        WorkloadSink(sink or Nowhere(), one.name),
        seed=seed,
        machine=machine,
        processes=2 + _SHORTER,
        run_s=_RUN_S,
        timeout_s=_TIMEOUT_S,
    )
    return PanelExecutor(inner, one.name, one.phrase, _TURNS if spec.steady else 1)
