"""Memory at rest, measured on real processes: what is kept, what is lazy, what leaks."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hztune.allocator.live import Running
from hztune.blocks import Arm, Outcome
from hztune.errors import HztuneError, UsageError
from hztune.machine import Machine
from hztune.measure.disturbance import DisturbanceRule
from hztune.measure.identity import Fault
from hztune.measure.program import Metric, Program, Service, bench_program, described
from hztune.measure.watch import MemoryWatch, TreeMemory
from hztune.measure.whole import RunExecutor
from hztune.rests import RestPlan
from hztune.store.log import LocalStudy, recording
from hztune.workload import WorkloadSpec

pytestmark = pytest.mark.usefixtures("quiet_machine")

CONTROL = Arm("none")
LEAKS = Arm.of("any", {"knob": 1})
PLAN = RestPlan(idle_s=0.05, rounds=4, says="^at rest$")

ROUNDS = """
import mmap, os, sys
held, page = [], b"x" * 4096
def room(kb):
    block = mmap.mmap(-1, kb << 10, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, kb << 10, 4096):
        block[at:at + 4096] = page
    return block
for number in range(int(os.environ.get("ROUNDS", 4))):
    burst = room(24 << 10)
    held.append(room(1024 * int(os.environ.get("KNOB_knob", 0)) or 4))
    {after}
    print("at rest", flush=True)
    sys.stdin.readline()
print("rate=1250")
"""
FREES = "burst.close()"
GIVES_BACK_LAZILY = "burst.madvise(mmap.MADV_FREE); held.append(burst) if not number else 0"


class OpenProof:
    """Lets every arm run; its parameters become variables."""

    base = {"PATH": os.environ["PATH"]}  # noqa: RUF012

    def prepare(self, arm: Arm) -> dict[str, str] | Fault:
        return {f"KNOB_{name}": str(value) for name, value in arm.params}

    def program(self, arm: Arm) -> Path | None:
        return None

    def inspect(self, arm: Arm, running: Running) -> Fault | None:
        return None

    def judge(self, arm: Arm, library: str, stderr: str) -> Fault | None:
        return None


def program(after: str = FREES, plan: RestPlan = PLAN, **options: Any) -> Program:
    argv = (sys.executable, "-I", "-S", "-c", ROUNDS.replace("{after}", after))
    return Program(argv, **{"timeout_s": 30.0, "rest": plan, "seeks_kept": True, **options})


def measured(what: Program, *arms: Arm, sink: LocalStudy | None = None) -> tuple[Outcome, ...]:
    executor = RunExecutor(what, sink, seed=1, identity=OpenProof(), warmups=0)
    return executor.measure(arms or [CONTROL], role="search", rounds=1, number=0).outcomes


def test_what_a_burst_took_is_in_the_peak_and_the_curve_and_is_not_kept(tmp_path: Path) -> None:
    with LocalStudy(tmp_path, {"workload": "x"}, Machine.here()) as study:
        (outcome,) = measured(program(), sink=study)
    (block,) = recording(tmp_path).blocks
    rested = outcome.rested
    assert block.control.rested == rested
    assert outcome.status == "ok", outcome.detail
    assert rested is not None
    assert len(rested.rounds) == PLAN.rounds
    assert rested.kept_kb < outcome.rss_peak_kb - (20 << 10)
    assert rested.points
    assert all(one.load_ms <= one.rest_ms <= one.end_ms for one in rested.rounds)
    assert outcome.ops_per_s == pytest.approx(1.0 / rested.kept_kb)


def test_the_time_of_a_run_is_that_of_its_loads() -> None:
    (outcome,) = measured(program(plan=structs.replace(PLAN, idle_s=0.3)))
    assert outcome.rested is not None
    loads_ms = sum(one.rest_ms - one.load_ms for one in outcome.rested.rounds)
    assert outcome.turns[0].counted_ns == pytest.approx(1e6 * loads_ms, abs=1e6)
    assert outcome.rested.speed == pytest.approx(1e3 / loads_ms, rel=0.01)


def test_a_load_that_takes_no_time_has_a_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryWatch, "_now_ms", lambda watch: 0)
    (outcome,) = measured(program(seeks_kept=False))
    assert outcome.status == "ok", outcome.detail
    assert outcome.rested is not None and outcome.rested.speed == pytest.approx(1000.0)


def test_a_run_with_a_rest_is_not_repeated_where_its_load_was_disturbed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DisturbanceRule, "causes", lambda *args: "steal")
    (outcome,) = measured(program())
    assert [turn.disturbed for turn in outcome.turns] == ["steal"]


def test_pages_of_a_mapped_file_are_in_the_peak_and_are_not_kept(tmp_path: Path) -> None:
    mapped = tmp_path / "mapped"
    mapped.write_bytes(b"x" * (64 << 20))
    maps = (
        f"mapped = mmap.mmap(os.open({str(mapped)!r}, 0), 0, prot=mmap.PROT_READ); mapped[::4096]"
    )
    (outcome,) = measured(program(f"burst.close(); {maps}"))
    assert outcome.rested is not None
    assert outcome.rss_peak_kb > 64 << 10
    assert outcome.rested.kept_kb < 32 << 10


def test_a_leak_of_a_mebibyte_a_round_is_its_slope() -> None:
    tight, leaky = measured(program(), CONTROL, LEAKS)
    assert tight.rested is not None and leaky.rested is not None
    assert tight.rested.slope_kb == pytest.approx(0, abs=100)
    assert leaky.rested.slope_kb == pytest.approx(1024, abs=100)


def test_pages_that_are_given_back_lazily_are_not_kept_and_are_told() -> None:
    (outcome,) = measured(program(GIVES_BACK_LAZILY))
    assert outcome.rested is not None
    last = outcome.rested.rounds[-1]
    assert last.lazy_kb > 20 << 10
    assert last.kept_kb < outcome.rss_peak_kb - (20 << 10)


def test_speed_can_be_sought_and_memory_at_rest_be_read_beside_it() -> None:
    rate = Metric(r"rate=(\d+)", better="higher")
    (outcome,) = measured(program(rate=rate, seeks_kept=False))
    assert outcome.rested is not None
    assert outcome.ops_per_s == pytest.approx(1250)
    assert outcome.rested.speed == pytest.approx(1250)


FAILURES = {
    "a program that rests less often than was asked": ("", {"ROUNDS": 2}, "bad_output", "2 times"),
    "one that ends while it rests": (
        "print('at rest', flush=True); os._exit(3)",
        {},
        "failed",
        "exit status 3",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_says_what_the_program_did(name: str) -> None:
    after, changes, status, detail = FAILURES[name]
    code = ROUNDS.replace("{after}", after or "pass")
    for variable, value in changes.items():
        code = code.replace(f'os.environ.get("{variable}", 4)', str(value))
    argv = (sys.executable, "-I", "-S", "-c", code)
    plan = structs.replace(PLAN, idle_s=0.4)
    (outcome,) = measured(Program(argv, timeout_s=30.0, rest=plan))
    assert (outcome.status, detail in outcome.detail) == (status, True), outcome.detail


def test_memory_that_may_not_be_read_is_no_memory_of_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hztune.measure.watch.tree_memory", lambda pid: TreeMemory(0, 0))
    with pytest.raises(HztuneError, match="the memory of the program may not be read"):
        measured(program())


SERVER = """
import mmap, socket, sys
held, page = [], b"x" * 4096
def room(kb):
    block = mmap.mmap(-1, kb << 10, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, kb << 10, 4096):
        block[at:at + 4096] = page
    return block
server = socket.create_server(("localhost", int(sys.argv[1])))
while True:
    connection, _ = server.accept()
    if connection.recv(9):
        burst = room(24 << 10)
        held.append(room(1024))
        burst.close()
        connection.sendall(b"rate=%d" % (1000 * len(held)))
    connection.close()
"""
SAY = """
import socket, sys
with socket.create_connection(("localhost", int(sys.argv[1]))) as connection:
    connection.sendall(b"go")
    print(connection.recv(99).decode())
"""


@pytest.fixture
def port() -> Iterator[int]:
    """A port that is free now."""
    with socket.create_server(("localhost", 0)) as server:
        number: int = server.getsockname()[1]
    yield number


def test_a_server_is_loaded_and_rests_as_often_as_was_asked(tmp_path: Path, port: int) -> None:
    python = f"{shlex.quote(os.path.realpath(sys.executable))} -I -S"
    for name, text in (("server.py", SERVER), ("say.py", SAY)):
        (tmp_path / name).write_text(text)
    (outcome,) = measured(
        Program(
            (*shlex.split(python), str(tmp_path / "server.py"), str(port)),
            rate=Metric(r"rate=(\d+)", better="higher"),
            timeout_s=20.0,
            service=Service(f"{python} {tmp_path / 'say.py'} {port}", port=port),
            rest=RestPlan(idle_s=0.05, rounds=4),
        )
    )
    assert outcome.status == "ok", outcome.detail
    assert outcome.rested is not None
    assert outcome.rested.slope_kb == pytest.approx(1024, abs=400)
    assert outcome.rested.kept_kb < outcome.rss_peak_kb - (20 << 10)
    assert outcome.rested.speed == pytest.approx(2500)  # the mean of its four loads


@pytest.mark.parametrize("name", ["remote", "burst-idle"])
def test_a_workload_rests_with_its_threads_when_everything_is_freed(name: str) -> None:
    spec = WorkloadSpec.from_text(name, threads=2).resting(RestPlan(0.05, 3)).by("kept")
    executor = RunExecutor(bench_program(spec, seconds=0.1), seed=1, warmups=0)
    outcome = executor.measure([Arm("hz")], role="search", rounds=1, number=0).control
    assert outcome.status == "ok", outcome.detail
    assert outcome.rested is not None
    assert len(outcome.rested.rounds) == 3
    assert 0 < outcome.rested.kept_kb <= outcome.rss_peak_kb
    assert outcome.rested.speed > 1000.0


REFUSED = {
    "nothing says when it rests": ({}, "--rests REGEX"),
    "--by turns": ({"rests": "^x", "by": "turns"}, "by runs"),
    "an expression that is none": ({"rests": "("}, "no regular expression"),
    "no round": ({"rests": "^x", "rounds": 0}, "legal is a number from 1"),
    "a rest before a server's load": (
        {"server": "x {port}", "load": "y {port}", "rests": "^x"},
        "rests when its --load",
    ),
    "a time of rest without a rest": ({"idle_s": 2.0}, "--rests REGEX"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_measured_at_rest_is_refused_with_the_way_out(name: str) -> None:
    options, said = REFUSED[name]
    words = () if "server" in options else ("./program",)
    with pytest.raises(UsageError, match=said.replace("(", "\\(")):
        described(
            words,
            **{"rounds": 2, **options} if name != "a time of rest without a rest" else options,
        )


def test_a_trace_has_no_rest_of_its_own() -> None:
    spec = WorkloadSpec("trace:x.hzt", "abc", (), 1)
    with pytest.raises(UsageError, match="not measured of a trace"):
        spec.by("kept")
