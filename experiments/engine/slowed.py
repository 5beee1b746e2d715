"""Is a program that is slower by a known amount measured as that much slower, by turns?

    python experiments/engine/slowed.py [--only lua redis] [--blocks 120] [--for 150]

A program gets 1, 3 and 10 % more work, and callgrind counts by how much more that makes it do:
either a larger input, or the same job a few times more (`-jobs`). A server is slowed by 3 and 10 %
of its own CPU time by slowed.c, which keeps account of what it really spent. All of them live in
the same blocks as the program itself. What was counted and measured goes into slowed.json, and the
next call goes on from there (--count: only counts, which no busy machine disturbs); the table goes
to stdout (--table: that alone).
"""

from __future__ import annotations

import argparse
import math
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean, stdev

from programs import HERE, add_places, keep, kept, make, program_of, require_place

from hztune.blocks import Arm
from hztune.comparing.contenders import COMMAND, FileIdentity
from hztune.machine import Machine
from hztune.measure.alternate import AlternateExecutor
from hztune.measure.examine import Tryout
from hztune.measure.program import OPEN, Program

sys.path.insert(0, str(HERE.parent / "programs"))

import inputs
from cases import BY_NAME, Case, environment  # the table of programs

RESULTS = HERE / "slowed.json"
BLOCKS = 120
PERCENTS = {"program": (1, 3, 10), "server": (3, 10)}
PROGRAMS = {"lua": 300, "php": 500}
"""The input of the program itself; a hundredth of it must be whole."""

AGAIN = {
    "lua-jobs": ("lua5.4", "-e", "arg = {{'24'}} for _ = 1, {jobs} do dofile('{script}') end"),
    "php-jobs": ("php", "-n", "-r",
                 "$argv = [1 => '20']; for ($job = 0; $job < {jobs}; $job++) include '{script}';"),
    "sqlite-jobs": ("sqlite3", ":memory:", ".read {jobs_file}"),
    "z3-jobs": ("z3", "-smt2", "{jobs_file}"),
}  # fmt: skip
"""Programs that do the same job again and again: one more is like all before it."""

JOBS = 100
"""Of the program itself."""

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
        measured: When that was done.
        log_ratios: Of each block, its time relative to the program's; none as long as it was only
            counted.
        work_percent: Of a server, how much more it did beside what slowed it; 0 of a program.
        cpu_log_ratios: Of each two whole runs, one after the other, its CPU time relative to the
            program's.
    """

    program: str
    percent: int
    true_percent: float
    measured: str
    log_ratios: tuple[float, ...]
    work_percent: float = 0.0
    cpu_log_ratios: tuple[float, ...] = ()


# ---- what is run ---------------------------------------------------------------------------------


def arm_of(percent: int) -> Arm:
    """The program that is slower by so much; 0: the program itself."""
    return Arm(f"{COMMAND}{percent}")


def case_of(name: str) -> Case:
    """The case of a name; `-jobs` says that it does the same job again and again."""
    return BY_NAME[name.removesuffix("-jobs")]


def words_of(name: str, case: Case, work: Path, percent: int) -> list[str]:
    """The command of a program that does so much more."""
    if name in PROGRAMS:
        return case.words(work, PROGRAMS[name] + PROGRAMS[name] * percent // 100)
    jobs = JOBS + JOBS * percent // 100
    script = next((word for word in case.words(work, 0) if word.endswith(f".{case.name}")), "")
    jobs_file = work / f"{name}-{jobs}"
    if job := _JOB.get(name):
        jobs_file.write_text("".join(job()) * jobs)
    held = {"jobs": jobs, "script": script, "jobs_file": jobs_file}
    return [word.format(**held) for word in AGAIN[name]]


def _query() -> Iterator[str]:
    """SQL of a job: a table is filled, indexed, joined with itself, and dropped."""
    yield "CREATE TABLE item (id INTEGER PRIMARY KEY, kind INTEGER, name TEXT);\n"
    yield "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3600)\n"
    yield "INSERT INTO item SELECT i, i * 7919 % 97, printf('item-%d', i * 31 % 500) FROM n;\n"
    yield "CREATE INDEX by_kind ON item (kind, name);\n"
    yield "SELECT count(*), sum(length(names)) FROM (\n"
    yield "    SELECT kind, group_concat(name, ';') AS names FROM item GROUP BY kind);\n"
    yield "DROP TABLE item;\n"


def _puzzle() -> Iterator[str]:
    """SMT-LIB of a job: a problem that is refuted, and forgotten."""
    yield "(push)\n"
    yield from inputs.pigeon_holes(7)
    yield "(pop)\n"


_JOB = {"sqlite-jobs": _query, "z3-jobs": _puzzle}


def slower_programs(name: str, case: Case, work: Path) -> Program:
    """A program in which each arm does so much more than the first one."""
    words = {
        percent: tuple(words_of(name, case, work, percent)) for percent in (0, *PERCENTS["program"])
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
    """How many instructions a command takes."""
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


def counted(name: str, work: Path, before: Sequence[Slowed]) -> list[Slowed]:
    """The slower forms of a program, their instructions counted; what was measured stays."""
    case = case_of(name)
    program = slower_programs(name, case, work)
    with environment(case):
        true = dict(_true_of_programs(program))
    rows = before or [Slowed(name, each, 0.0, _now(), ()) for each in PERCENTS["program"]]
    return [replace(each, true_percent=true[each.percent]) for each in rows]


def measure(
    name: str, work: Path, blocks: int, span_s: float, before: Sequence[Slowed]
) -> Iterator[Slowed]:
    """Measures one program beside its slower forms, in so many blocks or so many seconds."""
    began, case = time.monotonic(), case_of(name)
    is_server = name in SERVERS
    program = slower_servers(case, work) if is_server else slower_programs(name, case, work)
    percents = PERCENTS["server" if is_server else "program"]
    arms = [arm_of(percent) for percent in (0, *percents)]
    with environment(case):  # the identity holds the variables that all processes get
        identity = FileIdentity((), program_of(case, work).argv[0])
    memory_mb = int(Machine.here().memory_gib * 1024)
    turns = AlternateExecutor(program, seed=1, identity=identity, memory_mb=memory_mb)
    ratios: dict[int, list[float]] = {percent: [] for percent in percents}
    ratios |= {each.percent: [*each.log_ratios] for each in before}
    accounts: dict[int, list[tuple[int, int]]] = {percent: [] for percent in (0, *percents)}
    with environment(case):
        finding = Tryout(turns, program, arms[0]).finding()
        turns.reading = replace(finding.reading, per_server_cpu=is_server)
        print(f"{name}: {finding.reason or finding.pace} {finding.remark}", file=sys.stderr)
        for left in work.glob("0.*"):
            left.unlink()
        for number in range(len(ratios[percents[0]]), blocks):
            if time.monotonic() - began > span_s:
                break
            block = turns.measure(arms, role="aa", rounds=1, number=number)
            if bad := [each.detail for each in block.outcomes if not each.ok]:
                raise SystemExit(f"slowed.py: {name}: {bad}")
            first, *others = (each.ops_per_s for each in block.outcomes)
            for percent, other in zip(percents, others, strict=True):
                ratios[percent].append(math.log(first / other))
            for percent in accounts if is_server else ():
                accounts[percent].append(account(work, percent))
    true = {each.percent: each.true_percent for each in before}
    true = dict(_true_of_servers(accounts)) if is_server else true
    for percent in percents:
        work_percent = 0.0
        if is_server:
            own_ns = [fmean(own for own, _ in accounts[each]) for each in (0, percent)]
            work_percent = 100.0 * (own_ns[1] / own_ns[0] - 1.0)
        runs = next((each.cpu_log_ratios for each in before if each.percent == percent), ())
        yield Slowed(
            name, percent, true[percent], _now(), tuple(ratios[percent]), work_percent, tuple(runs)
        )


def by_runs(name: str, work: Path, pairs: int, row: Slowed) -> Slowed:
    """Adds pairs of whole runs, of which the CPU time counts, to a slower form of a program."""
    case, found = case_of(name), [*row.cpu_log_ratios]
    words = [words_of(name, case, work, percent) for percent in (0, row.percent)]
    with environment(case):
        for number in range(pairs):
            taken = [0, 0]
            for side in (number % 2, 1 - number % 2):
                taken[side] = cpu_ns(words[side])
            found.append(math.log(taken[1] / taken[0]))
    return replace(row, cpu_log_ratios=tuple(found))


def cpu_ns(words: Sequence[str]) -> int:
    """The CPU time of a run that stays on one CPU, its start included."""
    with subprocess.Popen(["taskset", "--cpu-list", "1", *words], stdout=subprocess.DEVNULL) as run:
        _, status, used = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
    if run.returncode != 0:
        raise SystemExit(f"slowed.py: {words}: exit status {run.returncode}")
    return round(1e9 * (used.ru_utime + used.ru_stime))


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


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
    yield "| | slower by | blocks | measured | off by | whole runs, CPU time | a server's own |"
    yield "|---|---|---|---|---|---|---|"
    for each in found:
        if (count := len(each.log_ratios)) < 2:
            continue
        measured, error = _percent(each.log_ratios)
        own = f"{each.work_percent:+.2f} %" if each.program in SERVERS else ""
        runs = (
            "{:.2f} +- {:.2f} %".format(*_percent(each.cpu_log_ratios))
            if each.cpu_log_ratios
            else ""
        )
        yield (
            f"| `{each.program}` | {each.true_percent:.2f} % | {count} "
            f"| {measured:.2f} +- {error:.2f} % | {measured - each.true_percent:+.2f} "
            f"| {runs} | {own} |"
        )


def _percent(logs: Sequence[float]) -> tuple[float, float]:
    """What log ratios come to, and half the interval."""
    return 100.0 * math.expm1(fmean(logs)), 100.0 * 1.96 * stdev(logs) / math.sqrt(len(logs))


def main(words: Sequence[str] | None = None) -> None:
    """Measures what is not known yet, and prints the table."""
    names = [*PROGRAMS, *AGAIN, *SERVERS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--blocks", type=int, default=BLOCKS, help=f"default {BLOCKS}")
    parser.add_argument(
        "--for", type=float, default=math.inf, metavar="S", dest="span_s",
        help="of each program, what was measured in so many seconds",
    )  # fmt: skip
    parser.add_argument("--count", action="store_true", help="count instructions, measure nothing")
    parser.add_argument(
        "--pairs", type=int, default=0, metavar="N",
        help="add N pairs of whole runs of the slowest form, of which the CPU time counts",
    )  # fmt: skip
    add_places(parser, RESULTS)
    asked = parser.parse_args(words)
    require_place(asked)
    found: dict[str, list[Slowed]] = {}
    for each in kept(asked.results, "slowed", Slowed):
        found.setdefault(each.program, []).append(each)
    with tempfile.TemporaryDirectory(prefix="hztune-slowed-") as folder:
        work = Path(folder)
        work.chmod(0o777)  # a server may be another user
        left = [] if asked.table else [name for name in asked.only if _lacks(name, found, asked)]
        if left:
            make(work)
        for name in left:
            if name not in SERVERS and (asked.count or name not in found):
                found[name] = counted(name, work, found.get(name, []))
            if asked.pairs:
                *others, slowest = found[name]
                found[name] = [*others, by_runs(name, work, asked.pairs, slowest)]
            elif not asked.count:
                found[name] = [
                    *measure(name, work, asked.blocks, asked.span_s, found.get(name, []))
                ]
            keep(asked.results, "slowed", [each for rows in found.values() for each in rows])
    print("\n".join(table([each for rows in found.values() for each in rows])))


def _lacks(name: str, found: Mapping[str, Sequence[Slowed]], asked: argparse.Namespace) -> bool:
    """Whether a program is to be measured, or counted; a server is measured in one go."""
    if asked.pairs or asked.count:
        return name not in SERVERS
    if name in SERVERS:
        return name not in found
    rows = found.get(name, ())
    return not rows or any(len(each.log_ratios) < asked.blocks for each in rows)


if __name__ == "__main__":
    main()
