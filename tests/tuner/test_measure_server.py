"""Servers: started afresh for each run, put under load, proved, stopped; nothing is left behind."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hztune.errors import HztuneError
from hztune.measure import Arm, Outcome
from hztune.measure.program import Metric, Program, Service
from hztune.measure.whole import RunExecutor

pytestmark = pytest.mark.usefixtures("quiet_machine")

CONTROL = Arm("none")
PYTHON = f"{shlex.quote(os.path.realpath(sys.executable))} -I -S"
ECHO = """
import os, socket, sys, time
held = bytearray(48 << 20)
server = socket.create_server(("localhost", int(sys.argv[1])))
while True:
    connection, _ = server.accept()
    word = connection.recv(9)
    if not word:
        continue
    if word == b"crash":
        os.abort()
    connection.sendall(b"rate=1250\\n")
    connection.close()
"""
SAY = """
import socket, sys
with socket.create_connection(("localhost", int(sys.argv[1]))) as connection:
    connection.sendall(sys.argv[2].encode())
    print(connection.recv(99).decode())
"""


@pytest.fixture
def port() -> Iterator[int]:
    """A port that is free now, and must be free again in the end."""
    with socket.create_server(("localhost", 0)) as server:
        number: int = server.getsockname()[1]
    yield number
    assert socket.socket().connect_ex(("localhost", number)) != 0


def script(folder: Path, text: str) -> Path:
    path = folder / f"script-{len(text)}.py"
    path.write_text(text)
    return path


@pytest.fixture
def serve(tmp_path: Path, port: int) -> Any:
    """Runs the echo server under an arm, with a word that the load says to it."""

    def run(word: str = "hello", arm: Arm = CONTROL, code: str = ECHO, **options: Any) -> Outcome:
        load = f"{PYTHON} {script(tmp_path, SAY)} {port} {word}"
        service = Service(options.pop("load", load), options.pop("ready", ""), port)
        argv = (*shlex.split(PYTHON), str(script(tmp_path, code)), str(port))
        program = Program(argv, **{"timeout_s": 20.0, "service": service, **options})
        executor = RunExecutor(program, seed=1, warmups=0)
        return executor.measure([arm], role="search", rounds=2, number=0).control

    return run


def test_the_time_of_the_load_is_measured_and_the_memory_of_the_server(serve: Any) -> None:
    outcome = serve()
    assert (outcome.status, outcome.detail) == ("ok", "")
    assert len(outcome.turns) == 2
    assert outcome.rss_peak_kb > 48 << 10


def test_a_metric_is_read_from_what_the_load_prints(serve: Any) -> None:
    outcome = serve(rate=Metric(r"rate=(\d+)", better="higher"))
    assert outcome.ops_per_s == pytest.approx(1250)


def test_the_server_runs_under_the_candidate_and_the_load_does_not(serve: Any) -> None:
    checked = serve(arm=Arm("hz"), load="env", check="! grep -E 'LD_PRELOAD|HZ_|MALLOC_CONF'")
    assert (checked.status, checked.detail) == ("ok", "")


def test_a_server_that_starts_itself_without_the_candidate_is_a_wrong_allocator(serve: Any) -> None:
    again = "if os.environ.pop('LD_PRELOAD', 0): os.execv(sys.executable, sys.orig_argv)"
    outcome = serve(arm=Arm("tcmalloc"), code=f"import os, sys\n{again}{ECHO}", load="sleep 0.3")
    assert outcome.status == "wrong_allocator"


ELSEWHERE = ECHO.replace("int(sys.argv[1])", "0")
NEVER = "import time; time.sleep(3600)"
FAILURES: dict[str, tuple[dict[str, Any], str, str]] = {
    "goes to the background": (
        {"code": f"import os\nif os.fork(): os._exit(0)\n{ECHO}"},
        "failed",
        "went to the background",
    ),
    "listens on another port": ({"code": ELSEWHERE}, "hang", "s; it listens on the port "),
    "never listens": (
        {"code": NEVER},
        "hang",
        "within 1 s; a longer --ready-timeout is waited for",
    ),
    "crashes under load": ({"word": "crash"}, "crash", "SIGABRT"),
    "ends before it answers": ({"code": "raise SystemExit(3)"}, "failed", "exit status 3"),
    "is put under a load that fails": ({"load": "echo no; exit 1"}, "failed", "--load"),
    "answers wrongly": ({"check": "grep right"}, "bad_output", "--check"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_gets_its_name(serve: Any, name: str) -> None:
    options, status, detail = FAILURES[name]
    outcome = serve(**options, ready_s=1.0)
    assert outcome.status == status
    assert detail in outcome.detail


def test_a_port_that_is_taken_ends_the_study_with_the_reason(serve: Any, port: int) -> None:
    with (
        socket.create_server(("localhost", port)),
        pytest.raises(HztuneError, match="answers on port"),
    ):
        serve()


def test_a_command_may_say_when_the_server_is_ready(serve: Any, tmp_path: Path, port: int) -> None:
    ready = f"{PYTHON} {script(tmp_path, SAY)} {port} ready"
    assert serve(ready=ready).ok
