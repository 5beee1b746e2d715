"""How long a malloc or free takes while holders of locks are preempted, or the system is slow.

    python experiments/scale/stress.py               # all rows into stress.json, a table
    python experiments/scale/stress.py --repeats 9   # more runs of each

Every run is on libhz-ledger.so, whose own cost is in all of them. It sleeps for a millisecond
inside each of hz's system calls, or in one of a thousand holds of a lock: then the other threads
meet what they would meet if the holder had lost its CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from noted import run_bench

from hztune import artifacts
from hztune.machine import Machine
from hztune.workload import WorkloadSpec

HERE = Path(__file__).parent
ROWS: dict[str, tuple[str, tuple[str, ...], int]] = {
    "larson T=2": ("larson", (), 2),
    "larson T=8": ("larson", (), 8),
    "remote R=50 T=8": ("remote", (), 8),
    "mstress T=8": ("mstress", (), 8),
    "xmalloc T=8": ("xmalloc", (), 8),
    "large T=2": ("large", (), 2),
}
"""Name, workload, its parameters, threads."""

CONDITIONS: dict[str, dict[str, str]] = {
    "undisturbed": {},
    "system calls 1 ms longer": {"HZ_LEDGER_CALL_US": "1000"},
    "holders preempted": {"HZ_LEDGER_HOLD_US": "1000", "HZ_LEDGER_HOLD_EVERY": "1000"},
}

FIGURES = ("p50_ns", "p99_ns", "p999_ns", "p9999_ns", "max_ns")
SECONDS = 1.0


def one(spec: WorkloadSpec, variables: dict[str, str]) -> dict[str, Any]:
    """One run: the times of its calls, and how many system calls and holds were made longer."""
    with tempfile.TemporaryDirectory(prefix="hztune-stress-") as folder:
        path = Path(folder) / "ledger.json"
        noted = {**variables, "HZ_LEDGER": str(path)}
        said = run_bench(spec, SECONDS, artifacts.root() / "libhz-ledger.so", noted, ["--latency"])
        delayed = json.loads(path.read_text())["delayed"]
    return {
        "ops_per_s": said["ops"] / said["seconds"],
        "delayed": delayed,
        **{
            call: {key: said["latency"][call][key] for key in FIGURES}
            for call in ("malloc", "free")
        },
    }


def table(runs: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    """Prints medians over the runs, in microseconds."""
    print("| row | | speed | delayed | malloc p99 | p99.9 | p99.99 | free p99 | p99.9 | p99.99 |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row, conditions in runs.items():
        for number, (condition, found) in enumerate(conditions.items()):
            speed = statistics.median(each["ops_per_s"] for each in found) / 1e6
            delayed = statistics.median(sum(each["delayed"].values()) for each in found)
            times = [
                f"{statistics.median(each[call][key] for each in found) / 1e3:.3g}"
                for call in ("malloc", "free")
                for key in FIGURES[1:4]
            ]
            name = row if number == 0 else ""
            print(f"| {name} | {condition} | {speed:.1f} | {delayed:.0f} | {' | '.join(times)} |")


def main() -> None:
    """Measures all rows and conditions in turn, so that each meets the same machine."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="runs of each")
    repeats = parser.parse_args().repeats
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {
        row: {condition: [] for condition in CONDITIONS} for row in ROWS
    }
    for _ in range(repeats):
        for row, (workload, overrides, threads) in ROWS.items():
            spec = WorkloadSpec.from_text(workload, overrides, threads)
            for condition, variables in CONDITIONS.items():
                runs[row][condition].append(one(spec, variables))
    said = {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": asdict(Machine.here()),
        "runs": runs,
    }
    (HERE / "stress.json").write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    table(runs)


if __name__ == "__main__":
    main()
