"""hz-alternate: programs go on by turns, each one's own time is measured, none is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import pytest
from tests.conftest import until

from hztune.measure.scope import freezer

from .conftest import DEADLINE_S, gone, of, read_event, state_of

SPIN = "import time\nend = time.process_time() + {seconds}\nwhile time.process_time() < end: pass"


def python(code):
    return ["--", sys.executable, "-I", "-S", "-c", code]


def command(programs, units, *options, freezers=None, service=()):
    """hz-alternate with units, each in its freezer and with its service, if it has them."""
    words: list[object] = [programs.alternate_path, *options]
    for key, own in units.items():
        words += ["--unit", key]
        words += ["--freezer", freezers[key]] if freezers else []
        words += ["--service", len(service), *service] if service else []
        words += ["--main", len(own), *own]
    return [*map(str, words)]


def events(*given, said="", **more):
    """All that hz-alternate tells where each of its questions gets a line of an answer."""
    done = subprocess.run(
        command(*given, **more), input=said, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    return [read_event(line) for line in done.stdout.splitlines()]


@contextmanager
def started(*given, **more):
    """hz-alternate at work, which is ended at last."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    with subprocess.Popen(command(*given, **more), **pipes, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=DEADLINE_S)


def alternate(*given, **more):
    """The runs that ended, in their order."""
    return of(events(*given, **more), "run")


def test_the_own_time_of_a_program_is_when_it_works_not_when_it_stands(programs):
    units = {key: python(SPIN.format(seconds=0.2)) for key in "abc"}
    for run in alternate(programs, units, "--cpu", max(os.sched_getaffinity(0))):
        assert run["result"]["status"] == "ok"
        assert run["active_ns"] > 0.2e9
        assert run["turns"] > 3
    assert run["alive_ns"] > 0.6e9  # the last one saw the others


def test_at_any_time_one_unit_runs_and_the_others_stand(programs):
    with started(programs, {key: python("while True: pass") for key in "abcd"}) as process:
        pids = [json.loads(process.stdout.readline())["program_pid"] for _ in range(4)]
        time.sleep(0.2)
        looks = [[state_of(pid) for pid in pids] for _ in range(200)]
    assert process.returncode == 128 + signal.SIGTERM
    assert all(look.count("T") >= 2 for look in looks)  # one stops while another one goes on
    assert all(map(gone, pids))


def test_a_tree_stands_with_those_that_left_its_session(programs, tmp_path):
    code = (
        "import os, sys, time\n"
        "for leave in (False, True):\n"
        "    if os.fork() == 0:\n"
        "        if leave: os.setsid()\n"
        "        break\n"
        "with open(sys.argv[1], 'a') as note: note.write(f'{os.getpid()} ')\n"
        "end = time.process_time() + 20\nwhile time.process_time() < end: pass\n"
        "if leave: os._exit(0)\n"
        "os.wait(); os.wait()"
    )  # fmt: skip
    units = {key: [*python(code), str(tmp_path / key)] for key in "ab"}
    with started(programs, units, "--turn-ms", 50):
        notes, both = [tmp_path / key for key in "ab"], 0
        assert until(lambda: sum(len(n.read_text().split()) for n in notes if n.exists()) == 6)
        trees = [[*map(int, note.read_text().split())] for note in notes]
        for _ in range(200):
            awake = [any(state_of(pid) != "T" for pid in tree) for tree in trees]
            both += all(awake)
            time.sleep(0.002)
    assert both < 100  # a look that falls between two turns sees both


def test_a_program_that_cannot_be_started_says_why_and_has_no_result(programs):
    (run,) = alternate(programs, {"a": ["--", "/no/such/program"]})
    assert run["result"] is None
    assert "/no/such/program: No such file" in run["stderr"]


def test_short_programs_are_run_in_a_row_and_each_run_is_told(programs):
    runs = alternate(programs, {"a": ["--", "true"], "b": ["--", "true"]}, "--runs", 5)
    assert sorted((run["unit"], run["run"]) for run in runs) == [
        (unit, number) for unit in "ab" for number in range(5)
    ]


def test_a_thread_beside_the_first_is_seen(programs):
    spin = SPIN.format(seconds=0.1).replace("\n", "\n    ")
    start = "t = threading.Thread(target=work)\nt.start()\nt.join()"
    code = f"import threading\ndef work():\n    {spin}\n{start}"
    (run,) = alternate(programs, {"a": python(code)})
    assert run["threads"] == 2
    assert run["beside"] > run["turns"] / 2


# ---- trees that a freezer stops ------------------------------------------------------------------


@pytest.fixture
def freezers():
    """A control group for each of three units."""
    with ExitStack() as stack:
        made = {key: stack.enter_context(freezer()) for key in "abc"}
        groups = {key: group for key, group in made.items() if group is not None}
        if len(groups) < len(made):
            pytest.skip("this process may not make control groups of version 2")
        yield groups


FORKS = "import os\nwhile True:\n    if os.fork() == 0:\n        os.setsid()\n        os._exit(0)\n"
FORKS += "    os.wait()"


def test_a_frozen_unit_does_nothing_although_it_forks_all_the_time(programs, freezers):
    units = {key: python(FORKS) for key in freezers}
    with started(programs, units, "--turn-ms", 50, freezers=freezers) as process:
        for _ in units:
            process.stdout.readline()
        time.sleep(0.2)
        awake = []
        for _ in range(100):
            texts = [(group / "cgroup.events").read_text() for group in freezers.values()]
            awake.append(sum("frozen 0" in text for text in texts))
            time.sleep(0.002)
    assert set(awake) <= {0, 1, 2}  # two, where a look falls between two turns
    assert awake.count(1) > 50
    assert all(
        "populated 0" in (group / "cgroup.events").read_text() for group in freezers.values()
    )


def test_the_freezers_go_where_what_made_them_was_killed(programs, freezers):
    sleepers = {key: ["--", "sleep", "60"] for key in freezers}
    words = command(programs, sleepers, freezers=freezers)
    with subprocess.Popen(
        ["/bin/sh", "-c", '"$@" & wait', "sh", *words], stdout=subprocess.PIPE
    ) as process:
        for _ in freezers:
            process.stdout.readline()
        process.kill()
        process.stdout.read()  # until the last of them has ended
    assert not any(group.exists() for group in freezers.values())


@pytest.mark.slow
def test_one_that_stops_itself_under_a_freezer_stays_so(programs, freezers):
    continued = "(sleep 0.1; kill -CONT $$) & kill -STOP $$; exit 5"
    units = {
        "a": ["--", "sh", "-c", "kill -STOP $$"],
        "b": ["--", "sh", "-c", continued],
        "c": python(SPIN.format(seconds=0.2)),
    }
    ended = alternate(programs, units, "--timeout-ms", 60_000, freezers=freezers)
    runs = {run["unit"]: run for run in ended}
    assert runs["a"]["ended_as"] == "stopped"
    assert (runs["b"]["ended_as"], runs["b"]["result"]["code"]) == (None, 5)


# ---- services ------------------------------------------------------------------------------------

SERVICE = "import time\nprint('up')\nwhile True: time.sleep(0.01)"
LOAD = SPIN.format(seconds=0.05)
SAYS_HOW_IT_IS_SCHEDULED = """import os, time
os.write(2, b'policy %d' % os.sched_getscheduler(0))
with open({met!r}, "a") as met:
    met.write("x")
while os.path.getsize({met!r}) < 2:  # the other one has not said it yet
    time.sleep(0.01)
"""


def serve(programs, answer, *options, before=""):
    """All events of a unit with a service; `before` is what service and load do first."""
    return events(
        programs, {"a": python(before + LOAD)}, *options,
        service=python(before + SERVICE), said=f"{answer}\non\n",
    )  # fmt: skip


def test_a_service_is_asked_for_before_its_load_and_rests_behind_it(programs):
    told = serve(programs, "ready")
    names = [event["event"] for event in told]
    assert names == ["start", "serve", "start", "run", "rest", "service", "end"]
    assert [event["service"] for event in of(told, "start")] == [True, False]
    assert told[5]["ended_as"] == "interrupted"


@pytest.mark.parametrize("shared", [True, False])
def test_a_service_and_its_load_share_a_cpu_in_peace(programs, shared, tmp_path):
    options = ["--cpu", max(os.sched_getaffinity(0))] if shared else []
    says = SAYS_HOW_IT_IS_SCHEDULED.format(met=str(tmp_path / "met"))
    told = serve(programs, "ready", *options, before=says)
    policy = os.SCHED_BATCH if shared else os.SCHED_OTHER
    assert {each["event"]: each["stderr"] for each in told if "stderr" in each} == {
        "run": f"policy {policy}",
        "service": f"policy {policy}",
    }


def test_one_that_goes_on_until_it_is_told_is_told_after_its_span(programs):
    ends = "import signal, sys\nsignal.signal(2, lambda *_: sys.exit(0))\nwhile True: pass"
    units = {"ends": python(ends), "by itself": python("pass")}
    runs = {run["unit"]: run for run in alternate(programs, units, "--span-ms", 300)}
    assert runs["ends"]["asked"] and runs["ends"]["result"]["status"] == "ok"
    assert runs["ends"]["active_ns"] >= 0.3e9
    assert not runs["by itself"]["asked"]
