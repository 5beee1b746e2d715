"""What does it cost to stop a program at the end of its turn: by a freezer, by signals?

    python experiments/engine/stops.py [--runs 3]
    python experiments/engine/stops.py --only lua redis [--pairs 40] [--cpu 1]

Two copies of a program go on by turns of 10 ms, for a second of each one's own time. A turn ends
when all of its processes stand: what it is longer than 10 ms is what stopping took. The table goes
to stdout.

With --only, real programs instead, and how precise a second of them is both ways: a program beside
itself by freezers, then by signals, and so on. The pairs go into stops.json as soon as a program is
complete; with --table their table is printed and nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean, stdev
from unittest import mock

import programs
from cases import BY_NAME, Case, environment

from hztune import artifacts
from hztune.measure import alternate
from hztune.measure.alternate import AlternateExecutor
from hztune.measure.scope import freezer

RESULTS = programs.HERE / "stops.json"

TURN_MS = 10.0
OWN_MS = 1000
ONE_CPU = max(os.sched_getaffinity(0))
SPIN = "while True: pass"
THREADS = (
    "import threading, time\n"
    "def some():\n    while True:\n        sum(range(20000)); time.sleep(0.001)\n"
    "for _ in range(31): threading.Thread(target=some, daemon=True).start()\nsome()"
)
SHAPES = {
    "one process": (SPIN, ONE_CPU),
    "8 processes on one CPU": (f"import os\nfor _ in range(3): os.fork()\n{SPIN}", ONE_CPU),
    "8 processes on all CPUs": (f"import os\nfor _ in range(3): os.fork()\n{SPIN}", None),
    "32 threads on all CPUs": (THREADS, None),
    "it forks all the time": (
        "import os\nwhile True:\n    if os.fork() == 0: os._exit(0)\n    os.wait()", ONE_CPU
    ),
}  # fmt: skip
"""What each program does, and the CPU on which it stays."""


def turns(code: str, cpu: int | None, *, frozen: bool) -> list[dict[str, int]]:
    """Runs two copies by turns; returns what hz-alternate tells of each."""
    words = [str(artifacts.alternate()), "--turn-ms", f"{TURN_MS:g}", "--timeout-ms", str(OWN_MS)]
    words += [] if cpu is None else ["--cpu", str(cpu)]
    with ExitStack() as stack:
        for key in "ab":
            words += ["--unit", key]
            group = stack.enter_context(freezer()) if frozen else None
            if frozen and group is None:
                raise SystemExit("stops.py: this process may not make control groups of version 2")
            words += ["--freezer", str(group)] if group else []
            words += ["--main", "6", "--", sys.executable, "-I", "-S", "-c", code]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return [event for event in events if event["event"] == "run"]


def stopping_ms(runs: Sequence[dict[str, int]]) -> float:
    """Returns what stopping took, milliseconds for each turn."""
    return fmean(1e-6 * run["active_ns"] / run["turns"] for run in runs) - TURN_MS


def table(runs: int) -> Iterator[str]:
    """Measures, and yields the table as lines: means, with their standard deviations."""
    yield "| | by a freezer | by signals |"
    yield "|---|---|---|"
    for shape, (code, cpu) in SHAPES.items():
        cells = []
        for frozen in (True, False):
            found = [stopping_ms(turns(code, cpu, frozen=frozen)) for _ in range(runs)]
            cells.append(f"{fmean(found):.2f} +- {stdev(found):.2f} ms")
        yield f"| {shape} | {' | '.join(cells)} |"


# ---- real programs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stopped:
    """One program beside itself, both ways.

    Attributes:
        program: Its name in experiments/programs.
        measured: When it was complete.
        frozen: Of each pair by freezers, the logarithm of the ratio and the measured seconds.
        signalled: The same by signals.
    """

    program: str
    measured: str
    frozen: tuple[tuple[float, float], ...]
    signalled: tuple[tuple[float, float], ...]


def measure(case: Case, work: Path, pairs: int) -> Stopped:
    """Measures one program beside itself: by freezers, by signals, and so on."""
    program = programs.program_of(case, work)
    turns = programs.executor_of(AlternateExecutor, case, program)
    frozen, signalled = [], []
    with environment(case):
        if reason := programs.examined(turns, program).reason:
            raise SystemExit(f"stops.py: {case.name}: {reason}")
        for number in range(pairs):
            frozen.append(programs.pair(turns, number))
            with mock.patch.object(alternate, "freezer", nullcontext):
                signalled.append(programs.pair(turns, number))
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Stopped(case.name, now, tuple(frozen), tuple(signalled))


def precision(found: Sequence[Stopped]) -> Iterator[str]:
    """Yields the table of real programs as lines."""
    yield "| | pairs | by freezers | by signals |"
    yield "|---|---|---|---|"
    gains = []
    for each in found:
        ways = [programs.deviation(pairs) for pairs in (each.frozen, each.signalled)]
        gains.append(math.log(ways[0] / ways[1]))
        yield f"| `{each.program}` | {len(each.frozen)} | {ways[0]:.3f} | {ways[1]:.3f} |"
    if len(gains) > 1:
        half = 1.96 * stdev(gains) / math.sqrt(len(gains))
        ends = [math.exp(fmean(gains) + sign * half) for sign in (0, -1, 1)]
        yield "\nfreezers / signals: {:.2f} [{:.2f}, {:.2f}]".format(*ends)


def of_programs(asked: argparse.Namespace) -> Iterator[str]:
    """Measures the programs that are not known yet, and yields the table."""
    found = programs.kept(asked.results, "stopped", Stopped)
    left = [] if asked.table else [*asked.only]
    left = [name for name in left if name not in {each.program for each in found}]
    with tempfile.TemporaryDirectory(prefix="hztune-stops-") as folder:
        if left:
            programs.make(Path(folder))
        for name in left:
            found.append(measure(BY_NAME[name], Path(folder), asked.pairs))
            programs.keep(asked.results, "stopped", found)
    yield from precision(found)


def main(words: Sequence[str] | None = None) -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="of each cell (default 3)")
    parser.add_argument("--only", nargs="+", choices=programs.names(), metavar="NAME", default=[])
    parser.add_argument("--pairs", type=int, default=programs.PAIRS, help="of each program")
    programs.add_places(parser, RESULTS)
    asked = parser.parse_args(words)
    programs.require_place(asked)
    for line in of_programs(asked) if asked.only or asked.table else table(asked.runs):
        print(line, flush=True)


if __name__ == "__main__":
    main()
