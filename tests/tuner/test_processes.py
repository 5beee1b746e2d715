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
def start(started, plain_environment):
    """Starts Python code without the settings of hz that the tests have."""
    return lambda code, *words, **variables: started(
        [sys.executable, "-c", code, *words], **{**plain_environment, **variables}
    )


@pytest.fixture
def on_hz(core_build):
    """The variables of a process on hz that takes requests."""
    return {"LD_PRELOAD": str(core_build / "libhz.so"), "HZ_CONTROL": "1"}


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
    with pytest.raises(UsageError, match="give NAME=VALUE"):
        api.change_process(pid, {})
    with pytest.raises(UsageError, match="on one line"):
        api.change_process(pid, {"decay_ms": "1\nspan_cache=3"})


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


STRANGE = [
    ([], r"gave no answer: others are asking it; try again$"),
    (['{"protocol":1}'], "speaks protocol 1"),
    (['{"protocol":3}'], r"the answer of process \d+ \(.+\): missing required field allocator"),
    ([OF_HZ % 1], "stats: has no background_period_us"),
    ([OF_HZ % 10**400], "stats.memory.live_bytes is 1000"),
    (["nonsense"], "JSON"),
    (['{"protocol":3,"refused":"x","sentence":"no\\u001b[2J"}'], r"\(.+\) refuses: no\?\[2J"),
]


@pytest.mark.parametrize(("packets", "sentence"), STRANGE)
def test_a_strange_answer_is_an_error(packets, sentence, start):
    with pytest.raises(HztuneError, match=sentence):
        api.process_statistics(start(ANSWER, *packets).pid)


# ---- processes with the agent --------------------------------------------------------------------


AGENTS_OWN = {"google_tcmalloc": {"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}}


@pytest.fixture
def under(started, core_build):
    """Starts a program under an allocator, with the agent."""

    def start(name, *words, **variables):
        state = api.allocators()[name]
        if isinstance(state, HztuneError):
            pytest.skip(str(state))
        agent = str(core_build / "libhz-agent.so")
        preload = f"{state.path}:{agent}" if state.preload else agent
        own = {**os.environ, "LD_PRELOAD": preload, **AGENTS_OWN.get(name, {})}
        return started(words, **own | variables)

    return start


@pytest.mark.parametrize("name", ["glibc", "jemalloc", "mimalloc", "tcmalloc"])
def test_beside_another_allocator_the_agent_tells_what_it_holds(name, under):
    program = under(name, sys.executable, "-c", BURST, PYTHONMALLOC="malloc")
    main = api.process_statistics(program.pid).parts[0]
    assert main.allocator == name and (main.held_bytes or 0) > MIB
    assert 0 < (main.live_bytes or 0) < (main.held_bytes or 0) or name == "mimalloc"
    assert api.trim_process(program.pid).allocators[0] == name


TAKES = """
#include <stdlib.h>
void *(*volatile take)(size_t) = malloc;
__attribute__((constructor)) static void start(void) { take(100); }
"""


def test_the_agent_knows_what_gives_malloc_to_a_program_at_a_fixed_address(
    compiled, running, core_build
):
    program = compiled("fixed", compiled.idle + TAKES, "-fno-pie", "-no-pie")
    with running(program, {"LD_PRELOAD": str(core_build / "libhz-agent.so")}) as pid:
        main = api.process_statistics(pid).parts[0]
        assert api.trim_process(pid).allocators == ("glibc",)
    assert (main.allocator, (main.live_bytes or 0) > 0) == ("glibc", True)


# ---- every lever of every allocator moves a figure, and is given back ----------------------------

TOKEN = f"{7:032x}"

# For each line, the ms to rest in it: fills and frees memory, and tells how many blocks of 1 MiB
# are mapped one by one (of one), and an arena's own decay.
LOAD = r"""
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { COUNT = 8000, BYTES = 4000, LARGE = 1 << 20, THREADS = 4 };
int mallctl(const char *, void *, size_t *, void *, size_t) __attribute__((weak));
static void *fill(void *unused) {
    static __thread void *blocks[COUNT];
    for (int i = 0; i < COUNT; i++) memset(blocks[i] = malloc(BYTES), 1, BYTES);
    for (int i = COUNT; i-- > 0;) free(blocks[i]);
    return unused;
}
int main(void) {
    char line[100];
    long own = 0; /* decay of jemalloc's first arena */
    size_t size = sizeof own;
    if (getenv("OWN")) mallctl("arena.0.dirty_decay_ms", NULL, NULL, &own, size);
    puts("ready");
    while (fflush(stdout) == 0 && fgets(line, sizeof line, stdin)) {
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, fill, NULL);
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        fill(NULL);
        for (int i = 0; i < COUNT; i++) {
            void *volatile block = malloc(LARGE);
            free(block);
        }
        void *volatile large = malloc(LARGE);
        const size_t mapped = mallinfo2().hblks;
        free(large);
        usleep((useconds_t)atol(line) * 1000);
        if (mallctl) mallctl("arena.0.dirty_decay_ms", &own, &size, NULL, 0);
        printf("%zu %ld\n", mapped, own);
    }
    return 0;
}
"""
LEVERS = [  # allocator, lever, two values of which the first gives the larger figure; set before
    ("jemalloc", "dirty_decay_ms", ("-1", "0"), "resident", {}),
    ("jemalloc", "muzzy_decay_ms", ("-1", "0"), "resident",
     {"background_thread": "true", "dirty_decay_ms": "50"}),
    ("jemalloc", "background_thread", ("true", "false"), "threads", {}),
    ("jemalloc", "max_background_threads", ("4", "1"), "threads", {"background_thread": "true"}),
    ("mimalloc", "purge_delay", ("60000", "0"), "resident", {}),
    ("mimalloc", "arena_purge_mult", ("1000", "0"), "resident", {"purge_delay": "1"}),
    ("mimalloc", "purge_decommits", ("0", "1"), "resident", {"purge_delay": "0"}),
    ("tcmalloc", "max_total_thread_cache_bytes", ("1073741824", "524288"), "cached", {}),
    ("tcmalloc", "aggressive_decommit", ("false", "true"), "resident", {}),
    ("tcmalloc", "release_rate_percent", ("0", "1000"), "resident", {}),
    ("google_tcmalloc", "background_release_rate", ("0", "1099511627776"), "resident", {}),
    ("glibc", "trim_threshold", ("1000000000", "0"), "resident", {}),
    ("glibc", "top_pad", ("100000000", "0"), "resident", {}),
    ("glibc", "mmap_threshold", ("4096", "10000000"), "mapped", {}),
]  # fmt: skip
RESTS_MS = {"muzzy_decay_ms": 1000, "background_release_rate": 2500}


@pytest.fixture
def load(under, compiled):
    """Starts the load under an allocator, with the agent."""
    program = compiled("load", LOAD, "-O1", "-pthread")
    return lambda name, **variables: under(name, program, **variables)


def figures_of(program, lever):
    program.stdin.write(f"{RESTS_MS.get(lever, 50)}\n")
    program.stdin.flush()
    mapped, own = map(int, program.stdout.readline().split())
    status = Path(f"/proc/{program.pid}/status").read_text()
    resident, threads = (
        int(re.search(rf"^{name}:\s*(\d+)", status, re.M)[1]) for name in ("RssAnon", "Threads")
    )
    cached = api.process_statistics(program.pid).parts[0].cached_bytes
    return dict(mapped=mapped, own=own, resident=resident, threads=threads, cached=cached)


@pytest.mark.parametrize(("name", "lever", "values", "figure", "first"), LEVERS)
def test_a_lever_moves_a_figure(name, lever, values, figure, first, load):
    found = []
    for value in values:
        program = load(name)
        if lever not in api.process_statistics(program.pid).parts[0].levers:
            pytest.skip(f"this version of {name} has no {lever}")
        changed = api.change_process(program.pid, {**first, lever: value})
        assert str(changed.after[lever]) == value
        found.append(figures_of(program, lever)[figure])
    assert found[0] > 1.5 * found[1]


@pytest.mark.parametrize("name", ["jemalloc", "mimalloc", "tcmalloc", "google_tcmalloc"])
def test_a_lease_gives_every_lever_back(name, load):
    process = Process.of(load(name).pid)
    assert api.trim_process(process.pid).allocators[0] == name
    before = api.process_statistics(process.pid).parts[0].levers
    given = {lever: values for each, lever, values, *_ in LEVERS if each == name}
    settings = {lever: given[lever][1] for lever in before}
    governed = channel.govern(process, TOKEN, 60, settings)
    assert {lever: str(value) for lever, value in governed.values.items()} == settings
    assert (governed.taken, governed.began) == ((), True)
    assert channel.govern(process, TOKEN, 0, {}).values == before
    assert api.process_statistics(process.pid).parts[0].levers == before


def test_an_arena_keeps_its_own_value_also_where_a_lease_gives_the_others_the_same(load):
    process = Process.of((program := load("jemalloc", OWN="")).pid)
    for seconds, value in ((60, "0"), (60, "5"), (0, "5")):
        channel.govern(process, TOKEN, seconds, {"dirty_decay_ms": value})
    assert figures_of(program, "")["own"] == 0


def test_glibc_gets_back_what_it_was_started_with_or_its_defaults(load):
    adapting = dict.fromkeys(("trim_threshold", "top_pad", "mmap_threshold"), "auto")
    process = Process.of((program := load("glibc")).pid)
    assert channel.govern(process, TOKEN, 60, adapting).values == adapting
    assert figures_of(program, "")["mapped"] == 0  # its threshold has grown
    for variables, before, after in (
        ({}, adapting, {"trim_threshold": 131072, "top_pad": 131072}),
        ({"MALLOC_TRIM_THRESHOLD_": "-1"},
         {"trim_threshold": -1, "top_pad": 131072, "mmap_threshold": 131072},
         {"trim_threshold": -1, "top_pad": 131072}),
        ({"MALLOC_TOP_PAD_": "4096"}, {**dict.fromkeys(adapting, 131072), "top_pad": 4096},
         {"trim_threshold": 131072, "top_pad": 4096}),
        ({"GLIBC_TUNABLES": "glibc.malloc.top_pad=0x1000:glibc.malloc.trim_threshold=8192"},
         {"trim_threshold": 8192, "top_pad": 4096, "mmap_threshold": 131072},
         {"trim_threshold": 8192, "top_pad": 4096}),
    ):  # fmt: skip
        process = Process.of(load("glibc", **variables).pid)
        assert api.process_statistics(process.pid).parts[0].levers == before
        settings = {"trim_threshold": "1", "top_pad": "2"}
        channel.govern(process, TOKEN, 60, settings)
        assert channel.govern(process, TOKEN, 0, {}).values == after


def test_a_wrong_change_is_refused_and_names_the_process_and_what_is_legal(load):
    pid = load("jemalloc").pid
    before = api.process_statistics(pid).parts[0].levers
    for wrong, said in (
        ({"decay_ms": "0"}, "decay_ms cannot change in this process; legal are dirty_decay_ms, "),
        ({"muzzy_decay_ms": "-2"}, "legal is a whole number from -1 to 18446744072000"),
        ({"background_thread": "1"}, "legal is true or false"),
        ({"max_background_threads": "4000"}, "jemalloc refuses max_background_threads=4000"),
    ):
        with pytest.raises(UsageError, match=rf"process {pid} \(.+\) refuses: .*{said}"):
            api.change_process(pid, {"dirty_decay_ms": "0", **wrong})
    assert api.process_statistics(pid).parts[0].levers == before


# ---- the doctor ----------------------------------------------------------------------------------


def test_the_doctor_tells_of_a_stranger_what_shows_from_outside(start, compiled, running):
    found = api.diagnose(start(WAIT, MALLOC_ARENA_MAX="2").pid)
    assert (found.allocator, found.parts) == ("glibc", ())
    assert found.memory.anonymous_bytes > 0
    settings = [(each.name, each.value, each.is_effective) for each in found.settings]
    assert ("arena_max", 2, False) in settings
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


ADVICE = [
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
]


@pytest.mark.parametrize(("found", "sentence"), ADVICE)
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
