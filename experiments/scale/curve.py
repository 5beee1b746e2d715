"""How speed grows with threads on this machine, and what each lock of hz costs: hz-scale.json.

    python experiments/scale/curve.py

Four workloads run with 1, 2, 4, ... threads, up to the CPUs, each once unchanged and once on
libhz-ledger.so. The file is written after each row.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from noted import lock_uses, run_bench, run_noted

from hztune import artifacts
from hztune.machine import Machine
from hztune.workload import WorkloadSpec

WORKLOADS: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("larson", (), 1),
    ("remote", ("remote=0",), 1),
    ("remote", ("remote=50",), 2),
    ("mstress", (), 1),
)
"""A name, its parameters, and the fewest threads with which it works."""

RARE = 0.01


def specs(cpus: int) -> Iterator[WorkloadSpec]:
    """Each workload with every number of threads."""
    counts = [*(1 << i for i in range(cpus.bit_length()) if 1 << i < cpus), cpus]
    for name, parameters, least in WORKLOADS:
        for threads in counts:
            if threads >= least:
                yield WorkloadSpec.from_text(name, parameters, threads)


def recorded(spec: WorkloadSpec, seconds: float) -> dict[str, Any]:
    """One row: a plain run, and one whose locks are noted."""
    plain = run_bench(spec, seconds, artifacts.library(), {})
    seen = run_noted(spec, seconds)
    return {
        "workload": spec.label,
        "threads": spec.threads,
        "shards": seen["shards"],
        "nodes": seen["nodes"],
        "ops_per_s": plain["ops_per_s"],
        "cpu_share": plain["cpu_share"],
        "ledger_ops_per_s": seen["ops"] / seen["seconds"],
        "faults": 1e3 * plain["minor_faults"] / plain["ops"],
        "locks": lock_uses(seen),
    }


TOLD = (
    "  lock {name}: taken {taken:.2f} times in 1000 operations, waited for {contended:.3f} times; "
    "held for {mean_ns:.0f} ns (99 of 100: at most {p99_ns:.0f} ns), the busiest one {busiest:.2%} "
    "of the time, {with_calls:.2f} per million with a system call"
)


def main() -> None:
    """Measure and print every row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a run's window")
    parser.add_argument("--output", type=Path, default=Path("hz-scale.json"))
    asked = parser.parse_args()
    machine = Machine.here()
    file: dict[str, Any] = {
        "schema": "hz-scale-curve/1",
        "created": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": asdict(machine),
        "rows": [],
    }
    for spec in specs(machine.cores):
        row = recorded(spec, asked.seconds)
        file["rows"].append(row)
        asked.output.write_text(json.dumps(file, indent=1) + "\n")
        print(f"{spec.label}, {row['shards']} shard(s): {row['ops_per_s'] / 1e6:.2f} million/s")
        for use in row["locks"]:
            if use["taken"] >= RARE or use["with_calls"]:
                print(TOLD.format_map(use), flush=True)


if __name__ == "__main__":
    main()
