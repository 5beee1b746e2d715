"""Where the noise comes from, what to do about it, and how blocks and comparisons are pooled.

The log ratio of one pair of fresh processes scatters for two reasons: the processes differ for as
long as they live (address layout, the rhythm they settle into), and each turn is disturbed anew.
More turns average only the second away, so time is split between turns and fresh pairs by both.

Values that are not alike (far from the others, in two groups, or alike only one after another) are
told of, and never left out. One process in a hundred is slower than its equals for its whole life
(experiments/engine): a pair with it moves the mean and widens the interval, as it should, for such
processes will be met in use, too. A report names such pairs beside the interval.

Of a program that is sometimes fast and sometimes slow a mean says little, and an interval from few
results is too narrow: a whole group may be missing. Values are split where two groups explain most
of their variance (one dimension of k-means); of normal values the best split explains less than
EXPLAINED in all but about one case of a hundred.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from statistics import fmean, pvariance
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hztune.stats.intervals import (
    LEAST_PLANNED,
    Interval,
    Spread,
    bisected,
    normal_quantile,
    normal_tail,
    planned_bound,
    t_quantile,
)
from hztune.stats.ratios import PairRatio, by_machine

OWN_DF = 5
"""Degrees of freedom from which on a machine's noise is its own: three blocks of A/A pairs. From
fewer, a weight 1/s^2 would on average be more than 5/3 of what it should be: df / (df - 2)."""

_POWER = 0.9
_RANKS = [(number + 0.5) / 64 for number in range(64)]
_LEAST_DF = 1.0
_LEAST_VARIANCE = 1e-12  # nothing is told apart that differs by a millionth


@dataclass(frozen=True, slots=True)
class Noise:
    """The variance components of one log ratio between two processes."""

    between: float  # variance between pairs of fresh processes, squared log units
    per_round: float  # variance that one round of turns adds; it is divided by the number of rounds
    df: float  # degrees of freedom behind the estimate of the total
    # that of each machine with at least OWN_DF, if there are several: a quiet and a busy one do not
    # tell alike
    own: Mapping[str, Noise] = field(default_factory=dict)

    def of_pair(self, rounds: int) -> float:
        """Variance of a pair's log ratio with so many rounds; above 0 for a metric that counts."""
        return max(_LEAST_VARIANCE, self.between + self.per_round / rounds)

    def spread(self, rounds: int) -> Spread:
        return Spread(self.of_pair(rounds), self.df)

    def on(self, machine: str) -> Noise:
        """The noise of a machine; that of all where it has too few pairs."""
        return self.own.get(machine, self)

    def best_rounds(self, start_s: float, round_s: float, low: int, high: int) -> int:
        """Rounds for each fresh pair that give the least variance per second, from `low` to `high`.

        Minimises (between + per_round / R)(start_s + R round_s), so R = sqrt(per_round / between *
        start_s / round_s): the two-stage optimum of Cochran, Sampling Techniques, 1977, ch. 10.
        `start_s`: what a fresh process costs before its first counted turn.
        """
        if self.between <= 0.0:
            return high
        best = math.sqrt(self.per_round / self.between * start_s / max(round_s, 1e-9))
        return max(low, min(high, round(best)))


def estimate_noise(groups: Sequence[Sequence[PairRatio]]) -> Noise | None:
    """Splits the scatter of pairs into its two components; None: no group has two pairs.

    Only differences inside a group, one comparison, and on one machine count.
    """
    pooled = _components(groups)
    machines = {pair.machine for pairs in groups for pair in pairs}
    if pooled is None or len(machines) == 1:
        return pooled
    found = {
        machine: _components([[p for p in pairs if p.machine == machine] for pairs in groups])
        for machine in machines
    }
    own = {machine: noise for machine, noise in found.items() if noise and noise.df >= OWN_DF}
    return Noise(pooled.between, pooled.per_round, pooled.df, own)


def _components(groups: Sequence[Sequence[PairRatio]]) -> Noise | None:
    squares, df = 0.0, 0
    for group in (each for pairs in groups if len(pairs) > 1 for each in by_machine(pairs)):
        if len(group) > 1:
            mean = sum(pair.log_ratio for pair in group) / len(group)
            squares += sum((pair.log_ratio - mean) ** 2 for pair in group)
            df += len(group) - 1
    if df == 0:
        return None
    known = [pair for group in groups for pair in group if not math.isnan(pair.turn_variance)]
    if not known:
        return Noise(between=squares / df, per_round=0.0, df=df)
    between = max(0.0, squares / df - fmean(pair.turn_variance for pair in known))
    return Noise(between, fmean(pair.turn_variance * pair.rounds for pair in known), df)


def noise_floor(noise: Noise, rounds: int, pairs: int, alpha: float = 0.05) -> float:
    """Half-width of the interval of an A/A comparison with that many pairs, log units."""
    spread = math.sqrt(noise.of_pair(rounds) / max(1, pairs))
    return t_quantile(0.5 * alpha, max(_LEAST_DF, noise.df)) * spread


def detectable_effect(noise: Noise, rounds: int, pairs: int, alpha: float) -> float:
    """The gain that a proof with `pairs` planned pairs claims in 90 % of studies, log units.

    If pairs scatter as `noise` says: the chance at the last look, their own variance averaged out;
    earlier looks find next to nothing else. `alpha` is two-sided.
    """
    pairs = max(LEAST_PLANNED, pairs)
    spread = noise.spread(rounds)
    return _provable(pairs, spread.trusted_df, alpha) * math.sqrt(spread.variance / pairs)


@lru_cache(maxsize=1024)
def _provable(pairs: int, trusted: float, alpha: float) -> float:
    """The same in standard errors of the mean, where the prior knows the variance."""
    df = pairs - 1.0
    critical = t_quantile(normal_tail(planned_bound(pairs, alpha, pairs)), trusted + df)
    scale = 2.0 / (9.0 * df)
    # Quantiles of chi-square / df (Wilson & Hilferty, Proc. Natl. Acad. Sci. 17, 1931).
    roots = (1.0 - scale + normal_quantile(rank) * math.sqrt(scale) for rank in _RANKS)
    own = [max(0.0, root) ** 3 for root in roots]
    widths = [critical * math.sqrt(max(s2, (trusted + df * s2) / (trusted + df))) for s2 in own]

    def is_low(gain: float) -> bool:
        return fmean(normal_tail(width - gain) for width in widths) < _POWER

    return bisected(is_low, 0.0, 2.0 * max(widths), 40)


Averages = tuple[NDArray[np.float64], NDArray[np.float64]]  # means and variances, (groups,) each


class Estimate(NamedTuple):
    """What is known of one candidate against the default. Every block makes thousands."""

    mean: float  # log ratio after shrinking
    error: float  # its standard error (the spread of the posterior)
    raw: float  # plain weighted mean of its pairs
    raw_error: float  # standard error of `raw`
    pairs: int  # number of pairs behind it

    def beats(self, other: Estimate) -> float:
        spread = math.hypot(self.error, other.error)
        return 0.5 if spread == 0.0 else normal_tail((other.mean - self.mean) / spread)


def pool(candidates: Sequence[Sequence[PairRatio]], noise: Noise) -> tuple[Estimate, ...]:
    """Estimates every candidate from its pairs, shrunk towards what is usual among them.

    The best of many noisy means is too good to be true; an empirical-Bayes estimate (Efron &
    Morris, J. Am. Stat. Assoc. 70, 1975) with the spread of true effects from the method of moments
    (DerSimonian & Laird, Controlled Clinical Trials 7, 1986) takes most of that away. Where several
    machines measured, the machine is a random effect: what is estimated is the gain on machines
    like these. `candidates`: the pairs of each, at least one; shape (candidates, pairs).
    """
    if len(candidates) == 0:
        return ()
    raw, variance = _combined(candidates, noise, shared=True)
    centre, spread = _population(raw, variance)
    trust = spread / (spread + variance)
    mean = centre + trust * (raw - centre)
    error = np.sqrt(trust * variance)
    columns = (mean.tolist(), error.tolist(), raw.tolist(), np.sqrt(variance).tolist())
    return tuple(map(Estimate, *columns, map(len, candidates)))


def pool_plain(pairs: Sequence[PairRatio], noise: Noise) -> tuple[float, float]:
    mean, variance = _combined([pairs], noise, shared=False)
    return float(mean[0]), math.sqrt(variance[0])


def _apart(machines: Iterable[Sequence[Sequence[PairRatio]]], noise: Noise) -> float:
    """Variance of a candidate's gain between machines, squared log units; 0 with one machine.

    The moment estimator of DerSimonian & Laird (Controlled Clinical Trials 7, 1986), its sums taken
    over all candidates that several machines measured: few machines say little about one alone.
    """
    several = [each for each in machines if len(each) > 1]
    if not several:
        return 0.0
    counts = [len(each) for each in several]
    mean, variance = _on_one([pairs for each in several for pairs in each], noise)
    weights = 1.0 / variance
    centre, variance_of_centre = _averages(mean, weights, counts)
    excess = float(np.sum(weights * (mean - np.repeat(centre, counts)) ** 2))
    scale = np.sum(weights) - np.sum(weights**2 * np.repeat(variance_of_centre, counts))
    return max(0.0, (excess - sum(counts) + len(counts)) / float(scale))


def expected_improvement(centre: float, spread: float, best: float) -> float:
    """Mean of max(0, X - best) for X normal: what one more candidate is expected to add."""
    if spread <= 0.0:
        return max(0.0, centre - best)
    z = (centre - best) / spread
    density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return spread * (z * normal_tail(-z) + density)


def _combined(candidates: Sequence[Sequence[PairRatio]], noise: Noise, *, shared: bool) -> Averages:
    """Mean of each candidate's pairs over machines; `shared`: without what its control added."""
    machines = [by_machine(pairs) for pairs in candidates]
    apart = _apart(machines, noise)
    if apart == 0.0:
        return _on_one(candidates, noise, shared=shared)
    each = [pairs for several in machines for pairs in several]
    mean, variance = _on_one(each, noise, shared=shared)
    return _averages(mean, 1.0 / (variance + apart), [len(several) for several in machines])


def _on_one(
    groups: Sequence[Sequence[PairRatio]], noise: Noise, *, shared: bool = False
) -> Averages:
    pairs = [pair for group in groups for pair in group]
    kinds = [(pair.machine, pair.rounds) for pair in pairs]
    known = {kind: noise.on(kind[0]).of_pair(kind[1]) for kind in {*kinds}}
    values = np.array([pair.log_ratio for pair in pairs])
    variances = np.array([known[kind] for kind in kinds])
    counts = [len(group) for group in groups]
    if shared:
        first: dict[tuple[str, int], int] = {}
        of = ((pair.machine, pair.block if pair.block >= 0 else -1 - n) for n, pair in
              enumerate(pairs))  # fmt: skip
        block = np.array([first.setdefault(each, n) for n, each in enumerate(of)])
        values, variances = _without_control(values, variances, counts, block)
    return _averages(values, 1.0 / variances, counts)


def _without_control(
    values: NDArray[np.float64],
    variances: NDArray[np.float64],
    counts: Sequence[int],
    block: NDArray[np.int64],
) -> Averages:
    """Pairs without what the control of their block has added to all of it, and their variances.

    Half of a pair's variance is its control's, which it shares with its block. What that added is
    estimated from the others of the block: by how far each is from what is believed of it without
    this very pair, which is the mean of its other pairs, shrunk to what is usual.
    """
    group = np.repeat(np.arange(len(counts)), counts)
    centre, spread = _population(*_averages(values, 1.0 / variances, counts))
    precision = 1.0 / spread + np.bincount(group, 1.0 / variances)[group] - 1.0 / variances
    others = np.bincount(group, values / variances)[group] - values / variances
    off = values - (centre / spread + others) / precision
    weight = 1.0 / (0.5 * variances + 1.0 / precision)
    told = 2.0 / variances + np.bincount(block, weight)[block] - weight
    added = (np.bincount(block, weight * off)[block] - weight * off) / told
    return values - added, 0.5 * variances + 1.0 / told


def _averages(
    values: NDArray[np.float64], weights: NDArray[np.float64], counts: Sequence[int]
) -> Averages:
    """Weighted means of values that stand group by group: thousands of groups at once."""
    group = np.repeat(np.arange(len(counts)), counts)
    total = np.bincount(group, weights)
    return np.bincount(group, weights * values) / total, 1.0 / total


def _population(raw: NDArray[np.float64], variance: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and variance of true effects by moments; a tenth of the noise is the least spread."""
    weights = 1.0 / variance
    centre = float(np.average(raw, weights=weights))
    least = 0.1 * float(np.mean(variance))
    if len(raw) < 2:
        return 0.0, max(least, float(raw[0] ** 2))
    excess = float(np.sum(weights * (raw - centre) ** 2)) - (len(raw) - 1)
    scale = float(np.sum(weights) - np.sum(weights**2) / np.sum(weights))
    spread = max(least, excess / scale)
    total = 1.0 / (variance + spread)
    return float(np.average(raw, weights=total)), spread


def pooled_mean(intervals: Sequence[Interval], alpha: float = 0.05) -> Interval:
    """Mean of the log ratios of independent comparisons, that is their geometric mean as a ratio.

    The degrees of freedom follow Satterthwaite (Biometrics Bulletin 2, 1946). `intervals`:
    Student's at the same `alpha` (see `fixed_interval`), each from two pairs or more; shape
    (comparisons,), not empty.
    """
    df = np.array([one.pairs - 1 for one in intervals])
    critical = np.array([t_quantile(0.5 * alpha, each) for each in df.tolist()])
    variance = (np.array([one.half_width for one in intervals]) / critical) ** 2
    mean = float(np.mean([one.estimate for one in intervals]))
    pairs = sum(one.pairs for one in intervals)
    total = float(variance.sum())
    if total == 0.0:
        return Interval(mean, mean, mean, pairs)
    freedom = total**2 / float(np.sum(variance**2 / df))
    half = t_quantile(0.5 * alpha, freedom) * total**0.5 / len(intervals)
    return Interval(mean, mean - half, mean + half, pairs)


_LEAST_VALUES = 8  # fewer do not show what is usual among them

_LEAST_DISTANCE = 0.05  # log units: groups that are nearer are one

EXPLAINED = 0.92  # share of the variance that two groups must explain to be believed

_LEAST_SHARE = 0.15

_BEYOND_CHANCE = 2.33  # standard errors: one sample in a hundred

_TOGETHER = 0.5
"""Share of their variance that values of one moment have at least where moments do not matter."""


def two_states(values: Sequence[float]) -> float | None:
    """How far apart two groups of logarithms, none of one value, lie; None: there are none."""
    if len(values) < _LEAST_VALUES:
        return None
    ordered = sorted(values)
    least = max(2, math.ceil(_LEAST_SHARE * len(ordered)))

    def within(cut: int) -> float:
        parts = (ordered[:cut], ordered[cut:])
        return sum(pvariance(part) * len(part) for part in parts)

    cut = min(range(least, len(ordered) - least + 1), key=within)
    distance = fmean(ordered[cut:]) - fmean(ordered[:cut])
    is_one = within(cut) > (1.0 - EXPLAINED) * pvariance(ordered) * len(ordered)
    return None if distance < _LEAST_DISTANCE or is_one else distance


def move_together(moments: Sequence[Sequence[float]]) -> bool:
    """Whether values differ because their moments do: `moments` holds what was measured at once.

    A machine that changes its speed makes two groups of what was measured before and after.
    """
    several = [values for values in moments if len(values) > 1]
    everything = [value for values in several for value in values]
    if not several:
        return False
    squares = sum(pvariance(values) * len(values) for values in several)
    within = squares / sum(len(values) - 1 for values in several)
    return within < _TOGETHER * pvariance(everything)


def follow_on(values: Sequence[float]) -> float | None:
    """The correlation of values with those before them; None: no more than chance brings.

    An interval from values that follow on is too narrow: each tells less that is new. The standard
    error of the correlation is about 1 / sqrt(count), and few values lean by 1 / count towards
    below zero (Bartlett, J. R. Statist. Soc. B 8, 1946). Of 10 to 40 normal values 0.5 to 0.9 % are
    called so; of 12 with a true correlation of 0.5 it is 12 %, of 40 it is 73 %. `values`: in order
    of time, shape (pairs,).
    """
    count = len(values)
    total = pvariance(values) * count if count >= _LEAST_VALUES else 0.0
    if total == 0.0:
        return None
    middle = fmean(values)
    away = [value - middle for value in values]
    found = math.fsum(one * other for one, other in pairwise(away)) / total
    return found if (found + 1.0 / count) * math.sqrt(count) > _BEYOND_CHANCE else None
