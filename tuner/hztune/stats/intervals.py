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

A `Question` is about the mean of log ratios, and asked at looks. Some hypotheses have to hold
together, as a gain and a memory limit. Each of them may use the whole error: what lacks one is
claimed only where the test of that one errs (the intersection-union test of Berger, Technometrics
24, 1982). Where one of several suffices for an answer, they share it.

`has_won` and the ends beside it hold at any time, of pairs whose order was drawn at random. So if a
setting has no effect, the log ratio d of a pair is as likely -d, whatever load, noise and drift
are. Then exp(k d) / cosh(k d) has the mean 1 for every stake k: it is a fair bet, and the product
over all pairs, averaged over some stakes, reaches 1 / error at any time with a probability of at
most `error` (Ville's inequality; for symmetric increments de la Pena, Ann. Probab. 27, 1999). So
one may look after each pair, and stop when one likes. An effect is inside of the interval as long
as the bets against it have not won so much (a confidence sequence: Howard et al., Ann. Statist. 49,
2021). No scatter is estimated, and no noise need be normal; what it costs is pairs: at least log2(1
/ error).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist
from typing import Literal, NamedTuple

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


def ratio_json(shown: Interval | None) -> dict[str, float | int | None]:
    """A ratio, the ends of its interval and its pairs, as a claim names them."""
    ratio, low, high = shown.ratio if shown else (None, None, None)
    return {"ratio": ratio, "ci_low": low, "ci_high": high, "pairs": shown.pairs if shown else 0}


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


# ---- a question about a mean ---------------------------------------------------------------------


Answer = Literal["yes", "no", "open"]

REPORTED_ERROR = 0.05  # two-sided error of printed intervals, and of refusals: they are no claims

PRECISE = 0.2  # a proved gain is measured on until its half-width is below this share of it

FUTILE_FROM = 5  # pairs from which on one may say that more would be in vain

_HOPEFUL_ERROR = 0.1
_FUTILE_GROWTH = 4.0 / 3.0


@dataclass(frozen=True, slots=True)
class Looks:
    counts: tuple[int, ...]  # pairs at each look that was due so far, rising
    planned: int  # pairs of the whole plan, known before the first was measured
    # whether time is up, so that the last look spends all the error that is left. The clock must
    # have chosen its moment, not the data.
    is_last: bool = False

    @classmethod
    def due(cls, pairs: int, least: int, planned: int, *, is_last: bool = False) -> Looks:
        counts = [each for each in planned_looks(planned) if least <= each <= pairs]
        if is_last and pairs >= least and pairs not in counts:
            counts.append(pairs)
        return cls(tuple(counts), planned, is_last)

    def newest(self) -> Looks:
        return Looks(self.counts[-1:], self.planned, self.is_last)


@dataclass(frozen=True, slots=True)
class Question:
    """Is the mean above a margin? Values are turned so that more is better."""

    values: Sequence[float]  # log units, one a fresh pair, in order of time, shape (pairs,)
    looks: Looks  # when it is asked
    error: float  # two-sided error of a yes, over all looks together
    margin: float = 0.0  # what the interval must exclude, log units
    least: float = -math.inf  # what the estimate must reach besides
    prior: Spread | None = None  # what other pairs say of the scatter of these
    refusal: float = 0.0  # two-sided error of a no; 0: the looks never say no
    may_touch: bool = False  # whether a mean that is exactly at the margin is a yes, as for a limit

    @property
    def answer(self) -> Answer:
        """What the looks have shown; what one of them has shown stays shown."""
        if self.proved_by:
            return "yes"
        refused = self.refusal and any(each.high < self.margin for each in self.seen(self.refusal))
        return "no" if refused else "open"

    @property
    def proved_by(self) -> int:
        """Pairs at the first look that says yes; 0: none does."""
        both = zip(self.looks.counts, self.seen(self.error), strict=False)  # none without values
        for count, seen in both:
            touches = self.may_touch and seen.low == self.margin
            if (touches or seen.low > self.margin) and seen.estimate >= self.least:
                return count
        return 0

    def seen(self, error: float) -> list[Interval]:
        """The interval at each look; together they cover with 1 - `error`. None without values."""
        if not self.values:
            return []
        last = self.looks.counts[-1] if self.looks.is_last and self.looks.counts else 0
        return [
            planned_interval(
                self.values[:count], error, self.looks.planned, prior=self.prior,
                is_last=count == last,
            )
            for count in self.looks.counts
        ]  # fmt: skip

    def reported(self, count: int | None = None) -> Interval | None:
        """The 95 % interval of the first `count` pairs, else of all; None: they are too few."""
        values = self.values[:count]
        if not values:
            return None
        final = len(values) >= self.looks.planned
        final |= self.looks.is_last and len(values) == len(self.values)
        found = planned_interval(
            values, REPORTED_ERROR, self.looks.planned, prior=self.prior, is_last=final
        )
        return found if math.isfinite(found.half_width) else None

    def is_futile(self) -> bool:
        """Whether even a lucky truth would not be proved with all planned pairs.

        The upper end of an interval with an error of _HOPEFUL_ERROR stands for the lucky truth.
        Stopping for futility can only lose claims, never make one (non-binding futility), so it
        costs no error.
        """
        lucky = fixed_interval(self.values, _HOPEFUL_ERROR, prior=self.prior).high
        spread = fixed_interval(self.values, self.error, prior=self.prior).half_width
        needed = 0.5 * spread * math.sqrt(len(self.values) / self.looks.planned)
        return lucky < max(max(0.0, self.least), needed)

    def is_settled(self) -> bool:
        """Whether a proved gain is known precisely at a look, and another one is in vain."""
        if self.proved_by:
            shown = self.reported(self.looks.counts[-1])
            return shown is not None and is_precise(shown)
        due = [count for count in futile_counts(self.looks.planned) if count <= len(self.values)]
        return bool(due) and replace(self, values=self.values[: max(due)]).is_futile()

    def claimed(self) -> Interval | None:
        """The newest interval; if it holds 0, its overlap with the proof's: both cover at once."""
        newest = self.reported()
        if newest is None or not self.proved_by or newest.low > 0.0:
            return newest
        proving = self.reported(self.proved_by)
        if proving is None:
            return newest
        low, high = max(newest.low, proving.low), min(newest.high, proving.high)
        middle = min(high, max(low, newest.estimate))
        return Interval(middle, low, high, newest.pairs) if low <= high else newest


def all_of(answers: Iterable[Answer]) -> Answer:
    found = {*answers}
    return "no" if "no" in found else "open" if "open" in found else "yes"


def is_precise(interval: Interval) -> bool:
    return interval.half_width <= PRECISE * interval.estimate


@lru_cache(maxsize=64)
def futile_counts(planned: int) -> frozenset[int]:
    """The pair counts at which a proof may be given up, `planned` among them.

    They grow by a third: after every pair, many true gains that begin badly would be given up.
    """
    found, due = {planned}, float(FUTILE_FROM)
    while due < planned:
        found.add(round(due))
        due *= _FUTILE_GROWTH
    return frozenset(found)


# ---- bets, at any time ---------------------------------------------------------------------------


_STAKES = 3.0 ** np.arange(7)[:, None]  # for effects of some 100 % down to some 0.1 %
_FARTHEST = 10.0  # log units: no effect is greater


def lower_end(ratios: Sequence[float], error: float) -> float:
    """The end above which the effect lies with 1 - `error`, at all times together.

    Args:
        ratios: Log ratios, one a pair, in order of time, shape (pairs,).
        error: Probability that the effect is ever below an end that was told.
    """
    if len(ratios) * math.log(2.0) <= -math.log(error) or not has_won(ratios, error, -_FARTHEST):
        return -math.inf
    return bisected(lambda effect: has_won(ratios, error, effect), -_FARTHEST, _FARTHEST, 40)


def upper_end(ratios: Sequence[float], error: float) -> float:
    """The end below which the effect lies with 1 - `error`; see `lower_end`."""
    return -lower_end([-each for each in ratios], error)


def has_won(ratios: Sequence[float], error: float, effect: float = 0.0) -> bool:
    """Whether the bets that the effect is above `effect` have won 1 / `error`."""
    x = 2.0 * _STAKES * (np.asarray(ratios, dtype=float) - effect)
    won = (math.log(2.0) - np.logaddexp(0.0, -x)).sum(axis=1)
    return float(np.logaddexp.reduce(won)) - math.log(len(won)) >= -math.log(error)
