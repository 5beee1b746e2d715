"""What does it cost to stop a program at the end of its turn: by a freezer, by signals?

    python experiments/engine/stops.py [--runs 3]

Two copies of a program go on by turns of 10 ms, for a second of each one's own time. A turn ends
when all of its processes stand: what it is longer than 10 ms is what stopping took. The table goes
to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from statistics import fmean, stdev

from hztune import artifacts
from hztune.measure.scope import freezer

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


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="of each cell (default 3)")
    for line in table(parser.parse_args().runs):
        print(line, flush=True)


if __name__ == "__main__":
    main()
