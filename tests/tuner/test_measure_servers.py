"""Servers: started afresh for each run, put under load, proved, stopped; nothing is left behind.

By runs one lives at a time; by turns server and load are one unit, and two of them live at once.
"""

from __future__ import annotations

import math
import os
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from hztune.blocks import CPU_TIME, Arm
from hztune.errors import HztuneError, UsageError
from hztune.machine import Machine
from hztune.measure import examine, executors
from hztune.measure.alternate import BY_TURNS, AlternateExecutor, NumberReading
from hztune.measure.executors import executor_for
from hztune.measure.launch import Run
from hztune.measure.program import Program, Service, can_have_networks, described
from hztune.measure.server import with_port_and_dir
from hztune.measure.whole import RunExecutor

from .measured import CONTROL, PINNED, PYTHON

pytestmark = pytest.mark.usefixtures("quiet_machine")

NETWORKS = pytest.mark.skipif(not can_have_networks(), reason="this process makes no networks")
LISTENS = 'socket.create_server(("127.0.0.1", int(sys.argv[1])))'
WORKS = f"""
import os, socket, sys
held = bytearray(24 << 20)
server = {LISTENS}
while True:
    connection, _ = server.accept()
    try:
        while word := connection.recv(9):
            if word == b"crash":
                os.abort()
            connection.sendall(b"%d" % sum(range(20000)))
    except ConnectionError:  # a load that is told to end leaves an answer unread
        pass
"""
ASKS = """
import signal, socket, sys, time
port, word, count, seconds = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
told = []
signal.signal(signal.SIGINT, lambda *_: told.append(True))
began, done = time.monotonic(), 0
with socket.create_connection(("127.0.0.1", port)) as connection:
    while not done or (not told and done < count and time.monotonic() < began + seconds):
        connection.sendall(word.encode())
        if not connection.recv(99):
            raise SystemExit("it hung up")
        done += 1
print("rate", done / (time.monotonic() - began), "done", done)
"""
RATE = r"rate ([0-9.]+)"
ASK_PORT = "{python} -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}))'"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return port


class Place:
    """A server with its load, and what is measured of it."""

    def __init__(self, folder):
        self.told = []
        self._folder = folder

    def script(self, text):
        path = self._folder / f"script-{len(text)}.py"
        path.write_text(text)
        return f"{PYTHON} {path}"

    def program(self, word="work", count=400, port="{port}", **options):
        """The server, with another command, code, load or port of its own."""
        code, seconds = options.pop("code", WORKS), options.pop("seconds", 60.0)
        load = f"{self.script(ASKS)} {port} {word} {count} {seconds}"
        usual = {"server": f"{self.script(code)} {port}", "load": load, "timeout": 60.0}
        return described(**{**usual, **options})

    def runs(self, arm=CONTROL, **options):
        """What two runs show."""
        player = RunExecutor(self.program(**options), seed=1, warmups=0)
        return player.measure([arm], role="search", rounds=2, number=0).control

    def block(self, **options):
        """Two copies, measured as is found out to be right."""
        program = self.program(**options)
        player = executor_for([program], seed=1, machine=Machine.here(), say=self.told.append)
        return player.measure([CONTROL] * 2, role="aa", rounds=1, number=0)

    def measured(self, **options):
        """Whether that was by turns, and what the copies showed, which is well."""
        found = self.block(**options).outcomes
        assert [(each.status, each.detail) for each in found] == [("ok", "")] * 2
        return all(BY_TURNS in each.facts for each in found), [*found]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return Place(tmp_path)


@pytest.fixture
def believed(monkeypatch):
    """Finds that turns are to be believed; what is found is another test's, on given numbers."""

    def believe(reading, span_s=0.0):
        def finding(tryout):
            tryout.turns.pace = PINNED
            tryout.turns.tell_load(span_s)
            return examine.Finding("", PINNED, reading)

        monkeypatch.setattr(examine.Tryout, "finding", finding)

    return believe


# ---- by runs -------------------------------------------------------------------------------------


def test_the_load_is_measured_and_the_memory_of_the_server_and_a_command_says_it_is_ready(place):
    port = free_port()
    ready = f"{place.script(ASKS)} {port} ready 1 9"
    outcome = place.runs(metric_regex=r"done (\d+)", port=str(port), ready=ready)
    assert (outcome.status, outcome.detail, len(outcome.turns)) == ("ok", "", 2)
    assert outcome.ops_per_s == pytest.approx(400)
    assert outcome.rss_peak_kb > 24 << 10
    assert socket.socket().connect_ex(("127.0.0.1", port)) != 0  # nothing is left


def test_the_server_runs_under_the_candidate_and_the_load_does_not(place):
    bare = "env; : {port}", "! grep -E 'LD_PRELOAD|HZ_|MALLOC_CONF'"
    checked = place.runs(Arm("hz"), load=bare[0], check=bare[1])
    assert (checked.status, checked.detail) == ("ok", "")
    again = "if os.environ.pop('LD_PRELOAD', 0): os.execv(sys.executable, sys.orig_argv)"
    starts_itself = f"import os, sys\n{again}{WORKS}"
    outcome = place.runs(Arm("tcmalloc"), code=starts_itself, load="sleep 0.3; : {port}")
    assert outcome.status == "wrong_allocator"


def test_a_port_that_is_taken_ends_the_study_with_the_reason(place):
    with (
        socket.create_server(("localhost", 0)) as taken,
        pytest.raises(HztuneError, match="answers on port"),
    ):
        port = taken.getsockname()[1]
        place.runs(port=str(port), ready_port=port)


FORKS = f"import os\nif os.fork(): os._exit(0)\n{WORKS}"
ELSEWHERE = WORKS.replace("int(sys.argv[1])", "0")
LATE = "within 1 s; a longer --ready-timeout is waited for"
ENDLESS = {"load": "echo {port}; while :; do :; done", "timeout": 0.3}
FAILURES = {
    "goes to the background": ({"code": FORKS}, "failed", "went to the background"),
    "listens elsewhere": ({"code": ELSEWHERE}, "hang", "s; it listens on the port "),
    "never listens": ({"code": "import time; time.sleep(3600)"}, "hang", LATE),
    "crashes under load": ({"word": "crash"}, "crash", "SIGABRT"),
    "ends before it answers": ({"code": "raise SystemExit(3)"}, "failed", "exit status 3"),
    "is put under a load that fails": ({"load": "echo {port} >&2; exit 5"}, "failed", "--load"),
    "is put under a load that hangs": (ENDLESS, "hang", "--load"),
    "answers wrongly": ({"check": "grep right"}, "bad_output", "--check"),
}


@pytest.mark.parametrize("by", ["runs", "turns"])
@pytest.mark.parametrize(("options", "status", "detail"), FAILURES.values(), ids=FAILURES)
def test_a_failure_gets_its_name(place, options, status, detail, by):
    program = place.program(**{**options, "ready_timeout": 1.0})
    player = {"runs": RunExecutor, "turns": AlternateExecutor}[by](program, seed=1, warmups=0)
    outcome = player.measure([CONTROL], role="search", rounds=1, number=0).control
    assert outcome.status == status
    assert detail in outcome.detail


# ---- by turns ------------------------------------------------------------------------------------


def test_two_copies_of_a_server_are_measured_by_turns_for_their_own_cpu_time_and_leave_nothing(
    place, believed, tmp_path
):
    believed(NumberReading(per_server_cpu=True))
    note = "echo {port} > {dir}/port && cp {dir}/port " + f"{tmp_path}"
    is_by_turns, outcomes = place.measured(prepare=note)
    for outcome in outcomes:
        assert outcome.ops_per_s == pytest.approx(1e6 / outcome.facts[CPU_TIME], rel=1e-3)
        assert outcome.rss_peak_kb > 0
    assert is_by_turns and "measured by turns" in " ".join(place.told)
    port = int((tmp_path / "port").read_text())
    assert socket.socket().connect_ex(("127.0.0.1", port)) != 0
    assert [*tmp_path.glob("hztune-*")] == []


def test_a_rate_that_counts_standing_still_is_corrected_and_taken_per_cpu_time(place, believed):
    believed(NumberReading(counts_standing=True, per_server_cpu=True))
    for outcome in place.measured(count=800, metric_regex=RATE)[1]:
        requests = outcome.ops_per_s * outcome.facts[CPU_TIME] * 1e-6
        assert requests >= 799.0  # the load's start counts as if it had asked then, too
    assert "corrected" in " ".join(place.told)
    run = Run(None, wall_s=2.0, cpu_ns=2 * 10**9, server_cpu_ns=5 * 10**8, alive_s=4.0)
    assert NumberReading().rate(0.5, run) == 0.5
    assert NumberReading(per_server_cpu=True).rate(0.5, run) == 2.0  # one load in half a second
    assert NumberReading(counts_standing=True).rate(10.0, run) == 20.0
    assert NumberReading(True, per_server_cpu=True).rate(10.0, run) == 80.0  # 40 in half a second


def test_a_load_that_never_ends_is_told_to(place, believed, monkeypatch):
    monkeypatch.setattr(examine, "LOAD_PATIENCE_S", 1.0)
    monkeypatch.setattr(examine, "LOAD_SPAN_S", 0.8)
    believed(NumberReading(), span_s=1.0)
    for by in ("", "runs"):
        is_by_turns, outcomes = place.measured(count=10**9, metric_regex=RATE, by=by, warmup=0)
        assert is_by_turns == (by == "")
        assert all(outcome.ops_per_s > 0.0 for outcome in outcomes)


@pytest.mark.parametrize("kind", [RunExecutor, AlternateExecutor])
def test_a_load_that_misses_the_word_to_end_is_told_again(place, kind):
    """As Python does in its start, now and then; this one always misses the first."""
    load = "trap 'trap \"echo rate 5; exit\" INT' INT; while :; do sleep 0.01; done; : {port}"
    player = kind(place.program(load=load, metric_regex=RATE), seed=1, warmups=0)
    player.tell_load(0.3)
    outcome = player.measure([CONTROL], role="search", rounds=1, number=0).control
    assert (outcome.status, outcome.detail) == ("ok", "")


def test_a_load_of_a_fixed_time_is_refused_by_runs_too(place, monkeypatch):
    """What tells it from others is tested on given times (test_measure_examine.py)."""
    for border in ("_LONGER", "_LESS"):
        monkeypatch.setattr(examine, border, math.inf)
    with pytest.raises(HztuneError, match="fixed number of requests"):
        place.block(by="runs", count=10**9, seconds=0.3)


def test_without_networks_a_server_with_a_fixed_port_is_measured_by_runs_and_says_why(
    place, monkeypatch
):
    monkeypatch.setattr(executors, "can_have_networks", lambda: False)
    port = free_port()
    is_by_turns, _ = place.measured(port=str(port), ready_port=port, warmup=0)
    assert not is_by_turns
    assert f"cannot both have port {port}; write {{port}}" in " ".join(place.told)


@NETWORKS
@pytest.mark.parametrize("has_abstract_socket", [False, True])
def test_two_copies_of_a_server_with_a_fixed_port_live_in_networks_of_their_own(
    place, believed, has_abstract_socket
):
    """The port is in use outside, too, and that does not matter."""
    believed(NumberReading())
    also = 'other = socket.socket(socket.AF_UNIX)\nother.bind("\\0hztune-test-of-networks")'
    code = WORKS.replace(LISTENS, f"{LISTENS}\n{also}") if has_abstract_socket else WORKS
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        ready = {"ready": ASK_PORT.format(python=PYTHON, port=port)}
        how = {"ready_port": port} if has_abstract_socket else ready
        is_by_turns, _ = place.measured(port=str(port), code=code, warmup=0, **how)
    assert is_by_turns and "has a network of its own" in " ".join(place.told)


@NETWORKS
def test_a_server_that_needs_the_network_outside_is_measured_by_runs_and_says_why(place):
    """Its load asks what listens outside of its network."""
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as outside:
        needs = ASK_PORT.format(python=PYTHON, port=outside.getsockname()[1])
        load = f"{needs} && {place.script(ASKS)} {port} work 400 60"
        is_by_turns, _ = place.measured(port=str(port), ready_port=port, load=load, warmup=0)
    assert not is_by_turns
    assert "in a network of its own, it fails by itself: --load" in " ".join(place.told)


# ---- a port and a directory ----------------------------------------------------------------------

PROGRAM = Program(
    ("serve", "--port={port}"),
    prepare="touch {dir}/a",
    cleanup="ls {dir}",
    service=Service("load {port} ${port}", ready="test -e {dir}"),
)


def port_and_folder(program):
    port = int(program.argv[1].removeprefix("--port="))
    return port, Path(program.cleanup.removeprefix("ls "))


def test_two_that_live_at_once_have_ports_and_directories_of_their_own(place):
    with with_port_and_dir(PROGRAM) as one, with_port_and_dir(PROGRAM) as other:
        (port, folder), (another, elsewhere) = map(port_and_folder, (one, other))
        assert (port, folder) != (another, elsewhere) and port != another and folder != elsewhere
        assert [*folder.iterdir()] == []
        assert one.prepare == f"touch {folder}/a"
        assert one.service == Service(f"load {port} ${{port}}", f"test -e {folder}", port)
        with socket.create_server(("127.0.0.1", port)):
            subprocess.run(["/bin/sh", "-c", one.prepare], check=True)
        assert [each.name for each in folder.iterdir()] == ["a"]
        (folder / "deep").mkdir()
    assert not folder.exists()
    awk = Program(("awk", "{dir}"), prepare="echo {port}")
    with with_port_and_dir(awk) as program:  # no server
        assert program is awk


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_what_others_put_where_temporary_directories_are_stops_nothing_and_stays(place, tmp_path):
    (tmp_path / "hztune-a").symlink_to("elsewhere")
    for theirs in (tmp_path / f"hztune-{os.getuid()}", tmp_path / "hztune-b"):
        theirs.mkdir()
        os.chown(theirs, 12345, -1)
    with with_port_and_dir(PROGRAM) as program:
        assert port_and_folder(program)[1].stat().st_mode & 0o777 == 0o700
    assert len([*tmp_path.iterdir()]) == 3


def test_a_directory_that_a_shell_would_split_is_refused_before_anything_runs(
    tmp_path, monkeypatch
):
    (tmp_path / "two words").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "two words"))
    assert described(server="s {port}", load="l {port}").service is not None
    with pytest.raises(UsageError, match=r"would be in '.*/two words', .* legal are .* TMPDIR="):
        described(server="s {port}", load="l {port}", cleanup="rm -r {dir}/c")
