"""Record traces of real programs.

record.py                            all of them into hztune-results/traces
record.py --only messages redis      some of them
record.py --list                     what there is, with the command of each

They take 150 MB together.
"""

from __future__ import annotations

import argparse
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

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE.parent / "programs"
HZTUNE = [sys.executable, "-m", "hztune"]
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
    """

    name: str
    command: str
    load: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    needs: str = ""

    def words(self, work: Path, port: str = "{port}") -> list[str]:
        """The program's command."""
        return [_put(word, work, port) for word in shlex.split(self.command)]


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


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--only", nargs="+", metavar="NAME", choices=[case.name for case in CASES], default=[])
    add("--folder", type=Path, default=Path("hztune-results/traces"), help="where traces go")
    add("--list", action="store_true", help="print the commands and do nothing")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Record; 1 when a program is missing."""
    asked = arguments(words)
    chosen = [case for case in CASES if not asked.only or case.name in asked.only]
    if asked.list:
        for case in chosen:
            print(case.name, shlex.join(case.words(Path("WORK"))))
        return 0
    asked.folder.mkdir(parents=True, exist_ok=True)
    work = asked.folder.resolve()
    build(work)
    status = 0
    for case in chosen:
        if case.needs and shutil.which(case.needs) is None:
            print(f"{case.name}: {case.needs} is not installed", file=sys.stderr)
            status = 1
            continue
        print(record(case, work), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
