"""Pooling what several blocks say about several candidates, and racing them.

A race gives everybody a little and more only to those who could still win. Nobody is rejected for
ever: the decision is made anew from all data at every look.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hztune.stats.distributions import normal_tail, t_quantile
from hztune.stats.ratios import PairRatio, by_machine
from hztune.stats.variance import Noise


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is known of one candidate against the default.

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


def pool(candidates: Sequence[Sequence[PairRatio]], noise: Noise) -> tuple[Estimate, ...]:
    """Estimates every candidate from its pairs, shrunk towards what is usual among them.

    The best of many noisy means is too good to be true; an empirical-Bayes estimate (Efron &
    Morris, J. Am. Stat. Assoc. 70, 1975) with the spread of true effects from the method of moments
    (DerSimonian & Laird, Controlled Clinical Trials 7, 1986) takes most of that away.

    Where several machines measured, the machine is a random effect: a candidate's gain differs from
    machine to machine by a variance that `machine_variance` estimates, and what is estimated is the
    gain on machines like these. With one machine it is the gain there.

    Args:
        candidates: The pairs of each candidate, at least one each, shape (candidates, pairs).
        noise: The variance components of a pair.
    """
    if len(candidates) == 0:
        return ()
    apart = machine_variance(candidates, noise)
    found = [_combined(pairs, noise, apart) for pairs in candidates]
    raw, variance = np.array([mean for mean, _ in found]), np.array([v for _, v in found])
    centre, spread = _population(raw, variance)
    trust = spread / (spread + variance)
    mean = centre + trust * (raw - centre)
    error = np.sqrt(trust * variance)
    return tuple(
        Estimate(float(m), float(e), float(r), math.sqrt(v), len(pairs))
        for m, e, r, v, pairs in zip(mean, error, raw, variance, candidates, strict=True)
    )


def pool_plain(pairs: Sequence[PairRatio], noise: Noise) -> tuple[float, float]:
    """Weighted mean of some pairs and its standard error, without shrinking."""
    mean, variance = _combined(pairs, noise, machine_variance([pairs], noise))
    return mean, math.sqrt(variance)


def machine_variance(candidates: Sequence[Sequence[PairRatio]], noise: Noise) -> float:
    """Variance of a candidate's gain between machines, squared log units; 0 with one machine.

    The moment estimator of DerSimonian & Laird (Controlled Clinical Trials 7, 1986), its sums taken
    over all candidates that several machines have measured: few machines say little about a single
    one. The excess of the scatter of machines around each candidate's mean over what noise explains
    is divided by how much each unit of variance would have added to it.
    """
    excess, scale = 0.0, 0.0
    for pairs in candidates:
        machines = by_machine(pairs)
        if len(machines) > 1:
            found = [_on_one(each, noise) for each in machines]
            means = [mean for mean, _ in found]
            weights = [1.0 / variance for _, variance in found]
            total = sum(weights)
            centre = sum(w * mean for w, mean in zip(weights, means, strict=True)) / total
            squares = (w * (mean - centre) ** 2 for w, mean in zip(weights, means, strict=True))
            excess += sum(squares) - (len(machines) - 1)
            scale += total - sum(w**2 for w in weights) / total
    return max(0.0, excess / scale) if scale else 0.0


def race_margin(looks: int, contenders: int, alpha: float = 0.1) -> float:
    """How many standard errors behind the best a contender may be before it gets no more time.

    Bonferroni over contenders and a convergent series over looks (alpha / k(k+1) at look k): the
    truly best one is left behind with probability `alpha` at most, however long the race is.
    """
    look = max(1, looks)
    return t_quantile(alpha / (look * (look + 1) * max(1, contenders)), math.inf)


def expected_improvement(centre: float, spread: float, best: float) -> float:
    """Mean of max(0, X - best) for X normal: what one more candidate is expected to add."""
    if spread <= 0.0:
        return max(0.0, centre - best)
    z = (centre - best) / spread
    density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return spread * (z * normal_tail(-z) + density)


def _combined(pairs: Sequence[PairRatio], noise: Noise, apart: float) -> tuple[float, float]:
    """Mean of some pairs over machines, and its variance, given the variance between machines."""
    if apart == 0.0:
        return _on_one(pairs, noise)
    found = [_on_one(each, noise) for each in by_machine(pairs)]
    weights = [1.0 / (variance + apart) for _, variance in found]
    mean = sum(w * one for w, (one, _) in zip(weights, found, strict=True)) / sum(weights)
    return mean, 1.0 / sum(weights)


def _on_one(pairs: Sequence[PairRatio], noise: Noise) -> tuple[float, float]:
    """Weighted mean of some pairs, as if they were of one machine, and its variance."""
    weights = [1.0 / noise.of_pair(pair.rounds) for pair in pairs]
    weighted = (w * pair.log_ratio for w, pair in zip(weights, pairs, strict=True))
    total = sum(weights)
    return sum(weighted) / total, 1.0 / total


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
