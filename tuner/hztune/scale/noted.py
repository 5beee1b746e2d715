"""A workload on libhz-ledger.so: a run in which every lock, system call and slow path is noted."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hztune import artifacts, process
from hztune.errors import HztuneError
from hztune.scale.lock_uses import Contact, LockUse, Times, lock_uses
from hztune.scratch import scratch_folder
from hztune.workload import WorkloadSpec

_SCHEMA = "hz-ledger/1"
_WARMUP_S = 0.3
_DEADLINE_S = 60.0
_OUTPUT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Noted:
    """What one run showed.

    Attributes:
        spec: The workload, with its threads.
        variables: The parameters of hz that were set, as variables.
        shards: Shards that hz had.
        nodes: NUMA nodes that it told apart.
        seconds: Length of the counted window.
        ops: Operations in it.
        cpu_s: CPU time used in it.
        faults: Page faults in it.
        clock_ns: What the ledger's clock adds to each time.
        locks: Every lock that was taken.
        system_calls: hz's own, by the name of its function.
        paths: The slow paths, by the name of the function; one contains those that it calls.
    """

    spec: WorkloadSpec
    variables: Mapping[str, str]
    shards: int
    nodes: int
    seconds: float
    ops: int
    cpu_s: float
    faults: int
    clock_ns: float
    locks: tuple[Contact, ...]
    system_calls: Mapping[str, Times]
    paths: Mapping[str, Times]

    @property
    def uses(self) -> tuple[LockUse, ...]:
        """The locks by name."""
        return lock_uses(self.locks, self.ops, self.seconds)

    @property
    def ops_per_s(self) -> float:
        """Operations in a second; the ledger makes it slower than hz is."""
        return self.ops / self.seconds

    def per_op(self, times: Times) -> float:
        """How often something was done in one operation."""
        return times.count / self.ops


def run_noted(
    spec: WorkloadSpec, seconds: float, variables: Mapping[str, str] | None = None
) -> Noted:
    """Runs a workload on the library with the ledger.

    Args:
        spec: The workload.
        seconds: Length of the counted window.
        variables: Parameters of hz, as variables ("HZ_SHARDS": "2").

    Raises:
        HztuneError: The library was not built, the run failed, or the ledger cannot be read.
    """
    with scratch_folder() as folder:
        path = folder / "ledger.json"
        said = run_bench(
            spec, seconds, artifacts.ledger(), {**(variables or {}), "HZ_LEDGER": str(path)}
        )
        try:
            ledger = json.loads(path.read_text(encoding="utf-8"))
            if ledger["schema"] != _SCHEMA:
                raise ValueError(f"schema {ledger['schema']}, not {_SCHEMA}")
            return _noted(spec, variables or {}, said, ledger)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HztuneError(f"{spec.label}: the ledger cannot be read ({error})") from error


def run_bench(
    spec: WorkloadSpec,
    seconds: float,
    library: Path,
    variables: Mapping[str, str],
    words: Sequence[str] = (),
) -> dict[str, Any]:
    """Runs a workload on a library and returns what hz-bench says of it.

    Args:
        spec: The workload.
        seconds: Length of the counted window.
        library: The allocator.
        variables: Variables of the environment.
        words: Further options of hz-bench.

    Raises:
        HztuneError: The run failed.
    """
    plain = {key: value for key, value in os.environ.items() if not key.startswith("HZ_")}
    command = [
        *spec.command(seed=1),
        *spec.span(seconds),
        "--warmup",
        f"{min(_WARMUP_S, seconds):g}",
        *words,
    ]
    done = process.run(
        command,
        env={**plain, **variables, "LD_PRELOAD": str(library), "HZ_STRICT": "1"},
        deadline_s=_DEADLINE_S + 4 * seconds,
        output_limit=_OUTPUT_BYTES,
    )
    if not done.ok:
        raise HztuneError(f"{spec.label}: hz-bench {done.describe()}")
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def _noted(
    spec: WorkloadSpec, variables: Mapping[str, str], said: dict[str, Any], ledger: dict[str, Any]
) -> Noted:
    return Noted(
        spec=spec,
        variables=variables,
        shards=ledger["shards"],
        nodes=ledger["nodes"],
        seconds=said["seconds"],
        ops=said["ops"],
        cpu_s=said["cpu_s"],
        faults=said["minor_faults"],
        clock_ns=ledger["clock_ns"],
        locks=tuple(Contact.of(row) for row in ledger["locks"] if row is not None),
        system_calls={name: Times.of(row) for name, row in ledger["system_calls"].items()},
        paths={name: Times.of(row) for name, row in ledger["paths"].items()},
    )
