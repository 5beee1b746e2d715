"""Children that misbehave are ended in time, told apart, and leave no process or descriptor."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import until

from hztune import process
from hztune.errors import HztuneError, OutOfTime, UsageError

from .conftest import processes_naming, resident_kb, zombies

SOON_S = 0.4
PLENTY_S = 60.0
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
SLEEPS = "time.sleep(3600)"
FLOODS = "while True: os.write({fd}, b'x' * 65536)"


def python(code):
    return [sys.executable, "-I", "-S", "-c", f"import os, signal, sys, time, resource\n{code}"]


def run(code, deadline_s=PLENTY_S, **options):
    return process.run(python(code), deadline_s=deadline_s, **options)


def children():
    """The children of this process, also those of other tests."""
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before
    assert zombies() == []


# ---- ends ----------------------------------------------------------------------------------------


def test_a_child_that_ends_hands_back_what_it_wrote_and_how_it_ended():
    done = run("os.write(1, bytes([255, 65])); print('err', file=sys.stderr)")
    assert (done.code, done.stdout, done.stderr) == (0, "\ufffdA", "err\n")
    assert done.ok and not done.timed_out and not done.truncated
    for name in ("SIGSEGV", "SIGKILL"):
        done = run(f"os.kill(os.getpid(), signal.{name})")
        assert done.code == -getattr(signal, name)
        assert name in done.describe()
    done = run("print('first', file=sys.stderr); sys.exit('no such thing')")
    assert (done.code, done.describe()) == (1, "ended with exit status 1: no such thing")


BOMB = (
    "for i in range(6):\n  if os.fork() == 0 and i % 2: os.setsid()\n"
    f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SLEEPS}"
)
ENDLESS = {
    "ignores SIGTERM": f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SLEEPS}",
    "stops itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "writes for ever": FLOODS.format(fd=1),
    "waits for its child": f"os.fork() and os.wait()\n{SLEEPS}",
    "is a bomb of 64 processes": BOMB,
}


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_child_is_ended_at_its_deadline(name, tmp_path):
    word = f"endless-{tmp_path}"
    done = process.run([*python(ENDLESS[name]), word], deadline_s=SOON_S)
    assert done.timed_out and not done.ok
    assert processes_naming(word) == []


def test_a_child_hears_sigint_where_a_shell_has_hztune_ignore_it():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    told = process.run(["grep", "SigIgn", "/proc/self/status"], deadline_s=60.0).stdout
    signal.signal(signal.SIGINT, before)
    assert not int(told.split()[1], 16) & 1 << signal.SIGINT - 1


def test_no_child_outlives_the_time_of_all(tmp_path):
    word = f"endless-{tmp_path}"
    began = time.monotonic()
    with (
        process.limited(lambda: began + SOON_S - time.monotonic()),
        pytest.raises(OutOfTime, match="the budget is used up"),
    ):
        process.run([*python(ENDLESS["writes for ever"]), word], deadline_s=PLENTY_S)
    assert processes_naming(word) == []


DAEMONS = {
    "in its own session": "os.setsid()",
    "in its own session, after its parent": "os.setsid()\n  if os.fork(): os._exit(0)",
    "in a group of its own": "os.setpgid(0, 0)",
    "with the outputs closed": "os.setsid(); os.close(1); os.close(2)",
}


@pytest.mark.parametrize("name", DAEMONS)
def test_a_daemon_does_not_outlive_the_child_that_made_it(name, tmp_path):
    word = f"daemon-{tmp_path}"
    code = f"if os.fork() == 0:\n  {DAEMONS[name]}\n  {SLEEPS}\nprint('made it')"
    done = process.run([*python(code), word], deadline_s=PLENTY_S)
    assert (done.code, done.stdout) == (0, "made it\n")
    assert processes_naming(word) == []


def test_an_orphan_that_takes_long_to_die_is_waited_for(tmp_path):
    ready, before = tmp_path / "ready", children()
    code = f"block = b'x' * (512 << 20); open({str(ready)!r}, 'w'); import time; {SLEEPS}"
    wait = f"while [ ! -e {ready} ]; do sleep 0.01; done"
    orphan = f'setsid {sys.executable} -c "{code}" & {wait}'
    process.run(["/bin/sh", "-c", orphan], deadline_s=PLENTY_S)
    assert children() <= before


def test_orphans_are_found_where_the_caller_came_from_outside_the_container(monkeypatch):
    """`docker exec` starts a process without a parent; its orphans go to the first process."""
    monkeypatch.setattr(process, "_mark_of", str)
    row = process._ProcessStat(is_dead=False, parent=0, session=0, start=1, has_environment=True)
    table = {1: row, os.getpid(): row, 77777: row._replace(parent=1, start=2)}
    assert process._marks_of_orphans(table, os.getpid()) == {77777: "77777"}


def test_a_process_without_variables_is_not_waited_for():
    """Another user who starts such ones again and again would delay every run."""
    with subprocess.Popen(["sleep", "60"], env={}) as other:
        while Path(f"/proc/{other.pid}/comm").read_text() != "sleep\n":
            pass
        assert process._mark_of(other.pid) == ""
        other.kill()


def test_a_tree_is_ended_even_when_the_user_interrupts_its_end(monkeypatch, tmp_path):
    end, calls, before = process._kill_tree, [], children()

    def interrupted(root, mark):
        calls.append(root)
        if len(calls) == 1:
            raise KeyboardInterrupt
        end(root, mark)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(process, "_kill_tree", interrupted)
        process.Child(["sleep", "3600"]).kill()
    assert children() == before
    word = f"interrupted-{tmp_path}"
    with pytest.raises(KeyboardInterrupt), process.Child([*python(SLEEPS), word]):
        raise KeyboardInterrupt
    assert processes_naming(word) == []


def test_when_the_tuner_is_killed_its_child_dies(tmp_path):
    word = f"orphan-{tmp_path}"
    code = (
        "import sys, time; from hztune import process\n"
        f"child = process.Child([{sys.executable!r}, '-c', 'import time; {SLEEPS}', {word!r}])\n"
        f"print('up', flush=True); {SLEEPS}"
    )
    tuner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert tuner.stdout.readline() == "up\n"
    assert len(processes_naming(word)) == 2  # the tuner itself names it, too
    tuner.kill()
    tuner.communicate()
    assert until(lambda: not processes_naming(word))


BRIEF = {
    "exit 3": 3,
    "kill -SEGV $$": -signal.SIGSEGV,
    "kill -ABRT $$": -signal.SIGABRT,
    "head -c 3000000 /dev/zero": 0,
    "head -c 3000000 /dev/zero >&2": 0,
    "sleep 3600 & exit 0": 0,
    "setsid sleep 3600 & exit 0": 0,
    "exec 1>&- 2>&-; exit 5": 5,
}


@pytest.mark.slow
def test_two_hundred_children_that_misbehave_leave_no_process_and_no_memory():
    before, others = resident_kb(), children()
    for number in range(200):
        code = list(BRIEF)[number % len(BRIEF)]
        assert process.run(["/bin/sh", "-c", code], deadline_s=PLENTY_S).code == BRIEF[code]
    assert resident_kb() - before < 20 << 10
    assert children() <= others


# ---- what it writes, reads and is given ----------------------------------------------------------


def test_a_gibibyte_of_output_is_read_and_not_kept():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = run("block = b'x' * (1 << 20)\nfor _ in range(1024): os.write(1, block)")
    assert done.ok and done.truncated
    assert len(done.stdout) == 1 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB


@pytest.mark.parametrize("size", [100, 39])
def test_of_stdout_the_beginning_is_kept_and_of_stderr_both_ends(size):
    code = f"print('a' * {size}); print('b' * {size - 9} + 'c' * 9, file=sys.stderr)"
    done = run(code, output_limit=40)
    whole = size < 40
    assert done.stdout == ("a" * 39 + "\n" if whole else "a" * 40)
    assert done.stderr == "b" * 30 + "c" * 9 + "\n"
    assert done.truncated != whole


def test_what_a_child_is_given_is_what_was_asked_for():
    where = "print('a'); print(os.path.realpath('/proc/self/fd/1'), file=sys.stderr)"
    done = run(where, keep_stdout=False)
    assert (done.stdout, done.stderr) == ("", "/dev/null\n")
    for code, said in (("pass", ""), ("print(len(sys.stdin.read()))", "1000000\n")):
        done = run(code, stdin=b"x" * 1_000_000)
        assert done.ok and done.stdout == said
    given = run("print(sorted(os.environ))", env={"ONLY": "this"}).stdout
    assert "'HZTUNE_CHILD'" in given and "'ONLY'" in given and "HOME" not in given
    assert run("print(resource.getrlimit(resource.RLIMIT_CORE))").stdout == "(0, 0)\n"


def test_what_cannot_be_started_is_a_usage_error_that_says_why():
    with pytest.raises(UsageError, match=r"cannot start /no/such/program: No such file"):
        process.run(["/no/such/program"], deadline_s=PLENTY_S)
    for name in ("", "A=B", "A\0B"):
        with pytest.raises(UsageError, match="start true: no program can be given the variable"):
            process.run(["true"], env={name: "x"}, deadline_s=PLENTY_S)


# ---- the program that uses hztune ----------------------------------------------------------------


@pytest.mark.parametrize("subreaper", [0, 1])
def test_what_a_host_program_has_of_its_own_is_left_to_it(subreaper):
    """It waits for its own child, in whatever session, and keeps its own rule for orphans."""
    libc, held = ctypes.CDLL(None), ctypes.c_int()
    own = subprocess.Popen(["sh", "-c", "exit 7"], start_new_session=True)
    os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)
    libc.prctl(PR_SET_CHILD_SUBREAPER, subreaper, 0, 0, 0)
    try:
        process.run(["true"], deadline_s=PLENTY_S)
        assert own.wait() == 7
        libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(held), 0, 0, 0)
        assert held.value == subreaper
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def test_a_status_that_the_host_program_lost_is_no_success():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(HztuneError, match="how false ended is lost"):
            process.run(["false"], deadline_s=PLENTY_S)
    finally:
        signal.signal(signal.SIGCHLD, before)


# ---- while it runs -------------------------------------------------------------------------------


def test_lines_come_while_the_child_runs():
    code = "print('one', flush=True)\nsys.stdin.readline()\nprint('two')"
    with process.Child(python(code), stdin=None) as child:
        lines = child.lines(PLENTY_S)
        assert next(lines) == "one"
        child.send("go on")
        assert list(lines) == ["two"]
        assert child.finish(PLENTY_S).ok


class Late:
    """A clock that stands still for its first looks, and is an hour further at the next."""

    looks = 2  # for the deadline and the wait for it

    def monotonic(self):
        """The time in seconds."""
        self.looks -= 1
        return 0.0 if self.looks >= 0 else 3600.0


def test_what_came_at_the_last_moment_of_a_wait_is_kept(monkeypatch):
    with process.Child(python("print('a result', flush=True); time.sleep(0.3)")) as child:
        with monkeypatch.context() as patched:
            patched.setattr(process, "time", Late())
            assert not child.wait(PLENTY_S)
        done = child.finish(PLENTY_S)
    assert done.stdout == "a result\n"


STALLS = {
    f"print('one', flush=True)\n{SLEEPS}": r"said nothing for 0\.4 s",
    FLOODS.format(fd=2): "said nothing|wrote no whole line",
    FLOODS.format(fd=1): "does not end|wrote no whole line",
}


@pytest.mark.parametrize("code", STALLS)
def test_a_child_that_falls_silent_or_ends_no_line_is_told_as_such_and_killed(code):
    with pytest.raises(process.Stalled, match=STALLS[code]), process.Child(python(code)) as child:
        list(child.lines(SOON_S if "(1, b" not in code else PLENTY_S))


STOPPED = [
    ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('part')))", 60.0, "part\n", 0),
    ("print('x' * 100_000, file=sys.stderr)", SOON_S, "", 100_001),
]


@pytest.mark.parametrize(("code", "grace_s", "stdout", "errors"), STOPPED)
def test_what_a_child_tells_before_and_when_it_is_stopped_is_kept(code, grace_s, stdout, errors):
    with process.Child(python(f"{code}\nprint('up', flush=True)\n{SLEEPS}")) as child:
        assert next(child.lines(PLENTY_S)) == "up"
        done = child.stop(grace_s)
    assert (done.stdout, len(done.stderr)) == (stdout, errors)
