"""Whatever is killed while programs alternate, no process of theirs stays, running or stopped."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from random import Random

import pytest

from hztune.measure.program import Program, Service

from .measured import BUSY, CONTROL, OpenProof, by_turns, python

DEADLINE_S = 60.0
MARK = "HZ_TEST_OF_KILLS"
TREE = (
    "import os, sys\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    os.fork()\n"
    "while True: sum(range(1000))"
)
"""Four processes, of which two left the session, and one of these its parent in time."""

PYTHON = (sys.executable, "-I", "-S", "-c")
SERVES = f"import socket, sys\nserver = socket.create_server(('', int(sys.argv[1])))\n{TREE}"
KINDS = {
    "program": Program((*PYTHON, TREE)),
    "server": Program((*PYTHON, SERVES, "{port}"), service=Service(shlex.join([*PYTHON, TREE]))),
}


def living(mark):
    """Every process that was started under a mark, and what it is and does."""
    found = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "stat").read_text().partition(" ")[2][:30]
    return found


def wait_for(mark, *, any_left):
    """What lives under a mark as soon as something does, or nothing; or at the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while bool(left := living(mark)) != any_left and time.monotonic() < deadline:
        time.sleep(0.002)
    return left


@contextlib.contextmanager
def measuring(mark, program):
    """A process that measures two arms by turns, for ever."""
    pid = os.fork()
    if pid == 0:
        try:
            OpenProof.base = {**OpenProof.base, MARK: mark}
            while True:  # also where another program of the machine took a port
                by_turns(program, CONTROL, CONTROL)
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_one_that_was_stopped_at_its_terminal_goes_on_and_measures():
    """Ctrl-Z and `fg`: what alternates has no terminal, and waits for nothing."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            block = by_turns(python(BUSY.replace("0.1", "0.2")), CONTROL, CONTROL)
            status = 0 if all(outcome.ok for outcome in block.outcomes) else 2
        finally:
            os._exit(status)
    time.sleep(0.1)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.6)
    os.kill(pid, signal.SIGCONT)
    assert os.waitpid(pid, 0)[1] == 0


def kill_at_random(kills, seed, kind):
    """Kills the measuring process, or one of those below it, at random moments."""
    rng = Random(seed)
    for number in range(kills):
        mark = f"{os.getpid()}.{kind}.{seed}.{number}"
        victim = rng.choice(["itself", "hz-alternate", "hz-launch"])
        with measuring(mark, KINDS[kind]) as pid:
            assert wait_for(mark, any_left=True)
            time.sleep(rng.uniform(0.0, 0.15))
            names = [pid for pid, told in living(mark).items() if f"({victim})" in told]
            for each in [pid] if victim == "itself" else names[:1]:
                os.kill(each, signal.SIGKILL)
            if victim == "itself":
                left = wait_for(mark, any_left=False)
                assert not left, f"seed {seed}, kill {number} of {victim}: {left}"
        left = wait_for(mark, any_left=False)
        assert not left, f"seed {seed}, kill {number} of {victim}: {left}"


@pytest.mark.parametrize("seed", range(4))
def test_of_twenty_kills_at_random_moments_none_leaves_a_process(seed):
    kill_at_random(kills=5, seed=seed, kind="server" if seed == 0 else "program")
