"""Whether turns tell the truth, judged on given numbers: no process runs, no clock is read."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from hztune import process
from hztune.blocks import Arm
from hztune.errors import HztuneError
from hztune.measure.alternate import NumberReading, Pace
from hztune.measure.examine import Tryout
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


def stint(wall_s=1.0, cpu_s=None, *, alive_s=None, says=None, server_s=0.0, seen_s=1.0, **more):
    """A run that took so long, busy all the time; by turns it was alive for longer.

    Args:
        wall_s: Its own time.
        cpu_s: CPU time of all its processes, of a server and its load together.
        alive_s: Its time from the beginning to the end.
        says: The number that it printed.
        server_s: CPU time of its server.
        seen_s: Share of its turns at whose end it was awake.
        more: Other fields.
    """
    fields = {"turns": 100, "threads": 1, "processes": 1, **more}
    return Run(
        None,
        wall_s=wall_s,
        cpu_ns=round(1e9 * (wall_s if cpu_s is None else cpu_s)),
        stdout="" if says is None else f"{says}",
        server_cpu_ns=round(1e9 * server_s),
        alive_s=wall_s if alive_s is None else alive_s,
        awake=round(seen_s * fields["turns"]),
        **fields,
    )


class Given:
    """Turns whose runs are given: those of the control alone, one by one, and then the copies."""

    pace, control_kb, first_s = ALL_CPUS, 0, 0.0

    def __init__(self, *runs, room=99):
        self.paces, self.spans, self.copies = list[Pace](), list[float](), list[int]()
        self._runs, self._room = [*runs], room

    def finding(self, program):
        return Tryout(self, program, Arm("none")).finding()

    def tell_load(self, span_s):
        self.spans.append(span_s)

    def fits(self, arms):
        return arms <= self._room

    def try_out(self, control, copies, **how):
        self.paces.append(self.pace)
        self.copies.append(copies)
        found = self._runs[:copies]
        del self._runs[:copies]
        fault = next((each for each in found if isinstance(each, Fault)), None)
        return [each for each in found if isinstance(each, Run)], fault


def judged(program, *runs, **options):
    """What is found of a program whose runs show this, whenever it is looked at."""
    return Given(*runs, *runs, **options).finding(program)


def twice(alone):
    """A run alone, and two copies by turns: the same, but that each stood still half the time."""
    copy = replace(alone, alive_s=2.0 * alone.alive_s)
    return alone, copy, copy


FAULT = Fault("failed", "exit status 1")
HANGS = Fault("hang", "it did not end in its time")
LONG = stint(6.0)
BESIDE = stint(threads=2, beside=95)
SHORT = stint(0.1, cpu_s=0.09, turns=10, seen_s=0.5)
FEW = stint(0.1, alive_s=0.2, turns=30)
THREADS = {"server_s": 0.5, "threads": 4}
HALF = stint(0.5, alive_s=1.0, server_s=0.25, says=50)
"""It takes a second, come what may."""

FIXED = stint(server_s=0.5, says=100)


def standing(says, wall_s, alive_s):
    """Two copies by turns."""
    return [stint(wall_s, alive_s=alive_s, says=says)] * 2


def served(server_s, says=None, alive_s=2.0):
    """Two copies of a server by turns."""
    return [stint(alive_s=alive_s, server_s=server_s, says=says)] * 2


ALONE, SERVED, SAYS = stint(), stint(server_s=0.5), stint(says=100)
WAITING = [replace(one, cpu_ns=6 * 10**8, awake=60) for one in twice(ALONE)]
PER_CPU, BOTH = NumberReading(per_server_cpu=True), NumberReading(True, per_server_cpu=True)
# What is found of a program whose runs show this: the reason against turns, and what else is said.
FOUND = {
    "one thread": (TIMED, twice(ALONE), "", {"pace": ONE_CPU, "remark": ""}),
    "two threads": (TIMED, twice(stint(cpu_s=1.9, threads=2, beside=95)), "", {"pace": ALL_CPUS}),
    "seldom two": (TIMED, twice(stint(cpu_s=1.05, threads=2, beside=6)), "", {"pace": ALL_CPUS}),
    "nearly never": (TIMED, twice(stint(cpu_s=1.05, threads=2, beside=5)), "", {"pace": ONE_CPU}),
    "many": (TIMED, twice(stint(cpu_s=2.0, threads=10 * CPUS, beside=99)), "",
             {"pace": Pace(40.0, None)}),
    "a crowd": (TIMED, twice(stint(cpu_s=2.0, threads=500 * CPUS, beside=99)), "",
                {"pace": Pace(120.0, None)}),
    "any one of two, known to be one": (
        replace(TIMED, threads=1), twice(BESIDE), "", {"pace": ONE_CPU},
    ),
    "it leaves a process": (TIMED, twice(stint(left=1)), "", {
        "remark": "when the program ends, a process that it started lives on",
    }),
    "it waits for three": (TIMED, twice(stint(cpu_s=0.1, seen_s=0.0, left=3)), "it waits",
                           {"remark": "3 processes live on"}),
    # waiting: more than a twentieth of its time, and not what other programs took of it
    "it waits": (TIMED, twice(stint(cpu_s=0.9, seen_s=0.8)),
                 "for something else than a CPU 10% of the time", {}),
    "it hardly waits": (TIMED, twice(stint(cpu_s=0.96, seen_s=0.8)), "", {}),
    "copies wait for each other": (TIMED, [ALONE, *WAITING[1:]], "else than a CPU 40%", {}),
    "others took its time": (TIMED, twice(stint(2.0, cpu_s=1.0, delay_s=1.0, seen_s=0.5)), "", {}),
    "it was seen awake": (TIMED, twice(stint(2.0, cpu_s=1.0, seen_s=0.95)), "", {}),
    "few turns": (TIMED, twice(stint(cpu_s=0.9, turns=4)), "10% of the time", {}),
    "enough turns": (TIMED, twice(stint(cpu_s=0.9, turns=20)), "", {}),
    "a short one waits": (TIMED, [SHORT, FEW, FEW, SHORT], "of the time", {}),
    "a short one does not": (TIMED, [one := replace(SHORT, awake=10), FEW, FEW, one], "", {}),
    "others keep all CPUs busy": (
        TIMED, twice(stint(cpu_s=1.2, threads=2, beside=50, seen_s=0.95)), "", {"pace": ALL_CPUS},
    ),
    "on all CPUs, it waits": (TIMED, twice(stint(cpu_s=1.8, threads=2, beside=50, seen_s=0.85)),
                              "15% of the time", {}),
    # failures
    "it fails": (TIMED, [FAULT], "it fails by itself: exit status 1", {"hangs": None}),
    "it hangs": (TIMED, [HANGS], "it fails by itself: it did not end in its time",
                 {"hangs": HANGS}),
    "a copy fails": (TIMED, [ALONE, ALONE, FAULT],
                     "a second copy of it beside the first fails: exit status 1", {}),
    "a long one is cut": (TIMED, [LONG, LONG, HANGS], "", {"pace": ONE_CPU}),
    "a copy of a short one hangs": (TIMED, [stint(4.0), LONG, HANGS], "fails: it did not end", {}),
    "a long one must print": (NUMBERED, [LONG, LONG, HANGS], "fails: it did not end", {}),
    # its own time by turns and alone
    "slower by turns": (TIMED, [ALONE, *standing(0, 1.6, 1.6)],
                        "by turns it takes 1.6 s of its own time", {}),
    "a very short one": (TIMED, [stint(0.01), *[stint(0.03)] * 2], "", {}),
    # what its number counts
    "its own time": (NUMBERED, [SAYS, *standing(100, 1.0, 2.0)], "",
                     {"pace": ONE_CPU, "reading": NumberReading(False)}),
    "its own time, slowly": (NUMBERED, [SAYS, *standing(50, 2.0, 4.0)], "",
                             {"reading": NumberReading(False)}),
    "a certain time": (NUMBERED, [SAYS, *standing(50, 0.5, 1.0)], "",
                       {"reading": NumberReading(True)}),
    "something else": (NUMBERED, [SAYS, *standing(200, 1.0, 2.0)],
                       "the number that it prints is 2 times as high by turns", {}),
    # of a server its own CPU time, or what its load prints
    "a server": (SERVER, twice(stint(server_s=0.25, threads=10, busy_threads=1.5)), "", {
        "reading": PER_CPU, "pace": ONE_CPU,
        "remark": "under the load the server takes 0.25 s of CPU time, and the load 0.75 s; "
                  "compared is the server's own",
    }),
    "a server that leaves CPUs idle": (
        SERVER, [one := stint(cpu_s=0.8 * CPUS, busy_threads=2.0, **THREADS), *twice(one)], "",
        {"reading": NumberReading(),
         "remark": "compared is the time of both, since they leave CPUs idle"},
    ),
    "a server, slower by turns": (SERVER, [SERVED, *served(0.8)],
                                  "the server takes 0.8 s of CPU time", {}),
    # the first time, something else took the CPU: that is no load of a fixed time
    "a server, as fast by turns": (SERVER, [SERVED, *served(0.5, alive_s=1.05)], "", {}),
    "a load of a certain time": (SERVER_NUMBERED, [FIXED, HALF, HALF], "", {"reading": BOTH}),
    "a load that prints the same": (SERVER_NUMBERED, [FIXED, *served(0.5, 100)], "", {
        "reading": NumberReading(), "remark": "compared is what it prints",
    }),
    "a load that prints anything": (SERVER_NUMBERED, [FIXED, *served(0.5, 300)],
                                    "the number that the load prints is 3 times as high", {}),
}  # fmt: skip


@pytest.mark.parametrize(("program", "runs", "reason", "more"), FOUND.values(), ids=FOUND)
def test_turns_are_believed_where_runs_alone_and_two_copies_agree(program, runs, reason, more):
    found = judged(program, *runs)
    assert reason in found.reason and bool(reason) == bool(found.reason)
    assert more.get("remark", "") in found.remark
    rest = more.keys() - {"remark"}
    assert {each: getattr(found, each) for each in rest} == {each: more[each] for each in rest}


def test_a_machine_that_was_slower_for_a_moment_is_looked_at_again():
    once, slowed = stint(wall_s=0.5), stint(wall_s=0.8, alive_s=1.6)
    assert not Given(once, slowed, slowed, *twice(once)).finding(TIMED).reason


def test_servers_that_do_not_fit_into_memory_are_not_believed():
    found = judged(SERVER, *twice(SERVED), room=7)
    assert found.reason == "8 copies of it take more memory than there is"


def test_a_server_with_busy_threads_has_all_cpus_and_is_measured_there_alone_again():
    threads = stint(cpu_s=1.0 * CPUS, busy_threads=1.7, **THREADS)
    given = Given(threads, *twice(threads))
    found = given.finding(SERVER)
    assert given.paces == [ONE_CPU, ALL_CPUS, ALL_CPUS]
    assert (found.pace, found.reading) == (ALL_CPUS, PER_CPU)


def test_a_load_of_a_certain_time_that_prints_nothing_is_refused():
    with pytest.raises(HztuneError, match="its time says nothing of the server"):
        judged(SERVER, SERVED, HALF, HALF)


ENDLESS = stint(server_s=0.5, says=100, was_told=True)
ENDS = {
    "it ends by itself": ([], [LOAD_PATIENCE_S, 0.0]),
    "it ends when it is told to": ([ENDLESS], [LOAD_PATIENCE_S, LOAD_SPAN_S]),
    "it fails when it is told to": ([FAULT], [LOAD_PATIENCE_S, 0.0]),
    "it hangs": ([HANGS], [LOAD_PATIENCE_S, 0.0]),
}


@pytest.mark.parametrize(("first", "spans"), ENDS.values(), ids=ENDS)
def test_a_load_that_goes_on_for_long_is_told_to_end_if_it_then_prints_its_number(first, spans):
    given = Given(*first, *twice(stint(server_s=0.5, says=100)))
    given.finding(SERVER_NUMBERED)
    assert given.spans == spans
    given = Given(*twice(stint(server_s=0.5)))
    given.finding(SERVER)
    assert set(given.spans) == {0.0}  # of a load that is timed


# ---- the time ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left_s", "runs"), [(1000.0, [1, 2, 1, 2]), (30.0, [1, 2]), (3.0, [1])])
def test_a_trial_of_turns_takes_a_small_part_of_the_time_that_is_left(left_s, runs):
    waits = stint(3.0, cpu_s=0.3, seen_s=0.0)
    given = Given(*twice(waits), *twice(waits))
    with process.limited(lambda: left_s):
        finding = given.finding(TIMED)
    assert given.copies == runs
    assert finding.run_s == 3.0
    assert ("no time to try turns" in finding.reason) == (runs == [1])
