"""How speed grows with threads on this machine, and which lock of hz would stop it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hztune import artifacts, files
from hztune.errors import HztuneError, StoppedByUser
from hztune.interrupt import interruptible
from hztune.machine import Machine
from hztune.scale.lock_uses import LockUse
from hztune.scale.noted import run_bench, run_noted
from hztune.workload import WorkloadSpec, find

_WORKLOADS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("larson", ()),
    ("remote", ("remote=0",)),
    ("remote", ("remote=50",)),
    ("mstress", ()),
)
"""What is run: a name and its parameters."""

_SCALE_SCHEMA = "hztune-scale/1"
_BUSY = 0.2
_RARE = 0.01
_MANY_WAITS = 1.0


@dataclass(frozen=True, slots=True)
class Scaling:
    """One workload with one number of threads.

    Attributes:
        workload: Its label, without the threads.
        threads: Their number.
        shards: Shards that hz chose.
        nodes: NUMA nodes that it told apart.
        ops_per_s: Speed of the plain libhz.so.
        cpu_share: The share of the CPUs, at most one for each thread, that was used.
        ledger_ops_per_s: Speed of the run whose locks were noted.
        faults: Page faults in 1000 operations.
        locks: What that run's locks came to.
        system_calls: hz's own system calls in a million operations, by the name of its function.
    """

    workload: str
    threads: int
    shards: int
    nodes: int
    ops_per_s: float
    cpu_share: float
    ledger_ops_per_s: float
    faults: float
    locks: tuple[LockUse, ...]
    system_calls: dict[str, float]

    def words(self, first: Scaling) -> list[str]:
        """Returns it in words, beside the row of the same workload with the fewest threads."""
        nodes = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        lines = [
            f"{self.workload}, {_plural(self.threads, 'thread')}, "
            f"{_plural(self.shards, 'shard')}{nodes}: "
            f"{self.ops_per_s / 1e6:.2f} million operations a second, "
            f"{self.ops_per_s / first.ops_per_s:.2f} times "
            f"{_plural(first.threads, 'thread')}"
        ]
        lines += [_lock_told(use) for use in self.locks if use.taken >= _RARE]
        with_calls = [use for use in self.locks if use.with_calls > 0]
        lines += [_calls_told(use) for use in with_calls]
        return lines if with_calls else [*lines, "  no lock was held across a system call"]


def measure_scaling(
    path: Path,
    seconds: float,
    cpus: int | None = None,
    *,
    tell: Callable[[list[str]], None] = lambda lines: None,
) -> tuple[Scaling, ...]:
    """Runs every workload with 1, 2, 4, ... threads, each once plain and once with the ledger.

    The rows are in a file beside `path` until the last one is there; `path` keeps what it has
    until then.

    Args:
        path: The file that gets the machine and all rows.
        seconds: Length of each run's counted window.
        cpus: The highest number of threads; None: the CPUs that this process may use.
        tell: Called with each row in words, when it is measured.

    Raises:
        StoppedByUser: The user interrupted; the text says where the rows are.
        HztuneError: A file cannot be written, a library was not built, or a run failed.
    """
    files.require_replaceable(path)
    unfinished = path.with_name(f"{path.stem}.unfinished{path.suffix}")
    specs = _specs(cpus or Machine.here().cores)
    rows: list[Scaling] = []
    files.write_whole(unfinished, _document(rows, seconds))
    try:
        with interruptible() as asked:
            for spec in specs:
                if asked.is_set():
                    raise KeyboardInterrupt
                rows.append(_row(spec, seconds))
                files.write_whole(unfinished, _document(rows, seconds))
                first = next(row for row in rows if row.workload == rows[-1].workload)
                tell(rows[-1].words(first))
    except KeyboardInterrupt:
        raise StoppedByUser(f"interrupted; {_kept(rows, specs, unfinished)}") from None
    except HztuneError as error:
        raise HztuneError(f"{error}; {_kept(rows, specs, unfinished)}") from error
    files.publish(unfinished, path)
    return tuple(rows)


def _kept(rows: Sequence[Scaling], specs: Sequence[WorkloadSpec], unfinished: Path) -> str:
    return f"{len(rows)} of {len(specs)} rows are in {unfinished}"


def _specs(cpus: int) -> list[WorkloadSpec]:
    """Returns what is run: each workload with every number of threads that it works with."""
    return [
        WorkloadSpec.from_text(name, overrides, threads)
        for name, overrides in _WORKLOADS
        for threads in _threads_up_to(cpus)
        if threads >= _least_threads(name, overrides)
    ]


def _threads_up_to(cpus: int) -> tuple[int, ...]:
    """Returns 1, 2, 4, ... and the CPUs themselves."""
    powers = [1 << i for i in range(cpus.bit_length()) if 1 << i < cpus]
    return (*powers, cpus)


def _least_threads(name: str, overrides: tuple[str, ...]) -> int:
    """Returns the fewest threads with which a workload works; one that hands over needs two."""
    return max(find(name).min_threads, 2 if "remote=50" in overrides else 1)


def _row(spec: WorkloadSpec, seconds: float) -> Scaling:
    plain = run_bench(spec, seconds, artifacts.library(), {})
    seen = run_noted(spec, seconds)
    return Scaling(
        workload=spec.label.rpartition(" ")[0],
        threads=spec.threads,
        shards=seen.shards,
        nodes=seen.nodes,
        ops_per_s=plain["ops_per_s"],
        cpu_share=plain["cpu_share"],
        ledger_ops_per_s=seen.ops_per_s,
        faults=1e3 * plain["minor_faults"] / plain["ops"],
        locks=seen.uses,
        system_calls={
            name: 1e6 * seen.per_op(times)
            for name, times in seen.system_calls.items()
            if times.count > 0
        },
    )


def _document(rows: Sequence[Scaling], seconds: float) -> str:
    """Returns the file: the machine, when it was, and every row."""
    content: dict[str, Any] = {
        "schema": _SCALE_SCHEMA,
        "created": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": asdict(Machine.here()),
        "seconds": seconds,
        "rows": [asdict(row) for row in rows],
    }
    return json.dumps(content, indent=1) + "\n"


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _lock_told(use: LockUse) -> str:
    judged = ""
    if use.busiest > _BUSY:
        judged = " (it limits the speed)"
    elif use.contended > _MANY_WAITS:
        judged = " (threads wait for it often)"
    return (
        f"  lock {use.name}: taken {use.taken:.2f} times in 1000 operations, waited for "
        f"{use.contended:.3f} times; held for {use.mean_ns:.0f} ns (99 of 100: at most "
        f"{use.p99_ns:.0f} ns), the busiest one {100 * use.busiest:.2f} % of the time{judged}"
    )


def _calls_told(use: LockUse) -> str:
    calls = ", ".join(f"{name} {count:.2f}" for name, count in use.calls.items())
    return (
        f"  lock {use.name}: held across a system call {use.with_calls:.2f} times in a million "
        f"operations ({calls})"
    )
