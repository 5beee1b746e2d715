"""Record the ledger of every workload, and the plain speed beside it, into ledger.json.

    python experiments/scale/record.py                 # all rows; a row that is there is kept
    python experiments/scale/record.py --again larson  # these rows once more

A run on libhz-ledger.so gives counts and times, runs on libhz.so the CPU time of an operation, and
one on libhz-lines.so the ways of lines (lines.py). The host of a virtual machine may move its CPUs
apart, where a line takes five times as long from one to the other: before and after each run the
line's way is measured (line.c), and runs count in which it was short.

For the model each row is recorded apart, too: as many processes at once as there are CPUs, each on
a CPU of its own, with that CPU's share of the threads. So they share the machine, but no heap. How
fast the machine is changes within minutes, by a fifth: the row runs by turns with the row apart,
and the median of each counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean, median
from typing import Any, TypeVar

from lines import ways_per_op
from noted import lock_uses, mean_ns, run_bench, run_noted

from hztune import artifacts
from hztune.machine import Machine
from hztune.workload import WorkloadSpec

HERE = Path(__file__).parent
T = TypeVar("T")
CPUS_HERE, CPUS_THERE = 2, 64
THREADS = (2, 4, 8, 16, 32, 64)
UNDILATED = {"HZ_GROWTH_RENT": "128", "HZ_DECAY_MS": "3200"}
"""64 threads on two CPUs see the clock go 32 times as fast between two shortages of a magazine as
on 64 CPUs. So magazines would grow less here than there; these parameters undo that."""

ROWS: dict[str, tuple[str, tuple[str, ...], Sequence[int], int]] = {
    "larson": ("larson", (), THREADS, 1),
    "larson, 16 shards": ("larson", (), (16,), 16),
    "larson@mid": ("larson@mid", ("slots=1000",), THREADS[:-1], 1),
    "larson@mid, 16 shards": ("larson@mid", ("slots=1000",), (16,), 16),
    "remote R=0": ("remote", ("remote=0",), THREADS, 1),
    "remote R=50": ("remote", (), THREADS, 1),
    "remote R=50, 16 shards": ("remote", (), (16,), 16),
    "mstress": ("mstress", (), THREADS, 1),
    "mstress, 16 shards": ("mstress", (), (16,), 16),
    "larson as on 64 CPUs": ("larson", (), (64,), 1),
    "larson as on 64 CPUs, 8 shards": ("larson", (), (64,), 8),
    "larson as on 64 CPUs, 16 shards": ("larson", (), (64,), 16),
    "remote R=50 as on 64 CPUs": ("remote", (), (64,), 1),
    "remote R=50 as on 64 CPUs, 8 shards": ("remote", (), (64,), 8),
    "remote R=50 as on 64 CPUs, 16 shards": ("remote", (), (64,), 16),
    "mstress as on 64 CPUs": ("mstress", (), (64,), 1),
    "mstress as on 64 CPUs, 8 shards": ("mstress", (), (64,), 8),
    "mstress as on 64 CPUs, 16 shards": ("mstress", (), (64,), 16),
    "xmalloc": ("xmalloc", (), (2, 8, 64), 1),
    "sh6": ("sh6", (), (2, 8, 64), 1),
    "large": ("large", (), (2, 8, 64), 1),
    "kv": ("kv", (), (2, 8), 1),
}
"""Name, workload, its parameters, threads, shards."""

LONGER = 8
"""A run of 64 threads takes longer to become steady, by this factor."""

LEDGERS = 3
"""Runs with the ledger, of which the middle one by its CPU time counts."""

FAULTS = 9
"""How often page faults are timed."""

PLAIN, TRIES = 5, 15
"""Plain runs of a row, by turns with the row apart, and how many are made at most to have so many
of them while a line's way is short."""

SHORT = 1.5
"""How much longer than the shortest a line's way is that counts as short."""

BUSIEST = 24
"""Locks of a run that are kept one by one, for the model."""


LEAST = {"remote R=50": 4, "xmalloc": 2}
"""Threads of a process on one CPU, at least. xmalloc takes no fewer; with fewer the threads of
remote wait for each other by looking again and again."""

MOST = {"large": 4}
"""And at most: with more of large, pages age between two turns of a thread and are given back."""


@dataclass(frozen=True)
class Run:
    """One recording.

    Attributes:
        key: Its name in the file.
        spec: The workload with its threads.
        variables: hz's parameters.
        cpus: On how many CPUs a process runs, or would run; with 1 it is a run apart.
        base: The run apart from which the model predicts it; None: it is one.
    """

    key: str
    spec: WorkloadSpec
    variables: dict[str, str]
    cpus: int
    base: Run | None


def runs(names: list[str]) -> Iterator[Run]:
    """Every run of some rows, each after its base."""
    for name in names or list(ROWS):
        done = set()
        workload, overrides, threads, shards = ROWS[name]
        plain, _, there = name.partition(" as on ")
        variables = {"HZ_SHARDS": str(shards)} | (UNDILATED if there else {})
        cpus = CPUS_THERE if there else CPUS_HERE
        for count in threads:
            few = max(count // cpus, LEAST.get(plain.partition(",")[0], 1))
            few = min(few, MOST.get(plain, few))
            spec = WorkloadSpec.from_text(workload, overrides, few)
            base = Run(f"{plain} apart T={few}", spec, variables, 1, None)
            if not there and few not in done:
                done.add(few)
                yield base
            spec = WorkloadSpec.from_text(workload, overrides, count)
            yield Run(f"{name} T={count}", spec, variables, cpus, base)


def locks_of(seen: dict[str, Any]) -> list[dict[str, Any]]:
    """The busiest locks: how often each is held in an operation, how long, and how many wait."""
    busiest = sorted(seen["locks"], key=lambda lock: -lock["undisturbed_ns"])[:BUSIEST]
    return [
        {
            **{key: lock[key] for key in ("name", "class", "shard")},
            "per_op": lock["count"] / seen["ops"],
            "ns": round(mean_ns(lock), 1),
            "contended_per_op": lock["contended"] / seen["ops"],
        }
        for lock in busiest
        if lock["count"]
    ]


def timed(seen: dict[str, Any], of: str) -> dict[str, dict[str, float]]:
    """The paths or system calls that were passed: how often in an operation, and how long."""
    return {
        name: {
            "per_op": times["count"] / seen["ops"],
            "ns": round(mean_ns(times), 1),
            "p99_ns": round(times["p99_ns"]),
            "all_ns_per_op": round(times["ns"] / seen["ops"], 3),
        }
        for name, times in seen[of].items()
        if times["count"]
    }


def meter(name: str, folder: Path) -> Callable[[], float]:
    """Builds a program of this folder that prints nanoseconds."""
    program = folder / name
    subprocess.run(["cc", "-O2", "-pthread", HERE / f"{name}.c", "-o", program], check=True)

    def now_ns() -> float:
        done = subprocess.run([program], capture_output=True, text=True, check=True)
        return float(done.stdout)

    return now_ns


class Line:
    """The way of a line between two CPUs; made for the time in which it is measured."""

    def __init__(self, folder: Path) -> None:
        """Builds the program, and finds the shortest way of some seconds."""
        self.now_ns = meter("line", folder)
        self.shortest_ns = min(self._looks())

    def _looks(self) -> Iterator[float]:
        for _ in range(40):
            yield self.now_ns()
            time.sleep(0.1)

    def while_short(
        self, work: Callable[[], T], times: int, beside: Callable[[], T] | None = None
    ) -> list[tuple[float, T, T | None]]:
        """Does the same several times while the way is short, or shortest."""
        done: list[tuple[float, T, T | None]] = []
        for _ in range(TRIES):
            other = beside() if beside else None
            before, result, after = self._wait(), work(), self.now_ns()
            done.append((max(before, after), result, other))
            if sum(ns <= SHORT * self.shortest_ns for ns, *_ in done) >= times:
                break
        return sorted(done, key=lambda row: row[0])[:times]

    def _wait(self) -> float:
        """Until the way is short, or for some seconds."""
        for ns in self._looks():
            if ns <= SHORT * self.shortest_ns:
                break
        return ns


def apart(work: Callable[[], T]) -> list[T]:
    """Does the same on each CPU at once; programs that are started stay on it."""

    def on(cpu: int) -> T:
        os.sched_setaffinity(0, [cpu])  # of this thread
        return work()

    cpus = sorted(os.sched_getaffinity(0))[:CPUS_HERE]
    with ThreadPoolExecutor(len(cpus)) as pool:
        return list(pool.map(on, cpus))


def cpu_ns_per_op(together: Sequence[dict[str, Any]]) -> float:
    """CPU time of an operation, of processes that ran at the same time."""
    return 1e9 * sum(said["cpu_s"] for said in together) / sum(said["ops"] for said in together)


def figures(together: Sequence[Sequence[dict[str, Any]]]) -> dict[str, float]:
    """Medians of plain runs, each of processes that ran at the same time."""
    return {
        "cpu_ns_per_op": median(cpu_ns_per_op(each) for each in together),
        "faults_per_op": median(
            sum(said["minor_faults"] for said in each) / sum(said["ops"] for said in each)
            for each in together
        ),
    }


def ledger_of(runs: list[tuple[float, dict[str, Any], Any]]) -> dict[str, Any]:
    """What the ledger says of the middle one of some runs, each with its line's way."""
    line_ns, seen, _ = sorted(runs, key=lambda row: cpu_ns_per_op([row[1]]))[len(runs) // 2]
    return {
        "shards": seen["shards"],
        "ledger_line_ns": line_ns,
        "ledger_ops_per_s": seen["ops"] / seen["seconds"],
        "ledger_cpu_ns_per_op": cpu_ns_per_op([seen]),
        "ledger_faults_per_op": seen["minor_faults"] / seen["ops"],
        "clock_ns": seen["clock_ns"],
        "locks_by_name": lock_uses(seen),
        "locks": locks_of(seen),
        "paths": timed(seen, "paths"),
        "system_calls": timed(seen, "system_calls"),
    }


def recorded(run: Run, seconds: float, line: Line) -> dict[str, Any]:
    """A run with the ledger; and but for a run apart, its plain runs and its lines."""
    base, is_there = run.base, run.cpus > CPUS_HERE
    seconds *= LONGER if is_there else 1
    row = {"threads": run.spec.threads, "cpus": run.cpus, "base": base.key if base else ""}

    def noted() -> dict[str, Any]:
        return run_noted(run.spec, seconds, run.variables)

    def plainly(spec: WorkloadSpec) -> dict[str, Any]:
        return run_bench(spec, seconds, artifacts.library(), run.variables)

    if base is None:
        return row | ledger_of(line.while_short(lambda: apart(noted)[0], LEDGERS))

    turns = line.while_short(
        lambda: [plainly(run.spec)],
        1 if is_there else PLAIN,
        beside=lambda: apart(lambda: plainly(base.spec)),
    )
    ways, own, beside = zip(*turns, strict=True)
    return {
        **row,
        "line_ns": median(ways),
        "apart": figures(beside),
        **figures(own),
        "all_cpu_ns_per_op": [
            [round(cpu_ns_per_op(each), 1) for each in both]
            for both in zip(beside, own, strict=True)
        ],
        "ways_per_op": ways_per_op(run.spec, run.variables, run.cpus),
        **ledger_of(line.while_short(noted, 1 if is_there else LEDGERS)),
    }


def main() -> None:
    """Record what is missing; the file is written after each run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.2, help="length of a run's window")
    parser.add_argument("--again", nargs="*", default=[], choices=list(ROWS), metavar="ROW")
    parser.add_argument("--output", type=Path, default=HERE / "ledger.json")
    asked = parser.parse_args()
    file: dict[str, Any] = {"rows": {}}
    if asked.output.exists():
        file = json.loads(asked.output.read_text())
    file["schema"] = "hz-scale-ledger/2"
    file["machine"] = asdict(Machine.here())
    with tempfile.TemporaryDirectory(prefix="hztune-line-") as folder:
        line = Line(Path(folder))
        fault = meter("fault", Path(folder))
        file["fault_ns"] = median(fmean(apart(fault)) for _ in range(FAULTS))
        for run in runs(asked.again):
            if run.key in file["rows"] and not asked.again:
                continue
            row = file["rows"][run.key] = recorded(run, asked.seconds, line)
            file["created"] = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            asked.output.write_text(json.dumps(file, indent=1) + "\n")
            said = f"{row['ledger_ops_per_s']:.4g} operations/s with the ledger"
            print(f"{run.key}: {said}, a line {row['ledger_line_ns']:.0f} ns", flush=True)


if __name__ == "__main__":
    main()
