"""Processes that run: they are asked what they hold, and changed, and what cannot be is said."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hztune import api
from hztune.attach import channel, diagnosis
from hztune.attach.outside import Process, SeenMemory
from hztune.attach.questions import Holding, Statistics, ThreadCaches
from hztune.errors import HztuneError, UsageError

DEADLINE_S = 60
MIB = 1 << 20
NO_PROCESS = (1 << 22) + 1

Program = subprocess.Popen[str]
Start = Callable[..., Program]
Run = Callable[..., "subprocess.CompletedProcess[str]"]

WAIT = "print('ready', flush=True); import sys; sys.stdin.read()"
THREAD = f"""
import threading, time
threading.Thread(target=time.sleep, args=(999,), daemon=True).start()
{WAIT}
"""
# What was allocated is freed, all but every hundredth block.
BURST = f"""
blocks = [bytes(5000) for _ in range(20000)]
kept = blocks[::100]
del blocks
{WAIT}
"""
FORK = """
import os, sys
child = os.fork()
if child:
    print(child, flush=True)
sys.stdin.read()
"""
MAIN_ENDS = """
import ctypes, sys, threading
threading.Thread(target=sys.stdin.read).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""
AS_ANOTHER_USER = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]
# Shows a name and a key as hz does, and answers the first request with these packets.
ANSWER = """
import os, socket, sys
name = f"hz-control-{os.getpid():016x}"
open("/proc/self/comm", "w").write("hz-control")
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.bind("\\0" + name)
server.listen()
output = os.dup(1)
os.dup2(os.memfd_create(name + "-" + 32 * "0"), 1)
os.write(output, b"ready" + bytes([10]))
client = server.accept()[0]
client.recv(4096)
for packet in sys.argv[1:]:
    client.send(packet.encode())
client.close()
sys.stdin.read()
"""


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python code and waits until it is ready; what was started ends with the test."""
    started: list[Program] = []

    def run(code: str, *words: str, **variables: str) -> Program:
        own = {k: v for k, v in os.environ.items() if not k.startswith("HZ_")}
        program = subprocess.Popen(
            [sys.executable, "-c", code, *words],
            env={**own, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(program)
        if code != FORK:
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
        return program

    yield run
    for program in started:
        program.kill()
        program.communicate(timeout=DEADLINE_S)


@pytest.fixture
def on_hz(core_build: Path) -> dict[str, str]:
    """The variables of a process on hz that takes requests."""
    return {"LD_PRELOAD": str(core_build / "libhz.so"), "HZ_CONTROL": "1"}


@pytest.fixture
def agent(core_build: Path) -> str:
    """The agent's file."""
    return str(core_build / "libhz-agent.so")


# ---- processes on hz -----------------------------------------------------------------------------


def test_a_process_tells_what_it_holds(start: Start, on_hz: dict[str, str]) -> None:
    program = start(BURST, PYTHONMALLOC="malloc", **on_hz)
    found = api.process_statistics(program.pid)
    (part,) = found.parts
    assert (part.allocator, found.pid) == ("hz", program.pid)
    assert part.live_bytes is not None
    assert part.held_bytes is not None
    assert 0 < part.live_bytes < part.held_bytes <= found.memory.resident_bytes
    assert part.ratio == part.held_bytes / part.live_bytes
    assert program.pid in {each.thread for each in found.threads}
    live = sum(each.live * each.block_bytes for each in found.classes)
    assert 0 < live <= part.live_bytes


@pytest.mark.parametrize(("code", "has_one"), [(WAIT, False), (THREAD, True)])
def test_a_process_tells_whether_a_worker_returns_memory_at_rest(
    code: str, has_one: bool, start: Start, on_hz: dict[str, str]
) -> None:
    assert api.process_statistics(start(code, **on_hz).pid).has_rest_worker == has_one


def test_a_parameter_changes_and_what_it_was_is_told(start: Start, on_hz: dict[str, str]) -> None:
    program = start(WAIT, **on_hz)
    changed = api.change_process(program.pid, {"decay_ms": "0", "span_cache": "2"})
    assert (changed.before, changed.after) == (
        {"span_cache": 2, "decay_ms": 100},
        {"span_cache": 2, "decay_ms": 0},
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"decay_ms": "soon"}, "legal is a whole number from 0 to 60000"),
        ({"shards": "2"}, "start the process with HZ_SHARDS=VALUE"),
        ({"decay": "2"}, "no parameter of hz"),
        ({}, "give NAME=VALUE"),
        ({"decay_ms": "1\nspan_cache=3"}, "on one line"),
    ],
)
def test_a_wrong_change_is_refused(
    settings: dict[str, str], sentence: str, start: Start, on_hz: dict[str, str]
) -> None:
    program = start(WAIT, **on_hz)
    with pytest.raises(UsageError, match=sentence):
        api.change_process(program.pid, settings)


def test_a_trim_gives_back_what_is_free(start: Start, on_hz: dict[str, str]) -> None:
    program = start(BURST, PYTHONMALLOC="malloc", HZ_DECAY_MS="60000", HZ_SPAN_CACHE="64", **on_hz)
    trimmed = api.trim_process(program.pid)
    assert trimmed.allocators == ("hz",)
    assert trimmed.after.anonymous_bytes <= trimmed.before.anonymous_bytes


# ---- why there is no answer ----------------------------------------------------------------------


def test_what_is_no_process_is_said() -> None:
    with pytest.raises(UsageError, match=f"there is no process {NO_PROCESS}"):
        api.process_statistics(NO_PROCESS)


def test_a_process_that_takes_no_requests_is_told_how_to_start_it(start: Start) -> None:
    with pytest.raises(UsageError, match=r"start it with LD_PRELOAD=\$\(hztune paths --agent\)"):
        api.process_statistics(start(WAIT).pid)


def test_a_process_on_hz_that_takes_no_requests_needs_the_variable_alone(
    start: Start, on_hz: dict[str, str]
) -> None:
    program = start(WAIT, LD_PRELOAD=on_hz["LD_PRELOAD"])
    with pytest.raises(UsageError, match=r"takes no requests: start it with HZ_CONTROL=1$"):
        api.process_statistics(program.pid)


def test_of_a_forks_child_the_parent_is_named_while_it_answers(
    start: Start, on_hz: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = start(FORK, **on_hz)
    assert program.stdout is not None
    child = int(program.stdout.readline())
    api.process_statistics(program.pid)  # it listens by now
    monkeypatch.setattr(channel, "_LISTENS_SOON_S", 0.0)
    with pytest.raises(UsageError, match=f"ask its parent, process {program.pid}"):
        api.process_statistics(child)
    program.kill()
    program.wait(DEADLINE_S)
    with pytest.raises(UsageError, match=r"if it is a daemon, start it so that it stays in"):
        api.process_statistics(child)
    os.kill(child, signal.SIGKILL)


def test_a_forks_child_whose_variables_are_overwritten_is_told_of_its_parent(
    start: Start, on_hz: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = start(FORK, **on_hz)
    assert program.stdout is not None
    child = int(program.stdout.readline())
    monkeypatch.setattr(Process, "variables", lambda process: {})
    with pytest.raises(UsageError, match=f"over its variables.*ask its parent, .* {program.pid}$"):
        api.process_statistics(child)
    os.kill(child, signal.SIGKILL)


def test_a_process_whose_main_thread_has_ended_is_said_to(
    start: Start, on_hz: dict[str, str]
) -> None:
    program = start(MAIN_ENDS, **on_hz)
    while not Process.of(program.pid).has_lost_main():
        time.sleep(0.01)
    with pytest.raises(UsageError, match="its main thread has ended"):
        api.process_statistics(program.pid)


def test_a_name_that_steers_a_terminal_is_shown_without_that(start: Start) -> None:
    pid = start(f"open('/proc/self/comm', 'w').write('a\\x1b[2Jb'); {WAIT}").pid
    assert Process.of(pid).name == "a?[2Jb"


def test_a_stopped_process_is_not_waited_for_without_end(
    start: Start, on_hz: dict[str, str]
) -> None:
    program = start(WAIT, **on_hz)
    api.process_statistics(program.pid)
    program.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, program.pid, os.WSTOPPED)
    with pytest.raises(HztuneError, match=rf"is stopped .* kill -CONT {program.pid}"):
        channel.ask_process(Process.of(program.pid), "stats", patience_s=0.2)
    program.send_signal(signal.SIGCONT)
    assert api.process_statistics(program.pid).pid == program.pid


def test_a_process_that_closes_the_connection_and_goes_on_is_not_said_to_have_ended(
    start: Start,
) -> None:
    with pytest.raises(HztuneError, match=r"gave no answer: others are asking it; try again$"):
        api.process_statistics(start(ANSWER).pid)


def test_a_process_without_memory_is_said_to_have_none() -> None:
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(HztuneError, match=rf"process {ended.pid} has no memory: it is a thread of"):
        api.diagnose(ended.pid)
    ended.wait()


def test_a_name_that_may_be_anothers_by_now_is_not_asked(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = start(ANSWER, '{"protocol":2}')
    address = channel._await_address(Process.of(program.pid))
    monkeypatch.setattr(channel, "_await_address", lambda process: address)
    monkeypatch.setattr(channel, "_address", lambda process: None)
    with pytest.raises(HztuneError, match=r"ended while it was asked$"):
        api.process_statistics(program.pid)


@pytest.fixture
def elsewhere(on_hz: dict[str, str]) -> Iterator[Callable[..., int]]:
    """Starts `sleep` on hz behind words that give it namespaces of its own; returns its number."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*words: str) -> int:
        variables = [f"{name}={value}" for name, value in on_hz.items()]
        program = subprocess.Popen([*words, "env", *variables, "sleep", "60"])
        started.append(program)
        while Process.of(program.pid).name != "sleep":
            if program.poll() is not None:
                pytest.skip("this process may make no namespaces")
            time.sleep(0.01)
        return program.pid

    yield run
    for program in started:
        program.kill()
        program.wait(DEADLINE_S)


def test_in_another_network_the_name_may_be_anothers_and_nothing_is_asked(
    elsewhere: Callable[..., int],
) -> None:
    pid = elsewhere("unshare", "--net")
    names: list[str] = []
    while not names:
        names = re.findall("hz-control-[0-9a-f]{16}", Path(f"/proc/{pid}/net/unix").read_text())
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as thief:
        thief.bind(f"\0{names[0]}")
        thief.listen()
        thief.settimeout(0)
        with pytest.raises(UsageError, match=r"in another network namespace .* nsenter --net "):
            api.process_statistics(pid)
        with pytest.raises(BlockingIOError):
            thief.accept()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_process_that_cannot_tell_who_asks_is_said_to_be_elsewhere(
    elsewhere: Callable[..., int],
) -> None:
    pid = elsewhere(*AS_ANOTHER_USER, "unshare", "--user", "--map-root-user")
    with pytest.raises(UsageError, match=r"in another user namespace .* nsenter --user "):
        api.process_statistics(pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_process_of_another_user_is_said_to_be(start: Start, on_hz: dict[str, str]) -> None:
    process = Process.of(start(WAIT, **on_hz).pid)
    channel.ask_process(process, "stats")
    os.seteuid(12345)
    try:
        with pytest.raises(UsageError, match=f"process {process.pid} may not be looked at"):
            channel.ask_process(process, "stats")
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    ("packet", "sentence"),
    [
        ('{"protocol":1}', "speaks protocol 1"),
        ('{"protocol":2}', "missing required field allocator"),
        ("nonsense", "not JSON|no JSON|JSON"),
        ("[]", "Expected object"),
        ('{"protocol":2,"refused":"x","sentence":"no\\u001b[2J"}', r"refuses: no\?\[2J"),
    ],
)
def test_a_strange_answer_is_an_error(packet: str, sentence: str, start: Start) -> None:
    with pytest.raises(UsageError, match=sentence):
        api.process_statistics(start(ANSWER, packet).pid)


# ---- processes with the agent --------------------------------------------------------------------


def library(name: str) -> str:
    """What is preloaded of an allocator; the test is skipped where it is not installed."""
    state = api.allocators()[name]
    if isinstance(state, HztuneError):
        pytest.skip(str(state))
    return str(state.path) if state.preload else ""


@pytest.mark.parametrize("name", ["glibc", "jemalloc", "mimalloc", "tcmalloc"])
def test_beside_another_allocator_the_agent_tells_what_it_holds(
    name: str, start: Start, agent: str
) -> None:
    preload = ":".join(filter(None, (library(name), agent)))
    program = start(BURST, PYTHONMALLOC="malloc", LD_PRELOAD=preload)
    found = api.process_statistics(program.pid)
    assert found.main is not None
    assert found.main.allocator == name
    assert (found.main.held_bytes or 0) > MIB
    if name != "mimalloc":
        assert 0 < (found.main.live_bytes or 0) < (found.main.held_bytes or 0)
    assert api.trim_process(program.pid).allocators[0] == name
    with pytest.raises(UsageError, match="only hz has parameters that change"):
        api.change_process(program.pid, {"decay_ms": "0"})


def test_the_agent_knows_what_gives_malloc_to_a_program_at_a_fixed_address(
    tmp_path: Path, agent: str
) -> None:
    source, program = tmp_path / "fixed.c", tmp_path / "fixed"
    source.write_text(
        "#include <stdlib.h>\n#include <unistd.h>\n"
        "void *(*volatile take)(size_t) = malloc;\n"
        "int main(void) { void *volatile b = take(100); (void)b; close(1); return pause(); }\n"
    )
    subprocess.run(["cc", "-fno-pie", "-no-pie", "-o", program, source], check=True)
    environment = {**os.environ, "LD_PRELOAD": agent}
    running = subprocess.Popen([program], env=environment, stdout=subprocess.PIPE)
    try:
        assert running.stdout is not None
        running.stdout.read()  # until it has started
        found = api.process_statistics(running.pid)
        assert api.trim_process(running.pid).allocators == ("glibc",)
    finally:
        running.kill()
        running.wait(DEADLINE_S)
    assert found.main is not None
    assert (found.main.allocator, (found.main.live_bytes or 0) > 0) == ("glibc", True)


# ---- the doctor ----------------------------------------------------------------------------------


def test_the_doctor_tells_of_a_stranger_what_shows_from_outside(start: Start) -> None:
    program = start(WAIT, MALLOC_ARENA_MAX="2")
    found = api.diagnose(program.pid)
    assert found.allocator == "glibc"
    assert found.memory.anonymous_bytes > 0
    assert found.parts == ()
    assert ("arena_max", 2, False) in [(s.name, s.value, s.is_effective) for s in found.settings]
    assert "hztune paths --agent" in found.remarks[0]


def test_the_doctor_tells_little_of_a_program_that_shows_no_malloc(tmp_path: Path) -> None:
    source, program = tmp_path / "rests.c", tmp_path / "rests"
    source.write_text("#include <unistd.h>\nint main(void) { return pause(); }\n")
    subprocess.run(["cc", "-static", "-o", program, source], check=True)
    running = subprocess.Popen([program])
    try:
        found = api.diagnose(running.pid)
    finally:
        running.kill()
        running.wait(DEADLINE_S)
    assert (found.provider, found.settings, found.parts) == ("", (), ())
    assert "no library that defines malloc" in found.remarks[0]


def test_the_doctor_asks_a_process_that_answers(start: Start, on_hz: dict[str, str]) -> None:
    found = api.diagnose(start(WAIT, HZ_SPAN_CACHE="7", **on_hz).pid)
    assert [part.allocator for part in found.parts] == ["hz"]
    assert ("span_cache", 7, True) in [(s.name, s.value, s.is_effective) for s in found.settings]
    assert found.remarks == ()
    assert len(found.advice) == 1, "it holds little"


SEEN = SeenMemory(200 * MIB, 180 * MIB, 0, 0, 0)
HZ = Holding("hz", "1", 20 * MIB, 150 * MIB, 0,
          {"decay_ms": 100, "background_period_us": 0, "thread_cache_share": 100})  # fmt: skip
FOUND = Statistics(7, "x", 4, SEEN, (HZ,), threads=(ThreadCaches(7, 1, 1),))


def of(part: Holding) -> Statistics:
    return replace(FOUND, parts=(part,))


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (replace(FOUND, free_page_bytes=120 * MIB), "background_period_us=65536"),
        (replace(FOUND, free_page_bytes=120 * MIB, has_rest_worker=True), "decay_ms=0"),
        (of(replace(HZ, cached_bytes=100 * MIB)), "thread_cache_share=50"),
        (FOUND, "130.0 MiB are between live blocks"),
        (of(replace(HZ, held_bytes=22 * MIB)), "no setting would return much"),
        (of(replace(HZ, allocator="jemalloc", settings={"dirty_decay_ms": 9})), "dirty_decay_ms"),
        (of(replace(HZ, allocator="glibc")), "arena_max=2"),
        (of(replace(HZ, allocator="tcmalloc")), "TCMALLOC_AGGRESSIVE_DECOMMIT"),
        (of(replace(HZ, allocator="mimalloc", live_bytes=None)), "MIMALLOC_PURGE_DELAY=0"),
        (of(replace(HZ, allocator="mimalloc", version="2.0.9")), "MIMALLOC_DECOMMIT_DELAY=0"),
    ],
)
def test_the_doctor_advises_by_what_waits_where(found: Statistics, sentence: str) -> None:
    assert any(sentence in each for each in diagnosis.advice_for(found))


# ---- the command line ----------------------------------------------------------------------------


def test_the_doctor_explains_all_of_the_memory_and_says_what_was_asked_for(
    hztune_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = diagnosis.Diagnosis(
        pid=7, name="app", provider="/lib/libhz.so", allocator="hz",
        memory=SeenMemory(127 * MIB, 87 * MIB, 0, 0, 0), limit=(256 * MIB, 130 * MIB),
        parts=(Holding("hz", "0.1.0", 20 * MIB, 31 * MIB, None, {}),),
        settings=(
            diagnosis.InEffect("shards", 1, is_effective=True, is_default=False, is_asked=False),
            diagnosis.InEffect("thp", "on", is_effective=True, is_default=False, is_asked=True),
            diagnosis.InEffect("decay_ms", 9, is_effective=False, is_default=False, is_asked=True),
        ),
        advice=(), remarks=(),
    )  # fmt: skip
    monkeypatch.setattr(api, "diagnose", lambda pid: seen)
    told = hztune_here("doctor", "--pid", "7").stdout
    whole = "127.0 MiB resident: 56.0 of stacks and other mappings, 40.0 of mapped files, 31.0 held"
    assert whole in told and "its control group takes 130.0 of 256.0 MiB" in told
    assert "shards=1 (in effect)" in told
    assert "thp=on (in effect, asked for)" in told and "decay_ms=9 (asked for)" in told


def test_the_commands_ask_and_change(hztune: Run, start: Start, on_hz: dict[str, str]) -> None:
    pid = str(start(WAIT, **on_hz).pid)
    assert hztune("set", "--pid", pid, "decay_ms=0").stdout == "decay_ms: 100 -> 0\n"
    found = json.loads(hztune("stats", "--pid", pid, "--json").stdout)
    assert found["parts"][0]["settings"]["decay_ms"] == 0
    assert "hz 0.1.0\n  live " in hztune("stats", "--pid", pid).stdout
    assert hztune("trim", "--pid", pid).stdout.startswith("hz: ")
    assert "decay_ms=0 (in effect)" in hztune("doctor", "--pid", pid).stdout


def test_the_parameters_that_may_change_are_listed(hztune: Run) -> None:
    rows = json.loads(hztune("params", "--live", "--json").stdout)
    assert {"decay_ms", "background_period_us"} <= {row["name"] for row in rows}
    assert "shards" not in {row["name"] for row in rows}


def test_a_refusal_is_one_sentence_and_status_2(
    hztune: Run, start: Start, on_hz: dict[str, str]
) -> None:
    done = hztune("set", "--pid", str(start(WAIT, **on_hz).pid), "decay_ms=x")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "legal is a whole number from 0 to 60000 (ms)" in done.stderr
