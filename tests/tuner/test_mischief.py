"""Targets that misbehave: whatever they do, it gets its name, and they leave nothing behind."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hztune.measure import launch
from hztune.measure.program import Metric
from hztune.measure.scope import freezer

from .conftest import processes_naming, zombies
from .measured import CONTROL, FIRST, SOON_S, by_runs, by_turns, python

pytestmark = pytest.mark.usefixtures("quiet_machine")


@dataclass(frozen=True)
class Mischief:
    """What a target does, and what is to be said of it."""

    code: str
    status: str
    detail: str = ""
    rss_limit_mb: int = 0
    by_freezer: bool = False  # by turns it does so where a freezer stops it; signals, it sees


SPIN = "end = time.process_time() + 0.05\nwhile time.process_time() < end: pass\n"
SLEEP = "time.sleep(3600)"
BOMB = "for i in range(6):\n  if os.fork() == 0 and i % 2: os.setsid()\n"
"""Makes 64 processes of one, in many sessions."""

MISCHIEFS = {
    "segfaults": Mischief("os.kill(os.getpid(), signal.SIGSEGV)", "crash", "ended by SIGSEGV"),
    "fails": Mischief("sys.exit('no input file')", "failed", "exit status 1: no input file"),
    "says a word and kills what measures it": Mischief(
        f"print('a word', file=sys.stderr)\nos.kill(os.getppid(), signal.SIGKILL)\n{SPIN}",
        "failed",
        "hz-launch, which measures it, was killed, perhaps by the program itself",
    ),
    "fails with a line that steers a terminal": Mischief(
        "sys.exit('\\x1b[2J\\tgone')", "failed", "exit status 1: ?[2J gone"
    ),
    "refuses its configuration": Mischief("sys.exit(78)", "rejected", "exit status 78"),
    "loops": Mischief("while True: pass", "hang"),
    "stops itself": Mischief("os.kill(os.getpid(), signal.SIGSTOP)", "hang"),
    "closes its outputs and sleeps": Mischief("os.closerange(0, 3); time.sleep(3600)", "hang"),
    "runs another allocator": Mischief(
        "print('wrong library', file=sys.stderr)", "wrong_allocator"
    ),
    "runs another configuration": Mischief(
        "print('wrong config', file=sys.stderr)", "wrong_config"
    ),
    "takes all memory": Mischief(
        "blocks = []\nwhile True: blocks.append(b'x' * (1 << 20)); time.sleep(0.001)",
        "oom",
        rss_limit_mb=64,
    ),
    "fills its temporary directory": Mischief(
        "import resource, tempfile\nresource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20,) * 2)\n"
        "with tempfile.TemporaryFile() as file:\n  while True: file.write(b'x' * 65536)",
        "failed",
        "OSError",
    ),
    "prints no number": Mischief("print('rate: nan/s')", "bad_output"),
    "prints far too much": Mischief(
        "for _ in range(100): os.write(1, b'x' * (1 << 20))", "bad_output", "more than 64 MiB"
    ),
    "floods stdout": Mischief("for _ in range(1024): os.write(1, b'x' * (1 << 20))", "ok"),
    "reserves a terabyte": Mischief(
        "import mmap\nmmap.mmap(-1, 1 << 40, flags=0x4022, prot=0)", "ok"
    ),
    "leaves a daemon's daemon": Mischief(
        "if os.fork() == 0:\n  os.setsid()\n  if os.fork(): os._exit(0)\n  time.sleep(3600)", "ok"
    ),
    "catches SIGCONT": Mischief(
        f"signal.signal(18, lambda *_: sys.exit('continued'))\n{SPIN}", "ok", by_freezer=True
    ),
    "watches its child for stops": Mischief(
        f"child = os.fork()\nif child == 0:\n  while True: pass\n{SPIN}"
        "told = os.waitpid(child, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)\n"
        "os.kill(child, 9)\nsys.exit(told[0])",
        "ok",
        by_freezer=True,
    ),
    "traces its child": Mischief(
        "import ctypes\ntrace = ctypes.CDLL(None).ptrace\nchild = os.fork()\n"
        "if child == 0:\n  trace(0, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP); os._exit(7)\n"
        "os.waitpid(child, 0); trace(7, child, 0, 0)\n"
        f"{SPIN}sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 7)",
        "ok",
        by_freezer=True,
    ),
    "stops and continues its child": Mischief(
        "child = os.fork()\nif child == 0:\n  while True: pass\n"
        f"for number in (19, 18, 19, 18, 9): os.kill(child, number)\n{SPIN}"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -9)",
        "ok",
    ),
    "blocks all signals": Mischief(
        f"signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n{SPIN}", "ok"
    ),
    "waits in vfork": Mischief(
        "os.posix_spawn('/bin/sleep', ['sleep', '0.1'], {}); os.wait()", "ok"
    ),
    "becomes another user": Mischief(f"os.getuid() or os.setuid(65534)\n{SPIN}", "ok"),
    "has a terminal of its own": Mischief(
        f"import pty\npid, fd = pty.fork()\n{SPIN}pid and (os.read(fd, 9), os.wait())\n"
        "pid or print('done')",
        "ok",
    ),
    "forks all the time": Mischief(
        "end = time.monotonic() + 0.1\nwhile time.monotonic() < end:\n"
        "  if os.fork() == 0: os.setsid(); os._exit(0)\n  os.wait()",
        "ok",
    ),
    "is a bomb of 64 processes": Mischief(
        f"signal.signal(15, signal.SIG_IGN)\n{BOMB}{SLEEP}", "hang"
    ),
}


def mischievous(mischief, word, limit_s=SOON_S):
    """The target, with a word that its processes can be found by, and the limit of one that hangs.

    Every other one has all the time it may need.
    """
    reads_metric = mischief.status == "bad_output"
    return python(
        f"# {word}\n{mischief.code}",
        timeout_s=limit_s if mischief.status == "hang" else 60.0,
        rss_limit_mb=mischief.rss_limit_mb,
        rate=Metric(r"rate: (.*)/s", better="higher") if reads_metric else None,
    )


@pytest.mark.parametrize("name", MISCHIEFS)
def test_whatever_a_program_does_it_gets_its_status_and_leaves_nothing(name, tmp_path, monkeypatch):
    """Every other one is timed by hz-launch where hyperfine is installed, too."""
    if [*MISCHIEFS].index(name) % 2:
        monkeypatch.setattr(launch, "hyperfine", lambda: None)
    mischief, word = MISCHIEFS[name], f"mischief-{tmp_path}"
    outcome = by_runs(mischievous(mischief, word)).control
    assert (outcome.status, mischief.detail in outcome.detail) == (mischief.status, True), outcome
    assert bool(outcome.turns) == (outcome.ops_per_s > 0.0) == (mischief.status == "ok")
    assert processes_naming(word) == []
    assert zombies() == []


@pytest.mark.parametrize("name", MISCHIEFS)
def test_two_that_misbehave_by_turns_get_their_status_and_leave_nothing(name, tmp_path):
    mischief, word = MISCHIEFS[name], f"mischief-{tmp_path}"
    with freezer() as group:
        if mischief.by_freezer and group is None:
            pytest.skip("this process may not make control groups of version 2")
        goes_on = name == "stops itself" and group is None  # its next turn continues it
    for outcome in by_turns(mischievous(mischief, word), CONTROL, FIRST).outcomes:
        assert outcome.status == ("ok" if goes_on else mischief.status), outcome
        assert mischief.detail in outcome.detail
    assert processes_naming(word) == []
    assert zombies() == []
