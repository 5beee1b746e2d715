"""hz-launch: measures a program from outside, and nothing outlives it; what all programs refuse."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import until

from .conftest import DEADLINE_S, LIBRARIES, gone, run

ESCAPEE = "import os,sys,time\nif os.fork(): {parent}\nos.setsid()\nif os.fork(): os._exit(0)\n" \
    "open(sys.argv[1], 'w').write(str(os.getpid()))\ntime.sleep(600)"  # fmt: skip


def launch(programs, *words):
    """Exit status and result; the program's own output is not looked at."""
    done = programs.launch(*words)
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_what_has_stopped_itself_is_not_waited_for(programs):
    _, result = launch(programs, "--timeout-ms", 60_000, "--", "sh", "-c", "kill -STOP $$")
    assert result["status"] == "stopped"
    assert result["wall_ns"] < 30e9
    assert gone(result["pid"])


def test_memory_of_children_counts_towards_the_limit(programs):
    eater = f"{sys.executable} -c 'x = bytearray(10 ** 8); import time; time.sleep(600)'"
    returned, result = launch(
        programs, "--rss-limit-mb", 150, "--", "sh", "-c", f"{eater} & {eater} & wait"
    )
    assert (returned, result["status"]) == (137, "oom")
    assert result["processes"] >= 3


def test_one_that_stands_before_its_exec_is_ended_with_its_launcher(programs):
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen(
        [programs.launch_path, "--gated", "--json-fd", str(theirs.fileno()), "--", "true"],
        pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        program = int.from_bytes(ours.recv(4), sys.byteorder)
        os.kill(program, signal.SIGSTOP)
        process.terminate()
        process.wait(DEADLINE_S)
    assert gone(program)


def test_one_whose_children_have_ended_leaves_nothing_behind(programs):
    _, result = launch(programs, "--", "sh", "-c", "true & wait; (true; true)")
    assert result["left"] == 0


@pytest.mark.parametrize("parent", ["time.sleep(600)", "time.sleep(0.3); sys.exit(0)"])
def test_a_daemon_does_not_escape(programs, tmp_path, parent):
    note = tmp_path / "pid"
    script = ESCAPEE.format(parent=parent)
    _, result = launch(programs, "--timeout-ms", 2000, "--", sys.executable, "-c", script, note)
    assert result["left"] == 1
    assert gone(int(note.read_text()))


def test_nothing_outlives_an_interrupted_launcher(programs, tmp_path):
    note = tmp_path / "pid"
    script = ESCAPEE.format(parent="time.sleep(600)")
    process = subprocess.Popen(
        [programs.launch_path, "--", sys.executable, "-c", script, note], stdout=subprocess.PIPE
    )
    assert until(lambda: note.exists() and bool(note.read_text()))
    process.terminate()
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert json.loads(out)["status"] == "interrupted"
    assert gone(int(note.read_text()))


def test_peak_memory_is_the_programs_and_not_the_callers(programs):
    ballast = bytearray(300 << 20)
    ballast[:: os.sysconf("SC_PAGESIZE")] = b"x" * (len(ballast) // os.sysconf("SC_PAGESIZE"))
    _, small = launch(programs, "--", "/bin/true")
    _, big = launch(programs, "--", sys.executable, "-c", "x = b'x' * (100 << 20)")
    assert small["rss_peak_kb"] < 20 * 1024
    assert 100 * 1024 < big["rss_peak_kb"] < 200 * 1024
    assert big["minor_faults"] > small["minor_faults"] > 0


def test_cpu_time_of_children_is_counted(programs):
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    _, result = launch(
        programs, "--", sys.executable, "-c",
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])",
    )  # fmt: skip
    assert result["cpu_s"] > 0.3


@pytest.mark.parametrize("allocator", ["glibc", "hz", *LIBRARIES])
def test_the_library_of_malloc_is_named(programs, allocator):
    libraries = {"glibc": "", "hz": programs.bench_path.parents[1] / "libhz.so", **LIBRARIES}
    with_it = ("--env", f"LD_PRELOAD={libraries[allocator]}")
    _, result = launch(programs, *with_it, "--", "sleep", "0.3")
    assert (result["status"], result["allocator"]["name"]) == ("ok", allocator)


ALONE = [f"{folder}{soname}" for folder in ("", "{usr}/") for soname in LIBRARIES.values()]
COMPLETE = ["", "libm.so.6", "{core}/libhz.so", "libjemalloc.so.2 {core}/libhz-deepbind.so"]


@pytest.mark.parametrize("named", [*ALONE, *COMPLETE])
def test_an_allocator_that_is_named_alone_gets_the_library_that_it_needs(programs, named):
    """Where extensions are loaded with RTLD_DEEPBIND: PHP runs so in core/test_programs.py."""
    core = programs.launch_path.parents[1]
    usr = next(Path("/usr/lib").glob("*/libjemalloc.so.2")).parent
    added = f":{core}/libhz-deepbind.so" if named in ALONE else ""
    named = named.format(core=core, usr=usr)
    done = programs.launch("--env", f"LD_PRELOAD={named}", "--", "printenv", "LD_PRELOAD")
    assert done.stdout.splitlines()[0] == f"{named}{added}"


# ---- what the measuring programs are told wrongly ------------------------------------------------


# A command line, and a part of what is said of it.
REFUSED = """
hz-bench | the workload is missing
hz-bench larsen | no workload is called larsen
hz-bench larson remote | one workload at a time
hz-bench remote@wide | has no setting called wide
hz-bench larson --slots 0 | --slots 0: want a whole number from 1 to
hz-bench larson --slots | --slots: its value is missing
hz-bench larson --slot 5 | --slot: neither an option nor a parameter of larson
hz-bench larson --min-size 9 --max-size 8 | --max_size 8: less than --min_size 9
hz-bench larson --seconds nan | --seconds nan: want a number
hz-bench remote --fan few | --fan few: want one of: next all
hz-bench remote --threads 1 | there is no other thread to free the blocks of one
hz-bench pipeline --threads 1 | --threads 1: pipeline needs at least 2
hz-bench larson --turns 9 --ops 5 | --ops and --turns exclude each other
hz-bench larson --turns 0 | not a conductor's memory
hz-bench larson --rests 1 --turns 9 | exclude each other
hz-bench --slots 5 larson | parameters stand after the workload's name
hz-turns | the program is missing
hz-turns --env A=1 --arm a -- /bin/true | stands before the first --arm
hz-turns -- /bin/true | --arm is missing
hz-turns --arm a -- /nonexistent/program | cannot run /nonexistent/program
hz-turns --turn-ms 5 --skip-ms 5 --arm a -- /bin/true | --skip-ms: must be shorter
hz-launch | the program is missing
hz-launch -- /nonexistent/program | cannot run /nonexistent/program
hz-launch --json-fd 99 -- /bin/true | --json-fd 99: not an open descriptor
hz-alternate | --unit is missing
hz-alternate --unit a | --unit a: --main is missing
hz-alternate --main 1 true | --main: stands before the first --unit
hz-alternate --unit a --main 3 -- true | --main 3: only 2 words stand behind it
hz-alternate --unit a/b | want a name without a slash
hz-alternate --freezer /tmp | --freezer: stands before the first --unit
hz-alternate --unit a --freezer /tmp | --freezer /tmp: want a control group
hz-alternate --turns 3 | --turns: not an option
"""


@pytest.mark.parametrize("refused", REFUSED.strip().splitlines())
def test_bad_input_is_refused_in_one_sentence(programs, refused):
    line, sentence = refused.split(" | ")
    program, *words = line.split()
    done = run([programs.bench_path.with_name(program), *words])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{program}: ") and done.stderr.count("\n") == 1
    assert sentence in done.stderr
