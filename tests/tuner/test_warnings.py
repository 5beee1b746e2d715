"""Very short programs and programs with two speeds: a warning, enough runs, or no claim."""

from __future__ import annotations

import re
from random import Random

import numpy as np
import pytest
from lab.replay import ModelNoise, NoiseSource, ReplayExecutor, Truth, VirtualClock

from hztune import machine
from hztune.blocks import Arm
from hztune.progress import Quiet
from hztune.space import Space
from hztune.sparse.grid import Floats
from hztune.stats.noise import two_states
from hztune.study.bench import Budget, Workbench
from hztune.study.calibration import assess, calibrate, warnings_about
from hztune.study.ledger import Ledger
from hztune.tune.story import Winner

from .conftest import Listener

QUIET = ModelNoise(within=0.01, between=0.005, common=0.01)


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


def runs_bench(run_ms: float, noise: NoiseSource = QUIET, budget_s: float = 300.0) -> Workbench:
    """A bench that measures whole programs, on which the spin lock is a third faster."""
    clock = VirtualClock()

    def truth(arm: Arm) -> Truth:
        return Truth(0.3 if arm.config.get("lock") == "spin" else 0.0)

    executor = ReplayExecutor(
        truth, noise, seed=1, clock=clock, turn_ms=run_ms, skip_ms=0, warmup_ms=0, start_ms=0
    )
    return Workbench(executor, Ledger(), Budget(clock, budget_s), Quiet())


def said_after_calibration(bench: Workbench) -> str:
    calibrate(bench, Arm("hz"), 0.08)
    calibration = assess(bench, 20.0, 0.01)
    bench.calibrated(calibration.floor, calibration.least_pairs)
    return " ".join(warnings_about(bench, calibration))


def test_a_program_of_usual_length_and_one_speed_is_not_doubted() -> None:
    bench = runs_bench(200.0)
    assert said_after_calibration(bench) == ""
    assert (bench.repeats(), bench.least_pairs) == (1, 6)


def test_a_program_below_50_ms_is_warned_of_and_run_several_times() -> None:
    bench = runs_bench(25.0)
    assert "a run takes only 25 ms" in said_after_calibration(bench)
    assert bench.repeats() == 2
    block = bench.measure([Arm("hz"), Arm("hz")], "confirm", bench.rounds(2, 1.0))
    assert len(block.control.turns) == 2


def test_a_program_with_two_speeds_is_warned_of_and_needs_more_pairs() -> None:
    bench = runs_bench(200.0, TwoSpeeds())
    assert "fall into two groups" in said_after_calibration(bench)
    assert bench.least_pairs == 20


def test_a_machine_with_two_speeds_does_not_make_two_of_the_program() -> None:
    bench = runs_bench(200.0, TwoMoments())
    assert said_after_calibration(bench) == ""
    assert bench.least_pairs == 6


def test_with_two_speeds_a_large_gain_is_claimed_from_enough_pairs(toy_space: Space) -> None:
    bench = runs_bench(200.0, TwoSpeeds(), budget_s=70.0)
    decision = Winner(bench, toy_space, seed=1).run()
    assert decision.verdict == "improved"
    assert decision.interval is not None
    assert decision.interval.pairs >= 20


def test_two_speeds_without_time_for_a_claim_end_a_study_that_names_what_would_do(
    toy_space: Space,
) -> None:
    decision = Winner(runs_bench(400.0, TwoSpeeds(), budget_s=20.0), toy_space, seed=1).run()
    assert decision.verdict == "not_enough_data"
    assert re.search(r"the 20 fresh pairs of a claim .* --budget 26s would do", decision.why)


# ---- another hztune ------------------------------------------------------------------------------


def test_a_study_says_once_that_it_waits_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, clock = Listener(), VirtualClock()
    executor = ReplayExecutor(lambda arm: Truth(), QUIET, seed=1, clock=clock)
    monkeypatch.setattr(machine, "waited_s", lambda: 2.0 * executor.accounting.turns)
    bench = Workbench(executor, Ledger(), Budget(clock, 60.0), listener)
    told = []
    for _ in range(5):
        bench.measure([Arm("hz")], "search", 1)
        told.append(sum("another hztune measures" in line for line in listener.lines))
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
