"""What the tests of measuring share: programs, a check that lets every arm run, both ways."""

from __future__ import annotations

import os
import shlex
import sys

import pytest

from hztune.blocks import Arm
from hztune.measure.alternate import AlternateExecutor, Pace
from hztune.measure.identity import Fault
from hztune.measure.program import Program, described
from hztune.measure.whole import RunExecutor

CONTROL = Arm("none")
FIRST = Arm.of("any", {"knob": 1})
SECOND = Arm.of("any", {"knob": 2})
PINNED = Pace(10.0, max(os.sched_getaffinity(0)))
SOON_S = 0.5
BUSY = "end = time.process_time() + 0.1\nwhile time.process_time() < end: pass\n"
PYTHON = f"{shlex.quote(os.path.realpath(sys.executable))} -I -S"
SERVER = """
import socket, sys
server = socket.create_server(("localhost", int(sys.argv[1])))
while True:
    connection, _ = server.accept()
    if connection.recv(9):
        connection.sendall(answer())
    connection.close()
"""
LOAD = """
import socket, sys
with socket.create_connection(("localhost", int(sys.argv[1]))) as connection:
    connection.sendall(b"go")
    print(connection.recv(99).decode())
"""


class OpenProof:
    """Lets every arm run; its parameters become variables, and its processes may be refused."""

    base = {"PATH": os.environ["PATH"]}  # noqa: RUF012

    def prepare(self, arm):
        if arm.config.get("knob") == -1:
            return Fault("rejected", "knob is below its range")
        return {f"KNOB_{name}": str(value) for name, value in arm.params}

    def program(self, arm):
        return None

    def inspect(self, arm, running):
        return None

    def judge(self, arm, library, stderr):
        if "wrong library" in stderr:
            return Fault("wrong_allocator", f"malloc comes from {library}")
        return Fault("wrong_config", "it says so") if "wrong config" in stderr else None


class WantsLibrary(OpenProof):
    """Every arm must be seen with one library."""

    def judge(self, arm, library, stderr):
        wrong = None if library == "/lib/right" else Fault("wrong_allocator", library or "none")
        return super().judge(arm, library, stderr) or wrong


def python(code, **options):
    argv = (sys.executable, "-I", "-S", "-c", "import os, signal, sys, time\n" + code)
    return Program(argv, **{"timeout_s": 60.0, **options})


def executor(program, warmups=0, **options):
    options = {"seed": 1, "identity": OpenProof(), **options}
    return RunExecutor(program, warmups=warmups, **options)


def by_runs(program, *arms, rounds=1, **options):
    player = executor(program, **options)
    return player.measure(arms or [CONTROL], role="search", rounds=rounds, number=0)


def by_turns(program, *arms, rounds=1, **options):
    player = AlternateExecutor(program, seed=1, identity=OpenProof(), **options)
    player.pace = PINNED
    return player.measure(arms or [CONTROL], role="search", rounds=rounds, number=0)


def serving(folder, answers, **options):
    """A server whose load says a word; some code defines `answer()`, which it then gives."""
    for name, code in {"server": answers + SERVER, "load": LOAD}.items():
        (folder / f"{name}.py").write_text(code)
    server, load = (f"{PYTHON} {folder}/{name}.py {{port}}" for name in ("server", "load"))
    return described(server=server, load=load, **options)


WAYS = pytest.mark.parametrize("measure", [by_runs, by_turns])
