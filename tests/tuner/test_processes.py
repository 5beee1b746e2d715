"""Processes that run: they are asked what they hold, and changed, and what cannot be is said."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hztune import api, attach
from hztune.attach import Diagnosis, Holding, InEffect, Statistics, ThreadCaches, channel
from hztune.attach.channel import Process, SeenMemory
from hztune.errors import HztuneError, UsageError

MIB = 1 << 20
NO_PROCESS = (1 << 22) + 1

READY = "print('ready', flush=True); import sys\n"
WAIT = f"{READY}sys.stdin.read()"
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
if client.recv(4096):
    for packet in sys.argv[1:]:
        client.send(packet.encode())
client.close()
sys.stdin.read()
"""


@pytest.fixture
def start(started):
    """Starts Python code without the settings of hz that the tests have."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("HZ_")}
    return lambda code, *words, **variables: started(
        [sys.executable, "-c", code, *words], **{**own, **variables}
    )


@pytest.fixture
def on_hz(core_build):
    """The variables of a process on hz that takes requests."""
    return {"LD_PRELOAD": str(core_build / "libhz.so"), "HZ_CONTROL": "1"}


@pytest.fixture
def agent(core_build):
    """The agent's file."""
    return str(core_build / "libhz-agent.so")


# ---- processes on hz -----------------------------------------------------------------------------


def test_a_process_tells_what_it_holds_and_trims_it(start, on_hz):
    given = {"PYTHONMALLOC": "malloc", "HZ_DECAY_MS": "60000", "HZ_SPAN_CACHE": "64"}
    program = start(BURST, **given, **on_hz)
    found = api.process_statistics(program.pid)
    (part,) = found.parts
    assert (part.allocator, found.pid, found.has_rest_worker) == ("hz", program.pid, False)
    live, held = part.live_bytes or 0, part.held_bytes or 0
    assert 0 < live < held <= found.memory.resident_bytes
    assert part.ratio == held / live
    assert program.pid in {each.thread for each in found.threads}
    assert 0 < sum(each.live * each.bytes for each in found.classes) <= live
    trimmed = api.trim_process(program.pid)
    assert trimmed.allocators == ("hz",)
    assert trimmed.after.anonymous_bytes <= trimmed.before.anonymous_bytes


def test_a_process_tells_whether_a_worker_returns_memory_at_rest(start, on_hz):
    assert api.process_statistics(start(THREAD, **on_hz).pid).has_rest_worker


def test_a_parameter_changes_or_is_refused(start, on_hz):
    pid = start(WAIT, **on_hz).pid
    changed = api.change_process(pid, {"decay_ms": "0", "span_cache": "2"})
    assert changed.before == {"span_cache": 2, "decay_ms": 100}
    assert changed.after == {"span_cache": 2, "decay_ms": 0}
    refusals = [
        ({"decay_ms": "soon"}, "legal is a whole number from 0 to 60000"),
        ({"shards": "2"}, "start the process with HZ_SHARDS=VALUE"),
        ({"decay": "2"}, "no parameter of hz"),
        ({}, "give NAME=VALUE"),
        ({"decay_ms": "1\nspan_cache=3"}, "on one line"),
    ]
    for settings, sentence in refusals:
        with pytest.raises(UsageError, match=sentence):
            api.change_process(pid, settings)


# ---- why there is no answer ----------------------------------------------------------------------


def test_what_is_no_process_is_said():
    with pytest.raises(UsageError, match=f"there is no process {NO_PROCESS}"):
        api.process_statistics(NO_PROCESS)


def test_a_process_that_takes_no_requests_is_told_how_to_start_it(start, on_hz):
    on_hz.pop("HZ_CONTROL")
    for variables in ({}, on_hz):
        with pytest.raises(UsageError, match=r"HZ_CONTROL=1, or with LD_PRELOAD=\$\(hztune pa"):
            api.process_statistics(start(WAIT, **variables).pid)


def test_a_process_whose_variables_are_not_there_yet_is_waited_for(monkeypatch):
    found = iter((None, ("name", "key")))
    monkeypatch.setattr(channel, "socket_of", lambda pid: next(found))
    monkeypatch.setattr(channel.ProcessMemory, "variables", lambda self: {})
    assert channel._await_address(Process.of(os.getpid())) == ("name", "key")


def test_a_stopped_process_is_not_waited_for_without_end(start, on_hz):
    program = start(WAIT, **on_hz)
    api.process_statistics(program.pid)
    program.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, program.pid, os.WSTOPPED)
    with pytest.raises(HztuneError, match=rf"is stopped .* kill -CONT {program.pid}"):
        channel.ask_process(Process.of(program.pid), dict, "stats", patience_s=0.2)
    program.send_signal(signal.SIGCONT)
    assert api.process_statistics(program.pid).pid == program.pid


def test_a_name_that_may_be_anothers_by_now_is_not_asked(start, monkeypatch):
    program = start(ANSWER, '{"protocol":3}')
    address = channel._await_address(Process.of(program.pid))
    monkeypatch.setattr(channel, "_await_address", lambda process: address)
    monkeypatch.setattr(channel, "socket_of", lambda pid: None)
    with pytest.raises(HztuneError, match="takes no requests any more"):
        api.process_statistics(program.pid)


def test_in_another_network_the_name_may_be_anothers_and_nothing_is_asked(on_hz):
    variables = [f"{name}={value}" for name, value in on_hz.items()]
    with (
        subprocess.Popen(["unshare", "--net", "env", *variables, "sleep", "60"]) as program,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as thief,
    ):
        names = []
        while not names:
            if program.poll() is not None:
                pytest.skip("this process may make no namespaces")
            if os.readlink(f"/proc/{program.pid}/ns/net") != os.readlink("/proc/self/ns/net"):
                unix = Path(f"/proc/{program.pid}/net/unix").read_text()
                names = re.findall("hz-control-[0-9a-f]{16}", unix)
        thief.bind(f"\0{names[0]}")
        thief.listen()
        thief.settimeout(0)
        with pytest.raises(UsageError, match=r"in another network namespace .* nsenter --net "):
            api.process_statistics(program.pid)
        with pytest.raises(BlockingIOError):
            thief.accept()
        program.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_process_of_another_user_is_said_to_be(start, on_hz):
    process = Process.of(start(WAIT, **on_hz).pid)
    channel.ask_process(process, dict, "stats")
    os.seteuid(12345)
    try:
        with pytest.raises(UsageError, match=rf"process {process.pid} \(.+\) may not be looked at"):
            channel.ask_process(process, dict, "stats")
    finally:
        os.seteuid(0)


OF_HZ = """{"protocol":3,"allocator":"hz","stats":{"version":"1","config":{},"memory":
{"live_bytes":%d,"cached_bytes":0,"free_bytes":0,"classes":[]},"counters":{}},
"arena":{"first":0,"bytes":0},"threads":[],"threads_left_out":0,"rest_worker":false,"levers":{}}"""


@pytest.mark.parametrize(
    ("packets", "sentence"),
    [
        ([], r"gave no answer: others are asking it; try again$"),
        (['{"protocol":1}'], "speaks protocol 1"),
        (['{"protocol":3}'], r"the answer of process \d+ \(.+\): missing required field allocator"),
        ([OF_HZ % 1], "stats: has no background_period_us"),
        ([OF_HZ % 10**400], "stats.memory.live_bytes is 1000"),
        (["nonsense"], "JSON"),
        (['{"protocol":3,"refused":"x","sentence":"no\\u001b[2J"}'], r"\(.+\) refuses: no\?\[2J"),
    ],
)
def test_a_strange_answer_is_an_error(packets, sentence, start):
    with pytest.raises(HztuneError, match=sentence):
        api.process_statistics(start(ANSWER, *packets).pid)


# ---- processes with the agent --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["glibc", "jemalloc", "mimalloc", "tcmalloc"])
def test_beside_another_allocator_the_agent_tells_what_it_holds(name, start, agent):
    state = api.allocators()[name]
    if isinstance(state, HztuneError):
        pytest.skip(str(state))
    preload = ":".join(filter(None, (state.preload and str(state.path), agent)))
    program = start(BURST, PYTHONMALLOC="malloc", LD_PRELOAD=preload)
    main = api.process_statistics(program.pid).parts[0]
    assert main.allocator == name and (main.held_bytes or 0) > MIB
    assert 0 < (main.live_bytes or 0) < (main.held_bytes or 0) or name == "mimalloc"
    assert api.trim_process(program.pid).allocators[0] == name


FIXED = """
#include <stdlib.h>
#include <unistd.h>
void *(*volatile take)(size_t) = malloc;
int main(void) {
    char c;
    void *volatile block = take(100);
    return write(1, "x", 1) + read(0, &c, 1) != 2 || block == NULL;
}
"""


def test_the_agent_knows_what_gives_malloc_to_a_program_at_a_fixed_address(
    compiled, running, agent
):
    program = compiled("fixed", FIXED, "-fno-pie", "-no-pie")
    with running(program, {"LD_PRELOAD": agent}) as pid:
        main = api.process_statistics(pid).parts[0]
        assert api.trim_process(pid).allocators == ("glibc",)
    assert (main.allocator, (main.live_bytes or 0) > 0) == ("glibc", True)


# ---- the doctor ----------------------------------------------------------------------------------


def known(found):
    return [(each.name, each.value, each.is_effective) for each in found.settings]


def test_the_doctor_tells_of_a_stranger_what_shows_from_outside(start, compiled, running):
    found = api.diagnose(start(WAIT, MALLOC_ARENA_MAX="2").pid)
    assert (found.allocator, found.parts) == ("glibc", ())
    assert found.memory.anonymous_bytes > 0
    assert ("arena_max", 2, False) in known(found)
    assert "hztune paths --agent" in found.remarks[0]
    with running(compiled("rests", compiled.idle, "-static"), {}) as pid:
        bare = api.diagnose(pid)
    assert (bare.provider, bare.settings, bare.parts) == ("", (), ())
    assert "no library that defines malloc" in bare.remarks[0]


SEEN = SeenMemory(200 * MIB, 180 * MIB, 0, 0, 0)
HZ = Holding("hz", "1", {"decay_ms": 100, "background_period_us": 0, "thread_cache_share": 100},
             20 * MIB, 150 * MIB, 0)  # fmt: skip
FOUND = Statistics(7, "x", 4, SEEN, (HZ,), threads=(ThreadCaches(7, 1, 1),))


def of(name, **more):
    return replace(FOUND, parts=(replace(HZ, allocator=name, **more),))


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (replace(FOUND, free_page_bytes=120 * MIB), "background_period_us=65536"),
        (replace(FOUND, free_page_bytes=120 * MIB, has_rest_worker=True), "decay_ms=0"),
        (of("hz", cached_bytes=100 * MIB), "thread_cache_share=50"),
        (FOUND, "130.0 MiB are between live blocks"),
        (of("hz", held_bytes=22 * MIB), "no setting would return much"),
        (of("jemalloc"), "dirty_decay_ms"),
        (of("glibc"), "arena_max=2"),
        (of("tcmalloc"), "TCMALLOC_AGGRESSIVE_DECOMMIT"),
        (of("mimalloc", live_bytes=None), "MIMALLOC_PURGE_DELAY=0"),
        (of("mimalloc", version="2.0.9"), "MIMALLOC_DECOMMIT_DELAY=0"),
    ],
)
def test_the_doctor_advises_by_what_waits_where(found, sentence):
    assert any(sentence in each for each in attach.advice_for(found))


# ---- the command line ----------------------------------------------------------------------------


def test_the_doctor_explains_all_of_the_memory_and_says_what_was_asked_for(
    hztune_here, monkeypatch
):
    seen = Diagnosis(
        pid=7, name="app", provider="/lib/libhz.so", allocator="hz",
        memory=SeenMemory(127 * MIB, 87 * MIB, 0, 0, 0), limit=(256 * MIB, 130 * MIB),
        parts=(Holding("hz", "0.1.0", {}, 20 * MIB, 31 * MIB),),
        settings=(
            InEffect("shards", 1, is_effective=True, is_default=False, is_asked=False),
            InEffect("thp", "on", is_effective=True, is_default=False, is_asked=True),
            InEffect("decay_ms", 9, is_effective=False, is_default=False, is_asked=True),
        ),
        advice=(), remarks=(),
    )  # fmt: skip
    monkeypatch.setattr(api, "diagnose", lambda pid: seen)
    told = hztune_here("doctor", "--pid", "7").stdout
    whole = "127.0 MiB resident: 56.0 of stacks and other mappings, 40.0 of mapped files, 31.0 held"
    assert whole in told and "its control group takes 130.0 of 256.0 MiB" in told
    assert "shards=1 (in effect)" in told
    assert "thp=on (in effect, asked for)" in told and "decay_ms=9 (asked for)" in told


def test_the_commands_ask_and_change(hztune, start, on_hz):
    pid = str(start(WAIT, **on_hz).pid)
    head = f"{Process.of(int(pid))}\n"
    assert hztune("set", "--pid", pid, "decay_ms=0").stdout == f"{head}decay_ms: 100 -> 0\n"
    assert hztune("trim", "--pid", pid).stdout.startswith(f"{head}hz: ")
    found = json.loads(hztune("stats", "--pid", pid, "--json").stdout)
    assert found["parts"][0]["settings"]["decay_ms"] == 0
    assert "hz 0.1.0\n  live " in hztune("stats", "--pid", pid).stdout
    assert "decay_ms=0 (in effect)" in hztune("doctor", "--pid", pid).stdout
    done = hztune("set", "--pid", pid, "decay_ms=x")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "legal is a whole number from 0 to 60000 (ms)" in done.stderr
