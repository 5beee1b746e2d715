"""What other processes may ask of one that was started with HZ_CONTROL=1, and what it costs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 60
PATIENCE_S = 20.0
MIB = 1 << 20

Program = subprocess.Popen[str]
Start = Callable[..., Program]

# Each of these says "ready" and then waits for the end of its input.
WAIT = "print('ready', flush=True); import sys; sys.stdin.read()"
CLOSE_ALL = "import os, sys; print('ready', flush=True); os.closerange(1, 1024); sys.stdin.read()"
LIST = "import os; print(sorted(os.listdir('/proc/self/fd')), flush=True)"
COUNT = "import os; print(len(os.listdir('/proc/self/task')), flush=True)"
HOLD = f"block = bytearray({64 * MIB}); del block; {WAIT}"
EXEC = f"import os, sys; sys.stdin.readline(); os.execv(sys.executable, ['-c', '-c', {WAIT!r}])"
MAIN_ENDS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(0.1,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""
UNMAPPED = """
import ctypes, os, sys
if ctypes.CDLL(None).unshare(0x10000000): sys.exit("no user namespace")
os.environ.update(LD_PRELOAD=sys.argv[1], HZ_CONTROL="1")
os.execv(sys.executable, ["-c", "-c", sys.argv[2]])
"""
FORK = """
import os, sys
child = os.fork()
if child:
    print(child, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start(libhz: Path, plain_environment: dict[str, str]) -> Iterator[Start]:
    """Starts Python code on hz, which may be asked; all that was started ends with the test."""
    started: list[Program] = []

    def run(code: str, **variables: str) -> Program:
        environment = {**plain_environment, "LD_PRELOAD": str(libhz), "HZ_CONTROL": "1"}
        program = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**environment, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(program)
        return program

    yield run
    for program in started:
        program.kill()
        program.communicate(timeout=DEADLINE_S)


def ready(program: Program) -> Program:
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    return program


@contextmanager
def connected(pid: int) -> Iterator[socket.socket]:
    """A connection, as soon as the process listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(DEADLINE_S)
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                connection.connect(f"\0hz-control-{pid}")
                break
            except ConnectionRefusedError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)
        yield connection


def ask(pid: int, *lines: str) -> dict[str, Any]:
    with connected(pid) as connection:
        connection.send("\n".join(lines).encode())
        answer = json.loads(connection.recv(MIB))
        assert connection.recv(MIB) == b"", "more than one answer"
    assert answer["protocol"] == 1
    return dict(answer)


def listens(pid: int) -> bool:
    return f"@hz-control-{pid}\n" in Path("/proc/net/unix").read_text()


def test_a_process_tells_what_it_has(start: Start) -> None:
    program = ready(start(WAIT, HZ_DECAY_MS="7"))
    said = ask(program.pid, "stats")
    assert (said["pid"], said["allocator"]) == (program.pid, "hz")
    assert said["stats"]["config"]["decay_ms"] == 7
    assert said["stats"]["memory"]["held_bytes"] >= said["stats"]["memory"]["live_bytes"] > 0
    assert program.pid in {each["thread"] for each in said["threads"]}


def test_a_change_acts_without_a_call_of_the_program(start: Start) -> None:
    program = ready(start(HOLD, HZ_DECAY_MS="60000"))
    assert ask(program.pid, "stats")["stats"]["memory"]["free_bytes"] >= 32 * MIB
    said = ask(program.pid, "set", "decay_ms=0", "span_cache=3")
    assert (said["config"]["decay_ms"], said["config"]["span_cache"]) == (0, 3)
    assert ask(program.pid, "stats")["stats"]["memory"]["free_bytes"] < MIB


def test_a_trim_returns_what_is_free(start: Start) -> None:
    said = ask(ready(start(HOLD, HZ_DECAY_MS="60000")).pid, "trim")
    assert said["before"]["held_bytes"] - said["after"]["held_bytes"] >= 32 * MIB


@pytest.mark.parametrize(
    ("lines", "kind", "sentence"),
    [
        (["set", "decay_ms=0", "span_cache=65"], "illegal", "span_cache is"),
        (["set", "decay_ms=0", "shards=2"], "fixed", "HZ_SHARDS=VALUE"),
        (["set", "decay_ms=0", "shard=2"], "unknown", "shard is no parameter"),
        (["set", "decay_ms=0", "thread_cache_bytes=65536"], "unfit", "magazine_bytes"),
        (["set", "decay_ms"], "request", "NAME=VALUE"),
        (["set", *["decay_ms=0"] * 33], "request", "too many"),
        (["set", "decay_ms=" + "0" * 5000], "request", "too long"),
        (['set', 'decay_ms="\\\t'], "illegal", '"\\\t'),
        (["sets"], "request", "understands stats, trim and set"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_and_changes_nothing(
    lines: list[str], kind: str, sentence: str, start: Start
) -> None:
    program = ready(start(WAIT))
    said = ask(program.pid, *lines)
    assert said["refused"] == kind
    assert sentence in said["sentence"]
    assert ask(program.pid, "stats")["stats"]["config"]["decay_ms"] == 100


def test_without_the_variable_there_is_neither_a_thread_nor_a_socket(start: Start) -> None:
    program = start(f"{COUNT}; {WAIT}", HZ_CONTROL="0")
    assert program.stdout is not None
    assert program.stdout.readline() == "1\n"
    assert not listens(ready(program).pid)


def test_the_program_never_sees_the_socket(start: Start) -> None:
    def seen(code: str, **variables: str) -> str:
        program = start(code, **variables)
        if variables.get("HZ_CONTROL") != "0":
            ask(program.pid, "stats")
        return program.communicate("go\n", timeout=DEADLINE_S)[0]

    code = f"import sys; sys.stdin.readline(); {LIST}"
    assert seen(code) == seen(code, HZ_CONTROL="0")


def test_a_program_that_closes_all_descriptors_still_answers(start: Start) -> None:
    program = ready(start(CLOSE_ALL))
    assert program.stdout is not None
    assert program.stdout.read() == "", "the thread must hold no copy of the pipe"
    assert ask(program.pid, "stats")["allocator"] == "hz"


def test_a_child_of_a_fork_cannot_be_asked_and_its_parent_can(start: Start) -> None:
    program = start(FORK)
    assert program.stdout is not None
    child = int(program.stdout.readline())
    assert ask(program.pid, "set", "decay_ms=3")["config"]["decay_ms"] == 3
    assert not listens(child)
    os.kill(child, 9)


def test_after_an_exec_the_new_program_answers(start: Start) -> None:
    program = start(EXEC)
    ask(program.pid, "set", "decay_ms=3")
    assert program.stdin is not None
    program.stdin.write("go\n")
    program.stdin.flush()
    ready(program)
    assert ask(program.pid, "stats")["stats"]["config"]["decay_ms"] == 100


def answer_to_another_user(pid: int) -> dict[str, Any]:
    code = f"""
import os, socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
s.connect("\\0hz-control-{pid}")
s.send(b"stats")
print(s.recv(65536).decode())
"""
    ask(pid, "stats")
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    return dict(json.loads(done.stdout))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_is_refused(start: Start) -> None:
    assert answer_to_another_user(ready(start(WAIT)).pid)["refused"] == "user"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_users_that_a_namespace_cannot_tell_apart_are_refused(libhz: Path) -> None:
    words = [sys.executable, "-c", UNMAPPED, str(libhz), WAIT]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdout is not None
        if program.stdout.readline() != "ready\n":
            pytest.skip("no namespace of users can be made here")
        said = answer_to_another_user(program.pid)
        program.kill()
    assert "ask from inside the namespace" in said["sentence"]


@pytest.mark.parametrize(
    "variables",
    [
        {"HZ_CONTROL": "1"},
        {"HZ_CONTROL": "0", "HZ_BACKGROUND_PERIOD_US": "65536"},
        {"LD_PRELOAD": "libhz-agent.so"},
    ],
    ids=["control", "background", "agent"],
)
def test_a_process_whose_main_has_ended_ends_with_the_last_thread_of_the_program(
    variables: dict[str, str], libhz: Path, start: Start
) -> None:
    paths = {name: str(libhz.parent / at) for name, at in variables.items() if name == "LD_PRELOAD"}
    assert start(MAIN_ENDS, **{**variables, **paths}).wait(DEADLINE_S) == 0


def test_many_requests_at_once_are_all_answered(start: Start) -> None:
    program = ready(start(WAIT))
    requests = [("stats",), ("trim",), ("set", "decay_ms=5")] * 10
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda lines: ask(program.pid, *lines), requests))
    assert [each.get("refused") for each in said] == [None] * 30


def test_one_that_says_nothing_and_one_that_goes_do_not_stop_the_others(start: Start) -> None:
    program = ready(start(WAIT))
    with connected(program.pid) as gone:
        gone.send(b"stats")
    with connected(program.pid):
        assert ask(program.pid, "stats")["allocator"] == "hz"
