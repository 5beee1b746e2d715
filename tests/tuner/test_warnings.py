"""Very short programs and programs with two speeds: a warning, enough runs, or no claim."""

from __future__ import annotations

import re
from random import Random

import numpy as np
import pytest
from lab.replay import ModelNoise, NoiseSource

from hztune import machine
from hztune.blocks import Arm
from hztune.space import Space
from hztune.sparse.grid import Floats
from hztune.stats.noise import two_states
from hztune.study.bench import Workbench
from hztune.study.calibration import assess, calibrate, warnings_about
from hztune.tune.story import Winner

from .conftest import bench_of, flat, heard, spin_wins

STEADY = ModelNoise(within=0.01, between=0.005, common=0.01)


class TwoSpeeds:
    """Every run is fast or a fifth slower, by chance."""

    def draw(self, rng: np.random.Generator, rounds: int, arms: int) -> Floats:
        slow: Floats = np.where(rng.random((rounds, arms)) < 0.4, -0.2, 0.0)
        noise: Floats = rng.normal(0.0, 0.004, (rounds, arms))
        return slow + noise


class TwoMoments:
    """Every other block is a fifth slower, all its runs alike."""

    def __init__(self) -> None:
        self.blocks = 0

    def draw(self, rng: np.random.Generator, rounds: int, arms: int) -> Floats:
        self.blocks += 1
        noise: Floats = rng.normal(0.0, 0.004, (rounds, arms))
        return noise - 0.2 * (self.blocks % 2)


def runs_bench(run_ms: float, noise: NoiseSource = STEADY, budget_s: float = 300.0) -> Workbench:
    """A bench that measures whole programs, on which the spin lock is a third faster."""
    times = {"turn_ms": run_ms, "skip_ms": 0.0, "warmup_ms": 0.0, "start_ms": 0.0}
    return bench_of(spin_wins(0.3), noise, budget_s=budget_s, **times)


@pytest.mark.parametrize(
    ("run_ms", "noise", "warning", "repeats", "least_pairs"),
    [
        (200.0, STEADY, "", 1, 6),
        (25.0, STEADY, "a run takes only 25 ms", 2, 6),
        (200.0, TwoSpeeds(), "fall into two groups", 1, 20),
        (200.0, TwoMoments(), "", 1, 6),  # the machine has two speeds, not the program
    ],
)
def test_short_programs_run_several_times_and_those_with_two_speeds_need_more_pairs(
    run_ms: float, noise: NoiseSource, warning: str, repeats: int, least_pairs: int
) -> None:
    bench = runs_bench(run_ms, noise)
    calibrate(bench, Arm("hz"), 0.08)
    calibration = assess(bench, 20.0, 0.01)
    bench.calibrated(calibration.floor, calibration.least_pairs)
    said = " ".join(warnings_about(bench, calibration))
    assert warning in said and bool(warning) == bool(said)
    assert (bench.repeats(), bench.least_pairs) == (repeats, least_pairs)
    block = bench.measure([Arm("hz"), Arm("hz")], "confirm", bench.rounds(2, 1.0))
    assert len(block.control.turns) == repeats


def test_with_two_speeds_a_large_gain_is_claimed_from_enough_pairs(toy_space: Space) -> None:
    decision = Winner(runs_bench(200.0, TwoSpeeds(), 70.0), toy_space, seed=1).run()
    assert decision.verdict == "improved"
    assert decision.interval is not None
    assert decision.interval.pairs >= 20


def test_two_speeds_without_time_for_a_claim_end_a_study_that_names_what_would_do(
    toy_space: Space,
) -> None:
    decision = Winner(runs_bench(400.0, TwoSpeeds(), 20.0), toy_space, seed=1).run()
    assert decision.verdict == "not_enough_data"
    assert re.search(r"the 20 fresh pairs of a claim .* --budget 26s would do", decision.why)


# ---- another hztune ------------------------------------------------------------------------------


def test_a_study_says_once_that_it_waits_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    waited_s = 0.0
    monkeypatch.setattr(machine, "waited_s", lambda: waited_s)
    bench, told = bench_of(flat, STEADY), []
    for waited_s in (2.0, 4.0, 6.0, 8.0, 10.0):  # noqa: B007
        bench.measure([Arm("hz")], "search", 1)
        told.append(sum("another hztune measures" in line for line in heard(bench).lines))
    assert told == [0, 0, 1, 1, 1]


# ---- the statistic -------------------------------------------------------------------------------


def test_two_groups_are_seen_with_their_distance() -> None:
    rng = Random(1)
    values = [rng.gauss(0.0, 0.01) + 0.3 * (place % 3 == 0) for place in range(18)]
    assert two_states(values) == pytest.approx(0.3, abs=0.02)


def test_one_group_is_seldom_taken_for_two() -> None:
    rng = Random(2)
    found = [two_states([rng.gauss(0.0, 0.1) for _ in range(12)]) for _ in range(200)]
    assert sum(distance is not None for distance in found) <= 4


@pytest.mark.parametrize(
    "values",
    [
        [0.0] * 11 + [1.0],  # one that lies apart
        [0.0, 0.3] * 3,  # too few
        [0.0, 0.01] * 8,  # too close to matter
        [0.5] * 12,  # all the same
    ],
)
def test_what_is_no_reason_for_doubt(values: list[float]) -> None:
    assert two_states(values) is None
