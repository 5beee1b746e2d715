"""Estimates and intervals: known values, and what they promise held against simulated noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from hztune.blocks import Arm, Outcome, Turn
from hztune.stats.intervals import (
    LEAST_PLANNED,
    Interval,
    Spread,
    critical_values,
    normal_tail,
    planned_bound,
    planned_interval,
    planned_looks,
    spending_bounds,
    t_quantile,
)
from hztune.stats.noise import (
    Noise,
    _apart,
    detectable_effect,
    estimate_noise,
    expected_improvement,
    follow_on,
    noise_floor,
    pool,
)
from hztune.stats.ratios import PairRatio, by_machine, log_memory_ratio, pair_ratio

ARM = Arm("hz")


def outcome(*rates: float, disturbed: tuple[int, ...] = (), rss: int = 1000) -> Outcome:
    """An outcome whose turns, one a round, have these rates."""
    turns = tuple(
        Turn(i, 0, i, 1_000_000_000, rate, "steal" if i in disturbed else "")
        for i, rate in enumerate(rates)
    )
    return Outcome(ARM, "ok", "", sum(rates) / len(rates), turns, rss)


def crashed() -> Outcome:
    return Outcome(ARM, "crash", "ended by SIGSEGV")


def pair(log_ratio: float, within: float = 0.0, rounds: int = 10) -> PairRatio:
    return PairRatio(log_ratio, within, rounds)


# ---- distributions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tail", "df", "expected"),
    [(0.025, 1, 12.7062), (0.025, 5, 2.5706), (0.005, 9, 3.2498), (0.025, 30, 2.0423),
     (0.05, 2.5, 2.5582), (0.025, 1e9, 1.9600)],
)  # fmt: skip
def test_students_t_has_its_tabled_quantiles(tail: float, df: float, expected: float) -> None:
    assert t_quantile(tail, df) == pytest.approx(expected, abs=2e-4)


def obrien_fleming(t: float) -> float:
    """Error spent by the part `t` of the information, 0.025 a side, of O'Brien-Fleming's type."""
    return 2.0 * 2.0 * normal_tail(2.241403 / math.sqrt(t))


def pocock(t: float) -> float:
    """The same of Pocock's type."""
    return 0.05 * math.log(1.0 + (math.e - 1.0) * t)


# As rpact's getDesignGroupSequential (asOF, asP) and gsDesign (sfLDOF, sfLDPocock) print them for
# five equal looks.
PRINTED = {
    obrien_fleming: (4.877, 3.357, 2.680, 2.290, 2.031),
    pocock: (2.438, 2.427, 2.410, 2.397, 2.386),
}


@pytest.mark.parametrize("spent", PRINTED, ids=lambda spent: spent.__name__)
def test_bounds_of_an_error_that_is_spent_are_those_of_printed_tables(
    spent: Callable[[float], float],
) -> None:
    ends = [0.0, *(spent(look / 5) for look in range(1, 6))]
    spends = tuple(end - before for before, end in pairwise(ends))
    bounds = spending_bounds((20, 40, 60, 80, 100), spends)
    assert bounds == pytest.approx(PRINTED[spent], abs=2e-3)


# ---- log ratios ----------------------------------------------------------------------------------


def test_twice_the_speed_is_the_logarithm_of_two() -> None:
    found = pair_ratio(outcome(10, 20, 30), outcome(20, 40, 60))
    assert found is not None
    assert found.log_ratio == pytest.approx(math.log(2))
    assert found.turn_variance == pytest.approx(0.0, abs=1e-12)
    assert found.rounds == 3


def test_disturbed_turns_do_not_count_where_there_are_others() -> None:
    found = pair_ratio(outcome(10, 10, 99, disturbed=(2,)), outcome(10, 10, 10))
    assert found is not None
    assert (found.log_ratio, found.rounds) == (0.0, 2)


def test_a_failed_process_has_no_ratio() -> None:
    assert pair_ratio(outcome(1), crashed()) is None
    assert pair_ratio(crashed(), outcome(1)) is None
    assert log_memory_ratio(outcome(1), crashed()) is None


# ---- variance components -------------------------------------------------------------------------


def simulated_pairs(
    rng: np.random.Generator, count: int, between: float, within: float, rounds: int
) -> list[PairRatio]:
    """Pairs of processes that differ by `between`, whose rounds scatter by `within`."""
    pairs = []
    for offset in rng.normal(0.0, between, count):
        turns = rng.normal(offset, within, rounds)
        pairs.append(PairRatio(float(turns.mean()), float(turns.var(ddof=1)) / rounds, rounds))
    return pairs


def test_the_two_sources_of_noise_are_told_apart() -> None:
    rng = np.random.default_rng(4)
    noise = estimate_noise([simulated_pairs(rng, 400, 0.05, 0.2, 30)])
    assert noise is not None
    assert math.sqrt(noise.between) == pytest.approx(0.05, rel=0.15)
    assert math.sqrt(noise.per_round) == pytest.approx(0.2, rel=0.15)


def test_the_best_rounds_give_the_least_variance_a_second() -> None:
    noise = Noise(between=0.002, per_round=0.05, df=9)
    best = noise.best_rounds(0.4, 0.02, 1, 200)

    def variance_a_second(rounds: int) -> float:
        return noise.of_pair(rounds) * (0.4 + 0.02 * rounds)

    assert variance_a_second(best) == pytest.approx(min(map(variance_a_second, range(1, 200))))


def test_more_pairs_lower_the_floor_and_the_least_gain_that_can_be_proved() -> None:
    noise = Noise(between=0.001, per_round=0.01, df=12)
    floors = [noise_floor(noise, 20, pairs) for pairs in (6, 12, 24)]
    effects = [detectable_effect(noise, 20, pairs, 0.01) for pairs in (6, 12, 24)]
    assert floors == sorted(floors, reverse=True)
    assert effects == sorted(effects, reverse=True)
    assert all(effect > floor for effect, floor in zip(effects, floors, strict=True))


# ---- sequential intervals ------------------------------------------------------------------------


def test_critical_values_err_as_often_as_was_asked() -> None:
    rng = np.random.default_rng(11)
    counts = (6, 10, 15, 25, 39, 63)
    sums = np.cumsum(rng.standard_normal((20_000, 63)), axis=1)[:, np.array(counts) - 1]
    crossed = np.abs(sums) > np.array(critical_values(counts, 0.05)) * np.sqrt(counts)
    spent = 0.05 * (1.0 - 0.75 ** len(counts))
    assert crossed.any(axis=1).mean() == pytest.approx(spent, abs=0.005)


def draws(kind: str, rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Noise of several shapes, mean 0."""
    if kind == "heavy tails":
        return rng.standard_t(3, shape)
    if kind == "outliers":
        spoilt = rng.choice([-1.0, 0.0, 1.0], shape, p=[0.03, 0.94, 0.03])  # either arm of a pair
        return rng.normal(0.0, 1.0, shape) + 6.0 * spoilt
    return rng.normal(0.0, 1.0, shape)


# ---- intervals of a plan -------------------------------------------------------------------------

CLAIM = 0.008
"""Two-sided error of a first claim: 0.4 % of false gains."""


def seen(y: np.ndarray, planned: int, alpha: float, prior: Spread | None) -> list[Interval]:
    """What each look of a plan sees."""
    looks = planned_looks(planned)
    return [planned_interval(y[:count], alpha, planned, prior=prior) for count in looks]


def scatters(rng: np.random.Generator, studies: int) -> np.ndarray:
    """SD of each study's pairs where the default's is 1.

    Processes of one configuration in three scatter 1.5 to 2 times as much as the default's.
    """
    processes = np.where(rng.random(studies) < 1 / 3, rng.uniform(1.5, 2.0, studies), 1.0)
    return np.sqrt(0.5 * (1.0 + processes**2))


def prior_from(rng: np.random.Generator, df: int) -> Spread:
    """What A/A pairs of SD 1 say."""
    return Spread(float(rng.chisquare(df)) / df, df)


def test_a_plan_looks_three_times_and_at_least_at_four_pairs() -> None:
    assert planned_looks(10) == (4, 7, 10)
    assert planned_looks(15) == (5, 10, 15)
    assert planned_looks(30) == (10, 20, 30)
    assert planned_looks(LEAST_PLANNED) == (4,)
    assert planned_looks(LEAST_PLANNED - 1) == ()


def test_bounds_of_a_plan_are_those_of_printed_tables() -> None:
    """As gsDesign (sfLDOF, alpha 0.025) and rpact (asOF) print them for three equal looks."""
    bounds = [planned_bound(count, 0.05, 300) for count in planned_looks(300)]
    assert bounds == pytest.approx((3.710, 2.511, 1.993), abs=2e-3)


@pytest.mark.parametrize("ended", [100, 53, 34])
def test_all_looks_of_a_plan_err_as_often_as_was_asked_whenever_the_clock_ends_it(
    ended: int,
) -> None:
    rng = np.random.default_rng(17)
    counts = [*(count for count in planned_looks(100) if count < ended), ended]
    sums = np.cumsum(rng.standard_normal((20_000, 100)), axis=1)[:, np.array(counts) - 1]
    bounds = [planned_bound(count, 0.05, 100, is_last=count == ended) for count in counts]
    crossed = np.abs(sums) > np.array(bounds) * np.sqrt(counts)
    assert crossed.any(axis=1).mean() == pytest.approx(0.05, abs=0.004)


def test_nothing_is_said_before_the_first_look_of_a_plan_and_after_its_last() -> None:
    y = [0.1, 0.11] * 6
    assert math.isinf(planned_interval(y[:3], 0.05, 10, is_last=True).half_width)
    assert math.isinf(planned_interval(y[:11], 0.05, 10).half_width)
    assert math.isinf(planned_interval(y[:10], 1e-15, 10).half_width)
    assert planned_interval(y[:10], 0.05, 10).low > 0.0


def test_a_prior_narrows_few_pairs_but_not_below_their_own_variance() -> None:
    rng = np.random.default_rng(3)
    y = rng.normal(0.0, 1.0, 6)
    y /= y.std(ddof=1)
    alone, helped, deceived = (
        planned_interval(y, CLAIM, 6, prior=prior).half_width
        for prior in (None, Spread(1.0, 20.0), Spread(0.01, 20.0))
    )
    assert helped < 0.8 * alone
    assert deceived == helped
    assert planned_interval(y, CLAIM, 6, prior=Spread(9.0, 20.0)).half_width > helped


@pytest.mark.parametrize(("planned", "df"), [(4, 14), (6, 6), (10, 30)])
def test_a_prior_from_the_default_makes_no_more_false_claims_of_those_that_scatter_more(
    planned: int, df: int
) -> None:
    """If all degrees of freedom of the prior were believed it would be 0.6 to 1.1 %."""
    rng = np.random.default_rng(19)
    studies = 10_000
    claims = 0
    for spread in scatters(rng, studies):
        y = rng.normal(0.0, spread, planned)
        claims += any(one.low > 0.0 for one in seen(y, planned, CLAIM, prior_from(rng, df)))
    assert claims / studies <= 0.004 + 2.0 * math.sqrt(0.004 / studies)


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "outliers"])
def test_an_interval_of_a_plan_with_a_prior_covers_at_every_look_at_once(kind: str) -> None:
    rng = np.random.default_rng(23)
    studies = 2000
    missed = 0
    unit = float(draws(kind, rng, (1000, 100)).std())
    for spread in scatters(rng, studies):
        y = draws(kind, rng, (1, 10))[0] * spread / unit
        missed += any(
            not one.low <= 0.0 <= one.high for one in seen(y, 10, 0.05, prior_from(rng, 14))
        )
    assert missed / studies <= 0.05 + 2.0 * math.sqrt(0.05 / studies)


@pytest.mark.parametrize(("pairs", "df"), [(4, 6), (10, 14), (20, 30)])
def test_the_least_gain_that_is_stated_is_proved_in_nine_studies_of_ten(
    pairs: int, df: int
) -> None:
    rng = np.random.default_rng(29)
    noise = Noise(between=0.0009, per_round=0.0, df=df)
    gain = detectable_effect(noise, 20, pairs, CLAIM)
    studies, found = 2000, 0
    for y in rng.normal(gain, 0.03, (studies, pairs)):
        found += any(one.low > 0.0 for one in seen(y, pairs, CLAIM, noise.spread(20)))
    assert found / studies == pytest.approx(0.9, abs=0.02)


# ---- pooling and racing --------------------------------------------------------------------------

NOISE = Noise(between=0.01, per_round=0.0, df=20)


def test_the_best_of_many_equals_is_shrunk_towards_them() -> None:
    rng = np.random.default_rng(3)
    measured = [[pair(float(y))] for y in rng.normal(0.0, 0.1, 40)]
    estimates = pool(measured, NOISE)
    best = max(estimates, key=lambda one: one.mean)
    assert best.raw > 0.15
    assert best.mean < 0.5 * best.raw


def test_what_the_control_has_added_to_a_block_is_taken_out_of_its_pairs() -> None:
    """Half of a pair's variance is its control's; true gains scatter as much as a process does."""
    rng = np.random.default_rng(4)
    spread = math.sqrt(NOISE.between / 2)
    plain, known = [], []
    for _ in range(100):
        gains = rng.normal(0.0, spread, 36)
        measured: list[list[PairRatio]] = [[] for _ in gains]
        for turn in range(2):
            for number, block in enumerate(rng.permutation(36).reshape(6, 6)):
                seen = gains[block] + rng.normal(0.0, spread, 6) - rng.normal(0.0, spread)
                for index, ratio in zip(block, seen.tolist(), strict=True):
                    measured[index].append(replace(pair(ratio), block=10 * turn + number))
        unknown = [[replace(each, block=-1) for each in pairs] for pairs in measured]
        for found, shared in ((plain, unknown), (known, measured)):
            found += [
                (one.raw - gain, one.raw_error)
                for one, gain in zip(pool(shared, NOISE), gains, strict=True)
            ]
    off = {name: np.std([miss for miss, _ in found]) for name, found in (("", plain), ("u", known))}
    assert off["u"] < 0.85 * off[""]
    assert np.std([miss / error for miss, error in known]) == pytest.approx(1.0, abs=0.05)


def on(machine: str, pairs: Sequence[PairRatio]) -> list[PairRatio]:
    return [replace(each, machine=machine) for each in pairs]


def test_a_gain_that_differs_from_machine_to_machine_is_estimated_with_its_true_error() -> None:
    rng = np.random.default_rng(6)
    gain, apart, spread = 0.1, 0.08, 0.1
    variances, misses = [], []
    for _ in range(300):
        measured = []
        for _ in range(30):
            offsets = rng.normal(gain, apart, 2)
            pairs = (on(str(m), [pair(float(y)) for y in rng.normal(offset, spread, 3)])
                     for m, offset in enumerate(offsets))  # fmt: skip
            measured.append([each for some in pairs for each in some])
        variances.append(_apart(map(by_machine, measured), NOISE))
        misses += [(one.raw - gain) / one.raw_error for one in pool(measured, NOISE)]
    assert math.sqrt(np.mean(variances)) == pytest.approx(apart, rel=0.05)
    assert np.mean(misses) == pytest.approx(0.0, abs=0.05)
    assert np.std(misses) == pytest.approx(1.0, abs=0.05)


def test_what_was_on_one_machine_only_is_less_sure_where_machines_differ() -> None:
    both = [on("one", [pair(0.0)] * 4) + on("other", [pair(0.5)] * 4)]
    alone = [on("one", [pair(0.2)] * 8)]
    known, unknown = pool([*both * 5, *alone], NOISE)[-2:]
    assert unknown.raw == pytest.approx(0.2)
    assert unknown.raw_error > known.raw_error > math.sqrt(NOISE.of_pair(1) / 8)


def test_a_quiet_machine_is_not_taken_for_as_noisy_as_another_one() -> None:
    """The error of the raw means is 0.015; with one noise for both it would be 0.058.

    How far the machines are apart is estimated, too: without that it would be 0.006.
    """
    rng = np.random.default_rng(7)
    gain, spreads = 0.05, {"quiet": 0.01, "noisy": 0.2}

    def pairs(mean: float, count: int) -> list[PairRatio]:
        drawn = {name: rng.normal(mean, spread, count) for name, spread in spreads.items()}
        return [each for name, y in drawn.items() for each in on(name, [*map(pair, y.tolist())])]

    errors, misses = [], []
    for _ in range(200):
        measured = [pairs(gain, 3) for _ in range(20)]
        noises = estimate_noise([pairs(0.0, 8), *measured])
        assert noises is not None
        for one in pool(measured, noises):
            errors.append(one.raw - gain)
            misses.append(errors[-1] / one.raw_error)
    assert np.std(errors) <= 0.02
    assert 0.7 <= np.std(misses) <= 1.1


def test_a_machine_with_few_pairs_has_the_noise_of_all() -> None:
    many = on("many", [pair(0.1 * (-1) ** k) for k in range(8)])
    noises = estimate_noise([many + on("few", [pair(0.0)] * 3)])
    assert noises is not None
    assert noises.on("few") == noises.on("unknown") == noises != noises.on("many")
    assert noises == estimate_noise([many + on("few", [pair(0.0)] * 3)])
    assert estimate_noise([[pair(0.1)], [pair(0.2)]]) is None


def test_the_surer_of_two_leads_wins_more_probably() -> None:
    low, high = pool([[pair(0.0)] * 8, [pair(0.3)] * 8], NOISE)
    assert high.beats(low) > 0.95
    assert low.beats(high) < 0.05


@pytest.mark.parametrize(
    ("centre", "spread", "expected"),
    [(0.0, 1.0, 0.398942), (-1.0, 0.0, 0.0), (2.0, 0.0, 2.0), (-3.0, 1.0, 0.000382)],
)
def test_expected_improvement_over_zero(centre: float, spread: float, expected: float) -> None:
    assert expected_improvement(centre, spread, 0.0) == pytest.approx(expected, abs=1e-6)


# ---- one after another ---------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "most"), [(8, 0.005), (40, 0.015)])
def test_of_independent_values_hardly_any_follow_on(count: int, most: float) -> None:
    rng = np.random.default_rng(count)
    called = sum(follow_on(rng.normal(size=count).tolist()) is not None for _ in range(3000))
    assert called <= most * 3000


def test_values_that_wander_follow_on() -> None:
    values = [0.1 + 0.02 * math.sin(number / 4.0) for number in range(40)]
    found = follow_on(values)
    assert found is not None and found > 0.9


@pytest.mark.parametrize("values", [[], [0.1] * 7, [0.1] * 30])
def test_of_few_values_and_of_equal_ones_nothing_is_said(values: list[float]) -> None:
    assert follow_on(values) is None
