"""How long the slowest calls of malloc and free take, for any preloadable allocators, by turns.

    run.py --library hz=BUILD/libhz.so --library jemalloc=/usr/lib/x86_64-linux-gnu/libjemalloc.so.2
    run.py --library hz=BUILD/libhz.so --shape idle --calls 10000000 --rounds 4
    run.py --report

glibc is always among them. Each round runs `latency.c` once for each shape and allocator, in an
order that each round turns further. Every run's figures go to results.json, beside those of shapes
that are not measured now; the table is made from them: the median of the rounds, with the least and
the greatest.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
SHAPES = ("churn", "burst", "idle")
FIGURE = "p999999_ns"
GLIBC = ("glibc", "")
REALTIME = ("chrt", "--fifo", "50")

Row = dict[str, Any]


class RunError(Exception):
    """A run that gave no figures; the message says which one and why."""


def build(folder: Path) -> Path:
    """Compiles the program into `folder`."""
    program = folder / "latency"
    words = ["cc", "-O2", str(HERE / "latency.c"), "-o", str(program)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise RunError("there is no C compiler (Debian's package: gcc)") from error
    if done.returncode != 0:
        raise RunError(f"latency.c does not compile: {done.stderr[:400]}")
    return program


def measure(words: Sequence[str], name: str, library: str) -> dict[str, float]:
    """The figures of one run."""
    environment = {**os.environ, "LD_PRELOAD": library}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0 or "cannot be preloaded" in done.stderr:
        raise RunError(f"{name}: {done.stderr.strip()[:400] or done.returncode}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def measure_all(asked: argparse.Namespace, program: Path) -> Iterator[Row]:
    """Runs all rounds; yields the figures of each run."""
    libraries = [*asked.library, *(() if asked.without_glibc else (GLIBC,))]
    before = REALTIME if asked.realtime else ()
    for number in range(asked.rounds):
        first = number % len(libraries)
        for shape in asked.shape or SHAPES:
            for name, library in [*libraries[first:], *libraries[:first]]:
                words = [*before, str(program), shape, str(asked.calls)]
                figures = measure(words, name, library)
                yield {"round": number, "shape": shape, "allocator": name, **figures}


def machine() -> dict[str, str]:
    """Where it was measured."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {"cpu": names[0] if names else "", "cpus": str(len(names)), "system": platform.release()}


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The median of each allocator and shape in microseconds, with the least and the greatest."""
    names = list(dict.fromkeys(row["allocator"] for row in rows))
    shapes = [shape for shape in SHAPES if any(row["shape"] == shape for row in rows)]
    yield "| | " + " | ".join(shapes) + " |"
    yield "|---" * (len(shapes) + 1) + "|"
    for name in sorted(names):
        cells = []
        for shape in shapes:
            found = [row for row in rows if (row["allocator"], row["shape"]) == (name, shape)]
            us = [row[FIGURE] / 1000 for row in found]
            ends = f"{statistics.median(us):.0f} [{min(us):.0f}, {max(us):.0f}]" if us else ""
            cells.append(ends)
        yield f"| {name} | {' | '.join(cells)} |"


def library(text: str) -> tuple[str, str]:
    """Split ``NAME=PATH``."""
    name, equals, path = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"got {text!r}; NAME=PATH is needed")
    return name, path


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    many: dict[str, Any] = {"type": library, "action": "append", "default": []}
    add("--library", **many, metavar="NAME=PATH", help="an allocator to preload; repeatable")
    add("--without-glibc", action="store_true", help="measure the named allocators alone")
    add("--shape", choices=SHAPES, action="append", help="repeatable; default: all three")
    add("--calls", type=int, default=100_000_000, help="timed calls of a run; default 100000000")
    add("--rounds", type=int, default=10, help="runs of each allocator and shape; default 10")
    add("--realtime", action="store_true", help="no other program takes the CPU; needs root")
    add("--results", type=Path, default=RESULTS, help="default: results.json beside this file")
    add("--report", action="store_true", help="print the table of the results, measure nothing")
    return parser.parse_args()


def main() -> int:
    """Measure, write the results down after each round's run, and print the table."""
    asked = arguments()
    if asked.report:
        print(*table(json.loads(asked.results.read_text())["runs"]), sep="\n")
        return 0
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    held = {"schema": 1, "measured": now, "machine": machine(), "realtime": asked.realtime}
    there = json.loads(asked.results.read_text())["runs"] if asked.results.exists() else []
    rows: list[Row] = [row for row in there if row["shape"] not in (asked.shape or SHAPES)]
    with tempfile.TemporaryDirectory(prefix="hztune-latency-") as folder:
        for row in measure_all(asked, build(Path(folder))):
            rows.append(row)
            runs = ",\n  ".join(json.dumps(row) for row in rows)
            head = json.dumps(held, indent=1)[:-2]
            asked.results.write_text(f'{head},\n "runs": [\n  {runs}\n ]\n}}\n')
    print(*table(rows), sep="\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RunError as error:
        sys.exit(f"run.py: {error}")
