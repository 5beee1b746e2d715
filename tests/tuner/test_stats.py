"""Estimates and intervals: known values, and what they promise held against simulated noise."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from hztune.blocks import Arm, Outcome, Turn
from hztune.stats import intervals
from hztune.stats import noise as noises
from hztune.stats.intervals import Spread, normal_tail, planned_interval, planned_looks
from hztune.stats.noise import Noise, detectable_effect, estimate_noise, follow_on, pool
from hztune.stats.ratios import PairRatio, by_machine, log_memory_ratio, pair_ratio

DEFAULT = Arm("hz")
CLAIM = 0.008
"""Two-sided error of a first claim: 0.4 % of false gains."""


def outcome(*rates, disturbed=-1):
    """An outcome whose turns, one a round, have these rates; without any it crashed."""
    if not rates:
        return Outcome(DEFAULT, "crash", "ended by SIGSEGV")
    turns = (Turn(i, 0, i, 10**9, rate, "steal" * (i == disturbed)) for i, rate in enumerate(rates))
    return Outcome(DEFAULT, "ok", "", sum(rates) / len(rates), tuple(turns), 1000)


def pairs_of(log_ratios, machine=""):
    return [PairRatio(float(each), 0.0, 10, machine) for each in log_ratios]


# ---- distributions, and bounds of printed tables -------------------------------------------------


@pytest.mark.parametrize(
    ("tail", "df", "expected"),
    [(0.025, 1, 12.7062), (0.025, 5, 2.5706), (0.005, 9, 3.2498), (0.025, 30, 2.0423),
     (0.05, 2.5, 2.5582), (0.025, 1e9, 1.9600)],
)  # fmt: skip
def test_students_t_has_its_tabled_quantiles(tail, df, expected):
    assert intervals.t_quantile(tail, df) == pytest.approx(expected, abs=2e-4)


# As rpact's getDesignGroupSequential (asOF, asP) and gsDesign (sfLDOF, sfLDPocock) print them for
# five equal looks; by the part of the information, the error that is spent, 0.025 a side.
PRINTED = {
    (4.877, 3.357, 2.680, 2.290, 2.031): lambda t: 4.0 * normal_tail(2.241403 / math.sqrt(t)),
    (2.438, 2.427, 2.410, 2.397, 2.386): lambda t: 0.05 * math.log(1.0 + (math.e - 1.0) * t),
}


@pytest.mark.parametrize("printed", PRINTED)
def test_bounds_of_an_error_that_is_spent_are_those_of_printed_tables(printed):
    ends = [0.0, *(PRINTED[printed](look / 5) for look in range(1, 6))]
    spends = tuple(end - before for before, end in pairwise(ends))
    bounds = intervals.spending_bounds((20, 40, 60, 80, 100), spends)
    assert bounds == pytest.approx(printed, abs=2e-3)


def test_a_plan_has_at_most_three_looks_with_the_bounds_of_printed_tables():
    """As gsDesign (sfLDOF, alpha 0.025) and rpact (asOF) print them for three equal looks."""
    looks = {planned: planned_looks(planned) for planned in (3, 4, 10, 15, 300)}
    assert looks == {3: (), 4: (4,), 10: (4, 7, 10), 15: (5, 10, 15), 300: (100, 200, 300)}
    bounds = [intervals.planned_bound(count, 0.05, 300) for count in looks[300]]
    assert bounds == pytest.approx((3.710, 2.511, 1.993), abs=2e-3)


# ---- log ratios ----------------------------------------------------------------------------------


PAIRS = [
    (outcome(10, 20, 30), outcome(20, 40, 60), (math.log(2), 3)),
    (outcome(10, 10, 99, disturbed=2), outcome(10, 10, 10), (0.0, 2)),
    (outcome(1), outcome(), None),
    (outcome(), outcome(1), None),
]


@pytest.mark.parametrize(("reference", "candidate", "expected"), PAIRS)
def test_a_pair_is_the_ratio_of_its_undisturbed_turns_if_both_ran(reference, candidate, expected):
    found = pair_ratio(reference, candidate)
    assert (found and (found.log_ratio, found.rounds)) == (expected and pytest.approx(expected))
    assert found is None or found.turn_variance == pytest.approx(0.0, abs=1e-12)
    assert (log_memory_ratio(reference, candidate) is None) == (found is None)


# ---- variance components -------------------------------------------------------------------------


def test_the_two_sources_of_noise_are_told_apart():
    """Processes differ by 0.05, and rounds scatter by 0.2."""
    rng = np.random.default_rng(4)
    turns = rng.normal(rng.normal(0.0, 0.05, (400, 1)), 0.2, (400, 30))
    noise = estimate_noise([[PairRatio(y.mean(), y.var(ddof=1) / 30, 30) for y in turns]])
    found = (math.sqrt(noise.between), math.sqrt(noise.per_round))
    assert found == pytest.approx((0.05, 0.2), rel=0.15)


def test_the_best_rounds_give_the_least_variance_a_second():
    noise = Noise(between=0.002, per_round=0.05, df=9)
    a_second = {n: noise.of_pair(n) * (0.4 + 0.02 * n) for n in range(1, 200)}
    assert a_second[noise.best_rounds(0.4, 0.02, 1, 200)] == pytest.approx(min(a_second.values()))


def test_more_pairs_lower_the_floor_and_the_least_gain_that_can_be_proved():
    noise = Noise(between=0.001, per_round=0.01, df=12)
    floors = [noises.noise_floor(noise, 20, pairs) for pairs in (6, 12, 24)]
    effects = [detectable_effect(noise, 20, pairs, 0.01) for pairs in (6, 12, 24)]
    assert floors[0] > floors[1] > floors[2] and effects[0] > effects[1] > effects[2]
    assert all(effect > floor for effect, floor in zip(effects, floors, strict=True))


# ---- intervals that are looked at several times --------------------------------------------------


def crossed(counts, bounds, seed):
    """The share of 20,000 studies of nothing in which some look crosses its bound."""
    noise = np.random.default_rng(seed).standard_normal((20_000, max(counts)))
    sums = np.cumsum(noise, axis=1)[:, np.array(counts) - 1]
    return float((np.abs(sums) > np.array(bounds) * np.sqrt(counts)).any(axis=1).mean())


def test_critical_values_err_as_often_as_was_asked():
    counts = (6, 10, 15, 25, 39, 63)
    spent = 0.05 * (1.0 - 0.75 ** len(counts))
    bounds = intervals.critical_values(counts, 0.05)
    assert crossed(counts, bounds, 11) == pytest.approx(spent, abs=0.005)


@pytest.mark.parametrize("ended", [100, 53, 34])
def test_all_looks_of_a_plan_err_as_often_as_was_asked_whenever_the_clock_ends_it(ended):
    counts = [*(count for count in planned_looks(100) if count < ended), ended]
    bounds = [intervals.planned_bound(count, 0.05, 100, is_last=count == ended) for count in counts]
    assert crossed(counts, bounds, 17) == pytest.approx(0.05, abs=0.004)


def test_nothing_is_said_before_the_first_look_of_a_plan_and_after_its_last():
    y = [0.1, 0.11] * 6
    assert math.isinf(planned_interval(y[:3], 0.05, 10, is_last=True).half_width)
    assert math.isinf(planned_interval(y[:11], 0.05, 10).half_width)
    assert math.isinf(planned_interval(y[:10], 1e-15, 10).half_width)
    assert planned_interval(y[:10], 0.05, 10).low > 0.0


def test_a_prior_narrows_few_pairs_but_not_below_their_own_variance():
    y = np.random.default_rng(3).normal(0.0, 1.0, 6)
    y /= y.std(ddof=1)
    priors = (None, Spread(1.0, 20.0), Spread(0.01, 20.0), Spread(9.0, 20.0))
    alone, helped, deceived, warned = (
        planned_interval(y.tolist(), CLAIM, 6, prior=prior).half_width for prior in priors
    )
    assert helped < 0.8 * alone and deceived == helped < warned


def seen(y, planned, alpha, prior):
    """What each look of a plan sees."""
    looks = planned_looks(planned)
    return [planned_interval(y[:count], alpha, planned, prior=prior) for count in looks]


def studies(rng, count, df):
    """SD of each study's pairs where the default's is 1, and what A/A pairs say of it.

    Processes of one configuration in three scatter 1.5 to 2 times as much as the default's.
    """
    processes = np.where(rng.random(count) < 1 / 3, rng.uniform(1.5, 2.0, count), 1.0)
    deviations = np.sqrt(0.5 * (1.0 + processes**2)).tolist()
    return [(each, Spread(float(rng.chisquare(df)) / df, df)) for each in deviations]


@pytest.mark.parametrize(("planned", "df"), [(4, 14), (6, 6), (10, 30)])
def test_a_prior_from_the_default_makes_no_more_false_claims_of_those_that_scatter_more(
    planned, df
):
    """If all degrees of freedom of the prior were believed it would be 0.6 to 1.1 %."""
    rng, count = np.random.default_rng(19), 10_000
    claims = sum(
        any(one.low > 0.0 for one in seen(rng.normal(0.0, sd, planned), planned, CLAIM, prior))
        for sd, prior in studies(rng, count, df)
    )
    assert claims / count <= 0.004 + 2.0 * math.sqrt(0.004 / count)


DRAWS = {
    "normal": lambda rng, count: rng.normal(0.0, 1.0, count),
    "heavy tails": lambda rng, count: rng.standard_t(3, count),
    "outliers, of either arm of a pair": lambda rng, count: (
        rng.normal(0.0, 1.0, count) + 6.0 * rng.choice([-1.0, 0, 1.0], count, p=[0.03, 0.94, 0.03])
    ),
}


@pytest.mark.parametrize("kind", DRAWS)
def test_an_interval_of_a_plan_with_a_prior_covers_at_every_look_at_once(kind):
    rng, count = np.random.default_rng(23), 2000
    unit = float(DRAWS[kind](rng, 100_000).std())
    missed = sum(
        any(not one.has_zero for one in seen(DRAWS[kind](rng, 10) * sd / unit, 10, 0.05, prior))
        for sd, prior in studies(rng, count, 14)
    )
    assert missed / count <= 0.05 + 2.0 * math.sqrt(0.05 / count)


@pytest.mark.parametrize(("pairs", "df"), [(4, 6), (10, 14), (20, 30)])
def test_the_least_gain_that_is_stated_is_proved_in_nine_studies_of_ten(pairs, df):
    noise = Noise(between=0.0009, per_round=0.0, df=df)
    gain = detectable_effect(noise, 20, pairs, CLAIM)
    drawn = np.random.default_rng(29).normal(gain, 0.03, (2000, pairs))
    looked = (seen(y, pairs, CLAIM, noise.spread(20)) for y in drawn)
    found = [any(one.low > 0.0 for one in looks) for looks in looked]
    assert np.mean(found) == pytest.approx(0.9, abs=0.02)


# ---- pooling -------------------------------------------------------------------------------------

NOISE = Noise(between=0.01, per_round=0.0, df=20)


def test_the_best_of_many_equals_is_shrunk_towards_them():
    drawn = np.random.default_rng(3).normal(0.0, 0.1, (40, 1))
    best = max(pool([*map(pairs_of, drawn)], NOISE), key=lambda one: one.mean)
    assert best.raw > 0.15
    assert best.mean < 0.5 * best.raw


def test_what_the_control_has_added_to_a_block_is_taken_out_of_its_pairs():
    """Half of a pair's variance is its control's; true gains scatter as much as a process does."""
    rng, spread = np.random.default_rng(4), math.sqrt(NOISE.between / 2)
    plain, known = [], []
    for _ in range(100):
        gains = rng.normal(0.0, spread, 36)
        measured = [[] for _ in gains]
        for turn in range(2):
            for number, block in enumerate(rng.permutation(36).reshape(6, 6)):
                ratios = gains[block] + rng.normal(0.0, spread, 6) - rng.normal(0.0, spread)
                for index, pair in zip(block, pairs_of(ratios), strict=True):
                    measured[index].append(replace(pair, block=10 * turn + number))
        unknown = [[replace(each, block=-1) for each in pairs] for pairs in measured]
        for found, shared in ((plain, unknown), (known, measured)):
            both = zip(pool(shared, NOISE), gains, strict=True)
            found += [(one.raw - gain, one.raw_error) for one, gain in both]
    off = [np.std([miss for miss, _ in found]) for found in (plain, known)]
    assert off[1] < 0.85 * off[0]
    assert np.std([miss / error for miss, error in known]) == pytest.approx(1.0, abs=0.05)


def test_a_gain_that_differs_from_machine_to_machine_is_estimated_with_its_true_error():
    rng, gain, apart = np.random.default_rng(6), 0.1, 0.08
    variances, misses = [], []
    for _ in range(300):
        measured = [
            [p for m in "ab" for p in pairs_of(rng.normal(rng.normal(gain, apart), 0.1, 3), m)]
            for _ in range(30)
        ]
        variances.append(noises._apart(map(by_machine, measured), NOISE))
        misses += [(one.raw - gain) / one.raw_error for one in pool(measured, NOISE)]
    assert math.sqrt(np.mean(variances)) == pytest.approx(apart, rel=0.05)
    assert (np.mean(misses), np.std(misses)) == pytest.approx((0.0, 1.0), abs=0.05)


def test_what_was_on_one_machine_only_is_less_sure_where_machines_differ():
    both = [pairs_of([0.0] * 4, "one") + pairs_of([0.5] * 4, "other")]
    known, unknown = pool([*both * 5, pairs_of([0.2] * 8, "one")], NOISE)[-2:]
    assert unknown.raw == pytest.approx(0.2)
    assert unknown.raw_error > known.raw_error > math.sqrt(NOISE.of_pair(1) / 8)


def test_a_quiet_machine_is_not_taken_for_as_noisy_as_another_one():
    """The error of the raw means is 0.015; with one noise for both it would be 0.058.

    How far the machines are apart is estimated, too: without that it would be 0.006.
    """
    rng, gain = np.random.default_rng(7), 0.05

    def pairs(mean, count):
        spreads = {"quiet": 0.01, "noisy": 0.2}
        return [
            p for name, sd in spreads.items() for p in pairs_of(rng.normal(mean, sd, count), name)
        ]

    found = []
    for _ in range(200):
        measured = [pairs(gain, 3) for _ in range(20)]
        found += pool(measured, estimate_noise([pairs(0.0, 8), *measured]))
    assert np.std([one.raw - gain for one in found]) <= 0.02
    assert 0.7 <= np.std([(one.raw - gain) / one.raw_error for one in found]) <= 1.1


def test_a_machine_with_few_pairs_has_the_noise_of_all():
    noise = estimate_noise([pairs_of([0.1, -0.1] * 4, "many") + pairs_of([0.0] * 3, "few")])
    assert noise.on("few") == noise.on("unknown") == noise != noise.on("many")
    assert estimate_noise([pairs_of([0.1]), pairs_of([0.2])]) is None


def test_the_surer_of_two_leads_wins_more_probably():
    low, high = pool([pairs_of([0.0] * 8), pairs_of([0.3] * 8)], NOISE)
    assert high.beats(low) > 0.95 and low.beats(high) < 0.05


IMPROVEMENTS = [(0.0, 1.0, 0.398942), (-1.0, 0.0, 0.0), (2.0, 0.0, 2.0), (-3.0, 1.0, 0.000382)]


@pytest.mark.parametrize(("centre", "spread", "expected"), IMPROVEMENTS)
def test_expected_improvement_over_zero(centre, spread, expected):
    assert noises.expected_improvement(centre, spread, 0.0) == pytest.approx(expected, abs=1e-6)


# ---- values that follow on each other ------------------------------------------------------------


@pytest.mark.parametrize(("count", "most"), [(8, 0.005), (40, 0.015)])
def test_of_independent_values_hardly_any_follow_on(count, most):
    samples = np.random.default_rng(4).normal(0.0, 0.2, (3000, count)).tolist()
    assert sum(follow_on(values) is not None for values in samples) <= most * 3000


def test_values_that_wander_follow_on_and_of_few_or_equal_ones_nothing_is_said():
    found = follow_on([0.1 + 0.02 * math.sin(number / 4.0) for number in range(40)])
    assert found is not None and found > 0.9
    assert [follow_on(values) for values in ([], [0.1] * 7, [0.1] * 30)] == [None] * 3
