"""A program that has threads and rests gives its memory back, and notices nothing of how."""

from __future__ import annotations

import os
import signal
import sys

import pytest

OWN = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS}
"""What a thread gets for what it does itself."""

SOON = {"HZ_REST_MS": "20", "HZ_DECAY_MS": "4", "TEST_ALLOCATOR": "libhz.so"}

POOL = """
import os, threading
tasks = lambda: len(os.listdir("/proc/self/task"))
before, gate = tasks(), threading.Event()
pool = [threading.Thread(target=gate.wait) for _ in range(3)]
for each in pool: each.start()
print(before, tasks())
gate.set()
for each in pool: each.join()
"""

MASKS = """
import os, threading, time
gate = threading.Event()
threading.Thread(target=gate.wait, daemon=True).start()
own = {str(thread.native_id) for thread in threading.enumerate()}
def blocked(task):
    for line in open(f"/proc/self/task/{task}/status"):
        if line.startswith("SigBlk:"): return line.split()[1]
def runs(task):
    return not int(blocked(task), 16) >> 31 & 1
others = ()
while len(others) < int(os.environ["OTHERS"]) or not all(map(runs, others)):
    time.sleep(0.01)
    others = set(os.listdir("/proc/self/task")) - own
for task in others: print(blocked(task))
gate.set()
"""
"""A thread that glibc still makes has every signal blocked, glibc's own, 32 and 33, among them."""


# How many threads there are before Python makes three and after.
MAKERS = {
    "by default": ({}, "1 5"),
    "under hardening": ({"HZ_HARDENING": "full"}, "1 5"),
    "without a time of rest": ({"HZ_REST_MS": "0"}, "1 4"),
    "not for a thread that is hz's own": ({"HZ_CONTROL": "1"}, "2 6"),
}


@pytest.mark.parametrize(("settings", "threads"), MAKERS.values(), ids=MAKERS.keys())
def test_a_program_that_makes_threads_gets_a_background_thread(settings, threads, preload):
    done = preload(sys.executable, "-c", POOL, **settings)
    assert (done.returncode, done.stdout) == (0, f"{threads}\n"), done.stderr


@pytest.mark.slow
def test_the_background_thread_lives_beside_large_thread_local_variables(core_tests, holds):
    both = f"{core_tests / 'libhz.so'}:{core_tests / 'tests' / 'liblarge_tls.so'}"
    holds("rest", "comes again", **SOON, LD_PRELOAD=both)


def test_the_background_thread_runs_under_valgrind(core_tests, preload):
    check = "what a burst left goes back while the threads rest"
    words = ["valgrind", "-q", "--tool=none", core_tests / "tests" / "rest", check]
    done = preload(*words, **{**SOON, "TEST_ALLOCATOR": ""}, PATH=os.environ["PATH"])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("others", "variables"),
    [
        (1, {}),
        (1, {"HZ_REST_MS": "0", "HZ_CONTROL": "1"}),
        (2, {"HZ_BACKGROUND_PERIOD_US": "1048576", "HZ_CONTROL": "1"}),
    ],
    ids=["rest", "control", "background and control"],
)
def test_threads_of_hz_get_no_signal_but_for_what_they_do_themselves(others, variables, preload):
    done = preload(sys.executable, "-c", MASKS, OTHERS=str(others), **variables)
    assert done.returncode == 0, done.stderr
    masks = [int(mask, 16) for mask in done.stdout.split()]
    assert len(masks) == others
    for mask in masks:
        blocked = {number for number in range(1, 65) if mask >> (number - 1) & 1}
        assert {signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD} <= blocked
        assert blocked.isdisjoint(OWN)
