"""Memory at rest, measured on real processes: what is kept, what is lazy, what leaks."""

from __future__ import annotations

import os
import shlex
import socket
import sys

import pytest
from msgspec import structs

from hztune.errors import HztuneError
from hztune.machine import Machine
from hztune.measure import disturbance
from hztune.measure.program import Metric, Program, Service
from hztune.measure.watch import MemoryWatch
from hztune.rests import RestPlan
from hztune.store.log import LocalStudy, recording

from .measured import CONTROL, FIRST, by_runs

pytestmark = pytest.mark.usefixtures("quiet_machine")

PLAN = RestPlan(idle_s=0.05, rounds=4, says="^at rest$")
RATE = Metric(r"rate=(\d+)", better="higher")
ROOM = """
import mmap, os, socket, sys
held, page = [], b"x" * 4096
def room(kb):
    block = mmap.mmap(-1, kb << 10, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, kb << 10, 4096):
        block[at:at + 4096] = page
    return block
"""
ROUNDS = """
for number in range({rounds}):
    burst = room(24 << 10)
    held.append(room(1024 * int(os.environ.get("KNOB_knob", 0)) or 4))
    {after}
    print("at rest", flush=True)
    sys.stdin.readline()
print("rate=1250")
"""
LAZY = "burst.madvise(mmap.MADV_FREE); held.append(burst) if not number else 0"


def program(after="burst.close()", rounds=4, plan=PLAN, **options):
    code = ROOM + ROUNDS.replace("{after}", after).replace("{rounds}", str(rounds))
    argv = (sys.executable, "-I", "-S", "-c", code)
    return Program(argv, **{"timeout_s": 30.0, "rest": plan, "seeks_kept": True, **options})


def rested(what, *arms, **options):
    outcomes = by_runs(what, *arms, **options).outcomes
    assert {(outcome.status, outcome.detail) for outcome in outcomes} == {("ok", "")}
    return [(outcome, outcome.rested) for outcome in outcomes if outcome.rested is not None]


def test_what_a_burst_took_is_in_the_peak_and_the_curve_and_is_not_kept(tmp_path):
    with LocalStudy(tmp_path, {"workload": "x"}, Machine.here()) as study:
        ((outcome, found),) = rested(program(), sink=study)
    (block,) = recording(tmp_path).blocks
    assert block.control.rested == found
    assert len(found.rounds) == PLAN.rounds
    assert found.kept_kb < outcome.rss_peak_kb - (20 << 10)
    assert found.points
    assert all(one.load_ms <= one.rest_ms <= one.end_ms for one in found.rounds)
    assert outcome.ops_per_s == pytest.approx(1.0 / found.kept_kb)


def test_the_time_of_a_run_is_that_of_its_loads_and_never_nothing(monkeypatch):
    ((outcome, found),) = rested(program(plan=structs.replace(PLAN, idle_s=0.3)))
    loads_ms = sum(one.rest_ms - one.load_ms for one in found.rounds)
    assert outcome.turns[0].counted_ns == pytest.approx(1e6 * loads_ms, abs=1e6)
    assert found.speed == pytest.approx(1e3 / loads_ms, rel=0.01)
    monkeypatch.setattr(MemoryWatch, "_now_ms", lambda watch: 0)
    monkeypatch.setattr(disturbance, "causes", lambda *args: "steal")
    ((outcome, found),) = rested(program(seeks_kept=False))
    assert found.speed == pytest.approx(1000.0)
    assert [turn.disturbed for turn in outcome.turns] == ["steal"]  # and it is not repeated


def test_pages_of_a_mapped_file_and_those_given_back_lazily_are_not_kept(tmp_path):
    mapped = tmp_path / "mapped"
    mapped.write_bytes(b"x" * (64 << 20))
    maps = (
        f"mapped = mmap.mmap(os.open({str(mapped)!r}, 0), 0, prot=mmap.PROT_READ); mapped[::4096]"
    )
    ((outcome, found),) = rested(program(f"burst.close(); {maps}"))
    assert outcome.rss_peak_kb > 64 << 10
    assert found.kept_kb < 32 << 10
    ((outcome, found),) = rested(program(LAZY))
    assert found.rounds[-1].lazy_kb > 20 << 10
    assert found.rounds[-1].kept_kb < outcome.rss_peak_kb - (20 << 10)


def test_a_leak_of_a_mebibyte_a_round_is_its_slope():
    (_, tight), (_, leaky) = rested(program(), CONTROL, FIRST)
    assert tight.slope_kb == pytest.approx(0, abs=100)
    assert leaky.slope_kb == pytest.approx(1024, abs=100)


def test_speed_can_be_sought_and_memory_at_rest_be_read_beside_it():
    ((outcome, found),) = rested(program(rate=RATE, seeks_kept=False))
    assert (outcome.ops_per_s, found.speed) == pytest.approx((1250, 1250))


def test_a_failure_says_what_the_program_did(monkeypatch):
    ends, plan = "print('at rest', flush=True); os._exit(3)", structs.replace(PLAN, idle_s=0.4)
    for what, status, detail in (
        (program("pass", rounds=2), "bad_output", "2 times"),
        (program(ends, plan=plan), "failed", "exit status 3"),
    ):
        outcome = by_runs(what).control
        assert (outcome.status, detail in outcome.detail) == (status, True), outcome.detail
    monkeypatch.setattr("hztune.measure.watch.tree_memory", lambda pid: (0, 0))
    with pytest.raises(HztuneError, match="the memory of the program may not be read"):
        by_runs(program())


SERVES = """
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


def test_a_server_is_loaded_and_rests_as_often_as_was_asked(tmp_path):
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "server.py").write_text(ROOM + SERVES)
    (tmp_path / "say.py").write_text(SAY)
    python = f"{shlex.quote(os.path.realpath(sys.executable))} -I -S {tmp_path}"
    what = Program(
        tuple(shlex.split(f"{python}/server.py {port}")),
        rate=RATE,
        timeout_s=20.0,
        service=Service(f"{python}/say.py {port}", port=port),
        rest=RestPlan(idle_s=0.05, rounds=4),
    )
    ((outcome, found),) = rested(what)
    assert found.slope_kb == pytest.approx(1024, abs=400)
    assert found.kept_kb < outcome.rss_peak_kb - (20 << 10)
    assert found.speed == pytest.approx(2500)  # the mean of its four loads
