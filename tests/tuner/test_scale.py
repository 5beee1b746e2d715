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
