"""Targets that misbehave: whatever they do, it gets its name, and they leave nothing behind."""

import contextlib
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from random import Random

import pytest

from hztune.measure import launch
from hztune.measure.program import Metric, Program, Service
from hztune.measure.scope import freezer

from .conftest import processes_naming, zombies
from .measured import BUSY, CONTROL, FIRST, SOON_S, WAYS, OpenProof, by_runs, by_turns, python

pytestmark = pytest.mark.usefixtures("quiet_machine")


SPIN = "end = time.process_time() + 0.05\nwhile time.process_time() < end: pass\n"
SLEEP = "time.sleep(3600)"
MIB = "os.write(1, b'x' * (1 << 20))"
BOMB = "for i in range(6):\n  if os.fork() == 0 and i % 2: os.setsid()\n"
"""Makes 64 processes of one, in many sessions."""

# What a target does, how that ends, and a part of what is said of it where that matters.
MISCHIEFS = {
    "segfaults": ("os.kill(os.getpid(), signal.SIGSEGV)", "crash", "ended by SIGSEGV"),
    "fails": ("sys.exit('no input file')", "failed", "exit status 1: no input file"),
    "says a word and kills what measures it": (
        f"print('a word', file=sys.stderr)\nos.kill(os.getppid(), signal.SIGKILL)\n{SPIN}",
        "failed",
        "hz-launch, which measures it, was killed, perhaps by the program itself",
    ),
    "steers a terminal": ("sys.exit('\\x1b[2J\\tgone')", "failed", "exit status 1: ?[2J gone"),
    "refuses its configuration": ("sys.exit(78)", "rejected", "exit status 78"),
    "loops": ("while True: pass", "hang"),
    "stops itself": ("os.kill(os.getpid(), signal.SIGSTOP)", "hang"),
    "closes its outputs and sleeps": ("os.closerange(0, 3); time.sleep(3600)", "hang"),
    "runs another allocator": ("print('wrong library', file=sys.stderr)", "wrong_allocator"),
    "runs another configuration": ("print('wrong config', file=sys.stderr)", "wrong_config"),
    "takes all memory": (
        "blocks = []\nwhile True: blocks.append(b'x' * (1 << 20)); time.sleep(0.001)",
        "oom",
    ),
    "fills its temporary directory": (
        "import resource, tempfile\nresource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20,) * 2)\n"
        "with tempfile.TemporaryFile() as file:\n  while True: file.write(b'x' * 65536)",
        "failed",
        "OSError",
    ),
    "prints no number": ("print('rate: nan/s')", "bad_output"),
    "prints too much": (f"for _ in range(100): {MIB}", "bad_output", "more than 64 MiB"),
    "floods stdout": (f"for _ in range(1024): {MIB}", "ok"),
    "reserves a terabyte": ("import mmap\nmmap.mmap(-1, 1 << 40, flags=0x4022, prot=0)", "ok"),
    "leaves a daemon's daemon": (
        f"if os.fork() == 0:\n  os.setsid()\n  if os.fork(): os._exit(0)\n  {SLEEP}",
        "ok",
    ),
    "catches SIGCONT": (f"signal.signal(18, lambda *_: sys.exit('continued'))\n{SPIN}", "ok"),
    "watches its child for stops": (
        f"child = os.fork()\nif child == 0:\n  while True: pass\n{SPIN}"
        "told = os.waitpid(child, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)\n"
        "os.kill(child, 9)\nsys.exit(told[0])",
        "ok",
    ),
    "traces its child": (
        "import ctypes\ntrace = ctypes.CDLL(None).ptrace\nchild = os.fork()\n"
        "if child == 0:\n  trace(0, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP); os._exit(7)\n"
        "os.waitpid(child, 0); trace(7, child, 0, 0)\n"
        f"{SPIN}sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 7)",
        "ok",
    ),
    "stops and continues its child": (
        "child = os.fork()\nif child == 0:\n  while True: pass\n"
        f"for number in (19, 18, 19, 18, 9): os.kill(child, number)\n{SPIN}"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -9)",
        "ok",
    ),
    "blocks all signals": (
        f"signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n{SPIN}",
        "ok",
    ),
    "waits in vfork": ("os.posix_spawn('/bin/sleep', ['sleep', '0.1'], {}); os.wait()", "ok"),
    "becomes another user": (f"os.getuid() or os.setuid(65534)\n{SPIN}", "ok"),
    "has a terminal of its own": (
        f"import pty\npid, fd = pty.fork()\n{SPIN}pid and (os.read(fd, 9), os.wait())\n"
        "pid or print('done')",
        "ok",
    ),
    "forks all the time": (
        "end = time.monotonic() + 0.1\nwhile time.monotonic() < end:\n"
        "  if os.fork() == 0: os.setsid(); os._exit(0)\n  os.wait()",
        "ok",
    ),
    "is a bomb of 64 processes": (f"signal.signal(15, signal.SIG_IGN)\n{BOMB}{SLEEP}", "hang"),
}
NEEDS_FREEZER = {"catches SIGCONT", "watches its child for stops", "traces its child"}
"""By turns they end so only where a freezer stops them: they see signals."""


@WAYS
@pytest.mark.parametrize("name", MISCHIEFS)
def test_whatever_a_program_does_is_named_and_leaves_nothing(name, measure, tmp_path, monkeypatch):
    """Every other one is timed by hz-launch where hyperfine is installed, too."""
    if [*MISCHIEFS].index(name) % 2:
        monkeypatch.setattr(launch, "hyperfine", lambda: None)
    (code, status, *said), word = MISCHIEFS[name], f"mischief-{tmp_path}"
    program = python(
        f"# {word}\n{code}",
        timeout_s=SOON_S if status == "hang" else 60.0,  # all that the others may need
        rss_limit_mb=64 * (status == "oom"),
        rate=Metric(r"rate: (.*)/s", better="higher") if status == "bad_output" else None,
    )
    arms = [CONTROL] if measure is by_runs else [CONTROL, FIRST]
    with freezer() as group:
        sees_stops = measure is by_turns and group is None
    if sees_stops and name in NEEDS_FREEZER:
        pytest.skip("this process may not make control groups of version 2")
    if sees_stops and name == "stops itself":
        status = "ok"  # its next turn continues it
    for outcome in measure(program, *arms).outcomes:
        assert outcome.status == status and all(each in outcome.detail for each in said), outcome
        assert bool(outcome.turns) == (outcome.ops_per_s > 0.0) == (status == "ok")
    assert processes_naming(word) == []
    assert zombies() == []


# ---- killed at any moment ------------------------------------------------------------------------


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
PROGRAM = Program((*PYTHON, TREE))
SERVER = Program((*PYTHON, SERVES, "{port}"), service=Service(shlex.join([*PYTHON, TREE])))


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


@pytest.mark.parametrize("seed", range(4))
def test_of_twenty_kills_at_random_moments_none_leaves_a_process(seed):
    """Of the measuring process, or of one of those below it."""
    rng, program = Random(seed), SERVER if seed == 0 else PROGRAM
    for number in range(5):
        mark = f"{os.getpid()}.{seed}.{number}"
        victim = rng.choice(["itself", "hz-alternate", "hz-launch"])
        with measuring(mark, program) as pid:
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
