"""Where the noise comes from, and what to do about it.

The log ratio of one pair of fresh processes scatters for two reasons: the processes differ for as
long as they live (address layout, the rhythm they settle into), and each turn is disturbed anew.
More turns average only the second away, so time is split between turns and fresh pairs by both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

from hztune.blocks import fixed
from hztune.stats.distributions import normal_quantile, normal_tail, t_quantile
from hztune.stats.ratios import PairRatio, by_machine
from hztune.stats.sequential import LEAST_PLANNED, Spread, planned_bound

OWN_DF = 5
"""Degrees of freedom from which on a machine's noise is its own: three blocks of A/A pairs. From
fewer, a weight 1/s^2 would on average be more than 5/3 of what it should be: df / (df - 2)."""

_POWER = 0.9
_RANKS = [(number + 0.5) / 64 for number in range(64)]
_LEAST_DF = 1.0


@dataclass(frozen=True, slots=True)
class Noise:
    """The variance components of one log ratio between two processes.

    Attributes:
        between: Variance between pairs of fresh processes, squared log units.
        per_round: Variance that one round of turns adds; it is divided by the number of rounds.
        df: Degrees of freedom behind the estimate of the total.
    """

    between: float
    per_round: float
    df: float

    def of_pair(self, rounds: int) -> float:
        """Variance of a pair's log ratio with that many rounds."""
        return self.between + self.per_round / rounds

    def spread(self, rounds: int) -> Spread:
        """What it says beforehand of pairs with that many rounds."""
        return Spread(self.of_pair(rounds), self.df)

    def on(self, machine: str) -> Noise:
        """The noise of a machine, where one noise is taken for all: this one."""
        return self

    def best_rounds(self, start_s: float, round_s: float, low: int, high: int) -> int:
        """Rounds for each fresh pair that give the least variance per second.

        Minimises (between + per_round / R)(start_s + R round_s), so R = sqrt(per_round / between *
        start_s / round_s): the two-stage optimum of Cochran, Sampling Techniques, 1977, ch. 10.

        Args:
            start_s: Seconds that a fresh process costs before its first counted turn.
            round_s: Seconds that one more round costs.
            low: Least number of rounds.
            high: Greatest number of rounds.
        """
        if self.between <= 0.0:
            return high
        best = math.sqrt(self.per_round / self.between * start_s / max(round_s, 1e-9))
        return max(low, min(high, round(best)))


@dataclass(frozen=True, slots=True)
class Noises:
    """The noise of each of several machines: a quiet and a busy one do not tell alike.

    Attributes:
        pooled: Over all machines; stands in where one has too few pairs.
        own: By machine, of those with at least OWN_DF; empty where there is one only.
    """

    pooled: Noise
    own: Mapping[str, Noise]

    def __post_init__(self) -> None:
        """Takes a copy of the mapping, which nothing can change."""
        object.__setattr__(self, "own", fixed(self.own))

    def on(self, machine: str) -> Noise:
        """The noise of a machine."""
        return self.own.get(machine, self.pooled)


def estimate_noises(groups: Sequence[Sequence[PairRatio]]) -> Noises | None:
    """The noise of each machine, as `estimate_noise` splits it; None: no machine has two pairs."""
    pooled = estimate_noise(groups)
    if pooled is None:
        return None
    machines = {pair.machine for pairs in groups for pair in pairs}
    if len(machines) == 1:
        return Noises(pooled, {})
    found = {
        machine: estimate_noise([[p for p in pairs if p.machine == machine] for pairs in groups])
        for machine in machines
    }
    known = {machine: noise for machine, noise in found.items() if noise and noise.df >= OWN_DF}
    return Noises(pooled, known)


def estimate_noise(groups: Sequence[Sequence[PairRatio]]) -> Noise | None:
    """Splits the scatter of pairs into its two components.

    Args:
        groups: The pairs of each comparison; only differences inside a group and on one machine
            count, so a group needs at least two pairs of a machine to say anything.

    Returns:
        The components; None when no group has two pairs.
    """
    squares, df = 0.0, 0
    repeated = [pairs for pairs in groups if len(pairs) > 1]
    for group in (pairs for several in repeated for pairs in by_machine(several)):
        if len(group) > 1:
            mean = sum(pair.log_ratio for pair in group) / len(group)
            squares += sum((pair.log_ratio - mean) ** 2 for pair in group)
            df += len(group) - 1
    if df == 0:
        return None
    known = [pair for group in groups for pair in group if not math.isnan(pair.turn_variance)]
    explained = [pair.turn_variance for pair in known]
    per_round = [pair.turn_variance * pair.rounds for pair in known]
    total = squares / df
    if not explained:
        return Noise(between=total, per_round=0.0, df=df)
    between = max(0.0, total - fmean(explained))
    return Noise(between=between, per_round=fmean(per_round), df=df)


def noise_floor(noise: Noise, rounds: int, pairs: int, alpha: float = 0.05) -> float:
    """Half-width of the interval of an A/A comparison with that many pairs, log units."""
    spread = math.sqrt(noise.of_pair(rounds) / max(1, pairs))
    return t_quantile(0.5 * alpha, max(_LEAST_DF, noise.df)) * spread


def detectable_effect(noise: Noise, rounds: int, pairs: int, alpha: float) -> float:
    """The gain that a proof with `pairs` planned pairs claims in 90 % of studies, log units.

    If pairs scatter as `noise` says. The chance of a claim at the last look, with what the pairs
    know of their own variance averaged out; earlier looks find next to nothing that the last one
    would miss.

    Args:
        noise: The variance components, known beforehand; see `Spread`.
        rounds: Rounds of each pair.
        pairs: Pairs that the confirmation can afford; fewer than LEAST_PLANNED count as so many.
        alpha: Two-sided error of the planned interval that a claim rests on.
    """
    pairs = max(LEAST_PLANNED, pairs)
    spread = noise.spread(rounds)
    return _provable(pairs, spread.trusted_df, alpha) * math.sqrt(spread.variance / pairs)


@lru_cache(maxsize=1024)
def _provable(pairs: int, trusted: float, alpha: float) -> float:
    """The same in standard errors of the mean, where the prior knows the variance."""
    df = pairs - 1.0
    critical = t_quantile(normal_tail(planned_bound(pairs, alpha, pairs)), trusted + df)
    own = [_chi_square(rank, df) / df for rank in _RANKS]
    widths = [critical * math.sqrt(max(s2, (trusted + df * s2) / (trusted + df))) for s2 in own]
    low, high = 0.0, 2.0 * max(widths)
    for _ in range(40):
        middle = 0.5 * (low + high)
        if fmean(normal_tail(width - middle) for width in widths) < _POWER:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def _chi_square(probability: float, df: float) -> float:
    """Quantile of chi-square (Wilson & Hilferty, Proc. Natl. Acad. Sci. 17, 1931)."""
    scale = 2.0 / (9.0 * df)
    root = 1.0 - scale + normal_quantile(probability) * math.sqrt(scale)
    return df * max(0.0, root) ** 3
