"""Is a program that is slower by a known amount measured as that much slower, by turns?

    python experiments/engine/slowed.py [--only lua redis] [--blocks 120]

A program gets 1, 3 and 10 % more of the same work, and callgrind counts by how much more that makes
it do. A server is slowed by 3 and 10 % of its own CPU time by slowed.c, which keeps account of what
it really spent. All of them live in the same blocks as the program itself. What is complete goes
into slowed.json and is not measured again; the table goes to stdout (--table: that alone).
"""

from __future__ import annotations

import argparse
import math
import re
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean, stdev

from programs import HERE, keep, kept, make, program_of, require_this_machine

from hztune.blocks import Arm
from hztune.compare.contenders import COMMAND
from hztune.compare.preload import FileIdentity
from hztune.machine import Machine
from hztune.measure.alternate import AlternateExecutor
from hztune.measure.examine import Tryout
from hztune.measure.examine_server import ServerTryout
from hztune.measure.executors import program_identity
from hztune.measure.program import OPEN, Program

sys.path.insert(0, str(HERE.parent / "programs"))

from cases import CASES, Case, environment  # the table of programs

RESULTS = HERE / "slowed.json"
BLOCKS = 120
PERCENTS = {"program": (1, 3, 10), "server": (3, 10)}
PROGRAMS = {"lua": 300, "php": 500}
"""How much the program itself does; a hundredth of it must be whole."""

SERVERS = ("redis", "memcached", "nginx")
_COLLECTED = re.compile(r"Collected : (\d+)")
_ACCOUNT = struct.Struct("=3q")


@dataclass(frozen=True)
class Slowed:
    """What one program, slower by one amount, was measured as.

    Attributes:
        program: Its name in experiments/programs.
        percent: By how much it was to be slower.
        true_percent: By how much it was: by instructions, or by a server's own account.
        measured: When that was complete.
        log_ratios: Of each block, its time relative to the program's.
        work_percent: Of a server, how much more it did beside what slowed it; 0 of a program.
    """

    program: str
    percent: int
    true_percent: float
    measured: str
    log_ratios: tuple[float, ...]
    work_percent: float = 0.0


# ---- what is run ---------------------------------------------------------------------------------


def arm_of(percent: int) -> Arm:
    """The program that is slower by so much; 0: the program itself."""
    return Arm(f"{COMMAND}{percent}")


def slower_programs(case: Case, work: Path) -> Program:
    """A program in which each arm does so much more than its case says."""
    size = PROGRAMS[case.name]
    words = {
        percent: tuple(case.words(work, size + size * percent // 100))
        for percent in (0, *PERCENTS["program"])
    }
    commands = tuple((arm_of(percent).allocator, each) for percent, each in words.items())
    return replace(program_of(case, work), argv=(OPEN,), commands=commands)


def slower_servers(case: Case, work: Path) -> Program:
    """A server that each arm slows by so much."""
    program, library = program_of(case, work), work / "slowed.so"
    if not library.exists():
        words = ["gcc", "-O2", "-shared", "-fPIC", str(HERE / "slowed.c"), "-o", str(library)]
        subprocess.run(words, check=True)
    commands = tuple(
        (
            arm_of(percent).allocator,
            ("env", f"LD_PRELOAD={library}", f"SLOWED_SHARE={percent / 100}",
             f"SLOWED_ACCOUNT={work}/{percent}"),
        )
        for percent in (0, *PERCENTS["server"])
    )  # fmt: skip
    return replace(program, argv=(OPEN, *program.argv), commands=commands)


def instructions(words: Sequence[str]) -> int:
    """How many instructions a command takes.

    Raises:
        SystemExit: valgrind is missing, or the command failed under it.
    """
    valgrind = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
    done = subprocess.run([*valgrind, *words], capture_output=True, text=True, check=False)
    found = _COLLECTED.search(done.stderr)
    if done.returncode != 0 or found is None:
        raise SystemExit(f"slowed.py: {words[0]} under valgrind: {done.stderr[-400:]}")
    return int(found[1])


def account(work: Path, percent: int) -> tuple[int, int]:
    """What the last server of an arm used by itself, and what slowed it, ns; forgets it."""
    (path,) = work.glob(f"{percent}.*")
    own_ns, spent_ns, _ = _ACCOUNT.unpack(path.read_bytes())
    path.unlink()
    return own_ns, spent_ns


# ---- measuring -----------------------------------------------------------------------------------


def measure(case: Case, work: Path, blocks: int, span_s: float) -> Iterator[Slowed]:
    """Measures one program beside its slower forms, in so many blocks or so many seconds."""
    began = time.monotonic()
    is_server = case.name in SERVERS
    program = slower_servers(case, work) if is_server else slower_programs(case, work)
    percents = PERCENTS["server" if is_server else "program"]
    arms = [arm_of(percent) for percent in (0, *percents)]
    with environment(case):  # the identity holds the variables that all processes get
        identity = FileIdentity((), program_identity(program_of(case, work)))
    memory_mb = int(Machine.here().memory_gib * 1024)
    turns = AlternateExecutor(program, seed=1, identity=identity, memory_mb=memory_mb)
    ratios: dict[int, list[float]] = {percent: [] for percent in percents}
    accounts: dict[int, list[tuple[int, int]]] = {percent: [] for percent in (0, *percents)}
    with environment(case):
        true = {} if is_server else dict(_true_of_programs(program))
        finding = (ServerTryout if is_server else Tryout)(turns, program, arms[0]).finding()
        turns.reading = replace(finding.reading, per_server_cpu=is_server)
        print(f"{case.name}: {finding.reason or finding.pace} {finding.remark}", file=sys.stderr)
        for left in work.glob("0.*"):
            left.unlink()
        for number in range(blocks):
            if time.monotonic() - began > span_s:
                break
            block = turns.measure(arms, role="aa", rounds=1, number=number)
            if bad := [each.detail for each in block.outcomes if not each.ok]:
                raise SystemExit(f"slowed.py: {case.name}: {bad}")
            first, *others = (each.ops_per_s for each in block.outcomes)
            for percent, other in zip(percents, others, strict=True):
                ratios[percent].append(math.log(first / other))
            for percent in accounts if is_server else ():
                accounts[percent].append(account(work, percent))
    true = dict(_true_of_servers(accounts)) if is_server else true
    for percent in percents:
        work_percent = 0.0
        if is_server:
            own_ns = [fmean(own for own, _ in accounts[each]) for each in (0, percent)]
            work_percent = 100.0 * (own_ns[1] / own_ns[0] - 1.0)
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        yield Slowed(case.name, percent, true[percent], now, tuple(ratios[percent]), work_percent)


def _true_of_servers(accounts: dict[int, list[tuple[int, int]]]) -> Iterator[tuple[int, float]]:
    """By how much each arm was slower, by its own account, percent."""
    for percent, noted in accounts.items():
        yield percent, 100.0 * sum(spent for _, spent in noted) / sum(own for own, _ in noted)


def _true_of_programs(program: Program) -> Iterator[tuple[int, float]]:
    """By how many more instructions each arm was slower, percent."""
    (_, first), *others = program.commands
    base = instructions(first)
    for name, words in others:
        yield int(name.removeprefix(COMMAND)), 100.0 * (instructions(words) / base - 1.0)


# ---- results -------------------------------------------------------------------------------------


def table(found: Sequence[Slowed]) -> Iterator[str]:
    """The table as lines: with intervals of 95 %, by the normal distribution."""
    yield "| | slower by | measured | off by | a server's own work |"
    yield "|---|---|---|---|---|"
    for each in found:
        count = len(each.log_ratios)
        measured = 100.0 * math.expm1(fmean(each.log_ratios))
        error = 100.0 * 1.96 * stdev(each.log_ratios) / math.sqrt(count)
        own = f"{each.work_percent:+.2f} %" if each.program in SERVERS else ""
        yield (
            f"| `{each.program}` | {each.true_percent:.2f} % | {measured:.2f} +- {error:.2f} % "
            f"| {measured - each.true_percent:+.2f} | {own} |"
        )


def main(words: Sequence[str] | None = None) -> None:
    """Measures what is not known yet, and prints the table."""
    names = [*PROGRAMS, *SERVERS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--blocks", type=int, default=BLOCKS, help=f"default {BLOCKS}")
    parser.add_argument(
        "--for", type=float, default=math.inf, metavar="S", dest="span_s",
        help="of each program, what was measured in so many seconds",
    )  # fmt: skip
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print the table, measure nothing")
    asked = parser.parse_args(words)
    if not asked.table:
        require_this_machine(asked.results)
    found = kept(asked.results, "slowed", Slowed)
    with tempfile.TemporaryDirectory(prefix="hztune-slowed-") as folder:
        work = Path(folder)
        work.chmod(0o777)  # a server may be another user
        done = {each.program for each in found}
        left = [] if asked.table else [name for name in asked.only if name not in done]
        if left:
            make(work)
        for name in left:
            case = next(case for case in CASES if case.name == name)
            found += measure(case, work, asked.blocks, asked.span_s)
            keep(asked.results, "slowed", found)
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
