"""The experiments about the engine can be repeated: with today's hztune, on what is recorded.

What measures processes is replayed here; what needs scikit-learn stands back for the nearest point.
"""

from __future__ import annotations

import json
import math
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from lab.replay import ModelNoise, ReplayExecutor, Truth
from numpy.typing import NDArray

from hztune.study.limits import LossLimit
from hztune.workload import WorkloadSpec

ENGINE = Path(__file__).parents[2] / "experiments" / "engine"
LANDSCAPES = sorted(ENGINE.glob("landscape-*.json"))
assert LANDSCAPES, f"{ENGINE} holds no landscape"
PARTS = ("odd", "rivals")
"""What the programs use, and is none itself."""

SCRIPTS = sorted(path.stem for path in ENGINE.glob("*.py") if path.stem not in PARTS)
BUDGET_S = 60.0

Floats = NDArray[np.float64]


@pytest.fixture
def script(monkeypatch):
    """Imports one of the experiments' programs as it would be when it is started."""
    monkeypatch.syspath_prepend(str(ENGINE))
    return import_module


@pytest.fixture
def run(monkeypatch, capsys):
    """Starts one that was imported; gives what it prints."""

    def start(module, *words):
        monkeypatch.setattr(sys, "argv", [str(module.__file__), *map(str, words)])
        module.main()
        return capsys.readouterr().out

    return start


class Nearest(NamedTuple):
    """Says of every configuration what was measured at the recorded one that is nearest to it."""

    where: Floats
    level: Floats
    error: Floats

    def predict(self, where):
        gaps = ((where[:, None] - self.where) ** 2).sum(axis=2)
        found: Floats = self.level[gaps.argmin(axis=1)]
        return found


@pytest.fixture
def regret(script, monkeypatch):
    regret = script("regret")
    monkeypatch.setattr(regret, "fitted", Nearest)
    return regret


def replayed(spec, seed=1, **more):
    """An executor in which everything is as fast as the default."""
    return ReplayExecutor(lambda arm: Truth(), ModelNoise(), seed=seed)


def by_turns(name, seed, machine):
    """Stands for `record.by_turns`."""
    spec = WorkloadSpec.from_text(*import_module("record").WORKLOADS[name])
    return spec, replayed(spec, seed)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_program_says_how_it_is_used(name, script, run, capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        run(script(name), "--help")
    assert capsys.readouterr().out.startswith("usage: ")


@pytest.mark.parametrize("path", LANDSCAPES[:2], ids=lambda path: path.stem)
def test_a_recorded_landscape_can_be_searched_for_ever(path, regret):
    surface = regret.Surface.read(path)
    found = json.loads(path.read_text())
    space = surface.space
    assert {name: space.full({})[name] for name in found["defaults"]} == found["defaults"]
    assert surface(space.control).log_ratio == 0.0
    for name in ("hztune", "random search"):
        arm = regret.TUNERS[name](surface, 1, BUDGET_S)
        assert space.contains(arm.config)
        assert surface(arm).log_ratio <= surface.best()


LOSS_ROW = re.compile(r"^ *\| (0\.\d+) \| (\d+) \|(( \d+ % \|)+)$", re.MULTILINE)
LOSS_TABLE = [
    (float(row[1]), int(row[2]), [int(each) / 100 for each in re.findall(r"\d+(?= %)", row[3])])
    for row in LOSS_ROW.finditer(LossLimit.__doc__ or "")
]


@pytest.mark.parametrize(("deviation", "pairs", "shares"), LOSS_TABLE)
def test_what_is_said_of_max_loss_is_what_the_judging_code_shows(deviation, pairs, shares, script):
    losses, proofs = script("losses"), 250
    assert [(row, count) for row, count, _ in LOSS_TABLE] == [*losses.ROWS]
    found = losses.shares(deviation, pairs, proofs)
    for said, seen in zip(shares, found, strict=True):
        error = math.sqrt(max(said * (1.0 - said), 0.01) / proofs)
        assert abs(seen - said) <= 3.5 * error + 0.005
