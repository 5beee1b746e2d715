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
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "programs"))

from cases import BY_NAME, Case, build, missing  # the table of programs

HZTUNE = [sys.executable, "-m", "hztune"]
READY_S = 10.0
CASES = {
    "messages": BY_NAME["cpp-messages"],
    "phases": BY_NAME["memory-possible"],
    "python": BY_NAME["dicts"],
    **{name: BY_NAME[name] for name in ("sqlite", "lua", "ruby", "clang", "node", "rust", "z3")},
    "perl": BY_NAME["perl"],
    "redis": BY_NAME["redis"],
}
"""By the name of its trace, NAME.hzt."""


def words_of(case: Case, work: Path, port: str = "{port}") -> tuple[list[str], list[str]]:
    """The command of a program, and of a server what puts it under load."""
    if case.command:
        return case.words(work, case.size), []
    told = [word.replace("{port}", port) for word in case.told(work, case.size)]
    options = dict(zip(told[::2], told[1::2], strict=True))
    return shlex.split(options["--server"]), shlex.split(options["--load"])


def record(name: str, case: Case, work: Path) -> Path:
    """Records one program; returns its trace."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program, load = words_of(case, work, str(port))
    trace = work / f"{name}.hzt"
    line = [*HZTUNE, "record", "-o", str(trace), "--", *program]
    quiet, env = subprocess.DEVNULL, {**os.environ, **case.variables}
    if not load:
        subprocess.run(line, env=env, stdout=quiet, check=True)
        return trace
    with subprocess.Popen(line, env=env, stdout=quiet) as server:
        try:
            _wait_for(port)
            subprocess.run(load, stdout=quiet, check=True)
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


def main(words: Sequence[str] | None = None) -> int:
    """Record; 1 when a program is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--only", nargs="+", metavar="NAME", choices=[*CASES], default=[*CASES])
    add("--folder", type=Path, default=Path("hztune-results/traces"), help="where traces go")
    add("--list", action="store_true", help="print the commands and do nothing")
    asked = parser.parse_args(words)
    if asked.list:
        for name in asked.only:
            print(name, shlex.join(words_of(CASES[name], Path("WORK"))[0]))
        return 0
    asked.folder.mkdir(parents=True, exist_ok=True)
    work = asked.folder.resolve()
    build(work, [CASES[name] for name in asked.only])
    status = 0
    for name in asked.only:
        if lacking := missing(CASES[name]):
            print(f"{name}: {'; '.join(lacking)}", file=sys.stderr)
            status = 1
            continue
        print(record(name, CASES[name], work), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
