"""Blocks that are measured elsewhere: on the workers of a Dask cluster, one at a time on each.

A block needs nothing but its `Job` and can be measured again, so it may start anywhere, and again
where a worker was lost. All that proves is measured on workers of one kind of machine, which the
profile names; the search may use all. A worker needs hztune and the allocators installed. It
measures built-in workloads, and a program only where it was started with that program's path in
HZTUNE_ALLOW (several with colons), and without any shell command. Otherwise anyone who reaches the
scheduler could run anything on the workers by a job of hztune.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from hztune.blocks import Arm, Block, Role
from hztune.errors import HztuneError, UsageError
from hztune.machine import Machine
from hztune.measure import Accounting, Executor
from hztune.measure.executors import executor_for
from hztune.measure.program import Program
from hztune.store import Evidence, Plan, Sink
from hztune.workload import WorkloadSpec

Client = Any  # a `distributed.Client`: Dask is installed only where it is used

ALLOWED = "HZTUNE_ALLOW"
_LOOK_S, _AGAIN_S = 2.0, 0.2
_PATIENCE_S = 60.0  # seconds without a worker of the right kind, after which a study ends


@dataclass(frozen=True, slots=True)
class Target:
    targets: tuple[Program | WorkloadSpec, ...]
    seed: int
    processes: int

    @property
    def key(self) -> str:
        return f"{[getattr(each, 'argv', each.label) for each in self.targets]} {self.seed}"

    def refuse_strangers(self) -> None:
        """UsageError where a worker would run or read what it was not started for."""
        allowed = os.environ.get(ALLOWED, "").split(":")
        for each in self.targets:
            if isinstance(each, Program):
                name = each.argv[0]
            else:
                name = str(each.trace.path) if each.trace is not None else ""
            if name and name not in allowed:
                raise UsageError(
                    f"this worker was not started for {name!r}: start it with {ALLOWED}={name}"
                )
            if isinstance(each, Program) and (each.service or each.shell_commands):
                raise UsageError(
                    "--server, --prepare, --cleanup, --check and --metric-cmd are shell commands, "
                    "which no worker takes; tune with them on the program's own machine, without "
                    "--on"
                )


Job = tuple[Target, tuple[Arm, ...], Role, int, int]
"""What is measured: arms, for what, so many rounds, and the number of the block."""

Costs = tuple[float, float]
"""Seconds of a block for each of its arms: with one round, and with two."""


def costs_of(executor: Executor) -> Costs:
    return executor.cost(1, 1), executor.cost(1, 2)


Answered = tuple[Block, Accounting, Costs]
"""A block with the machine's fingerprint, where its time went, and what blocks cost there."""


# ---- in a worker ---------------------------------------------------------------------------------

_latest: tuple[str, Executor] | None = None
_measuring = Lock()
"""Blocks beside each other, in a worker of several threads, would disturb each other."""


def forget_settings_of_dask() -> None:
    """Takes from this process's environment what Dask's nanny sets for every worker.

    MALLOC_TRIM_THRESHOLD_ would reach the control, and OMP_NUM_THREADS a program. Where a user has
    set another value, the nanny keeps that.
    """
    import dask

    for part in ("pre-spawn-environ", "environ"):
        for name, value in dask.config.get(f"distributed.nanny.{part}", {}).items():
            if os.environ.get(name) == str(value):
                del os.environ[name]


def kept_executor(target: Target) -> Executor:
    """What measures a target in this worker; kept, as it learns what blocks cost."""
    global _latest
    if _latest is None or _latest[0] != target.key:
        forget_settings_of_dask()
        made = executor_for(
            target.targets, seed=target.seed, machine=Machine.here(), processes=target.processes
        )
        _latest = target.key, made
    return _latest[1]


def prepared(target: Target, control: Arm) -> Costs:
    target.refuse_strangers()
    with _measuring:
        executor = kept_executor(target)
        executor.prepare(control)
        return costs_of(executor)


def measured(job: Job) -> Answered:
    target, arms, role, rounds, number = job
    target.refuse_strangers()
    with _measuring:
        executor = kept_executor(target)
        before = executor.accounting
        block = executor.measure(arms, role=role, rounds=rounds, number=number)
        block = replace(block, machine=Machine.here().fingerprint)
        return block, executor.accounting - before, costs_of(executor)


# ---- in the study --------------------------------------------------------------------------------


class ClusterExecutor(Executor):
    def __init__(
        self, client: Client, target: Target, control: Arm, sink: Sink, machine: Machine
    ) -> None:
        self._client, self._target, self._sink = client, target, sink
        self.flying: dict[Any, Job] = {}  # what is being measured for the search
        self.machine = machine
        self._costs: Costs = self._finished(prepared, target, control)

    @property
    def pending(self) -> list[Arm]:
        return [arm for _, arms, *_ in self.flying.values() for arm in arms[1:]]

    def cost(self, arms: int, rounds: int) -> float:
        one_s, two_s = self._costs
        return arms * (one_s + (rounds - 1) * (two_s - one_s))

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        job = self._target, tuple(arms), role, rounds, number
        return self._entered(self._finished(measured, job))

    def submit(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> list[Block]:
        job = self._target, tuple(arms), role, rounds, number
        self.flying[self._client.submit(measured, job, pure=False)] = job
        return self.collect() if len(self.flying) >= len(machines_of(self._client)) else []

    def collect(self) -> list[Block]:
        from distributed import wait

        landed: list[Block] = []
        while self.flying and not landed:
            self._require_worker(at_home=False)
            try:
                with self._client.as_current():
                    done = wait([*self.flying], _LOOK_S, return_when="FIRST_COMPLETED").done
            except TimeoutError:
                continue
            for future in done:
                job = self.flying.pop(future)
                try:
                    landed.append(self._entered(future.result()))
                except _lost():
                    self.flying[self._client.submit(measured, job, pure=False)] = job
        return landed

    def _finished(self, function: Callable[..., Any], *given: Any) -> Any:
        while True:
            workers = self._require_worker(at_home=True)
            future = self._client.submit(function, *given, pure=False, workers=workers)
            with suppress(*_lost()):
                while {*workers} & {*self._require_worker(at_home=True)}:  # or all were lost
                    with suppress(TimeoutError):
                        return future.result(timeout=_LOOK_S)
            future.cancel()

    def _require_worker(self, *, at_home: bool) -> list[str]:
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            there = machines_of(self._client)
            home = self.machine.fingerprint
            if found := [one for one in there if not at_home or there[one].fingerprint == home]:
                return found
            time.sleep(_AGAIN_S)
        kind = f" like {self.machine.cpu}, {self.machine.kernel}" if at_home else ""
        raise HztuneError(
            f"the cluster has had no worker{kind} for {_PATIENCE_S:.0f} s; start one, and go on "
            "with --resume"
        )

    def _entered(self, answered: Answered) -> Block:
        """Writes a block as if it had ended now: clocks of other machines begin elsewhere."""
        block, spent, self._costs = answered
        self._accounting += spent
        ends = [turn.start_ns + turn.counted_ns for o in block.outcomes for turn in o.turns]
        later_ns = time.monotonic_ns() - max(ends, default=0)
        outcomes = []
        for outcome in block.outcomes:
            turns = (replace(turn, start_ns=turn.start_ns + later_ns) for turn in outcome.turns)
            outcomes.append(replace(outcome, turns=tuple(turns)))
        block = replace(block, outcomes=tuple(outcomes))
        arms = tuple(outcome.arm for outcome in outcomes)
        rounds = block.control.rounds
        self._sink.begin(Plan(block.number, block.role, arms, rounds, machine=block.machine))
        for index, outcome in enumerate(outcomes):
            for turn in outcome.turns:
                self._sink.turn(index, 0, turn, Evidence())
            self._sink.outcome(index, 0, outcome)
        self._sink.end()
        return block


@contextmanager
def cluster(address: str) -> Iterator[Client]:
    """The cluster whose scheduler is at "tcp://HOST:8786"; UsageError: there is none."""
    try:
        from distributed import Client
    except ImportError:
        raise UsageError("--on needs Dask: pip install 'hztune[cluster]'") from None
    try:
        client = Client(address, timeout=10, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"--on {address}: there is no scheduler of Dask ({error})") from None
    with client:
        yield client


def _lost() -> tuple[type[BaseException], ...]:
    from concurrent.futures import CancelledError

    from distributed.scheduler import KilledWorker, NoValidWorkerError

    return KilledWorker, CancelledError, NoValidWorkerError


def machines_of(client: Client) -> dict[str, Machine]:
    """The machine of each worker, by the worker's address."""
    found: dict[str, Machine] = client.run(Machine.here, on_error="ignore")
    return found


def first_machine(client: Client) -> Machine:
    """The machine of some worker; HztuneError: there is none."""
    if not (found := machines_of(client)):
        raise HztuneError("the cluster has no worker; start one: dask worker tcp://HOST:8786")
    return found[min(found)]
