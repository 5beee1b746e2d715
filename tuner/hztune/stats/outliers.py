"""Values that are not alike: far from the others, in two groups, or alike only one after another.

Far ones are to be told of, never to be left out.

One process in a hundred is slower than its equals for its whole life (experiments/engine): a pair
with it moves the mean and widens the interval, as it should, for such processes will be met in use,
too. A report names such pairs beside the interval, so that its width is understood.

Of a program that is sometimes fast and sometimes slow a mean says little, and an interval from few
results is too narrow: a whole group may be missing. Values are split where two groups explain most
of their variance (one dimension of k-means); of normal values the best split explains less than
EXPLAINED in all but about one case of a hundred.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median, pvariance

_LEAST_VALUES = 8
"""Fewer do not show what is usual among them."""

_LEAST_DISTANCE = 0.05
"""Log units: a value that is nearer to the others is no outlier, groups that are nearer are one."""

_MAD_TO_SD = 0.6745
_CUTOFF, _CUTOFF_OF_FEW = 4.2, 40.0

EXPLAINED = 0.92
"""Share of the variance that two groups must explain to be believed."""

_LEAST_SHARE = 0.15

_BEYOND_CHANCE = 2.33
"""Standard errors: one sample in a hundred."""

_TOGETHER = 0.5
"""Share of their variance that values of one moment have at least where moments do not matter."""


def far_off(values: Sequence[float]) -> list[tuple[int, float]]:
    """Finds the values that lie far from the others.

    By the modified z-score, 0.6745 (x - median) / MAD (Iglewicz & Hoaglin, How to Detect and Handle
    Outliers, 1993). Above their 3.5 there is a value in 9 to 15 % of all samples of 8 to 101 normal
    numbers, since the MAD of few is itself unsure. Above 4.2 + 40 / count it is 0.3 to 0.8 %
    (40,000 samples of each count).

    Args:
        values: Log ratios of equal pairs, shape (pairs,).

    Returns:
        Index and distance to the median of each such value, in order; nothing is said of fewer than
        _LEAST_VALUES.
    """
    if len(values) < _LEAST_VALUES:
        return []
    middle = median(values)
    distances = [value - middle for value in values]
    spread = median(map(abs, distances)) / _MAD_TO_SD
    most = max(_LEAST_DISTANCE, (_CUTOFF + _CUTOFF_OF_FEW / len(values)) * spread)
    return [(index, each) for index, each in enumerate(distances) if abs(each) > most]


def two_states(values: Sequence[float]) -> float | None:
    """Returns how far apart the two groups lie into which some logarithms fall; None: they do not.

    A single value that lies apart is no group.
    """
    if len(values) < _LEAST_VALUES:
        return None
    ordered = sorted(values)
    least = max(2, math.ceil(_LEAST_SHARE * len(ordered)))
    cuts = range(least, len(ordered) - least + 1)
    within, cut = min((_within(ordered, cut), cut) for cut in cuts)
    distance = fmean(ordered[cut:]) - fmean(ordered[:cut])
    total = pvariance(ordered) * len(ordered)
    if distance < _LEAST_DISTANCE or within > (1.0 - EXPLAINED) * total:
        return None
    return distance


def move_together(moments: Sequence[Sequence[float]]) -> bool:
    """Whether values differ because their moments do, and are alike within each.

    A machine that changes its speed makes two groups of what was measured before and after.

    Args:
        moments: What was measured at the same moment, side by side.
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
    called so; of 12 with a true correlation of 0.5 it is 12 %, of 40 it is 73 %.

    Args:
        values: In order of time, shape (pairs,).
    """
    count = len(values)
    total = pvariance(values) * count if count >= _LEAST_VALUES else 0.0
    if total == 0.0:
        return None
    middle = fmean(values)
    away = [value - middle for value in values]
    found = math.fsum(one * other for one, other in pairwise(away)) / total
    return found if (found + 1.0 / count) * math.sqrt(count) > _BEYOND_CHANCE else None


def _within(ordered: Sequence[float], cut: int) -> float:
    """Sum of squares inside the two groups."""
    parts = (ordered[:cut], ordered[cut:])
    return sum(pvariance(part) * len(part) for part in parts)
