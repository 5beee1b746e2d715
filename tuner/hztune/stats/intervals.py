"""Intervals that stay valid when one looks at the data several times before one stops.

The two distributions that they need are here, too, without a dependency on scipy.

Group-sequential error spending (Lan & DeMets, Biometrika 70, 1983): at look k a part of alpha is
spent, and the critical value is solved from the joint law of all looks by the recursive integration
of Armitage, McPherson & Rowe (J. R. Statist. Soc. A 132, 1969). Used as repeated confidence
intervals (Jennison & Turnbull, J. R. Statist. Soc. B 51, 1989) they cover simultaneously at every
look, whatever made one stop there; between two looks only the clock may stop one, not the data.
Small samples: each critical value is carried over to Student's t at the same tail probability
(Jennison & Turnbull, Group Sequential Methods, 2000).

The number of pairs is planned, and `planned_interval` has about three looks, with nearly all of the
error at the last one, as O'Brien & Fleming have it. The panel, which is to see great harm early,
has looks of its own, and spends a constant share of what is left at each (`critical_values`).

Few pairs know little of their own variance. What other pairs say of it, a `Spread`, may moderate it
(Smyth, Stat. Appl. Genet. Mol. Biol. 3, 2004, as in limma): s2 = (d s0^2 + (n - 1) s^2) / (d + n -
1), with d + n - 1 degrees of freedom. But configurations differ in their scatter, so that s0^2 is
worth fewer than its own degrees of freedom: d = 1 / (1 / d0 + 1 / ALIKE_DF), and s2 is never below
s^2. Simulated, 400,000 studies each, nominal 0.4 % of false claims, 4 to 15 pairs planned, d0 of 3
to 30; the scatter of processes is 1.5 to 2 times the default's in one configuration of three:

| variance | false claims | 95 % covers | least gain with 10 pairs, d0 of 6, 14, 30 |
|---|---|---|---|
| its own | 0.39 to 0.43 % | 94.6 to 95.0 % | 1.57, 1.57, 1.57 SD of a pair |
| moderated, d = d0 | 0.5 to 1.1 % | 91.6 to 94.0 % | 1.42, 1.35, 1.31 |
| moderated, d at most 8, at least its own | 0.38 to 0.47 % | 94.9 to 95.5 % | 1.48, 1.45, 1.45 |
| as here | 0.32 to 0.40 % | 95.2 to 95.7 % | 1.50, 1.47, 1.45 |

Where pairs, not processes, scatter 1.5 to 2 times as much it is 0.39 to 0.50 % and 94.7 to 95.3 %.
One configuration alone whose pairs scatter twice as much is claimed in up to 1.5 % of cases with 4
or 5 pairs, in 0.6 to 0.8 % with 10 (moderated with d = d0: in up to 6 %). Where a process in a
hundred is seven SD slower, where noise is Student's t with 3 degrees of freedom, and on the five
recordings of experiments/engine, 0.15 to 0.38 % of studies claim falsely, and 95.2 to 97.4 % cover.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hztune.blocks import Ratio

NORMAL_95 = 1.96  # standard errors on each side of an estimate that make a 95 % interval

normal_quantile = NormalDist().inv_cdf
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(60)
_NEARLY_NORMAL_DF = 2000.0


def normal_tail(z: float) -> float:
    return 0.5 * math.erfc(z / math.sqrt(2.0))


def bisected(is_low: Callable[[float], bool], low: float, high: float, steps: int) -> float:
    """Where `is_low` turns false between two numbers, after so many halvings."""
    for _ in range(steps):
        middle = 0.5 * (low + high)
        if is_low(middle):
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def t_tail(t: float, df: float) -> float:
    """Probability that Student's t with `df` degrees of freedom is above `t` (t >= 0).

    With t = sqrt(df) tan(x) the density becomes cos(x)^(df-1) on [0, pi/2), which 60 Gauss-Legendre
    nodes integrate to about 1e-12 for any df up to some thousands.
    """
    upper = math.atan(t / math.sqrt(df))
    x = 0.5 * upper * (_NODES + 1.0)
    body = 0.5 * upper * float(np.sum(_WEIGHTS * np.cos(x) ** (df - 1.0)))
    scale = math.exp(math.lgamma(0.5 * (df + 1.0)) - math.lgamma(0.5 * df)) / math.sqrt(math.pi)
    return max(0.0, 0.5 - scale * body)


@lru_cache(maxsize=4096)
def t_quantile(tail: float, df: float) -> float:
    """The t that Student's t exceeds with probability `tail`; `df`: 1 to 2000, more is normal."""
    if df > _NEARLY_NORMAL_DF:
        return -normal_quantile(tail)
    low, high = 0.0, 4.0
    while t_tail(high, df) > tail:
        low, high = high, 2.0 * high
    return bisected(lambda t: t_tail(t, df) > tail, low, high, 60)


FIRST_LOOK = 6  # least pairs of a claim: fewer give no usable estimate of their variance

SPENDING_DECAY = 0.75  # share of alpha still unspent after a look, of what was before

LEAST_PLANNED = 4
"""Pairs at the first look of a plan. With 4 instead of 6 the least gain that is proved is the same,
and plans of up to 10 pairs prove gains of 3 to 5 SD of a pair one to two pairs sooner. A gate looks
so early. A proof passes over the looks before `Workbench.least_pairs`, at which it would have spent
a hundred-thousandth of its error."""

PLANNED_LOOKS = 3  # evenly spaced

ALIKE_DF = 10.0  # degrees of freedom: most that others' scatter tells of this one's

MOST_TIMES = 100.0  # no advice is given to measure longer than so many times

_GRID = 301
_NO_CROSSING_Z = 9.0
_LEAST_TAIL = 1e-11  # smaller tails of Student's t are beyond what `t_tail` computes


class Spread(NamedTuple):
    """What is known beforehand of the scatter of pairs."""

    variance: float  # of one pair's log ratio, squared log units
    df: float  # degrees of freedom behind it, above 0

    @property
    def trusted_df(self) -> float:
        """Degrees of freedom that it is worth for a configuration which it was not measured on."""
        return 1.0 / (1.0 / self.df + 1.0 / ALIKE_DF)


@dataclass(frozen=True, slots=True)
class Interval:
    estimate: float  # mean log ratio
    low: float  # lower end
    high: float  # upper end
    pairs: int  # number of independent pairs behind it

    @property
    def ratio(self) -> Ratio:
        return Ratio(math.exp(self.estimate), math.exp(self.low), math.exp(self.high))

    @property
    def reciprocal(self) -> Interval:
        return Interval(-self.estimate, -self.high, -self.low, self.pairs)

    @property
    def text(self) -> str:
        """The ratio in words: "1.051x [1.031, 1.072]"."""
        return self.ratio.text

    @property
    def half_width(self) -> float:
        return 0.5 * (self.high - self.low)

    def times_for(self, half_width: float) -> float:
        """About how many times as many pairs make it so narrow; infinite for a width of 0."""
        return (self.half_width / half_width) ** 2 if half_width > 0.0 else math.inf

    @property
    def has_zero(self) -> bool:
        return self.low <= 0.0 <= self.high


def planned_looks(planned: int) -> tuple[int, ...]:
    """The pair counts of the looks of a plan, `planned` the last; none below LEAST_PLANNED."""
    if planned < LEAST_PLANNED:
        return ()
    due = (round(planned * look / PLANNED_LOOKS) for look in range(1, PLANNED_LOOKS + 1))
    return tuple(sorted({max(LEAST_PLANNED, count) for count in due}))


def planned_interval(
    log_ratios: Sequence[float],
    alpha: float,
    planned: int,
    *,
    prior: Spread | None = None,
    is_last: bool = False,
) -> Interval:
    """The repeated confidence interval at a look of a plan (see `planned_looks`).

    By the part t of the planned pairs, each side has spent f(t) = 2 - 2 Phi(z / sqrt(t)) of its
    alpha / 2, z being the quantile that makes f(1) = alpha / 2 (Lan & DeMets, Biometrika 70, 1983).
    It is infinitely wide where there is no look: below LEAST_PLANNED pairs, above `planned`, and
    where the error to spend is too small for any data.

    Args:
        log_ratios: One a fresh pair, in order of time, shape (pairs,); at least 1.
        alpha: 1 - coverage, over all looks of the plan together.
        planned: Pairs that were planned before the first of them was measured.
        is_last: Whether time is up, so that all that is left of alpha is spent now. The clock must
            have chosen the moment, not the data; a plan that has ended so has no further looks.
    """
    count, z = len(log_ratios), math.inf
    if LEAST_PLANNED <= count <= planned:
        z = planned_bound(count, alpha, planned, is_last=is_last)
    return _around(log_ratios, z, prior)


def planned_bound(pairs: int, alpha: float, planned: int, *, is_last: bool = False) -> float:
    """The two-sided critical z of a plan's look at `pairs` pairs; see `planned_interval`."""
    counts = (*(count for count in planned_looks(planned) if count < pairs), pairs)
    z = -normal_quantile(0.25 * alpha)
    total = [4.0 * normal_tail(z / math.sqrt(count / planned)) for count in counts]
    if is_last:
        total[-1] = alpha
    spends = tuple(after - before for before, after in pairwise([0.0, *total]))
    return spending_bounds(counts, spends)[-1]


def fixed_interval(
    log_ratios: Sequence[float], alpha: float = 0.05, *, prior: Spread | None = None
) -> Interval:
    """Student's interval of the mean, for a fixed number of pairs, at least 1; covers 1 - alpha."""
    z = -normal_quantile(0.5 * alpha) if len(log_ratios) > 1 else math.inf
    return _around(log_ratios, z, prior)


def _around(log_ratios: Sequence[float], z: float, prior: Spread | None) -> Interval:
    """The interval whose critical value would be `z` if the variance were known."""
    y = np.asarray(log_ratios, dtype=float)
    mean, tail, half = float(y.mean()), normal_tail(z), math.inf
    if tail >= _LEAST_TAIL:
        variance, df = float(y.var(ddof=1)), len(y) - 1.0
        if prior is not None:
            trusted = prior.trusted_df
            moderated = (trusted * prior.variance + df * variance) / (trusted + df)
            variance, df = max(variance, moderated), trusted + df
        half = t_quantile(tail, df) * math.sqrt(variance / len(y))
    return Interval(mean, mean - half, mean + half, len(y))


def critical_values(counts: tuple[int, ...], alpha: float) -> tuple[float, ...]:
    """The two-sided critical z of looks at rising `counts`, which together err with `alpha`."""
    first = alpha * (1.0 - SPENDING_DECAY)
    return spending_bounds(counts, tuple(first * SPENDING_DECAY**k for k in range(len(counts))))


@lru_cache(maxsize=1024)
def spending_bounds(counts: tuple[int, ...], spends: tuple[float, ...]) -> tuple[float, ...]:
    """The two-sided critical z of each look for an error that is given look by look.

    `counts`: pairs at each look, rising, shape (looks,). `spends`: the probability, under no
    effect, that a look is the first to cross; for next to nothing z is 9.
    """
    if len(counts) == 1:
        return (min(_NO_CROSSING_Z, -normal_quantile(max(1e-30, 0.5 * spends[0]))),)
    before = spending_bounds(counts[:-1], spends[:-1])
    grid, mass = _continuing(counts[:-1], spends[:-1])
    step, scale = math.sqrt(counts[-1] - counts[-2]), math.sqrt(counts[-1])

    def is_low(z: float) -> bool:
        """Whether more than the error is outside +-z; the mass is symmetric."""
        above = [normal_tail((z * scale - at) / step) for at in grid.tolist()]
        return 2.0 * float(np.dot(mass, above)) > spends[-1]

    return (*before, bisected(is_low, 0.0, _NO_CROSSING_Z, 26))


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
    weights = np.full(len(grid), 2.0)  # Simpson's rule
    weights[1::2] = 4.0
    weights[0] = weights[-1] = 1.0
    return grid, density * (weights * ((grid[1] - grid[0]) / 3.0))


def _normal_density(x: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    scaled: NDArray[np.float64] = np.exp(-0.5 * (x / sigma) ** 2)
    return scaled / (sigma * math.sqrt(2.0 * math.pi))
