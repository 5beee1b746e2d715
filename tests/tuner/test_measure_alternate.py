"""Whole programs by turns: when turns tell the truth, what is measured, and what is said else."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.measure import Block, watch
from hztune.measure.alternate import (
    BY_TURNS,
    AlternateExecutor,
    NumberReading,
    Pace,
    Stint,
    without_strangers,
)
from hztune.measure.executors import ProgramExecutor, executor_for
from hztune.measure.launch import Run
from hztune.measure.program import Metric, Program, can_have_networks

from .test_measure_runs import CONTROL, FIRST, SECOND, OpenProof, python

SPIN = "end = time.process_time() + {seconds}\nwhile time.process_time() < end: pass\n"
BUSY = SPIN.format(seconds="0.1")
PINNED = Pace(10.0, max(os.sched_getaffinity(0)))


def by_turns(program: Program, *arms: Any, rounds: int = 1, **options: Any) -> Block:
    executor = AlternateExecutor(program, seed=1, identity=OpenProof(), **options)
    executor.pace = PINNED
    return executor.measure(arms or [CONTROL], role="search", rounds=rounds, number=0)


def choose(program: Program, memory_mb: int = 0) -> tuple[str, Block]:
    """What is said of a program before its first block, and that block."""
    said: list[str] = []
    executor = ProgramExecutor(
        program, seed=1, identity=OpenProof(), memory_mb=memory_mb, say=said.append
    )
    block = executor.measure([CONTROL, CONTROL], role="aa", rounds=1, number=0)
    return "\n".join(said), block


def is_by_turns(block: Block) -> bool:
    return all(BY_TURNS in outcome.facts for outcome in block.outcomes)


# ---- what is measured ----------------------------------------------------------------------------


def test_a_run_by_turns_is_a_turn_of_its_own_time() -> None:
    block = by_turns(python(BUSY), CONTROL, FIRST, SECOND, rounds=2)
    for outcome in block.outcomes:
        assert outcome.status == "ok"
        assert [turn.round for turn in outcome.turns] == [0, 1]
        assert all(turn.counted_ns > 0.1e9 for turn in outcome.turns)
        assert all(turn.rate == pytest.approx(1e9 / turn.counted_ns) for turn in outcome.turns)
        assert outcome.rss_peak_kb > 1024
        assert BY_TURNS in outcome.facts
    assert sorted(outcome.turns[0].position for outcome in block.outcomes) == [0, 1, 2]


def test_memory_that_is_no_allocators_is_not_counted() -> None:
    program = python("print(10**9)", own_kb=int)
    assert [outcome.rss_peak_kb for outcome in by_turns(program, CONTROL, FIRST).outcomes] == [0, 0]


def test_each_arm_has_its_own_variables_and_its_own_failure() -> None:
    code = "knob = os.environ.get('KNOB_knob')\nif knob == '2': os.kill(os.getpid(), 11)\n"
    block = by_turns(python(code + BUSY), CONTROL, FIRST, SECOND)
    assert [outcome.status for outcome in block.outcomes] == ["ok", "ok", "crash"]
    assert "SIGSEGV" in block.outcomes[2].detail


def test_preparation_and_cleanup_surround_the_runs_of_a_round(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = python(
        f"open({str(log)!r}, 'a').write('run ')",
        prepare=f"printf 'prepare ' >> {log}",
        cleanup=f"printf 'cleanup ' >> {log}",
    )
    by_turns(program, CONTROL, FIRST, rounds=2)
    assert log.read_text().split() == 2 * [*2 * ["prepare"], *2 * ["run"], *2 * ["cleanup"]]


def test_a_number_that_counts_all_the_time_is_corrected_by_that_of_its_own() -> None:
    code = f"start = time.time()\n{BUSY}print(1000 / (time.time() - start))"
    program = python(code, rate=Metric(r"([0-9.]+)", better="higher"))
    executor = AlternateExecutor(program, seed=1, identity=OpenProof())
    executor.pace, executor.reading = PINNED, NumberReading(counts_standing=True)
    block = executor.measure([CONTROL, CONTROL], role="aa", rounds=1, number=0)
    for outcome in block.outcomes:
        (turn,) = outcome.turns
        assert 1000 / turn.rate == pytest.approx(turn.counted_ns * 1e-9, rel=0.5)


def stint(threads: int) -> Stint:
    """A run of a second, of which other programs took a quarter."""
    return Stint(0, 0, 0, 0, 2.0, Run(None, wall_s=1.0), 100, 100, 0, threads, 0.25, 1)


def test_what_other_programs_took_of_turns_is_left_out_where_it_is_known_of_all_arms() -> None:
    for threads, own_s in (([1, 1], 0.75), ([1, 2], 1.0)):
        found = without_strangers([(index, stint(each)) for index, each in enumerate(threads)])
        assert [each.run.wall_s for _, each in found] == [own_s, own_s]


# ---- when turns are used -------------------------------------------------------------------------


def test_a_program_that_is_busy_with_itself_is_measured_by_turns_on_one_cpu() -> None:
    said, block = choose(python(BUSY))
    assert said == f"measured by turns of 10 ms, on CPU {PINNED.cpu}"
    assert is_by_turns(block)


LIARS = {
    "file": (f"f = open('{{folder}}/out', 'w')\n{BUSY}", "two copies of it share the file"),
    "failing second": (
        f"os.close(os.open('{{folder}}/only', os.O_CREAT | os.O_EXCL))\n{BUSY}"
        "os.unlink('{folder}/only')",
        "a second copy of it beside the first fails: exit status 1: FileExistsError",
    ),
}


@pytest.mark.parametrize("name", LIARS)
def test_where_turns_would_lie_runs_are_used_and_the_reason_is_said(
    name: str, tmp_path: Path
) -> None:
    code, reason = LIARS[name]
    said, block = choose(python(code.replace("{folder}", str(tmp_path))))
    assert said.startswith("measured by whole runs, one after the other: ")
    assert reason in said
    assert block.control.ok
    assert not is_by_turns(block)


def test_the_user_may_know_better(tmp_path: Path) -> None:
    code = f"f = open('{tmp_path}/out', 'w')\n{BUSY}"
    said, block = choose(python(code, by="turns"))
    assert "although two copies of it share the file" in said
    assert (
        "; the time that is told is that of its turns, and what goes on while others have" in said
    )
    assert is_by_turns(block)
    said, block = choose(python(BUSY, by="runs"))
    assert said == "measured by whole runs, one after the other: as was asked"
    assert not is_by_turns(block)


def test_where_memory_is_too_little_for_all_arms_they_are_run_one_after_the_other() -> None:
    program = python(f"block = b'x' * (60 << 20)\n{BUSY}")
    said, block = choose(program, memory_mb=100)
    assert "4 copies of it take more memory than there is" in said
    assert not is_by_turns(block)
    assert [outcome.status for outcome in block.outcomes] == ["ok", "ok"]


def test_a_study_goes_on_as_it_began() -> None:
    _, block = choose(python(BUSY, by="runs"))
    said: list[str] = []
    executor = executor_for([python(BUSY)], seed=1, machine=Machine.here(), say=said.append)
    executor.recall([block])
    executor.measure([CONTROL], role="aa", rounds=1, number=1)
    assert said == ["measured by whole runs, one after the other: as the study began"]


WITHOUT_NETWORKS = (
    *("unshare", "--user", "--map-root-user", "sh", "-c"),
    'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"',
    "sh",
)
"""In front of a command: the kernel refuses it every network of its own."""


def test_by_turns_and_a_server_with_a_fixed_port_exclude_each_other_without_networks(
    core_build: Path,
) -> None:
    words = WITHOUT_NETWORKS if can_have_networks() else ()
    if subprocess.run([*words, "true"], check=False).returncode != 0:
        pytest.skip("this process may make networks, but no user namespaces to be refused them in")
    server = ("--server", "redis-server", "--load", "true", "--ready", "true")
    done = subprocess.run(
        [*words, sys.executable, "-m", "hztune", "--by", "turns", *server],
        env={**os.environ, "HZTUNE_CORE": str(core_build)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "--by turns needs a port of its own for each copy of the server" in done.stderr


def test_what_two_copies_cannot_both_hold_is_seen(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, (tmp_path / "out").open("w"):
        held = {*watch._held(os.getpid())}
        port = watch.port_in_words(server.getsockname()[1])
        assert port in watch.ports_of(os.getpid())
    assert {port, f"the file {tmp_path / 'out'}"} <= {one.what for one in held}
    with Path(__file__).open():
        assert __file__ not in " ".join(one.what for one in watch._held(os.getpid()))
    both = watch.Holdings()
    both._of = {0: {watch.Held("the port 1", "net:[1]")}, 1: {watch.Held("the port 1", "net:[2]")}}
    assert both.shared() == []  # each network has all ports
    both._of = {0: held, 1: held}
    assert port in both.shared()


def test_a_program_that_does_not_exist_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="cannot run /no/such/program"):
        choose(Program(("/no/such/program",), timeout_s=60.0))
