"""hz-alternate: programs go on by turns, each one's own time is measured, none is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hztune.measure.scope import freezer

from .conftest import DEADLINE_S, Programs, read_event

SPIN = "import time\nend = time.process_time() + {seconds}\nwhile time.process_time() < end: pass"
Event = dict[str, Any]


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-I", "-S", "-c", code]


def command(programs: Programs, units: dict[str, list[str]], *options: object) -> list[str]:
    words = [str(programs.alternate_path), *map(str, options)]
    for key, own in units.items():
        words += ["--unit", key, "--main", str(len(own)), *own]
    return words


def alternate(programs: Programs, units: dict[str, list[str]], *options: object) -> list[Event]:
    """The runs that ended, in their order."""
    done = subprocess.run(
        command(programs, units, *options), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    events = [read_event(line) for line in done.stdout.splitlines()]
    return [each for each in events if each["event"] == "run"]


def test_the_own_time_of_a_program_is_what_it_works_and_not_when_it_stands(
    programs: Programs,
) -> None:
    units = {key: python(SPIN.format(seconds=0.2)) for key in "abc"}
    for run in alternate(programs, units, "--cpu", max(os.sched_getaffinity(0))):
        assert run["result"]["status"] == "ok"
        assert run["active_ns"] > 0.2e9
        assert run["turns"] > 3
    assert run["alive_ns"] > 0.6e9  # the last one saw the others


def test_at_any_time_one_unit_runs_and_the_others_stand(programs: Programs) -> None:
    with subprocess.Popen(
        command(programs, {key: python("while True: pass") for key in "abcd"}),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        pids = [json.loads(process.stdout.readline())["program_pid"] for _ in range(4)]
        time.sleep(0.2)
        looks = [[state_of(pid) for pid in pids] for _ in range(200)]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert all(look.count("T") >= 2 for look in looks)  # one stops while another one goes on
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_tree_stands_as_a_whole_with_those_that_left_its_session(
    programs: Programs, tmp_path: Path
) -> None:
    code = (
        "import os, sys, time\n"
        "for leave in (False, True):\n"
        "    if os.fork() == 0:\n"
        "        if leave: os.setsid()\n"
        "        break\n"
        "with open(sys.argv[1], 'a') as note: note.write(f'{os.getpid()} ')\n"
        "end = time.process_time() + 1\nwhile time.process_time() < end: pass\n"
        "if leave: os._exit(0)\n"
        "os.wait(); os.wait()"
    )  # fmt: skip
    units = {key: [*python(code), str(tmp_path / key)] for key in "ab"}
    with subprocess.Popen(
        command(programs, units, "--turn-ms", 50), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        trees: list[list[int]] = []
        deadline = time.monotonic() + DEADLINE_S
        while sum(map(len, trees)) < 6 and time.monotonic() < deadline:
            notes = [tmp_path / key for key in "ab"]
            trees = [[*map(int, n.read_text().split())] for n in notes if n.exists()]
        both = 0
        for _ in range(200):
            awake = [any(state_of(pid) != "T" for pid in tree) for tree in trees]
            both += all(awake)
            time.sleep(0.002)
        process.terminate()
        process.communicate(timeout=DEADLINE_S)
    assert both < 100  # a look that falls between two turns sees both


def test_a_program_that_cannot_be_started_says_why_and_has_no_result(programs: Programs) -> None:
    (run,) = alternate(programs, {"a": ["--", "/no/such/program"]})
    assert run["result"] is None
    assert "/no/such/program: No such file" in run["stderr"]


def test_one_that_takes_too_much_of_its_own_time_is_ended(programs: Programs) -> None:
    units = {"a": python("while True: pass"), "b": python(SPIN.format(seconds=0.01))}
    runs = {run["unit"]: run for run in alternate(programs, units, "--timeout-ms", 150)}
    assert (runs["a"]["ended_as"], runs["b"]["ended_as"]) == ("hang", None)
    assert runs["a"]["active_ns"] >= 150e6


@pytest.mark.parametrize("keys", ["a", "ab"])
def test_one_that_stops_itself_goes_on_in_its_next_turn(programs: Programs, keys: str) -> None:
    units = {key: ["--", "sh", "-c", "kill -STOP $$; kill -STOP $$; exit 5"] for key in keys}
    assert [run["result"]["code"] for run in alternate(programs, units)] == [5] * len(keys)


def test_what_one_prints_is_kept_and_blocks_no_other(programs: Programs, tmp_path: Path) -> None:
    flood = python("import os\nfor _ in range(64): os.write(1, b'x' * 65536)")
    runs = alternate(
        programs, {"a": flood, "b": python("print('told')")},
        "--keep-stdout", tmp_path, "--keep-bytes", 1000,
    )  # fmt: skip
    printed = {run["unit"]: run["stdout_bytes"] for run in runs}
    assert printed == {"a": 64 * 65536, "b": 5}
    assert (tmp_path / "a.0").read_bytes() == b"x" * 1000
    assert (tmp_path / "b.0").read_text() == "told\n"


def test_of_many_errors_the_first_and_the_last_are_told(programs: Programs) -> None:
    code = "import os\nos.write(2, b'first ')\nfor _ in range(9): os.write(2, b'x' * 65536)"
    (run,) = alternate(programs, {"a": python(f"{code}\nos.write(2, b' last')")})
    assert run["stderr"].startswith("first x")
    assert run["stderr"].endswith("x last")


def test_short_programs_are_run_in_a_row_and_each_run_is_told(programs: Programs) -> None:
    runs = alternate(programs, {"a": ["--", "true"], "b": ["--", "true"]}, "--runs", 5)
    assert sorted((run["unit"], run["run"]) for run in runs) == [
        (unit, number) for unit in "ab" for number in range(5)
    ]


def test_a_thread_beside_the_first_is_seen(programs: Programs) -> None:
    spin = SPIN.format(seconds=0.1).replace("\n", "\n    ")
    start = "t = threading.Thread(target=work)\nt.start()\nt.join()"
    code = f"import threading\ndef work():\n    {spin}\n{start}"
    (run,) = alternate(programs, {"a": python(code)})
    assert run["threads"] == 2
    assert run["beside"] > run["turns"] / 2


# ---- trees that a freezer stops ------------------------------------------------------------------


@pytest.fixture
def freezers() -> Iterator[dict[str, Path]]:
    """A control group for each of three units."""
    with ExitStack() as stack:
        made = {key: stack.enter_context(freezer()) for key in "abc"}
        groups = {key: group for key, group in made.items() if group is not None}
        if len(groups) < len(made):
            pytest.skip("this process may not make control groups of version 2")
        yield groups


def frozen_command(
    programs: Programs, freezers: dict[str, Path], units: dict[str, list[str]], *options: object
) -> list[str]:
    words = [str(programs.alternate_path), *map(str, options)]
    for key, own in units.items():
        words += ["--unit", key, "--freezer", str(freezers[key]), "--main", str(len(own)), *own]
    return words


def frozen_runs(
    programs: Programs, freezers: dict[str, Path], units: dict[str, list[str]], *options: object
) -> dict[str, Event]:
    """The run of each unit."""
    done = subprocess.run(
        frozen_command(programs, freezers, units, *options), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    events = [read_event(line) for line in done.stdout.splitlines()]
    return {event["unit"]: event for event in events if event["event"] == "run"}


FORKS = "import os\nwhile True:\n    if os.fork() == 0:\n        os.setsid()\n        os._exit(0)\n"
FORKS += "    os.wait()"


def test_a_frozen_unit_does_nothing_although_it_forks_all_the_time(
    programs: Programs, freezers: dict[str, Path]
) -> None:
    units = {key: python(FORKS) for key in freezers}
    with subprocess.Popen(
        frozen_command(programs, freezers, units, "--turn-ms", 50),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for _ in units:
            process.stdout.readline()
        time.sleep(0.2)
        awake = []
        for _ in range(100):
            texts = [(group / "cgroup.events").read_text() for group in freezers.values()]
            awake.append(sum("frozen 0" in text for text in texts))
            time.sleep(0.002)
        process.terminate()
        process.communicate(timeout=DEADLINE_S)
    assert set(awake) <= {0, 1, 2}  # two, where a look falls between two turns
    assert awake.count(1) > 50
    assert all(
        "populated 0" in (group / "cgroup.events").read_text() for group in freezers.values()
    )


def test_the_freezers_go_where_what_made_them_was_killed(
    programs: Programs, freezers: dict[str, Path]
) -> None:
    words = frozen_command(programs, freezers, {key: ["--", "sleep", "60"] for key in freezers})
    with subprocess.Popen(
        ["/bin/sh", "-c", '"$@" & wait', "sh", *words], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        for _ in freezers:
            process.stdout.readline()
        process.kill()
        process.stdout.read()  # until the last of them has ended
    assert not any(group.exists() for group in freezers.values())


SEES_STOPS = (
    "import os, signal, time\n"
    "told = []\n"
    "signal.signal(signal.SIGCONT, lambda *_: told.append('continued'))\n"
    "signal.signal(signal.SIGCHLD, lambda *_: told.append('child'))\n"
    "child = os.fork()\n"
    "while child == 0: pass\n"
    "end = time.process_time() + 0.1\n"
    "while time.process_time() < end: pass\n"
    "print(*told, os.waitpid(child, os.WNOHANG | os.WUNTRACED | os.WCONTINUED))\n"
    "os.kill(child, 9)"
)


def test_a_program_sees_nothing_of_its_freezer(
    programs: Programs, freezers: dict[str, Path], tmp_path: Path
) -> None:
    units = {key: python(SEES_STOPS) for key in freezers}
    runs = frozen_runs(programs, freezers, units, "--keep-stdout", tmp_path)
    assert all(run["turns"] > 3 for run in runs.values())
    assert [(tmp_path / f"{key}.0").read_text() for key in units] == ["(0, 0)\n"] * len(units)


@pytest.mark.slow
def test_one_that_stops_itself_under_a_freezer_stays_so_until_another_one_continues_it_or_is_ended(
    programs: Programs, freezers: dict[str, Path]
) -> None:
    continued = "(sleep 0.1; kill -CONT $$) & kill -STOP $$; exit 5"
    units = {
        "a": ["--", "sh", "-c", "kill -STOP $$"],
        "b": ["--", "sh", "-c", continued],
        "c": python(SPIN.format(seconds=0.2)),
    }
    runs = frozen_runs(programs, freezers, units, "--timeout-ms", 60_000)
    assert runs["a"]["ended_as"] == "stopped"
    assert (runs["b"]["ended_as"], runs["b"]["result"]["code"]) == (None, 5)


def test_a_service_and_its_loads_are_frozen_together(
    programs: Programs, freezers: dict[str, Path]
) -> None:
    service, load = python(SERVICE), python(LOAD)
    words = [str(programs.alternate_path), "--runs", "2"]
    for key in "ab":
        words += ["--unit", key, "--freezer", str(freezers[key])]
        words += ["--service", str(len(service)), *service, "--main", str(len(load)), *load]
    done = subprocess.run(
        words, input="ready\nready\n", capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    runs = [event for event in map(read_event, done.stdout.splitlines()) if event["event"] == "run"]
    assert sorted((run["unit"], run["run"], run["ended_as"]) for run in runs) == [
        (key, number, None) for key in "ab" for number in range(2)
    ]


# ---- services ------------------------------------------------------------------------------------

SERVICE = "import time\nprint('up')\nwhile True: time.sleep(0.01)"
LOAD = SPIN.format(seconds=0.05)
SAYS_HOW_IT_IS_SCHEDULED = "import os\nos.write(2, b'policy %d' % os.sched_getscheduler(0))\n"


def serve(programs: Programs, answer: str, *options: object, before: str = "") -> list[Event]:
    """All events of one unit with a service.

    Args:
        programs: With hz-alternate.
        answer: What is said when the service goes on.
        options: Of hz-alternate.
        before: What service and load do first.
    """
    load, service = python(before + LOAD), python(before + SERVICE)
    words = [str(programs.alternate_path), *map(str, options), "--rest", "--unit", "a"]
    words += ["--service", str(len(service)), *service, "--main", str(len(load)), *load]
    done = subprocess.run(
        words, input=f"{answer}\non\n", capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    return [read_event(line) for line in done.stdout.splitlines()]


def test_a_service_is_asked_for_before_its_load_and_rests_behind_it(programs: Programs) -> None:
    events = serve(programs, "ready")
    names = [event["event"] for event in events]
    assert names == ["start", "serve", "start", "run", "rest", "service", "end"]
    assert [event["service"] for event in events if event["event"] == "start"] == [True, False]
    assert events[5]["ended_as"] == "interrupted"


def test_a_unit_whose_service_does_not_answer_is_dropped(programs: Programs) -> None:
    names = [event["event"] for event in serve(programs, "drop")]
    assert names == ["start", "serve", "service", "end"]


@pytest.mark.parametrize("shared", [True, False])
def test_a_service_and_its_load_do_not_drive_each_other_off_the_cpu_that_they_share(
    programs: Programs, shared: bool
) -> None:
    options = ["--cpu", max(os.sched_getaffinity(0))] if shared else []
    events = serve(programs, "ready", *options, before=SAYS_HOW_IT_IS_SCHEDULED)
    policy = os.SCHED_BATCH if shared else os.SCHED_OTHER
    told = {event["event"]: event["stderr"] for event in events if "stderr" in event}
    assert told == {"run": f"policy {policy}", "service": f"policy {policy}"}


def test_one_that_goes_on_until_it_is_told_is_told_after_its_span(programs: Programs) -> None:
    ends = "import signal, sys\nsignal.signal(2, lambda *_: sys.exit(0))\nwhile True: pass"
    units = {"ends": python(ends), "by itself": python("pass")}
    runs = {run["unit"]: run for run in alternate(programs, units, "--span-ms", 300)}
    assert runs["ends"]["asked"] and runs["ends"]["result"]["status"] == "ok"
    assert runs["ends"]["active_ns"] >= 0.3e9
    assert not runs["by itself"]["asked"]
