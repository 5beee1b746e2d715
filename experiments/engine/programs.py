"""How precise a second of real programs is: by turns and by whole runs, in one sitting.

    python experiments/engine/programs.py [--only lua redis] [--pairs 40] [--for 170]

Each program of experiments/programs, with an input for which it takes a few tenths of a second, is
measured beside itself: a pair by turns, a pair by whole runs, and so on, first on a machine that
does nothing else and then beside a process that keeps a CPU busy. The deviation of log(A/A) is that
of one measured second of the two sides together. A cell goes into programs.json as soon as it is
complete; what is there is not measured again, so that all of it may be done in slices (--for). The
table goes to stdout; with --table it is printed and nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from hztune.blocks import UNCHANGED_PROGRAM, Arm, Block
from hztune.machine import Machine
from hztune.measure.alternate import AlternateExecutor
from hztune.measure.examine import Finding, Tryout
from hztune.measure.identity import AllocatorIdentity
from hztune.measure.program import Program
from hztune.measure.whole import RunExecutor
from hztune.process import Child
from hztune.stats.ratios import pair_ratio

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "programs"))

from cases import BY_NAME, CASES, Case, build, environment, missing  # noqa: E402  # the programs

Kept = TypeVar("Kept")
Whole = TypeVar("Whole", bound=RunExecutor)

RESULTS = HERE / "programs.json"
SCHEMA = 1
PAIRS = 40
LOADS = ("quiet", "busy")
CONTROL = Arm(UNCHANGED_PROGRAM)
MACHINE = Machine.here()
"""As it is before `require_place` keeps what is measured to one CPU of it."""


SIZES = {
    "large-buffers": 3,
    "dicts": 200,
    "lua": 300,
    "ruby": 400,
    "php": 500,
    "cpp-messages": 1_000,
    "redis": 20_000,
    "memcached": 2_500,
    "nginx": 2_500,
}
"""How much each of the programs does whose case says that; for those below, their input."""

FUNCTIONS = 2
PIGEONS = 9
NUMBERS = 60_000
THREADED = ("cpp-messages",)
GOALS = {"quiet": (0.04, 0.08), "busy": (0.08, 0.16)}
"""Most deviation of a second of turns: of a program or server with one thread, of one with more."""

BUSY = [sys.executable, "-S", "-E", "-c", "while True: pass"]


@dataclass(frozen=True)
class Cell:
    """What one program came to under one load, by turns and by runs.

    Attributes:
        program: Its name in experiments/programs.
        load: What else ran: "quiet", nothing; "busy", a process that keeps a CPU busy.
        measured: When it was complete.
        load_average: The machine's at that moment, of a minute; what is measured is a part of it.
        refused: Why hztune would not measure it by turns; "": it would.
        turn_ms: Length of a turn.
        cpu: The CPU on which all copies stayed; None: any.
        turns: Of each pair by turns, the logarithm of the ratio and the measured seconds of both.
        runs: The same by whole runs.
    """

    program: str
    load: str
    measured: str
    load_average: float
    refused: str
    turn_ms: float
    cpu: int | None
    turns: tuple[tuple[float, float], ...]
    runs: tuple[tuple[float, float], ...]


def deviation(pairs: Sequence[Sequence[float]]) -> float:
    """The deviation of log(A/A) of one measured second; the truth is 0.

    A pair of T seconds has the variance of one second, divided by T: as if it were made of noise
    that time averages away. Where a part of it is not, short pairs look better than long ones.
    """
    return math.sqrt(fmean(ratio**2 * seconds for ratio, seconds in pairs))


# ---- what is measured ----------------------------------------------------------------------------


def names() -> list[str]:
    """All programs and servers whose case is about speed, not about a limit of memory."""
    return [case.name for case in CASES if case.is_program and "--max-rss" not in case.options]


def make(work: Path) -> None:
    """Makes what the commands need, with inputs for short runs."""
    build(work, CASES, functions=FUNCTIONS, pigeons=PIGEONS)
    lines = (b"%d %d\n" % (number, number**2 % 9973) for number in range(NUMBERS))
    (work / "small").write_bytes(b"".join(lines))


def program_of(case: Case, work: Path) -> Program:
    """The program of a case, with an input for a short run."""
    return case.program(work, SIZES.get(case.name, case.size))


# ---- measuring -----------------------------------------------------------------------------------


def executor_of(kind: type[Whole], case: Case, program: Program) -> Whole:
    """What measures a program by turns or by runs."""
    with environment(case):  # the identity holds the variables that all processes get
        identity = AllocatorIdentity(program.argv[0])
    memory_mb = int(Machine.here().memory_gib * 1024)
    return kind(program, seed=1, identity=identity, memory_mb=memory_mb)


def examined(turns: AlternateExecutor, program: Program) -> Finding:
    """What hztune finds out before it measures by turns; sets the pace and how speed is read."""
    finding = Tryout(turns, program, CONTROL).finding()
    turns.reading = finding.reading
    return finding


def pair(executor: RunExecutor, number: int) -> tuple[float, float]:
    """Measures a program beside itself once."""
    block = executor.measure([CONTROL, CONTROL], role="aa", rounds=1, number=number)
    ratio = pair_ratio(*block.outcomes)
    if ratio is None:
        raise SystemExit(f"programs.py: {[outcome.detail for outcome in block.outcomes]}")
    return ratio.log_ratio, _seconds(block)


def _seconds(block: Block) -> float:
    return sum(turn.counted_ns for outcome in block.outcomes for turn in outcome.turns) * 1e-9


def measure(case: Case, work: Path, load: str, pairs: int) -> Cell:
    """Measures one cell: a pair by turns and a pair by runs, as often as asked."""
    program = program_of(case, work)
    turns = executor_of(AlternateExecutor, case, program)
    runs = executor_of(RunExecutor, case, program)
    both: list[tuple[tuple[float, float], tuple[float, float]]] = []
    with environment(case), Child(BUSY) if load == "busy" else nullcontext():
        finding = examined(turns, program)
        for number in range(pairs):
            both.append((pair(turns, number), pair(runs, number)))
    return Cell(
        program=case.name,
        load=load,
        measured=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        load_average=os.getloadavg()[0],
        refused=finding.reason,
        turn_ms=turns.pace.turn_ms,
        cpu=turns.pace.cpu,
        turns=tuple(by_turns for by_turns, _ in both),
        runs=tuple(by_runs for _, by_runs in both),
    )


# ---- results -------------------------------------------------------------------------------------


def require_this_machine(results: Path) -> None:
    """Refuses to add to the results of another machine: they do not belong into one table."""
    if not results.is_file():
        return
    there, here = Machine(**json.loads(results.read_text())["machine"]), MACHINE
    told = [(each.cpu, each.cpu_flags, each.cores) for each in (there, here)]
    if told[0] != told[1]:
        raise SystemExit(
            f"{results} was measured on another machine ({'; '.join(here.differences(there))}); "
            "name another file with --results"
        )


def add_places(parser: argparse.ArgumentParser, results: Path) -> None:
    """Adds the options that say where it is measured, and where that is kept."""
    add = parser.add_argument
    add("--cpu", type=int, metavar="N", help="keep all that is measured to this CPU")
    add("--results", type=Path, default=results, help=f"default: {results.name} beside this file")
    add("--table", action="store_true", help="print the table and measure nothing")


def require_place(asked: argparse.Namespace) -> None:
    """Sees to it that what is measured now may be added to the results; keeps it to one CPU."""
    if asked.table:
        return
    require_this_machine(asked.results)
    if asked.cpu is None:
        return
    if asked.cpu not in (allowed := os.sched_getaffinity(0)):
        raise SystemExit(f"--cpu {asked.cpu}: this process may use {sorted(allowed)}")
    os.sched_setaffinity(0, {asked.cpu})


def kept(results: Path, name: str, kind: Callable[..., Kept]) -> list[Kept]:
    """What earlier goes left under a name; nothing where there is no file."""
    if not results.is_file():
        return []
    return [kind(**each) for each in json.loads(results.read_text())[name]]


def keep(results: Path, name: str, found: Sequence[Any]) -> None:
    """Writes all that was found so far, each a dataclass, in place of the file.

    The machine of a file stays: what is added was measured there (`require_this_machine`).
    """
    document = json.loads(results.read_text()) if results.is_file() else {}
    document = {"schema": SCHEMA, "machine": asdict(MACHINE)} | document
    document[name] = [asdict(each) for each in found]
    fresh = results.with_suffix(".new")
    fresh.write_text(json.dumps(document) + "\n")
    fresh.replace(results)


def table(cells: Sequence[Cell]) -> Iterator[str]:
    """The table, and what it comes to, as lines."""
    of: Mapping[tuple[str, str], Cell] = {(cell.program, cell.load): cell for cell in cells}
    yield "| | a run | turns | by turns | by runs | beside a busy process: by turns | by runs |"
    yield "|---|---|---|---|---|---|---|"
    for name in dict.fromkeys(cell.program for cell in cells):
        each = [of.get((name, load)) for load in LOADS]
        first = next(cell for cell in each if cell is not None)
        where = "all CPUs" if first.cpu is None else "one CPU"
        run_s = fmean(seconds for _, seconds in first.turns) / 2.0
        found = " | ".join(_figures(cell) if cell else " | " for cell in each)
        yield f"| `{name}` | {run_s:.2f} s | {first.turn_ms:g} ms, {where} | {found} |"
    for load in LOADS:
        if gains := [deviation(c.runs) / deviation(c.turns) for c in cells if c.load == load]:
            mean = math.exp(fmean(math.log(gain) for gain in gains))
            yield f"\n{load}: {len(gains)} cells; by runs {mean:.1f} times as far (geometric mean)"


def _figures(cell: Cell) -> str:
    """The two figures of a cell; one that misses its goal stands out."""
    by_turns = deviation(cell.turns)
    missed = by_turns > GOALS[cell.load][cell.program in THREADED]
    told = f"**{by_turns:.3f}**" if missed else f"{by_turns:.3f}"
    return f"{told}{' (refused)' if cell.refused else ''} | {deviation(cell.runs):.3f}"


# ---- the command ---------------------------------------------------------------------------------


def arguments(words: Sequence[str] | None, programs: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--only", nargs="+", metavar="NAME", choices=programs, default=programs)
    add("--pairs", type=int, default=PAIRS, help=f"of each cell; default {PAIRS}")
    add("--load", choices=LOADS, action="append", help="default: both")
    add("--for", type=float, default=math.inf, metavar="S", dest="span_s",
        help="begin no cell that would not be complete after so many seconds")  # fmt: skip
    add_places(parser, RESULTS)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Measures what is not known yet, and prints the table."""
    asked = arguments(words, names())
    started, longest_s = time.monotonic(), 0.0
    require_place(asked)
    cells = kept(asked.results, "cells", Cell)
    done = {(cell.program, cell.load) for cell in cells}
    wanted = [(name, load) for load in asked.load or LOADS for name in asked.only]
    with tempfile.TemporaryDirectory(prefix="hztune-programs-") as folder:
        left = [] if asked.table else [each for each in wanted if each not in done]
        if left:
            make(Path(folder))
        for name, load in left:
            case = BY_NAME[name]
            if lacking := missing(case):
                print(f"{name}: {'; '.join(lacking)}", file=sys.stderr)
                continue
            began = time.monotonic()
            if began - started + longest_s > asked.span_s:
                unknown = sum(each not in done for each in wanted)
                print(f"programs.py: {unknown} cells are left", file=sys.stderr)
                break
            cells.append(measure(case, Path(folder), load, asked.pairs))
            keep(asked.results, "cells", cells)
            done.add((name, load))
            took_s = time.monotonic() - began
            longest_s = max(longest_s, took_s)
            print(f"{name}, {load}: {took_s:.0f} s {cells[-1].refused}", file=sys.stderr)
    print("\n".join(table(cells)))


if __name__ == "__main__":
    main()
