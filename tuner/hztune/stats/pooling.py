"""Pooling what several blocks say about several candidates, and several comparisons together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hztune.stats.distributions import normal_tail, t_quantile
from hztune.stats.ratios import PairRatio, by_machine
from hztune.stats.sequential import Interval
from hztune.stats.variance import Noise, Noises

Averages = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Means and their variances, shape (groups,) each."""


class Estimate(NamedTuple):
    """What is known of one candidate against the default. Every block makes thousands.

    Attributes:
        mean: Log ratio after shrinking.
        error: Its standard error (the spread of the posterior).
        raw: Plain weighted mean of its pairs.
        raw_error: Standard error of `raw`.
        pairs: Number of pairs behind it.
    """

    mean: float
    error: float
    raw: float
    raw_error: float
    pairs: int

    def beats(self, other: Estimate) -> float:
        """Probability that this candidate is the faster one."""
        spread = math.hypot(self.error, other.error)
        return 0.5 if spread == 0.0 else normal_tail((other.mean - self.mean) / spread)


def pool(candidates: Sequence[Sequence[PairRatio]], noise: Noise | Noises) -> tuple[Estimate, ...]:
    """Estimates every candidate from its pairs, shrunk towards what is usual among them.

    The best of many noisy means is too good to be true; an empirical-Bayes estimate (Efron &
    Morris, J. Am. Stat. Assoc. 70, 1975) with the spread of true effects from the method of moments
    (DerSimonian & Laird, Controlled Clinical Trials 7, 1986) takes most of that away.

    Where several machines measured, the machine is a random effect: a candidate's gain differs from
    machine to machine by a variance that `machine_variance` estimates, and what is estimated is the
    gain on machines like these. With one machine it is the gain there.

    The candidates of a block share its control: see `_without_control`.

    Args:
        candidates: The pairs of each candidate, at least one each, shape (candidates, pairs).
        noise: The variance components of a pair, one for all machines or each machine's own.
    """
    if len(candidates) == 0:
        return ()
    apart = machine_variance(candidates, noise)
    raw, variance = _combined(candidates, noise, apart, shared=True)
    centre, spread = _population(raw, variance)
    trust = spread / (spread + variance)
    mean = centre + trust * (raw - centre)
    error = np.sqrt(trust * variance)
    columns = (mean.tolist(), error.tolist(), raw.tolist(), np.sqrt(variance).tolist())
    return tuple(map(Estimate, *columns, map(len, candidates)))


def pool_plain(pairs: Sequence[PairRatio], noise: Noise | Noises) -> tuple[float, float]:
    """Weighted mean of some pairs and its standard error, without shrinking."""
    mean, variance = _combined([pairs], noise, machine_variance([pairs], noise))
    return float(mean[0]), math.sqrt(variance[0])


def machine_variance(candidates: Sequence[Sequence[PairRatio]], noise: Noise | Noises) -> float:
    """Variance of a candidate's gain between machines, squared log units; 0 with one machine.

    The moment estimator of DerSimonian & Laird (Controlled Clinical Trials 7, 1986), its sums taken
    over all candidates that several machines have measured: few machines say little about a single
    one. The excess of the scatter of machines around each candidate's mean over what noise explains
    is divided by how much each unit of variance would have added to it.
    """
    repeated = [by_machine(pairs) for pairs in candidates if len(pairs) > 1]
    several = [machines for machines in repeated if len(machines) > 1]
    if not several:
        return 0.0
    counts = [len(machines) for machines in several]
    mean, variance = _on_one([pairs for machines in several for pairs in machines], noise)
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


def _combined(
    candidates: Sequence[Sequence[PairRatio]],
    noise: Noise | Noises,
    apart: float,
    *,
    shared: bool = False,
) -> Averages:
    """Mean of each candidate's pairs over machines, given the variance between machines.

    `shared`: what the control of a block has added to all of it is taken out.
    """
    if apart == 0.0:
        return _on_one(candidates, noise, shared=shared)
    machines = [by_machine(pairs) for pairs in candidates]
    each = [pairs for several in machines for pairs in several]
    mean, variance = _on_one(each, noise, shared=shared)
    return _averages(mean, 1.0 / (variance + apart), [len(several) for several in machines])


def _on_one(
    groups: Sequence[Sequence[PairRatio]], noise: Noise | Noises, *, shared: bool = False
) -> Averages:
    """Mean of each group of pairs, as if they were of one machine."""
    pairs = [pair for group in groups for pair in group]
    kinds = [(pair.machine, pair.rounds) for pair in pairs]
    known = {kind: noise.on(kind[0]).of_pair(kind[1]) for kind in {*kinds}}
    values = np.array([pair.log_ratio for pair in pairs])
    variances = np.array([known[kind] for kind in kinds])
    counts = [len(group) for group in groups]
    if shared:
        values, variances = _without_control(values, variances, counts, _block_of_each(pairs))
    return _averages(values, 1.0 / variances, counts)


def _block_of_each(pairs: Sequence[PairRatio]) -> NDArray[np.int64]:
    """A number for each pair, the same for those of one block."""
    numbers: dict[tuple[str, int], int] = {}
    return np.array(
        [
            numbers.setdefault((pair.machine, pair.block if pair.block >= 0 else -1 - at), at)
            for at, pair in enumerate(pairs)
        ]
    )


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

    The variance of the mean is the sum of the squared standard errors over the squared count; its
    degrees of freedom follow Satterthwaite (Biometrics Bulletin 2, 1946).

    Args:
        intervals: Student's intervals at the same `alpha` (see `fixed_interval`), each from at
            least two pairs; shape (comparisons,), at least one.
        alpha: 1 - coverage.
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
