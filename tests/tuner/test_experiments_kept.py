"""The experiments of this repository: their results hold, and no question of theirs is missing."""

from __future__ import annotations

import importlib
import re
import runpy
from math import factorial
from pathlib import Path

import pytest
from lab import chart, definition
from lab.findings import examine

from hztune import params

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
STATS = Path(__file__).parents[2] / "core" / "include" / "hz" / "stats.def"


MODEL = runpy.run_path(str(EXPERIMENTS / "scale" / "model.py"))
Station, solved = MODEL["Station"], MODEL["solved"]


def committed():
    return [definition.load(path) for path in definition.find(["all"])]


def test_the_committed_results_are_what_their_samples_give():
    assert {each.name: examine(each).problems for each in committed()} == {
        each.name: () for each in committed()
    }


def test_the_committed_picture_is_what_the_samples_give():
    peers = examine(definition.load(EXPERIMENTS / "peers"))
    again = "python experiments/report.py peers --plot experiments/peers/peers.svg"
    assert chart.draw(peers.standings) == (EXPERIMENTS / "peers" / "peers.svg").read_text(), again


def test_experiments_ask_for_counters_that_exist_and_legal_configurations():
    counted = {*re.findall(r"HZ_STAT\((\w+)", STATS.read_text())}
    assert len(counted) > 30
    for each in committed():
        asked = {name for value in each.file.value for name in (value.count, value.per or "ops")}
        assert asked <= counted | {"ops", "minor_faults", "rss_idle_kb"}, each.name
        for side in each.sides:
            if side.build or side.arm.allocator == "hz":
                params.check(side.arm.config)


def test_the_curves_of_servers_are_drawn_from_what_is_kept(monkeypatch):
    folder = EXPERIMENTS / "production"
    monkeypatch.syspath_prepend(folder)
    drawn = importlib.import_module("curves").picture
    kept = sorted(folder.glob("*.json"))
    assert {each.stem for each in kept} >= {"redis", "web"}
    again = "python experiments/production/curves.py"
    for each in kept:
        assert drawn(each) + "\n" == each.with_suffix(".svg").read_text(), again


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
