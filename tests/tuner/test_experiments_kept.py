"""The experiments of this repository: their results hold, and no question of theirs is missing."""

from __future__ import annotations

import json
import math
import os
import re
import runpy
import sys
from importlib import import_module
from math import factorial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from lab import chart, definition
from lab.findings import examine
from numpy.typing import NDArray

from hztune import params, process
from hztune.allocator import loaded_program
from hztune.study.limits import LossLimit

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


def test_a_page_names_the_processor_that_its_results_are_of():
    for path in EXPERIMENTS.glob("*/results.json"):
        cpu = (json.loads(path.read_text()).get("machine") or {}).get("cpu", "")
        named = re.findall("EPYC|Xeon", path.with_name("README.md").read_text())
        assert not (cpu and named) or any(each in cpu for each in named), path


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
    drawn = import_module("curves").picture
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


# ---- about the engine ----------------------------------------------------------------------------


ENGINE = EXPERIMENTS / "engine"
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


class Nearest(NamedTuple):
    """Says of every configuration what was measured at the recorded one that is nearest to it."""

    where: Floats
    level: Floats
    error: Floats

    def predict(self, where):
        gaps = ((where[:, None] - self.where) ** 2).sum(axis=2)
        found: Floats = self.level[gaps.argmin(axis=1)]
        return found


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_program_says_how_it_is_used(name, script, monkeypatch, capsys):
    module = script(name)
    monkeypatch.setattr(sys, "argv", [str(module.__file__), "--help"])
    with pytest.raises(SystemExit, match=r"^0$"):
        module.main()
    assert capsys.readouterr().out.startswith("usage: ")


@pytest.mark.parametrize("path", LANDSCAPES[:2], ids=lambda path: path.stem)
def test_a_recorded_landscape_can_be_searched_for_ever(path, script, monkeypatch):
    regret = script("regret")
    monkeypatch.setattr(regret, "fitted", Nearest)
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


# ---- many whole studies --------------------------------------------------------------------------


RECORDINGS = sorted(ENGINE.glob("noise-*.json"))
assert RECORDINGS, f"{ENGINE} holds no recorded noise"
STUDIES = 4


def many(studies, numbers, sources=RECORDINGS, budget_s=180.0, gain=1.0):
    """What studies came to, by the name of their noise."""
    told = (studies.study_number(n, sources, budget_s, gain, studies.WINNER) for n in numbers)
    return studies.added(told)


@pytest.mark.slow
def test_equals_are_not_claimed_gains_are_found_and_intervals_cover(script):
    studies = script("studies")
    total = studies.summed(many(studies, range(STUDIES)).values())
    assert total["studies"] == STUDIES
    assert total["finalists"] >= STUDIES  # or nothing was put to the proof
    assert total["false_claims"] <= 1  # at the design's 0.8 %, two of 4 come once in 2600
    assert total["misplaced"] <= 1
    assert total["covered"] >= 0.95 * total["intervals"]
    assert total["emitted_covered"] >= 0.95 * total["emitted"]
    assert total["found"] >= 1  # about a half of gains as small as the least: none once in 16
    assert total["useless"] <= 0.2 * total["carried"]  # 1 in 30 of many studies


@pytest.mark.slow
def test_every_odd_noise_brings_hardly_a_false_claim(script):
    studies = script("studies")
    noises = [*studies.odd.ODD]
    found = many(studies, range(len(noises)), noises, 60.0, gain=0.0)
    assert [*found] == sorted(noises)
    assert sum(counts["false_claims"] for counts in found.values()) <= 1


# ---- real programs -------------------------------------------------------------------------------


sys.path.insert(0, str(EXPERIMENTS / "programs"))
CASES = import_module("cases")
RUN = import_module("run")
EVERY = (*CASES.CASES, *CASES.COMPARED)
PROGRAMS = list({case.command: case for case in reversed(EVERY) if case.command}.values())
OPTIONAL = (
    *("lua", "ruby", "node", "z3", "clang", "memcached", "nginx", "postgres"),
    *(case.name for case in CASES.COMPARED),
)  # fmt: skip
"""Cases whose programs README's test command does not install: tested where they are."""

CLOCK = re.compile(r"^[A-Z]+ *=.*$", re.M)
"""What barnes prints of the time."""


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """What the commands need, built once."""
    folder = tmp_path_factory.mktemp("programs")
    CASES.build(folder, PROGRAMS, functions=1, pigeons=6)
    return folder


def require(case):
    """Sees to it that a case's programs are installed, or skips where they need not be."""
    lacking = CASES.missing(case)
    if lacking and case.name in OPTIONAL:
        pytest.skip("; ".join(lacking))
    assert lacking == []


@pytest.mark.parametrize("case", PROGRAMS, ids=[case.name for case in PROGRAMS])
def test_a_program_says_the_same_on_hz(case, work, core_build):
    require(case)
    said = []
    for variables in ({}, {"LD_PRELOAD": str(core_build / "libhz.so"), "HZ_STRICT": "1"}):
        own = {**os.environ, **dict(case.variables), **variables}
        done = process.run(case.words(work, case.short), env=own, deadline_s=60)
        assert done.ok, done.describe()
        said.append(CLOCK.sub("", done.stdout))
    assert said[0] == said[1]
    assert said[0].strip() or case.name in ("gcc", "clang", "espresso")


@pytest.mark.parametrize("case", CASES.CASES, ids=[case.name for case in CASES.CASES])
def test_hztune_takes_the_options_of_a_case(case, work, hztune_here):
    require(case)
    _, _, _, *line = RUN.study(case, work, "20s", case.allocator, Path("out"))
    at = line.index("--json")
    done = hztune_here(*line[:at], "--dry-run", *line[at + 1 :])
    assert (done.returncode, done.stderr) == (0, "")


def test_redis_is_said_to_bring_its_own_allocator():
    (said,) = loaded_program.inspect("redis-server").remarks
    assert "is linked with jemalloc: unchanged, it runs on that, not on glibc" in said
