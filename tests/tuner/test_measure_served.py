"""Servers by turns: server and load are one unit, and two of them live on ports of their own."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hztune.blocks import CPU_TIME
from hztune.errors import HztuneError
from hztune.machine import Machine
from hztune.measure import Arm, Block, Outcome, executors, whole
from hztune.measure.alternate import BY_TURNS, NumberReading, Pace, Stint
from hztune.measure.examine import Finding, Tryout
from hztune.measure.executors import executor_for
from hztune.measure.launch import Run
from hztune.measure.program import Program, can_have_networks, described
from hztune.measure.server import refuse_fixed_time

pytestmark = pytest.mark.usefixtures("quiet_machine")

CONTROL = Arm("none")
Believe = Callable[..., None]
PYTHON = f"{shlex.quote(os.path.realpath(sys.executable))} -I -S"
WORKS = """
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    connection, _ = server.accept()
    try:
        while word := connection.recv(9):
            if word == b"crash":
                raise SystemExit(3)
            connection.sendall(b"%d" % sum(range(20000)))
    except ConnectionError:  # a load that is told to end leaves an answer unread
        pass
"""
ASKS = """
import itertools, socket, sys, time
port, word, count, seconds = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
began, done = time.monotonic(), 0
try:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while done < count and time.monotonic() < began + seconds:
            connection.sendall(word.encode())
            if not connection.recv(99):
                raise SystemExit("it hung up")
            done += 1
except KeyboardInterrupt:
    pass
print("rate", done / (time.monotonic() - began))
"""
RATE = r"rate ([0-9.]+)"


class Told(list[str]):
    """What the user was told."""

    @property
    def text(self) -> str:
        return " | ".join(self)


class Place:
    """A server with its load, and what is measured of it."""

    def __init__(self, folder: Path) -> None:
        self.told = Told()
        self._folder = folder

    def script(self, text: str) -> str:
        path = self._folder / f"script-{len(text)}.py"
        path.write_text(text)
        return f"{PYTHON} {path}"

    def program(
        self, word: str = "work", count: int = 400, seconds: float = 60.0, **options: Any
    ) -> Program:
        load = f"{self.script(ASKS)} {{port}} {word} {count} {seconds}"
        usual = {"server": f"{self.script(WORKS)} {{port}}", "load": load, "timeout": 60.0}
        return described(**{**usual, **options})

    def measure(self, program: Program, arms: int = 2) -> Block:
        executor = executor_for([program], seed=1, machine=Machine.here(), say=self.told.append)
        return executor.measure([CONTROL] * arms, role="aa", rounds=1, number=0)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return Place(tmp_path)


def good(block: Block) -> list[Outcome]:
    assert [(each.status, each.detail) for each in block.outcomes] == [("ok", "")] * 2
    return list(block.outcomes)


@pytest.fixture
def believed(monkeypatch: pytest.MonkeyPatch) -> Believe:
    """Finds that turns are to be believed; what is found is another test's, on given numbers."""

    def believe(reading: NumberReading, span_s: float = 0.0) -> None:
        def finding(tryout: Tryout) -> Finding:
            tryout.turns.pace = Pace(10.0, max(os.sched_getaffinity(0)))
            tryout.turns.tell_load(span_s)
            return Finding("", tryout.turns.pace, reading)

        monkeypatch.setattr(Tryout, "finding", finding)

    return believe


def test_two_copies_of_a_server_are_measured_by_turns_for_their_own_cpu_time(
    place: Place, believed: Believe
) -> None:
    believed(NumberReading(per_server_cpu=True))
    for outcome in good(place.measure(place.program())):
        assert BY_TURNS in outcome.facts
        assert outcome.ops_per_s == pytest.approx(1e6 / outcome.facts[CPU_TIME], rel=1e-3)
        assert outcome.rss_peak_kb > 0
    assert "measured by turns" in place.told.text


def test_nothing_of_two_servers_is_left_behind(
    place: Place, believed: Believe, tmp_path: Path
) -> None:
    believed(NumberReading())
    program = place.program(prepare="echo {port} > {dir}/port && cp {dir}/port " + f"{tmp_path}")
    good(place.measure(program))
    port = int((tmp_path / "port").read_text())
    assert socket.socket().connect_ex(("127.0.0.1", port)) != 0
    assert [*tmp_path.glob("hztune-scratch-*")] == []


def test_a_rate_that_counts_standing_still_is_corrected_and_taken_per_cpu_time(
    place: Place, believed: Believe
) -> None:
    believed(NumberReading(counts_standing=True, per_server_cpu=True))
    for outcome in good(place.measure(place.program(count=800, metric_regex=RATE))):
        requests = outcome.ops_per_s * outcome.facts[CPU_TIME] * 1e-6
        assert requests >= 799.0  # the load's start counts as if it had asked then, too
    assert "corrected" in place.told.text


def test_a_load_that_never_ends_is_told_to(
    place: Place, believed: Believe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "LOAD_PATIENCE_S", 1.0)
    believed(NumberReading(), span_s=1.0)
    for outcome in good(place.measure(place.program(count=10**9, metric_regex=RATE))):
        assert BY_TURNS in outcome.facts
        assert outcome.ops_per_s > 0.0


@pytest.mark.slow
def test_a_load_of_a_fixed_time_that_prints_nothing_is_refused(place: Place) -> None:
    with pytest.raises(HztuneError, match="give --metric-regex"):
        place.measure(place.program(count=10**9, seconds=0.5))


def test_a_load_that_takes_longer_while_the_server_stands_still_is_no_fixed_time() -> None:
    refuse_fixed_time(1.0, 1.8, worked=1.0)
    refuse_fixed_time(1.0, 1.05, worked=1.0)  # the first time, something else took the CPU
    with pytest.raises(HztuneError, match="fixed number of requests"):
        refuse_fixed_time(1.0, 1.05, worked=0.5)


def with_fixed_port(place: Place, port: int, **options: Any) -> Program:
    """A server that wants the same port in each run."""
    usual = {
        "server": f"{place.script(WORKS)} {{port}}",
        "load": f"{place.script(ASKS)} {{port}} work 400 60",
    }
    words = {**usual, **options}
    fixed = {k: v.replace("{port}", str(port)) for k, v in words.items() if isinstance(v, str)}
    return place.program(**{**options, **fixed, "warmup": 0})


def test_without_networks_a_server_with_a_fixed_port_is_measured_by_runs_and_says_why(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "can_have_networks", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for outcome in good(place.measure(with_fixed_port(place, port, ready_port=port))):
        assert BY_TURNS not in outcome.facts
    assert f"cannot both have port {port}; write {{port}}" in place.told.text


FIXED = {
    "on loopback": 'socket.create_server(("127.0.0.1", int(sys.argv[1])))',
    "with an abstract socket": (
        'socket.create_server(("127.0.0.1", int(sys.argv[1])))\n'
        'other = socket.socket(socket.AF_UNIX)\nother.bind("\\0hztune-test-of-networks")'
    ),
}


@pytest.mark.skipif(not can_have_networks(), reason="this process may not make a network")
@pytest.mark.parametrize("listens", FIXED)
def test_two_copies_of_a_server_with_a_fixed_port_live_in_networks_of_their_own(
    place: Place, believed: Believe, listens: str
) -> None:
    """The port is in use outside, too, and that does not matter."""
    believed(NumberReading())
    asks = f"{PYTHON} -c 'import socket; socket.create_connection((\"127.0.0.1\", {{port}}))'"
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        by_command = {"ready": asks.format(port=port)}
        ready = by_command if listens == "on loopback" else {"ready_port": port}
        serves = WORKS.replace(FIXED["on loopback"], FIXED[listens])
        program = with_fixed_port(place, port, server=f"{place.script(serves)} {{port}}", **ready)
        for outcome in good(place.measure(program)):
            assert BY_TURNS in outcome.facts
    assert "has a network of its own" in place.told.text


@pytest.mark.skipif(not can_have_networks(), reason="this process may not make a network")
def test_a_server_that_needs_the_network_outside_is_measured_by_runs_and_says_why(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its load asks what listens outside of its network."""
    with socket.create_server(("127.0.0.1", 0)) as outside:
        beside = outside.getsockname()[1]
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        needs = f"{PYTHON} -c 'import socket; socket.create_connection((\"127.0.0.1\", {beside}))'"
        load = f"{needs} && {place.script(ASKS)} {{port}} work 400 60"
        program = with_fixed_port(place, port, ready_port=port, load=load)
        for outcome in good(place.measure(program)):
            assert BY_TURNS not in outcome.facts
    assert "in a network of its own, it fails by itself: --load" in place.told.text


def test_a_second_copy_that_shares_a_file_is_measured_by_runs(place: Place, tmp_path: Path) -> None:
    shares = (
        f"open({str(tmp_path / 'log')!r}, 'a').write\nheld = open({str(tmp_path / 'log')!r}, 'a')"
    )
    server = f"{place.script(shares + WORKS)} {{port}}"
    good(place.measure(place.program(server=server, warmup=0)))
    assert "two copies of it share the file" in place.told.text


FAILURES: dict[str, tuple[dict[str, Any], str, str]] = {
    "goes to the background": (
        {"server": "sh -c 'sleep 9 & echo {port}'"},
        "failed",
        "went to the background",
    ),
    "never listens": ({"server": "sleep 9{port}"}, "hang", "did not answer on port"),
    "ends under load": ({"word": "crash"}, "failed", "exit status 3"),
    "is put under a load that fails": ({"load": "echo {port} >&2; exit 5"}, "failed", "--load"),
    "is put under a load that hangs": (
        {"load": "echo {port}; while :; do :; done", "timeout": 0.3},
        "hang",
        "--load",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_by_turns_gets_its_name(place: Place, name: str) -> None:
    options, status, detail = FAILURES[name]
    outcome = place.measure(
        place.program(**{**options, "by": "turns", "warmup": 0, "ready_timeout": 1.0})
    ).control
    assert outcome.status == status
    assert detail in outcome.detail


def test_a_second_is_one_of_the_servers_own_where_that_is_compared() -> None:
    run = Run(None, wall_s=2.0, cpu_ns=2 * 10**9, server_cpu_ns=5 * 10**8)
    stint = Stint(0, 0, 0, 0, 4.0, run, 200, 200, 0, 1, 0.0, 1)
    assert NumberReading().rate(0.5, stint) == 0.5
    assert NumberReading(per_server_cpu=True).rate(0.5, stint) == 2.0  # one load in half a second
    assert NumberReading(counts_standing=True).rate(10.0, stint) == 20.0
    assert NumberReading(True, per_server_cpu=True).rate(10.0, stint) == 80.0  # 40 in half a second
