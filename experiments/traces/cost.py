"""What does recording cost? A program runs alone and recorded, in turns; its CPU time tells.

    cost.py --rounds 12 -- sqlite3 :memory: '.read experiments/programs/orders.sql'
    cost.py --other FOLDER -- ./calls 4000000     also under the recorder of another build

Prints a line for each: CPU seconds, the ratio to the program alone with its 95 % interval, and
nanoseconds a call.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median, stdev

from hztune import artifacts

NORMAL = 1.96
OWN_TIME = """
import os, sys
child = os.fork()
if child == 0:
    os.execvp(sys.argv[2], sys.argv[2:])
_, status, used = os.wait4(child, 0)
open(sys.argv[1], "w").write(str(used.ru_utime + used.ru_stime))
sys.exit(1 if status else 0)
"""
"""A parent of the program that writes its CPU time: hz-record's own is not in it."""


def cpu_s(before: Sequence[str], program: Sequence[str], folder: Path) -> float:
    """CPU seconds of the program, started behind the words of a recorder."""
    out = folder / "seconds"
    line = [*before, sys.executable, "-S", "-c", OWN_TIME, str(out), *program]
    quiet = subprocess.DEVNULL
    subprocess.run(line, stdin=quiet, stdout=quiet, stderr=quiet, check=True)
    return float(out.read_text())


def recorder(core: Path, folder: Path) -> list[str]:
    """The words that record under the recorder of a build; the trace before is removed."""
    (library,) = core.rglob("libhz-recorder.so")
    (program,) = (path for path in core.rglob("hz-record") if os.access(path, os.X_OK))
    trace = folder / "program.trace"
    return [str(program), "--library", str(library), "--output", str(trace), "--"]


def calls_of(folder: Path) -> int:
    """Calls of the busiest program in the trace that was made last."""
    tool = [str(artifacts.trace_tool()), "info", str(folder / "program.trace")]
    told = json.loads(subprocess.run(tool, capture_output=True, text=True, check=True).stdout)
    return int(told["calls"])


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--other", type=Path, help="a build of another version")
    parser.add_argument("program", nargs="+")
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        arms = {"alone": [], "recorded": recorder(artifacts.record().parent.parent, folder)}
        if asked.other is not None:
            arms["by the other"] = recorder(asked.other, folder)
        times: dict[str, list[float]] = {name: [] for name in arms}
        for number in range(asked.rounds):
            for name in sorted(arms, reverse=number % 2 == 1):
                times[name].append(cpu_s(arms[name], asked.program, folder))
        calls = calls_of(folder)
    print(f"{calls:,} calls")
    for name, found in times.items():
        ratios = [one / alone for one, alone in zip(found, times["alone"], strict=True)]
        wide = NORMAL * stdev(ratios) / len(ratios) ** 0.5
        each_ns = 1e9 * (median(found) - median(times["alone"])) / calls
        print(
            f"{name:<13} {median(found):.4f} s  {mean(ratios):.3f} +- {wide:.3f}  "
            f"{each_ns:.1f} ns a call"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
