"""Intervals that stay valid when one looks at the data several times and stops when one likes.

Group-sequential error spending (Lan & DeMets, Biometrika 70, 1983): at look k a part of alpha is
spent, and the critical value is solved from the joint law of all looks by the recursive integration
of Armitage, McPherson & Rowe (J. R. Statist. Soc. A 132, 1969). Used as repeated confidence
intervals (Jennison & Turnbull, J. R. Statist. Soc. B 51, 1989) they cover simultaneously at every
look, whatever made one stop there; between two looks only the clock may stop one, not the data.
Looks happen at pair counts fixed in advance that grow by a constant factor, and the spending has no
horizon: the number of pairs need not be known, so a study may be interrupted, resumed or given more
time. (One that has looked because its time was up, and then gets more, has looked once too often;
what later looks leave unspent pays for that, see the tests.) Small samples: each critical value is
carried over to Student's t at the same tail probability (Jennison & Turnbull, Group Sequential
Methods, 2000).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hztune.stats.distributions import normal_quantile, normal_tail, t_quantile

FIRST_LOOK = 6
"""Pairs at the first look: fewer give no usable estimate of their own variance."""

LOOK_GROWTH = 1.6
"""Factor between the pair counts of two looks."""

SPENDING_DECAY = 0.75
"""Share of alpha that is still unspent after a look, of what was unspent before it."""

_GRID = 301
_NO_CROSSING_Z = 9.0


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate of a log ratio with its interval.

    Attributes:
        estimate: Mean log ratio.
        low: Lower end.
        high: Upper end.
        pairs: Number of independent pairs behind it.
    """

    estimate: float
    low: float
    high: float
    pairs: int

    @property
    def ratio(self) -> tuple[float, float, float]:
        """Estimate, lower and upper end as ratios."""
        return math.exp(self.estimate), math.exp(self.low), math.exp(self.high)

    @property
    def half_width(self) -> float:
        """Half the distance between the ends, in log units."""
        return 0.5 * (self.high - self.low)

    @property
    def has_zero(self) -> bool:
        """Whether no effect at all is among the values that it holds."""
        return self.low <= 0.0 <= self.high


def look_counts(pairs: int) -> tuple[int, ...]:
    """The pair counts of the looks at up to `pairs` pairs, the last one included whatever it is."""
    counts = []
    due = float(FIRST_LOOK)
    while round(due) < pairs:
        counts.append(round(due))
        due *= LOOK_GROWTH
    return (*counts, pairs)


def is_look(pairs: int) -> bool:
    """Whether a look is due at exactly `pairs` pairs."""
    return pairs >= FIRST_LOOK and pairs in look_counts(pairs + 1)


def sequential_interval(log_ratios: Sequence[float], alpha: float = 0.05) -> Interval:
    """The repeated confidence interval of the mean log ratio at this look.

    Args:
        log_ratios: One a fresh pair, in order of time, shape (pairs,); at least 2.
        alpha: 1 - coverage, over all looks together.

    Returns:
        The interval; infinitely wide before the first look is due.
    """
    y = np.asarray(log_ratios, dtype=float)
    mean = float(y.mean())
    if len(y) < FIRST_LOOK:
        return Interval(mean, -math.inf, math.inf, len(y))
    z = critical_values(look_counts(len(y)), alpha)[-1]
    half = t_quantile(normal_tail(z), len(y) - 1) * float(y.std(ddof=1)) / math.sqrt(len(y))
    return Interval(mean, mean - half, mean + half, len(y))


def fixed_interval(log_ratios: Sequence[float], alpha: float = 0.05) -> Interval:
    """Student's interval of the mean for a number of pairs that was fixed beforehand."""
    y = np.asarray(log_ratios, dtype=float)
    mean = float(y.mean())
    if len(y) < 2:
        return Interval(mean, -math.inf, math.inf, len(y))
    half = t_quantile(0.5 * alpha, len(y) - 1) * float(y.std(ddof=1)) / math.sqrt(len(y))
    return Interval(mean, mean - half, mean + half, len(y))


def critical_values(counts: tuple[int, ...], alpha: float) -> tuple[float, ...]:
    """The two-sided critical z of each look, so that all looks together err with at most `alpha`.

    Args:
        counts: Pairs at each look, rising, shape (looks,).
        alpha: Total probability, under no effect, that any look crosses its critical value.
    """
    first = alpha * (1.0 - SPENDING_DECAY)
    return spending_bounds(counts, tuple(first * SPENDING_DECAY**k for k in range(len(counts))))


@lru_cache(maxsize=1024)
def spending_bounds(counts: tuple[int, ...], spends: tuple[float, ...]) -> tuple[float, ...]:
    """The two-sided critical z of each look for an error that is given look by look.

    Args:
        counts: Pairs at each look, rising, shape (looks,).
        spends: Probability, under no effect, that a look is the first to cross, shape (looks,).
    """
    if len(counts) == 1:
        return (-normal_quantile(0.5 * spends[0]),)
    before = spending_bounds(counts[:-1], spends[:-1])
    grid, mass = _continuing(counts[:-1], spends[:-1])
    step = math.sqrt(counts[-1] - counts[-2])
    scale = math.sqrt(counts[-1])
    low, high = 0.0, _NO_CROSSING_Z
    for _ in range(26):
        middle = 0.5 * (low + high)
        if _crossing(grid, mass, middle * scale, step) > spends[-1]:
            low = middle
        else:
            high = middle
    return (*before, 0.5 * (low + high))


@lru_cache(maxsize=1024)
def _continuing(
    counts: tuple[int, ...], spends: tuple[float, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The sum's grid after the last look, and the mass at each node that crossed nowhere so far."""
    edge = spending_bounds(counts, spends)[-1] * math.sqrt(counts[-1])
    grid = np.linspace(-edge, edge, _GRID)
    if len(counts) == 1:
        density = _normal_density(grid, math.sqrt(counts[0]))
    else:
        before, mass = _continuing(counts[:-1], spends[:-1])
        step = math.sqrt(counts[-1] - counts[-2])
        density = _normal_density(grid[:, None] - before[None, :], step) @ mass
    return grid, density * _simpson(grid)


def _crossing(
    grid: NDArray[np.float64], mass: NDArray[np.float64], edge: float, step: float
) -> float:
    """Probability to be outside +-edge one step later."""
    above = [normal_tail((edge - s) / step) for s in grid.tolist()]
    return 2.0 * float(np.dot(mass, above))  # the mass is symmetric


def _normal_density(x: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    density: NDArray[np.float64] = np.exp(-0.5 * (x / sigma) ** 2) / (
        sigma * math.sqrt(2.0 * math.pi)
    )
    return density


def _simpson(grid: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.full(len(grid), 2.0)
    weights[1::2] = 4.0
    weights[0] = weights[-1] = 1.0
    scaled: NDArray[np.float64] = weights * ((grid[1] - grid[0]) / 3.0)
    return scaled
