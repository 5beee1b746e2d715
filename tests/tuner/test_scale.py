"""The model of experiments/scale: threads that work and wait for lines and locks."""

from __future__ import annotations

import runpy
from math import factorial
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODEL = runpy.run_path(str(ROOT / "experiments" / "scale" / "model.py"))
Station, solved = MODEL["Station"], MODEL["solved"]


@pytest.mark.parametrize("threads", [2, 5, 20])
def test_one_lock_is_the_machine_repairman(threads):
    """P(all think) = 1 / sum of N! / (N - n)! (D/Z)^n; the lock is in use otherwise."""
    demand, think = 10.0, 100.0
    weights = [
        factorial(threads) / factorial(threads - n) * (demand / think) ** n
        for n in range(threads + 1)
    ]
    answer = solved([Station("lock", demand)], think, threads)
    assert dict(answer.used)["lock"] == pytest.approx(1 - 1 / sum(weights))


LINE_NS, FAULT_NS = 40.0, 2000.0


def ns_per_op(base, run, cpus=1):
    """What the model says that an operation of a thread costs."""
    speed = MODEL["predicted"](base, run, cpus, LINE_NS, FAULT_NS).ops_per_ns
    return float(min(cpus, run["threads"]) / speed)


def a_run(**changed):
    """A run of the ledger with one lock and one slow path."""
    lock = {"name": "depot", "class": 1, "shard": 0, "per_op": 0.01, "ns": 100.0}
    return {
        "threads": 1,
        "apart": {"cpu_ns_per_op": 50.0, "faults_per_op": 0.01},
        "faults_per_op": 0.01,
        "ways_per_op": {"program": 0.0, "hz": 0.0},
        "clock_ns": 0.0,
        "locks": [lock],
        "paths": {"hz_magazine_pop": {"per_op": 0.01, "ns": 500.0}},
        "system_calls": {},
        **changed,
    }


def test_a_line_from_another_cpu_takes_half_of_what_a_pass_to_and_fro_does():
    ways = {"program": 0.2, "hz": 0.1}
    few, many = (a_run(locks=[], ways_per_op=ways, threads=threads) for threads in (2, 64))
    assert ns_per_op(a_run(), few, 1) == pytest.approx(50.0)
    assert ns_per_op(a_run(), few, 2) == pytest.approx(50.0 + 0.2 * LINE_NS / 2)
    assert ns_per_op(a_run(), many, 64) == pytest.approx(50.0 + 0.3 * LINE_NS / 2)
