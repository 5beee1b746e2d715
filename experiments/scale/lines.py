"""Count the cache lines that threads take from each other, by what they hold, into lines.json.

    python experiments/scale/lines.py --library BUILD/libhz-lines.so

libhz-lines.so simulates a cache for each thread (ledger/lines.c). No clock is read, so a busy
machine changes little: only which thread finds which block in a depot.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hztune import artifacts
from hztune.machine import Machine
from hztune.workload import WorkloadSpec

HERE = Path(__file__).parent
SKIP, CALLS = 80_000, 10_000
NOTED = {"HZ_LINES_SKIP": str(SKIP), "HZ_LINES_CALLS": str(CALLS)}
OPS = 120_000
SLOWER = 4
"""How much slower the library is than hz, about."""
ROWS: dict[str, list[str]] = {
    "remote R=0": ["remote", "--remote", "0"],
    "remote R=50": ["remote", "--remote", "50"],
    "remote R=50, to all": ["remote", "--remote", "50", "--fan", "all"],
    "larson, threads stay": ["larson", "--rounds", "1000000"],
    "mstress": ["mstress"],
}
THREADS = (2, 8, 64)
SHARDS = (1, 16)
STAY = {"larson": ["--rounds", "1000000"]}
"""Its threads would end before their logs begin."""

OF_THE_PROGRAM = "blocks"
ELSEWHERE = "elsewhere"
"""The program's own variables; they are seen in hz-bench-lines only."""

COLUMNS = ("taken", "unshared", "missed", "writes")


def statics(library: Path) -> list[tuple[int, str]]:
    """The variables of a library and its sections' starts, by address."""
    words = ["nm", "--defined-only", "--numeric-sort", str(library)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    lines = (line.split() for line in done.stdout.splitlines())
    return [(int(address, 16), name) for address, kind, name in lines if kind in "bBdDrR"]


def named(symbol: str, table: list[tuple[int, str]]) -> str:
    """A symbol of the library's file; "0x10f0" is the line of a static variable."""
    if not symbol.startswith("0x"):
        return symbol
    at = int(symbol, 16)
    first = bisect_right(table, (at, "~")) - 1
    last = bisect_right(table, (at + 63, "~"))
    found = [name for address, name in table[max(first, 0) : last] if "." not in name]
    return f"static {' '.join(found) or symbol}"


def undilated(threads: int) -> dict[str, str]:
    """Parameters that act as if each thread had a CPU.

    A thread that has a part of a CPU sees the clock go faster, between two shortages of a magazine,
    too. So magazines would grow less than they do on a machine with more CPUs.
    """
    cpus = len(os.sched_getaffinity(0))
    faster = SLOWER * max(1, threads // cpus)
    return {
        "HZ_GROWTH_RENT": str(4 * faster),
        "HZ_DECAY_MS": str(min(60_000, 100 * faster)),
        "HZ_REST_MS": "0",
    }


def noted(library: Path, command: Sequence[str], variables: Mapping[str, str]) -> dict[str, Any]:
    """What the library writes of one run."""
    with tempfile.TemporaryDirectory(prefix="hz-lines-") as folder:
        path = Path(folder) / "lines.json"
        ours = {key: value for key, value in os.environ.items() if not key.startswith("HZ_")}
        ours |= {"LD_PRELOAD": str(library), "HZ_LINES": str(path), **variables}
        subprocess.run(command, env=ours, check=True, stdout=subprocess.DEVNULL, timeout=170)
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def ways_per_op(spec: WorkloadSpec, variables: Mapping[str, str], cpus: int) -> dict[str, float]:
    """How often a thread waits in an operation until another cache answers."""
    _, *words = [*spec.command(seed=1), *STAY.get(spec.name, [])]
    ops = OPS * spec.threads
    found = noted(
        artifacts.root() / "libhz-lines.so",
        [str(artifacts.root() / "hz-bench-lines"), *words, "--ops", str(ops)],
        {**variables, **NOTED, "HZ_LINES_CPUS": str(cpus)},
    )
    calls_per_op = found["all_calls"] / ops
    ways = {"program": 0.0, "hz": 0.0}
    for row in found["symbols"]:
        owner = "program" if row["name"] in (OF_THE_PROGRAM, ELSEWHERE) else "hz"
        ways[owner] += calls_per_op * row["awaited"] / max(1, found["calls"])
    return ways


def summed(found: dict[str, Any], table: list[tuple[int, str]]) -> dict[str, Any]:
    """Each symbol's figures in 1000 calls of malloc or free, those without a line taken left out.

    `hz` is the sum of all lines but those of the program's blocks.
    """
    by_name: defaultdict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(COLUMNS, 0.0))
    for row in found["symbols"]:
        for column in COLUMNS:
            by_name[named(row["name"], table)][column] += 1e3 * row[column] / found["calls"]
    used = {name: figures for name, figures in by_name.items() if figures["taken"] >= 0.005}
    own = [figures for name, figures in by_name.items() if name != OF_THE_PROGRAM]
    return {
        "threads": found["threads"],
        "shards": found["shards"],
        "calls": found["calls"],
        "hz": {column: round(sum(each[column] for each in own), 2) for column in COLUMNS[:3]},
        "symbols": {
            name: {column: round(value, 2) for column, value in figures.items()}
            for name, figures in sorted(used.items(), key=lambda pair: -pair[1]["taken"])
        },
    }


def runs() -> Iterator[tuple[str, list[str], int, int]]:
    """Every run: its key, what is run, threads, shards."""
    for name, words in ROWS.items():
        for threads in THREADS:
            for shards in SHARDS:
                shown = "" if shards == 1 else f", {shards} shards"
                yield f"{name}{shown} T={threads}", words, threads, shards


def main() -> None:
    """Measure what is missing; the file is written after each run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--library", type=Path, required=True, help="libhz-lines.so")
    parser.add_argument("--output", type=Path, default=HERE / "lines.json")
    asked = parser.parse_args()
    file: dict[str, Any] = {"rows": {}}
    if asked.output.exists():
        file = json.loads(asked.output.read_text())
    file |= {"schema": "hz-scale-lines/1", "machine": asdict(Machine.here())}
    table = statics(asked.library)
    for key, words, threads, shards in runs():
        if key in file["rows"]:
            continue
        command = [str(artifacts.bench()), *words, "--threads", str(threads)]
        command += ["--ops", str(OPS * threads)]
        variables = {"HZ_SHARDS": str(shards), **undilated(threads), **NOTED}
        row = summed(noted(asked.library, command, variables), table)
        file["rows"][key] = row
        file["created"] = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        asked.output.write_text(json.dumps(file, indent=1) + "\n")
        worst = ", ".join(f"{name} {row['symbols'][name]['taken']}" for name in row["symbols"])
        print(f"{key:36} hz {row['hz']['taken']:7.2f}   {worst}", flush=True)


if __name__ == "__main__":
    main()
