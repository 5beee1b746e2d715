"""Record the ledger of every workload, and the plain speed beside it, into ledger.json.

    python experiments/scale/record.py                 # all rows; a row that is there is kept
    python experiments/scale/record.py --again larson  # these rows once more

A run on libhz-ledger.so gives counts and times; runs on libhz.so before and after it give the
speed. Counts need no quiet machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hztune import artifacts
from hztune.machine import Machine
from hztune.scale.noted import Noted, run_bench, run_noted
from hztune.workload import WorkloadSpec

HERE = Path(__file__).parent
THREADS = (1, 2, 4, 8, 16, 32, 64)
ROWS: dict[str, tuple[str, tuple[str, ...], tuple[int, ...], tuple[int, ...]]] = {
    "larson": ("larson", (), THREADS, (1,)),
    "larson, 16 shards": ("larson", (), (16, 64), (16,)),
    "larson@mid": ("larson@mid", ("slots=1000",), (1, 2, 4, 8, 16, 32), (1,)),
    "larson@mid, 16 shards": ("larson@mid", ("slots=1000",), (16,), (16,)),
    "remote R=0": ("remote", ("remote=0",), THREADS, (1,)),
    "remote R=50": ("remote", (), THREADS[1:], (1,)),
    "remote R=50, 16 shards": ("remote", (), (16, 64), (16,)),
    "mstress": ("mstress", (), THREADS, (1,)),
    "mstress, 16 shards": ("mstress", (), (16, 64), (16,)),
    "xmalloc": ("xmalloc", (), (2, 8, 64), (1,)),
    "sh6": ("sh6", (), (1, 8, 64), (1,)),
    "large": ("large", (), (1, 8, 64), (1,)),
    "kv": ("kv", (), (1, 8), (1,)),
}
"""Name, workload, its parameters, threads, shards."""

PLAIN = 3
"""Plain runs beside each run with the ledger."""

BUSIEST = 24
"""Locks of a run that are kept one by one, for the model."""


def runs(names: list[str]) -> Iterator[tuple[str, WorkloadSpec, int]]:
    """Every run of some rows: the row, the workload with its threads, and the shards."""
    for name in names or list(ROWS):
        workload, overrides, threads, shards = ROWS[name]
        for count in threads:
            for each in shards:
                yield name, WorkloadSpec.from_text(workload, overrides, count), each


def locks_of(seen: Noted) -> list[dict[str, Any]]:
    """The busiest locks: how often each is held in an operation, how long, and how many wait."""
    busiest = sorted(seen.locks, key=lambda lock: -lock.held.undisturbed_ns)[:BUSIEST]
    return [
        {
            "name": lock.name,
            "class": lock.class_,
            "shard": lock.shard,
            "per_op": lock.held.count / seen.ops,
            "ns": round(lock.held.mean_ns, 1),
            "contended_per_op": lock.contended / seen.ops,
        }
        for lock in busiest
        if lock.held.count
    ]


def timed(seen: Noted, of: str) -> dict[str, dict[str, float]]:
    """The paths or system calls that were passed: how often in an operation, and how long."""
    table = getattr(seen, of)
    return {
        name: {
            "per_op": times.count / seen.ops,
            "ns": round(times.mean_ns, 1),
            "p99_ns": round(times.p99_ns),
            "all_ns_per_op": round(times.ns / seen.ops, 3),
        }
        for name, times in table.items()
        if times.count
    }


def recorded(spec: WorkloadSpec, shards: int, seconds: float) -> dict[str, Any]:
    """Some plain runs, of which the median counts, and one with the ledger."""
    variables = {"HZ_SHARDS": str(shards)}
    before = run_bench(spec, seconds, artifacts.library(), variables)
    seen = run_noted(spec, seconds, variables)
    after = [run_bench(spec, seconds, artifacts.library(), variables) for _ in range(PLAIN - 1)]
    by_speed = sorted([before, *after], key=lambda said: said["ops_per_s"])
    plain = by_speed[PLAIN // 2]
    return {
        "threads": spec.threads,
        "shards": shards,
        "ops_per_s": plain["ops_per_s"],
        "all_ops_per_s": [round(said["ops_per_s"]) for said in by_speed],
        "cpu_ns_per_op": 1e9 * plain["cpu_s"] / plain["ops"],
        "cpu_share": plain["cpu_share"],
        "faults_per_op": plain["minor_faults"] / plain["ops"],
        "rss_peak_kb": plain["rss_peak_kb"],
        "ledger_ops_per_s": seen.ops_per_s,
        "ledger_cpu_ns_per_op": 1e9 * seen.cpu_s / seen.ops,
        "ledger_faults_per_op": seen.faults / seen.ops,
        "clock_ns": seen.clock_ns,
        "locks_by_name": [asdict(use) for use in seen.uses],
        "locks": locks_of(seen),
        "paths": timed(seen, "paths"),
        "system_calls": timed(seen, "system_calls"),
    }


def main() -> None:
    """Record what is missing; the file is written after each run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.4, help="length of a run's window")
    parser.add_argument("--again", nargs="*", default=[], choices=list(ROWS), metavar="ROW")
    parser.add_argument("--output", type=Path, default=HERE / "ledger.json")
    asked = parser.parse_args()
    file = {"rows": {}}
    if asked.output.exists():
        file = json.loads(asked.output.read_text())
    file["schema"] = "hz-scale-ledger/1"
    file["machine"] = asdict(Machine.here())
    for name, spec, shards in runs(asked.again):
        key = f"{name} T={spec.threads}"
        if key in file["rows"] and name not in asked.again:
            continue
        file["rows"][key] = recorded(spec, shards, asked.seconds)
        file["created"] = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        asked.output.write_text(json.dumps(file, indent=1) + "\n")
        print(key, f"{file['rows'][key]['ops_per_s']:.4g} operations/s", flush=True)


if __name__ == "__main__":
    main()
