"""Whether turns tell the truth, judged on given numbers: no process runs, no clock is read."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from hztune import process
from hztune.errors import HztuneError
from hztune.measure import Arm
from hztune.measure.alternate import NumberReading, Pace, Stint
from hztune.measure.examine import Finding, Tryout
from hztune.measure.identity import Fault
from hztune.measure.launch import Run
from hztune.measure.program import Metric, Program, Service
from hztune.measure.server import LOAD_PATIENCE_S, LOAD_SPAN_S

CPUS = len(os.sched_getaffinity(0))
ONE_CPU = Pace(10.0, max(os.sched_getaffinity(0)))
ALL_CPUS = Pace(10.0, None)
TIMED = Program(("program",), timeout_s=60.0)
NUMBERED = replace(TIMED, rate=Metric("([0-9.]+)", better="higher"))
SERVER = replace(TIMED, service=Service("load", port=1))
SERVER_NUMBERED = replace(NUMBERED, service=Service("load", port=1))


def stint(
    wall_s: float = 1.0,
    cpu_s: float | None = None,
    *,
    alive_s: float | None = None,
    says: float | None = None,
    server_s: float = 0.0,
    was_told: bool = False,
    seen_s: float = 1.0,
    left: int = 0,
    **more: Any,
) -> Stint:
    """A run that took so long, busy all the time; by turns it was alive for longer.

    Args:
        wall_s: Its own time.
        cpu_s: CPU time of all its processes, of a server and its load together.
        alive_s: Its time from the beginning to the end.
        says: The number that it printed.
        server_s: CPU time of its server.
        was_told: Whether its load was told to end.
        seen_s: Share of its turns at whose end it was awake.
        left: Processes of it that outlived it.
        more: Other fields.
    """
    run = Run(
        None,
        wall_s=wall_s,
        cpu_ns=round(1e9 * (wall_s if cpu_s is None else cpu_s)),
        stdout="" if says is None else f"{says}",
        server_cpu_ns=round(1e9 * server_s),
        was_told=was_told,
        left=left,
    )
    alive_s = wall_s if alive_s is None else alive_s
    usual = {"turns": 100, "beside": 0, "threads": 1, "delay_s": 0.0, "processes": 1}
    fields = {**usual, **more}
    awake = round(seen_s * fields["turns"])
    return Stint(0, 0, 0, 0, alive_s, run, awake=awake, **fields)


class Given:
    """Turns whose runs are given: those of the control alone, one by one, and then the copies."""

    pace, control_kb, first_s = ALL_CPUS, 0, 0.0

    def __init__(self, *runs: Stint | Fault, room: int = 99) -> None:
        self.paces, self.spans, self.copies = list[Pace](), list[float](), list[int]()
        self._runs, self._room = [*runs], room

    def finding(self, program: Program) -> Finding:
        return Tryout(self, program, Arm("none")).finding()  # type: ignore[arg-type]

    def tell_load(self, span_s: float) -> None:
        self.spans.append(span_s)

    def fits(self, arms: int) -> bool:
        return arms <= self._room

    def try_out(self, control: Arm, copies: int, **how: Any) -> tuple[list[Stint], Fault | None]:
        self.paces.append(self.pace)
        self.copies.append(copies)
        found = self._runs[:copies]
        del self._runs[:copies]
        fault = next((each for each in found if isinstance(each, Fault)), None)
        return [each for each in found if isinstance(each, Stint)], fault


def judged(program: Program, *runs: Stint | Fault, **options: Any) -> Finding:
    """What is found of a program whose runs show this, whenever it is looked at."""
    return Given(*runs, *runs, **options).finding(program)


def twice(alone: Stint) -> tuple[Stint, Stint, Stint]:
    """A run alone, and two copies by turns: the same, but that each stood still half the time."""
    copy = replace(alone, alive_s=2.0 * alone.alive_s)
    return alone, copy, copy


def test_of_a_program_that_leaves_its_work_to_others_that_is_said() -> None:
    assert judged(TIMED, *twice(stint())).remark == ""
    assert judged(TIMED, *twice(stint(left=1))).remark.startswith(
        "when the program ends, a process that it started lives on"
    )
    waits = judged(TIMED, *twice(stint(cpu_s=0.1, seen_s=0.0, left=3)))
    assert "it waits" in waits.reason and "3 processes live on" in waits.remark


# ---- the pace ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alone", "pace"),
    [
        (stint(), ONE_CPU),
        (stint(cpu_s=1.09), ONE_CPU),
        (stint(cpu_s=1.9, threads=2, beside=95), ALL_CPUS),
        (stint(cpu_s=1.05, threads=2, beside=6), ALL_CPUS),
        (stint(cpu_s=1.05, threads=2, beside=5), ONE_CPU),
        (stint(cpu_s=2.0, threads=10 * CPUS, beside=99), Pace(40.0, None)),
        (stint(cpu_s=2.0, threads=500 * CPUS, beside=99), Pace(120.0, None)),
    ],
    ids=["one thread", "hardly more", "two threads", "seldom two", "nearly never", "many", "crowd"],
)
def test_what_keeps_more_than_one_cpu_busy_has_all_and_longer_turns_for_a_crowd(
    alone: Stint, pace: Pace
) -> None:
    assert judged(TIMED, *twice(alone)) == Finding("", pace)


def test_what_is_known_to_keep_one_thread_busy_has_one_cpu_whichever_thread_that_is() -> None:
    beside = stint(threads=2, beside=95)
    assert judged(replace(TIMED, threads=1), *twice(beside)) == Finding("", ONE_CPU)
    assert judged(TIMED, *twice(beside)) == Finding("", ALL_CPUS)


# ---- waiting -------------------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("program", [TIMED, SERVER], ids=["program", "server"])


@BOTH
def test_what_waits_for_more_than_a_twentieth_of_its_time_is_not_believed(program: Program) -> None:
    found = judged(program, *twice(stint(cpu_s=0.9, seen_s=0.8, server_s=0.5)))
    assert "for something else than a CPU 10% of the time" in found.reason
    assert judged(program, *twice(stint(cpu_s=0.96, seen_s=0.8, server_s=0.5))).reason == ""


def test_copies_that_wait_for_each_other_are_not_believed() -> None:
    alone, *copies = twice(stint())
    waiting = [replace(copy, run=replace(copy.run, cpu_ns=6 * 10**8), awake=60) for copy in copies]
    assert "it waits for something else than a CPU 40%" in judged(TIMED, alone, *waiting).reason


def test_what_other_programs_took_of_its_time_is_no_waiting() -> None:
    assert judged(TIMED, *twice(stint(2.0, cpu_s=1.0, delay_s=1.0, seen_s=0.5))).reason == ""
    assert judged(TIMED, *twice(stint(2.0, cpu_s=1.0, seen_s=0.95))).reason == ""


def test_of_what_has_few_turns_only_the_time_is_judged() -> None:
    assert "10% of the time" in judged(TIMED, *twice(stint(cpu_s=0.9, turns=4))).reason
    assert judged(TIMED, *twice(stint(cpu_s=0.9, turns=20))).reason == ""


@pytest.mark.parametrize(("seen_s", "is_believed"), [(1.0, True), (0.5, False)])
def test_a_short_program_that_seems_to_wait_alone_is_run_until_enough_turns_have_ended(
    seen_s: float, is_believed: bool
) -> None:
    short = stint(0.1, cpu_s=0.09, turns=10, seen_s=seen_s)
    busy = stint(0.1, alive_s=0.2, turns=30)
    assert (judged(TIMED, short, busy, busy, short).reason == "") == is_believed


def test_on_all_cpus_what_is_seen_at_the_end_of_turns_counts() -> None:
    busy = stint(cpu_s=1.2, threads=2, beside=50, seen_s=0.95)  # others kept the CPUs busy
    assert judged(TIMED, *twice(busy)) == Finding("", ALL_CPUS)
    waits = stint(cpu_s=1.8, threads=2, beside=50, seen_s=0.85)
    assert "15% of the time" in judged(TIMED, *twice(waits)).reason


# ---- failures ------------------------------------------------------------------------------------

FAULT = Fault("failed", "exit status 1")
HANGS = Fault("hang", "it did not end in its time")


@BOTH
def test_what_fails_alone_or_beside_a_copy_of_itself_is_not_believed(program: Program) -> None:
    alone = stint(server_s=0.5)
    failed, hung = judged(program, FAULT), judged(program, HANGS)
    assert (failed.reason, failed.hangs) == ("it fails by itself: exit status 1", None)
    assert (hung.reason, hung.hangs) == ("it fails by itself: it did not end in its time", HANGS)
    assert judged(program, alone, alone, FAULT).reason == (
        "a second copy of it beside the first fails: exit status 1"
    )


def test_a_long_program_is_cut_and_a_short_one_that_hangs_is_not_believed() -> None:
    long = stint(6.0)
    assert judged(TIMED, long, long, HANGS) == Finding("", ONE_CPU)
    assert "fails: it did not end" in judged(TIMED, stint(4.0), long, HANGS).reason
    assert "fails: it did not end" in judged(NUMBERED, replace(long), long, HANGS).reason


def test_servers_that_do_not_fit_into_memory_are_not_believed() -> None:
    found = judged(SERVER, *twice(stint(server_s=0.5)), room=7)
    assert found.reason == "8 copies of it take more memory than there is"


# ---- a program's time and number -----------------------------------------------------------------


@pytest.mark.parametrize(("by_turns_s", "is_believed"), [(1.4, True), (1.6, False), (0.6, False)])
def test_by_turns_a_program_takes_the_time_that_it_takes_alone(
    by_turns_s: float, is_believed: bool
) -> None:
    found = judged(TIMED, stint(), stint(by_turns_s), stint(by_turns_s))
    assert (found.reason == "") == is_believed
    assert is_believed or f"by turns it takes {by_turns_s} s of its own time" in found.reason


def test_a_machine_that_was_slower_for_a_moment_is_looked_at_again() -> None:
    once = stint(wall_s=0.5)
    slowed = stint(wall_s=0.8, alive_s=1.6)
    assert not Given(once, slowed, slowed, *twice(once)).finding(TIMED).reason


def test_the_time_that_others_took_and_that_of_very_short_programs_is_not_compared() -> None:
    disturbed = stint(2.0, cpu_s=1.0, delay_s=1.0)
    assert judged(TIMED, stint(), disturbed, disturbed).reason == ""
    assert judged(TIMED, stint(0.01), stint(0.03), stint(0.03)).reason == ""


NUMBERS = {
    "it counts its own time": ((100, 1.0, 1.0), (100, 1.0, 2.0), False),
    "it counts all its time": ((100, 1.0, 1.0), (50, 1.0, 2.0), True),
    "it counts its own time on a slower CPU": ((100, 1.0, 1.0), (50, 2.0, 4.0), False),
    "it counts all its time on a slower CPU": ((100, 1.0, 1.0), (25, 2.0, 4.0), True),
    "it works for a certain time": ((100, 1.0, 1.0), (50, 0.5, 1.0), True),
    "it counts something else": ((100, 1.0, 1.0), (200, 1.0, 2.0), None),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_what_a_number_counts_is_found_by_what_it_is_alone_and_by_turns(name: str) -> None:
    (says, wall_s, alive_s), copies, counts_standing = NUMBERS[name]
    copy = stint(copies[1], alive_s=copies[2], says=copies[0])
    found = judged(NUMBERED, stint(wall_s, alive_s=alive_s, says=says), copy, copy)
    if counts_standing is None:
        assert found.reason.startswith("the number that it prints is 2 times as high by turns")
    else:
        assert found == Finding("", ONE_CPU, NumberReading(counts_standing))


# ---- a server's ----------------------------------------------------------------------------------


def test_a_server_is_compared_for_its_own_cpu_time() -> None:
    found = judged(SERVER, *twice(stint(server_s=0.25, threads=10, busy_threads=1.5)))
    assert found.reading == NumberReading(per_server_cpu=True)
    assert found.pace == ONE_CPU
    assert found.remark == (
        "under the load the server takes 0.25 s of CPU time, and the load 0.75 s; compared is the "
        "server's own"
    )


def test_a_server_with_busy_threads_has_all_cpus_and_is_measured_there_alone_again() -> None:
    threads = stint(cpu_s=1.0 * CPUS, server_s=0.5, threads=4, busy_threads=1.7)
    given = Given(threads, *twice(threads))
    found = given.finding(SERVER)
    assert given.paces == [ONE_CPU, ALL_CPUS, ALL_CPUS]
    assert (found.pace, found.reading) == (ALL_CPUS, NumberReading(per_server_cpu=True))


def test_where_server_and_load_leave_cpus_idle_the_time_of_both_is_compared() -> None:
    threads = stint(cpu_s=0.8 * CPUS, server_s=0.5, threads=4, busy_threads=2.0)
    found = judged(SERVER, threads, *twice(threads))
    assert found.reading == NumberReading()
    assert found.remark.endswith("compared is the time of both, since they leave CPUs idle")


@pytest.mark.parametrize(("by_turns_s", "is_believed"), [(0.7, True), (0.8, False), (0.3, False)])
def test_by_turns_a_server_takes_the_cpu_time_that_it_takes_alone(
    by_turns_s: float, is_believed: bool
) -> None:
    copy = stint(alive_s=2.0, server_s=by_turns_s)
    found = judged(SERVER, stint(server_s=0.5), copy, copy)
    assert (found.reason == "") == is_believed
    assert is_believed or f"the server takes {by_turns_s} s of CPU time" in found.reason


def test_a_load_of_a_certain_time_that_prints_nothing_is_refused() -> None:
    half = stint(0.5, alive_s=1.0, server_s=0.25)
    with pytest.raises(HztuneError, match="its time says nothing of the server"):
        judged(SERVER, stint(server_s=0.5), half, half)


def test_of_a_load_that_counts_all_its_time_requests_are_taken_for_the_servers_cpu_time() -> None:
    requests = stint(server_s=0.5, says=100), stint(alive_s=2.0, server_s=0.5, says=50)
    found = judged(SERVER_NUMBERED, *requests, requests[1])
    assert found.reading == NumberReading(counts_standing=True, per_server_cpu=True)
    certain = stint(0.5, alive_s=1.0, server_s=0.25, says=50)  # it takes a second, come what may
    assert judged(SERVER_NUMBERED, requests[0], certain, certain).reading == found.reading


def test_a_load_that_prints_the_same_alone_and_by_turns_is_taken_at_its_word() -> None:
    says = stint(server_s=0.5, says=100), stint(alive_s=2.0, server_s=0.5, says=100)
    found = judged(SERVER_NUMBERED, *says, says[1])
    assert (found.reading, found.reason) == (NumberReading(), "")
    assert found.remark.endswith("compared is what it prints")


def test_a_number_of_a_load_that_nothing_explains_is_not_believed() -> None:
    says = stint(server_s=0.5, says=100), stint(alive_s=2.0, server_s=0.5, says=300)
    found = judged(SERVER_NUMBERED, *says, says[1])
    assert found.reason.startswith("the number that the load prints is 3 times as high by turns")


ENDLESS = stint(server_s=0.5, says=100, was_told=True)
ENDS = {
    "it ends by itself": ([], [LOAD_PATIENCE_S, 0.0]),
    "it ends when it is told to": ([ENDLESS], [LOAD_PATIENCE_S, LOAD_SPAN_S]),
    "it fails when it is told to": ([FAULT], [LOAD_PATIENCE_S, 0.0]),
    "it hangs": ([HANGS], [LOAD_PATIENCE_S, 0.0]),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_load_that_goes_on_for_long_is_told_to_end_if_it_then_prints_its_number(
    name: str,
) -> None:
    first, spans = ENDS[name]
    given = Given(*first, *twice(stint(server_s=0.5, says=100)))
    given.finding(SERVER_NUMBERED)
    assert given.spans == spans
    given = Given(*twice(stint(server_s=0.5)))
    given.finding(SERVER)
    assert set(given.spans) == {0.0}  # of a load that is timed


# ---- the time ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left_s", "runs"), [(1000.0, [1, 2, 1, 2]), (30.0, [1, 2]), (3.0, [1])])
def test_a_trial_of_turns_takes_a_small_part_of_the_time_that_is_left(
    left_s: float, runs: list[int]
) -> None:
    waits = stint(3.0, cpu_s=0.3, seen_s=0.0)
    given = Given(*twice(waits), *twice(waits))
    with process.limited(lambda: left_s):
        finding = given.finding(TIMED)
    assert given.copies == runs
    assert finding.run_s == 3.0
    assert ("no time to try turns" in finding.reason) == (runs == [1])
