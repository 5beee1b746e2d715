"""Turns share the caches: do allocators compare by turns as they do by whole runs?

    python experiments/engine/caches.py [--only lua dicts] [--runs 200] [--for 150]

Programs whose memory is about as large as a cache are measured under several allocators, which keep
different amounts of memory in use. A block by turns, in which all of them are alive and drive each
other's lines out of the caches, and blocks of whole runs, one after the other, follow each other.
What was measured goes into caches.json, and the next call adds to it until there are so many runs;
the table goes to stdout (--table: that alone).
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean, stdev

from programs import (
    HERE,
    add_places,
    examined,
    executor_of,
    keep,
    kept,
    make,
    program_of,
    require_place,
)

from hztune.blocks import UNCHANGED_PROGRAM, Arm, Block
from hztune.measure.alternate import AlternateExecutor
from hztune.measure.whole import RunExecutor

sys.path.insert(0, str(HERE.parent / "programs"))

from cases import BY_NAME, Case, environment, missing  # the table of programs

RESULTS = HERE / "caches.json"
PROGRAMS = ("lua", "dicts", "sqlite")
ARMS = tuple(Arm(name) for name in (UNCHANGED_PROGRAM, "hz", "mimalloc", "tcmalloc"))
RUNS = 200
BLOCKS_OF_RUNS = 4
"""For each block by turns."""


@dataclass(frozen=True)
class Shared:
    """One program under one allocator, beside the same on the C library's.

    Attributes:
        program: Its name in experiments/programs.
        allocator: What it is under.
        measured: When that was complete.
        rss_kb: The most memory that it took by whole runs.
        turns: Of each block by turns, the log ratio of the speeds; above 0 is faster.
        runs: The same of each block of whole runs.
    """

    program: str
    allocator: str
    measured: str
    rss_kb: int
    turns: tuple[float, ...]
    runs: tuple[float, ...]


def ratios(block: Block) -> list[float]:
    """The log ratio of each arm's speed to that of the first one."""
    if bad := [each.detail for each in block.outcomes if not each.ok]:
        raise SystemExit(f"caches.py: {bad}")
    first, *others = (math.log(each.ops_per_s) for each in block.outcomes)
    return [other - first for other in others]


def measure(
    case: Case, work: Path, runs: int, span_s: float, before: Sequence[Shared]
) -> Iterator[Shared]:
    """Measures one program under all allocators, by turns and by runs."""
    began, program = time.monotonic(), program_of(case, work)
    turns = executor_of(AlternateExecutor, case, program)
    whole = executor_of(RunExecutor, case, program)
    found = {each.allocator: each for each in before}
    by_turns = [[*found[arm.allocator].turns] if found else [] for arm in ARMS[1:]]
    by_runs = [[*found[arm.allocator].runs] if found else [] for arm in ARMS[1:]]
    memory = [found[arm.allocator].rss_kb if found else 0 for arm in ARMS[1:]]
    with environment(case):
        if reason := examined(turns, program).reason:
            raise SystemExit(f"caches.py: {case.name}: {reason}")
        for number in range(len(by_runs[0]), runs):
            if time.monotonic() - began > span_s:
                break
            block = whole.measure(ARMS, role="explore", rounds=1, number=number)
            _add(by_runs, block)
            peaks = [each.rss_peak_kb for each in block.outcomes[1:]]
            memory = [max(pair) for pair in zip(memory, peaks, strict=True)]
            if number % BLOCKS_OF_RUNS == 0:
                _add(by_turns, turns.measure(ARMS, role="explore", rounds=1, number=number))
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    for arm, peak_kb, turned, ran in zip(ARMS[1:], memory, by_turns, by_runs, strict=True):
        yield Shared(case.name, arm.allocator, now, peak_kb, tuple(turned), tuple(ran))


def _add(to: Sequence[list[float]], block: Block) -> None:
    """Adds what each allocator showed in a block."""
    for each, ratio in zip(to, ratios(block), strict=True):
        each.append(ratio)


def interval(logs: Sequence[float]) -> tuple[float, float]:
    """The mean of log ratios, and half its 95 % interval, by the normal distribution."""
    return fmean(logs), 1.96 * stdev(logs) / math.sqrt(len(logs))


def told(log: float, half: float) -> str:
    """A ratio with its interval."""
    low, high = math.exp(log - half), math.exp(log + half)
    return f"{math.exp(log):.3f} [{low:.3f}, {high:.3f}]"


def table(found: Sequence[Shared]) -> Iterator[str]:
    """The table as lines."""
    yield "| | memory | allocator | runs | by turns | by runs | turns / runs |"
    yield "|---|---|---|---|---|---|---|"
    for each in (each for each in found if len(each.turns) > 1):
        (turns, turns_half), (runs, runs_half) = interval(each.turns), interval(each.runs)
        apart = told(turns - runs, math.hypot(turns_half, runs_half))
        yield (
            f"| `{each.program}` | {each.rss_kb / 1024:.0f} MiB | {each.allocator} "
            f"| {len(each.runs)} | {told(turns, turns_half)} | {told(runs, runs_half)} | {apart} |"
        )


def main(words: Sequence[str] | None = None) -> None:
    """Measures what is not known yet, and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=PROGRAMS)
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of each; default {RUNS}")
    parser.add_argument(
        "--for", type=float, default=math.inf, metavar="S", dest="span_s",
        help="of each program, what was measured in so many seconds",
    )  # fmt: skip
    add_places(parser, RESULTS)
    asked = parser.parse_args(words)
    require_place(asked)
    found: dict[str, list[Shared]] = {}
    for each in kept(asked.results, "shared", Shared):
        found.setdefault(each.program, []).append(each)
    done = {name for name, rows in found.items() if len(rows[0].runs) >= asked.runs}
    left = [] if asked.table else [name for name in asked.only if name not in done]
    with tempfile.TemporaryDirectory(prefix="hztune-caches-") as folder:
        if left:
            make(Path(folder))
        for name in left:
            case = BY_NAME[name]
            if lacking := missing(case):
                print(f"{name}: {'; '.join(lacking)}", file=sys.stderr)
                continue
            before = found.get(name, [])
            found[name] = [*measure(case, Path(folder), asked.runs, asked.span_s, before)]
            keep(asked.results, "shared", [each for rows in found.values() for each in rows])
    print("\n".join(table([each for rows in found.values() for each in rows])))


if __name__ == "__main__":
    main()
