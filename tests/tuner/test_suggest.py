"""`hztune suggest`: what is seen of a program, which measurements are named, and why."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hztune import api, artifacts
from hztune.cli import status_of
from hztune.cli.verify import programs_in
from hztune.errors import HztuneError, UsageError
from hztune.machine import Machine
from hztune.measure.program import Program
from hztune.profile import MachineId, WorkloadId, dumps, hash_of_words
from hztune.suggest.ideas import Case, command, ideas, suggestions
from hztune.suggest.sight import Calls, Sight

from .conftest import MakeProfile, processes_in

Compile = Callable[..., Path]
Run = Callable[..., "subprocess.CompletedProcess[str]"]

CALLS = Calls(
    allocations=1_000_000,
    seconds=1.0,
    sizes=((63, 900_000), (4095, 100_000)),
    threads=1,
    frees=1_000_000,
    frees_by_others=0,
    peak_kb=90 * 1024,
    is_part=False,
)
SIGHT = Sight(
    wall_s=1.0,
    ended=True,
    cpu_s=1.0,
    delay_s=0.0,
    life_cpu_s=1.0,
    processes=1,
    threads=1,
    faults=25_000,
    peak_kb=100 * 1024,
    end_kb=100 * 1024,
    before_kb=0,
    allocator="glibc",
    provider="/lib/libc.so.6",
    inside=(),
    links=("libc.so.6",),
    obstacle="",
    gains_rights=False,
    is_of_go=False,
    dropped=(),
    ports=(),
    calls=CALLS,
    unseen="",
)
"""It works all of the time, 5 % of it in its allocator, with little memory to save."""

PROGRAM = api.program(("./prog", "a b"))
SERVER = api.program(server="./srv --port {port}", load="./load {port}")


def named(sight: Sight = SIGHT, program: Program = PROGRAM, limit_kb: int = 0) -> dict[str, str]:
    """The measurements that are named, in order, with the command of each."""
    case = Case(program, sight, ("hz", "jemalloc"), limit_kb, is_limited=limit_kb > 0)
    return {each.name: each.command for each in suggestions(case)}


# ---- what is named -------------------------------------------------------------------------------


def test_three_measurements_are_named_each_as_a_command() -> None:
    found = named()
    assert len(found) == 3
    assert found["speed"] == "hztune -- ./prog 'a b'"
    assert found["allocators side by side"] == "hztune compare none hz jemalloc -- ./prog 'a b'"


def test_every_reason_is_one_sentence_without_a_claim() -> None:
    for sight in (SIGHT, replace(SIGHT, inside=("inside:jemalloc",)), replace(SIGHT, calls=None)):
        for each in suggestions(Case(PROGRAM, sight, ("hz",), 1 << 20, is_limited=True)):
            assert len(each.reason) > 20 and "\n" not in each.reason
            assert not re.search(r"\b(faster|better|will|gains?)\b", each.reason)


def test_frees_by_other_threads_bring_the_allocators_side_by_side_first() -> None:
    handed = replace(CALLS, frees_by_others=900_000, threads=4)
    assert next(iter(named(replace(SIGHT, threads=4, calls=handed)))) == "allocators side by side"


def test_memory_that_is_faulted_in_again_and_again_speaks_for_glibcs_settings() -> None:
    large = replace(CALLS, allocations=2_000, sizes=((8_388_607, 2_000),))
    found = named(replace(SIGHT, faults=1_000_000, calls=large))
    assert found["glibc's settings"] == "hztune --allocator glibc -- ./prog 'a b'"
    assert "glibc's settings" not in named(replace(SIGHT, faults=25_000, calls=large))


def test_much_memory_that_belongs_to_no_block_speaks_for_a_limit() -> None:
    spare = replace(SIGHT, peak_kb=180 * 1024, faults=45_000)
    assert next(iter(named(spare))) == "less memory"
    assert named(spare)["less memory"] == "hztune --max-rss 0.8x -- ./prog 'a b'"


def test_memory_that_a_program_maps_for_itself_speaks_for_no_limit() -> None:
    jvm = replace(SIGHT, peak_kb=900 * 1024, faults=225_000, calls=replace(CALLS, peak_kb=30_000))
    case = Case(PROGRAM, jvm, ("hz",), 0, is_limited=False)
    assert suggestions(case)[0].name != "less memory"
    told = {each.name: each.reason for each in ideas(case)}
    assert told["less memory"].endswith("; most of it, the program maps for itself")


def test_of_a_server_only_what_its_load_does_is_counted() -> None:
    def told(count: int, more: int) -> dict[str, object]:
        return {
            "sizes": [[63, count], [127, more]], "duration_ns": 10**9, "threads": 1, "ends": count,
            "ends_by_others": more, "peak_bytes": 2**20, "is_part": False,
        }  # fmt: skip

    calls = Calls.of(told(900, 90), told(700, 80))
    assert (calls.allocations, calls.sizes, calls.frees, calls.frees_by_others) == (
        210, ((63, 200), (127, 10)), 200, 10,
    )  # fmt: skip
    sight = replace(SIGHT, before_kb=60 * 1024, faults=10_340)
    assert sight.faults_again == 100


def test_a_program_that_listens_and_goes_on_is_asked_for_as_a_server() -> None:
    found = named(replace(SIGHT, ended=False, ports=("the port 6379",)))
    assert next(iter(found.items())) == (
        "as a server",
        "hztune suggest --server './prog '\"'\"'a b'\"'\"'' --ready-port 6379 --load 'YOUR LOAD'",
    )


def test_a_long_run_speaks_for_a_trace_and_a_short_one_does_not() -> None:
    found = named(replace(SIGHT, wall_s=60.0, cpu_s=60.0, life_cpu_s=60.0, peak_kb=10_000))
    line = "hztune record -o prog.trace -- ./prog 'a b' && hztune --workload trace:prog.trace "
    assert found["speed, searched on a trace"].startswith(line + "--prove-on")
    assert "speed, searched on a trace" not in named()


def test_a_server_that_keeps_its_burst_speaks_for_memory_at_rest() -> None:
    kept = replace(SIGHT, peak_kb=300 * 1024, before_kb=10 * 1024, end_kb=290 * 1024)
    found = named(kept, SERVER)
    assert next(iter(found)) == "memory at rest"
    assert found["memory at rest"] == (
        "hztune --objective kept --idle-s 2 --rounds 3 --server './srv --port {port}' "
        "--load './load {port}'"
    )
    gone = replace(kept, end_kb=12 * 1024)
    assert next(iter(named(gone, SERVER))) != "memory at rest"


def test_of_three_measurements_one_is_about_memory_where_that_is_worth_it() -> None:
    busy = replace(CALLS, allocations=9_000_000)
    kept = replace(SIGHT, calls=busy, inside=("inside:jemalloc",), end_kb=60 * 1024, before_kb=1)
    assert list(named(kept, SERVER))[2] == "memory at rest"
    assert "memory at rest" not in named(replace(kept, end_kb=0), SERVER)


def test_a_container_that_is_nearly_full_speaks_for_the_smallest_one() -> None:
    assert next(iter(named(limit_kb=128 * 1024))) == "the smallest container"
    assert "the smallest container" not in named(limit_kb=8 << 20)


def test_under_a_program_that_takes_no_allocator_only_what_is_inside_is_measured() -> None:
    stuck = replace(SIGHT, obstacle="it is a static program", inside=("inside:jemalloc",))
    found = named(stuck)
    assert found["its own allocator's settings"] == "hztune --allocator inside -- ./prog 'a b'"
    assert "speed" not in found and "allocators side by side" not in found
    assert list(named(replace(stuck, inside=()))) == ["another build"]


def test_of_a_program_that_gains_rights_a_copy_is_measured() -> None:
    found = named(replace(SIGHT, obstacle="it is set-uid", gains_rights=True))
    assert found == {
        "a copy without rights": "cp ./prog ./prog-copy && hztune -- ./prog-copy 'a b'"
    }


def test_a_program_that_waits_is_told_that_less_cpu_time_hardly_shortens_it() -> None:
    idle = replace(SIGHT, wall_s=10.0)
    case = Case(PROGRAM, idle, ("hz",), 0, is_limited=False)
    reason = next(each.reason for each in suggestions(case) if each.name == "speed")
    assert "it works 10 % of the time" in reason
    kept_from_it = replace(idle, delay_s=9.0)
    case = replace(case, sight=kept_from_it)
    reason = next(each.reason for each in suggestions(case) if each.name == "speed")
    assert "of the time" not in reason


ASKED = {
    "a program": PROGRAM,
    "what it prints": api.program(
        ("x",), metric_regex="rate=(.*)", lower_is_better=True, check="grep y"
    ),
    "commands around it": api.program(
        ("x",), metric_cmd="tail -1", prepare="p 'q'", cleanup="c", warmup=0
    ),
    "a container": api.program(("x",), cpus=0.5, memory="512M", timeout=9.0),
    "rounds": api.program(("x",), rests="^rest$", idle_s=0.5, rounds=4),
    "turns": api.program(("x",), by="turns"),
    "a server": api.program(server="s {port}", load="l {port}", ready="r {port}"),
    "a server at a port": api.program(
        server="s", load="l", ready_port=7, ready_timeout=90.0, idle_s=3.0
    ),
}


@pytest.mark.parametrize("what", ASKED)
def test_a_command_to_paste_means_the_program_that_was_looked_at(what: str) -> None:
    program = ASKED[what]
    words = shlex.split(command(program))
    assert words[0] == "hztune"
    (again,) = programs_in(tuple(words[1:]))
    assert replace(again, rate=None) == replace(program, rate=None)


RESTING = api.program(("ls", "/"), rests="^rest$", idle_s=0.5, rounds=4)
LOADED = api.program(server="sleep {port}", load="true {port}")
SPARE = replace(SIGHT, peak_kb=800 * 1024, end_kb=700 * 1024, faults=1_000_000)


@pytest.mark.parametrize("program", [RESTING, LOADED], ids=["a program", "a server"])
def test_every_study_that_is_named_can_be_asked_for(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hztune.measure.insides.of_run", lambda program, most_s: ())
    monkeypatch.setattr("hztune.suggest.ideas.MOST", 99)
    found = named(SPARE, program, limit_kb=1 << 20)
    lines = [each for each in found.values() if not each.startswith("hztune compare")]
    assert len(lines) == 6
    for line in lines:
        words = shlex.split(line)[1:]
        at = words.index("--") if "--" in words else len(words)
        assert status_of([*words[:at], "--dry-run", *words[at:]]) == 0


# ---- what is seen --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bench_words() -> tuple[str, ...]:
    return (str(artifacts.bench()), "remote", "--threads", "2", "--ops", "200000")


def look(*words: str, seconds: float = 5.0) -> Sight:
    return api.suggest(api.program(words), seconds=seconds, profiles="none").sight


def test_calls_threads_and_frees_by_other_threads_are_seen(bench_words: tuple[str, ...]) -> None:
    sight = look(*bench_words)
    assert sight.allocator == "glibc" and sight.ended and sight.cpu_s > 0
    assert sight.calls is not None and sight.calls.allocations > 50_000
    assert sight.calls.threads >= 2 and sight.calls.by_others > 0.1
    assert sight.calls.sizes[0][1] > 0 and sight.faults > 100 and sight.peak_kb > 1000


def test_a_program_that_goes_on_is_ended_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sight = look("sh", "-c", "ls / > /dev/null; sleep 60 & sleep 60", seconds=0.4)
    assert not sight.ended and sight.processes >= 2
    assert sight.calls is not None and sight.calls.allocations > 0
    assert processes_in(tmp_path) == [] and os.listdir(tmp_path) == []


FAILS = {
    "fails": ("echo no >&2; exit 3", "exit status 3: no"),
    "is killed": ("kill -KILL $$", "SIGKILL"),
    "crashes": ("kill -SEGV $$", "SIGSEGV"),
}


@pytest.mark.parametrize("what", FAILS)
def test_of_a_program_that_fails_by_itself_nothing_is_suggested(what: str) -> None:
    script, said = FAILS[what]
    with pytest.raises(HztuneError, match=f"fails by itself.*{said}"):
        look("sh", "-c", script)


def test_a_program_that_drops_its_environment_is_named() -> None:
    sight = look("sh", "-c", "env -i sleep 0.3")
    assert "sleep" in sight.dropped
    text = "\n".join(api.suggestion_text(api.suggest(
        api.program(("sh", "-c", "env -i sleep 0.3")), seconds=2.0)))  # fmt: skip
    assert "environment dropped for" in text


def test_of_a_static_program_it_is_said_what_cannot_be_known(compiled: Compile) -> None:
    found = api.suggest(api.program((str(compiled("still", "int main(void) {return 0;}",
                                                  "-static")),)))  # fmt: skip
    assert found.sight.calls is None and "static program" in found.sight.unseen
    assert [each.name for each in found.measurements] == ["another build"]
    assert "not seen: it cannot be recorded" in "\n".join(api.suggestion_text(found))


def test_of_a_program_of_go_nothing_is_suggested(compiled: Compile) -> None:
    text = 'const char built[] = "\\377 Go buildinf:"; int main(void) {return !built[0];}'
    found = api.suggest(api.program((str(compiled("gone", text, "-static")),)))
    assert found.measurements == () and "own runtime" in found.sight.obstacle


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_of_a_set_uid_program_a_copy_is_suggested(tmp_path: Path) -> None:
    gains = tmp_path / "gains"
    shutil.copy("/bin/true", gains)
    os.chown(gains, 12345, -1)
    gains.chmod(0o4755)
    found = api.suggest(api.program((str(gains),)))
    assert found.sight.calls is None and "gains rights" in found.sight.unseen
    assert [each.name for each in found.measurements] == ["a copy without rights"]


SERVE = """
import socket, sys
start = [bytes(900) for _ in range(60_000)]
server = socket.create_server(("localhost", int(sys.argv[1])))
while True:
    connection, _ = server.accept()
    if connection.recv(9):
        held = [bytes(1000) for _ in range(20_000)]
        connection.sendall(b"done")
    connection.close()
"""
LOAD = """
import socket, sys
with socket.create_connection(("localhost", int(sys.argv[1]))) as connection:
    connection.sendall(b"hello")
    connection.recv(9)
"""


def test_a_server_is_looked_at_under_its_load(tmp_path: Path) -> None:
    for name, text in {"serve.py": SERVE, "load.py": LOAD}.items():
        (tmp_path / name).write_text(text)
    python = f"{shlex.quote(os.path.realpath(sys.executable))} -I -S"
    server = api.program(
        server=f"{python} {tmp_path}/serve.py {{port}}",
        load=f"{python} {tmp_path}/load.py {{port}}",
    )
    found = api.suggest(server, seconds=3.0)
    assert found.sight.before_kb > 0 and found.sight.ended and found.sight.ports
    assert found.sight.calls is not None and 20_000 < found.sight.calls.allocations < 40_000
    assert found.sight.before_kb > 60_000_000 // 1024 and found.sight.faults < 15_000
    assert "memory at rest" in [each.name for each in found.measurements]


# ---- what is known already -----------------------------------------------------------------------


def test_profiles_of_this_machine_are_offered(
    tmp_path: Path, make_profile: MakeProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    here = MachineId.of(Machine.here())
    words = ("sh", "-c", "ls / > /dev/null")
    own = WorkloadId("program", "sh", "", {}, hash_of_words(words))
    (tmp_path / "own.json").write_text(dumps(make_profile(workload=own, machine=here)))
    (tmp_path / "other.json").write_text(dumps(make_profile(machine=here)))
    (tmp_path / "elsewhere.json").write_text(dumps(make_profile()))
    known = api.suggest(api.program(words), profiles=tmp_path).earlier
    assert [each.command for each in known] == [
        f"hztune verify {tmp_path}/own.json -- sh -c 'ls / > /dev/null'",
        f"hztune compare none {tmp_path}/other.json -- sh -c 'ls / > /dev/null'",
    ]
    assert known[0].what.startswith("a profile of this command of 2026-01-31: improved, 1.140x")


def test_a_folder_without_profiles_offers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "broken.json").write_text("{")
    assert api.suggest(api.program(("ls", "/")), profiles=tmp_path).earlier == ()
    assert api.suggest(api.program(("ls", "/")), profiles=tmp_path / "missing").earlier == ()


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_prints_what_the_function_found(hztune: Run) -> None:
    done = hztune("suggest", "--for", "3s", "--", "ls", "/")
    assert done.returncode == 0, done.stderr
    assert "worth measuring, the first one most:\n1. " in done.stdout
    assert done.stdout.rstrip().endswith("nothing was compared, and nothing is claimed.")


def test_a_killed_look_leaves_no_process_behind(core_build: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "hztune", "suggest", "--quiet", "--", "sh", "-c", "sleep 60"]
    variables = {**os.environ, "HZTUNE_CORE": str(core_build)}
    with subprocess.Popen(words, cwd=tmp_path, env=variables) as looking:
        while looking.poll() is None and len(processes_in(tmp_path)) < 4:
            time.sleep(0.02)
        looking.kill()
    deadline = time.monotonic() + 30.0
    while processes_in(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes_in(tmp_path) == []


def test_the_command_prints_json(hztune: Run) -> None:
    found = json.loads(hztune("suggest", "--json", "--", "ls", "/").stdout)
    assert found["program"] == "ls" and found["sight"]["calls"]["allocations"] > 10
    assert len(found["measurements"]) == 3
    assert {"name", "command", "reason", "weight", "about"} == found["measurements"][0].keys()


WRONG = {
    "nothing to look at": ([], "there is nothing to look at: hztune suggest -- ./program"),
    "words without dashes": (["ls"], "'ls' is no command of hztune"),
    "no such program": (["--", "/nonexistent/x"], "there is no program '/nonexistent/x'"),
    "no time": (["--for", "soon", "--", "ls"], "--for 'soon': legal is a number with s, m or h"),
    "too long a time": (["--for", "2h", "--", "ls"], "--for is 7200.0; legal is a number from"),
    "no folder": (["--profiles", "/nonexistent", "--", "ls"], "--profiles '/nonexistent' is no"),
    "two programs": (["--command", "a=ls", "--command", "b=ls"], "give one program"),
    "a load without a server": (["--load", "x", "--", "ls"], "need --server COMMAND"),
    "a server without a load": (["--server", "x"], "--server needs --load COMMAND"),
    "an open program": (["--", "{}", "x"], "stands for the contenders"),
    "an unknown option": (["--fro", "3s", "--", "ls"], "No such option"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_bad_command_line_gets_its_sentence(what: str, hztune_here: Run) -> None:
    words, said = WRONG[what]
    done = hztune_here("suggest", *words)
    assert done.returncode == 2 and done.stdout == ""
    assert (
        said in done.stderr and done.stderr.startswith("hztune: ") and done.stderr.count("\n") == 1
    )


def test_a_server_that_does_not_start_is_an_error_with_the_reason() -> None:
    server = api.program(server="sh -c 'echo no >&2; exit 4'", load="true", ready="false")
    with pytest.raises(HztuneError, match=r"fails by itself.*no"):
        api.suggest(server)


def test_a_time_that_is_not_legal_runs_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--for is 0\.1; legal is a number from 0.2 to 60"):
        api.suggest(api.program(("touch", str(tmp_path / "ran"))), seconds=0.1)
    assert os.listdir(tmp_path) == []
