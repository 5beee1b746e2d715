"""Record traces of real programs, and check each: may it stand for its program?

    record.py                            all of them into hztune-results/traces, then the checks
    record.py --only messages redis      some of them; the others' verdicts are kept
    record.py --no-check                 record only
    record.py --list                     what there is, with the command of each

Each verdict goes into checks.json beside this file as soon as it is there.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE.parent / "programs"
CHECKS = HERE / "checks.json"
HZTUNE = [sys.executable, "-m", "hztune"]
ANSWERS = (0, 4, 6)  # the exit statuses of a check that has an answer
READY_S = 10.0


@dataclass(frozen=True, slots=True)
class Case:
    """One program.

    Attributes:
        name: Of its trace, NAME.hzt.
        command: What is run; {programs}, {work} and {python} are put in.
        load: Of a server: what puts it under load, with {port}.
        variables: Set for the program.
        needs: What must be installed.
        cpus: To which its check keeps, as taskset(1) names them; "": all.
    """

    name: str
    command: str
    load: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    needs: str = ""
    cpus: str = ""

    def words(self, work: Path, port: str = "{port}") -> list[str]:
        """The program's command."""
        return [_put(word, work, port) for word in shlex.split(self.command)]

    def checked(self, work: Path, budget: str) -> list[str]:
        """The command line of its check."""
        line = ["taskset", "-c", self.cpus] if self.cpus else []
        line += [*HZTUNE, "trace", "check", str(work / f"{self.name}.hzt"), "--json"]
        line += ["--budget", budget, "--out", str(work / f"check-{self.name}")]
        if self.load:
            load = ["--load", _put(self.load, work, "{port}")]
            return [*line, "--server", shlex.join(self.words(work)), *load]
        return [*line, "--", *self.words(work)]


def _put(text: str, work: Path, port: str) -> str:
    values = {"programs": PROGRAMS, "work": work, "port": port}
    for name, value in {**values, "python": sys.executable}.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


_MALLOC = (("PYTHONMALLOC", "malloc"),)
CASES = (
    Case("messages", "{work}/messages 700", needs="g++"),
    Case("phases", "{work}/phases 3", needs="g++"),
    Case("python", "{python} -S {programs}/dicts.py 100", variables=_MALLOC),
    Case("sqlite", "sqlite3 :memory: '.read {programs}/orders.sql'", needs="sqlite3"),
    Case("lua", "lua5.4 {programs}/words.lua 600", needs="lua5.4"),
    Case("ruby", "ruby --disable=gems {programs}/words.rb 1000", needs="ruby"),
    Case("clang", "clang -O1 -c {work}/large.c -o /dev/null", needs="clang"),
    Case("node", "node {programs}/objects.js 60", needs="node"),
    Case("node-one-cpu", "node {programs}/objects.js 60", needs="node", cpus="1"),
    Case("rust", "{work}/words-rust 1500", needs="rustc"),
    Case("z3", "z3 {work}/pigeons.smt2", needs="z3"),
    Case("perl", "perl {programs}/words.pl 600", needs="perl"),
    Case(
        "redis",
        "redis-server --port {port} --save '' --loglevel warning",
        "redis-benchmark -p {port} -n 200000 -r 20000 -d 400 -P 16 -t set,hset -q",
        needs="redis-server",
    ),
)


def build(work: Path) -> None:
    """Makes what the commands need in `work`; what that is says experiments/programs/cases.py."""
    sys.path.insert(0, str(PROGRAMS))
    import cases

    cases.build(work, [*cases.CASES, *(each for each in cases.COMPARED if each.name == "rust")])


def record(case: Case, work: Path) -> Path:
    """Records one program; returns its trace."""
    trace = work / f"{case.name}.hzt"
    line = [*HZTUNE, "record", "-o", str(trace), "--"]
    variables = {**os.environ, **dict(case.variables)}
    if not case.load:
        words = [*line, *case.words(work)]
        subprocess.run(words, env=variables, stdout=subprocess.DEVNULL, check=True)
        return trace
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [*line, *case.words(work, port)]
    with subprocess.Popen(words, env=variables, stdout=subprocess.DEVNULL) as server:
        try:
            _wait_for(int(port))
            load = shlex.split(_put(case.load, work, port))
            subprocess.run(load, stdout=subprocess.DEVNULL, check=True)
        finally:
            server.send_signal(signal.SIGTERM)
    return trace


def _wait_for(port: int) -> None:
    """Waits until a server answers."""
    until = time.monotonic() + READY_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def check(case: Case, work: Path, budget: str) -> dict[str, Any]:
    """Checks one trace; returns the verdict."""
    variables = {**os.environ, **dict(case.variables)}
    line = case.checked(work, budget)
    done = subprocess.run(line, env=variables, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in ANSWERS:
        sys.exit(f"record.py: the check of {case.name} ended with status {done.returncode}")
    return {
        "name": case.name,
        "command": case.command,
        "load": case.load,
        **json.loads(done.stdout),
    }


def known(path: Path) -> dict[str, dict[str, Any]]:
    """The verdicts of an earlier run, by name."""
    return {row["name"]: row for row in json.loads(path.read_text())} if path.is_file() else {}


def write(path: Path, rows: dict[str, dict[str, Any]]) -> None:
    """Writes the verdicts so far, in the order of CASES, a line each."""
    ordered = [json.dumps(rows[case.name]) for case in CASES if case.name in rows]
    path.write_text("[\n" + ",\n".join(ordered) + "\n]\n")


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--only", nargs="+", metavar="NAME", choices=[case.name for case in CASES], default=[])
    add("--folder", type=Path, default=Path("hztune-results/traces"), help="where traces go")
    add("--checks", type=Path, default=CHECKS, help="default: checks.json beside this file")
    add("--budget", default="90s", help="of each check; default 90s")
    add("--no-check", action="store_true", help="record only")
    add("--list", action="store_true", help="print the commands and do nothing")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Record and check; 1 when a program is missing."""
    asked = arguments(words)
    chosen = [case for case in CASES if not asked.only or case.name in asked.only]
    if asked.list:
        for case in chosen:
            line = shlex.join(case.checked(Path("WORK"), asked.budget))
            print(case.name, line.replace(shlex.join(HZTUNE), "hztune"))
        return 0
    asked.folder.mkdir(parents=True, exist_ok=True)
    work = asked.folder.resolve()
    build(work)
    rows, status = known(asked.checks), 0
    for case in chosen:
        if case.needs and shutil.which(case.needs) is None:
            print(f"{case.name}: {case.needs} is not installed", file=sys.stderr)
            status = 1
            continue
        record(case, work)
        if not asked.no_check:
            rows[case.name] = check(case, work, asked.budget)
            write(asked.checks, rows)
            print(f"{case.name}: {rows[case.name]['answer']}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
