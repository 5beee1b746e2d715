"""`hztune suggest`: what is seen of a program, which measurements are named, and why."""

import os
import shlex
from dataclasses import replace

import pytest

from hztune import api, artifacts
from hztune.cli import status_of
from hztune.cli.verify import programs_in
from hztune.errors import HztuneError
from hztune.suggest import best_of, command, ideas
from hztune.suggest.look import Sight

from .conftest import processes_in
from .measured import serving

SIGHT = Sight(wall_s=1.0, ended=True, cpu_s=1.0, faults=25_000, peak_kb=100 << 10,
              end_kb=100 << 10, allocator="glibc", unseen="", allocations=1_000_000,
              sizes=((63, 900_000), (4095, 100_000)), callers=1, frees=1_000_000,
              blocks_kb=90 << 10)  # fmt: skip
"""It works all of the time, 5 % of it in its allocator, with little memory to save."""

PROGRAM = api.program(("./prog", "a b"))
SERVER = api.program(server="./srv --port {port}", load="./load {port}")

LISTENS = replace(SIGHT, ended=False, ports=("the port 6379",))
LONG = replace(SIGHT, wall_s=60.0, cpu_s=6.0, peak_kb=10_000)
KEEPS = replace(SIGHT, peak_kb=300 * 1024, before_kb=10 * 1024, end_kb=290 * 1024)
STUCK = replace(SIGHT, obstacle="it is a static program", inside=("inside:jemalloc",))
BUSY = replace(SIGHT, allocations=9_000_000, inside=("inside:jemalloc",), end_kb=60 * 1024,
               before_kb=1)  # fmt: skip
JVM = replace(SIGHT, peak_kb=900 * 1024, faults=225_000, blocks_kb=30_000)

NAMED = {
    "three measurements": (SIGHT, PROGRAM, 0, "", {
        "speed": "hztune -- ./prog 'a b'",
        "allocators side by side": "hztune compare none hz jemalloc -- ./prog 'a b'",
    }, {"speed, searched on a trace"}),
    "much memory in no block": (
        replace(SIGHT, peak_kb=180 * 1024, faults=45_000), PROGRAM, 0, "less memory",
        {"less memory": "hztune --max-rss 0.8x -- ./prog 'a b'"}, set(),
    ),
    "memory that it maps for itself": (JVM, PROGRAM, 0, "speed", {}, set()),
    "a program that listens and goes on": (LISTENS, PROGRAM, 0, "as a server", {
        "as a server": "hztune suggest --server './prog '\"'\"'a b'\"'\"'' --ready-port 6379 "
                       "--load 'YOUR LOAD'",
    }, set()),
    "a long run": (LONG, PROGRAM, 0, "", {
        "speed, searched on a trace": "hztune record -o prog.trace -- ./prog 'a b' && hztune "
                                      "--workload trace:prog.trace --prove-on -- ./prog 'a b'",
    }, set()),
    "a server that keeps its burst": (KEEPS, SERVER, 0, "memory at rest", {
        "memory at rest": "hztune --objective kept --idle-s 2 --rounds 3 "
                          "--server './srv --port {port}' --load './load {port}'",
    }, set()),
    "nothing that is kept": (replace(BUSY, end_kb=0), SERVER, 0, "", {}, {"memory at rest"}),
    "only what is inside": (STUCK, PROGRAM, 0, "", {
        "its own allocator's settings": "hztune --allocator inside -- ./prog 'a b'",
    }, {"speed", "allocators side by side"}),
    "nothing that can be changed": (
        replace(STUCK, inside=()), PROGRAM, 0, "", {}, {"less memory", "speed"},
    ),
}  # fmt: skip


def found_of(sight, program=PROGRAM, limit_kb=0):
    return [*ideas(program, sight, ("hz", "jemalloc"), limit_kb, is_limited=limit_kb > 0)]


@pytest.mark.parametrize("what", NAMED)
def test_what_was_seen_speaks_for_measurements_each_of_which_is_a_command(what):
    sight, program, limit_kb, first, commands, absent = NAMED[what]
    best = best_of(found_of(sight, program, limit_kb))
    found = {each.name: each.command for each in best}
    assert len(found) <= 3 and not absent & found.keys()
    assert next(iter(found), "") == first or not first
    assert {name: found.get(name) for name in commands} == commands


def test_of_a_server_only_what_its_load_does_is_counted():
    def told(count, more):
        return {"sizes": [[63, count], [127, more]], "threads": 1, "ends": count,
                "ends_by_others": more, "peak_bytes": 2**20}  # fmt: skip

    found = Sight(before_kb=60 * 1024, peak_kb=100 << 10, faults=10_340)
    found.enter(told(900, 90), told(700, 80))
    assert (found.allocations, found.sizes, found.frees, found.frees_by_others) == (
        210, ((63, 200), (127, 10)), 200, 10,
    )  # fmt: skip
    assert found.faults_again == 100


ASKED = {
    "what it prints": dict(metric_regex="rate=(.*)", lower_is_better=True, check="grep y"),
    "commands around it": dict(metric_cmd="tail -1", prepare="p 'q'", cleanup="c", warmup=0),
    "a container": dict(cpus=0.5, memory="512M", timeout=9.0),
    "rounds": dict(rests="^rest$", idle_s=0.5, rounds=4),
    "a server at a port": dict(server="s", load="l", ready_port=7, ready_timeout=90.0, idle_s=3.0),
}


@pytest.mark.parametrize("what", ASKED)
def test_a_command_to_paste_means_the_program_that_was_looked_at(what):
    program = api.program(() if "server" in ASKED[what] else ("x",), **ASKED[what])
    words = shlex.split(command(program))
    assert words[0] == "hztune"
    (again,) = programs_in(tuple(words[1:]))
    assert replace(again, rate=None) == replace(program, rate=None)


SPARE = replace(SIGHT, peak_kb=800 * 1024, end_kb=700 * 1024, faults=1_000_000)


@pytest.mark.parametrize("program", [
    api.program(("ls", "/"), rests="^rest$", idle_s=0.5, rounds=4),
    api.program(server="sleep {port}", load="true {port}"),
], ids=["a program", "a server"])  # fmt: skip
def test_every_study_that_is_named_can_be_asked_for(program, monkeypatch):
    monkeypatch.setattr("hztune.measure.insides.of_run", lambda program, most_s: ())
    found = [each.command for each in found_of(SPARE, program, limit_kb=1 << 20)]
    lines = [each for each in found if not each.startswith("hztune compare")]
    assert len(lines) == 3
    for line in lines:
        words = shlex.split(line)[1:]
        at = words.index("--") if "--" in words else len(words)
        assert status_of([*words[:at], "--dry-run", *words[at:]]) == 0


# ---- what is seen --------------------------------------------------------------------------------


def look(*words, seconds=5.0):
    return api.suggest(api.program(words), seconds=seconds)


def test_calls_threads_and_frees_by_other_threads_are_seen():
    words = (str(artifacts.bench()), "remote", "--threads", "2", "--ops", "200000")
    sight = look(*words).sight
    assert sight.allocator == "glibc" and sight.ended and sight.cpu_s > 0
    assert sight.unseen == "" and sight.allocations > 50_000
    assert sight.callers >= 2 and sight.by_others > 0.1
    assert sight.sizes[0][1] > 0 and sight.faults > 100 and sight.peak_kb > 1000


def test_a_program_that_goes_on_is_ended_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sight = look("sh", "-c", "ls / > /dev/null; sleep 60 & sleep 60", seconds=0.4).sight
    assert not sight.ended and sight.processes >= 2
    assert sight.unseen == "" and sight.allocations > 0
    assert processes_in(tmp_path) == [] and os.listdir(tmp_path) == []


FAILS = [
    ("echo no >&2; exit 3", "exit status 3: no"),
    ("kill -KILL $$", "SIGKILL"),
    ("kill -SEGV $$", "SIGSEGV"),
]


@pytest.mark.parametrize(("script", "said"), FAILS)
def test_of_a_program_that_fails_by_itself_nothing_is_suggested(script, said):
    with pytest.raises(HztuneError, match=f"fails by itself.*{said}"):
        look("sh", "-c", script)


def test_of_a_program_that_cannot_be_recorded_it_is_said_what_is_not_known(compiled):
    found = look(str(compiled("still", "int main(void) {return 0;}", "-static")))
    assert "static program" in found.sight.unseen and found.measurements == ()
    assert "not seen: it cannot be recorded" in "\n".join(api.suggestion_text(found))


ANSWERS = """
start, held = [bytes(900) for _ in range(60_000)], []
def answer():
    held[:] = [bytes(1000) for _ in range(20_000)]
    return b"done"
"""


def test_a_server_is_looked_at_under_its_load(tmp_path):
    found = api.suggest(serving(tmp_path, ANSWERS), seconds=3.0)
    assert found.sight.before_kb > 0 and found.sight.ended and found.sight.ports
    assert found.sight.unseen == "" and 20_000 < found.sight.allocations < 40_000
    assert found.sight.before_kb > 60_000_000 // 1024 and found.sight.faults < 15_000
    assert "memory at rest" in [each.name for each in found.measurements]
