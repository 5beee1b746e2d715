"""Results that fall into two groups: a program that is sometimes fast and sometimes slow.

A mean of such results says little, and an interval from few of them is too narrow: a whole group
may be missing. The values are split where two groups explain most of their variance (one dimension
of k-means); of normal values the best split explains less than EXPLAINED in all but about one case
of a hundred.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pvariance

EXPLAINED = 0.92
"""Share of the variance that two groups must explain to be believed."""

_LEAST_VALUES = 8
_LEAST_DISTANCE = 0.05
"""Log units: groups that lie closer are no reason to doubt anything."""

_LEAST_SHARE = 0.15


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


def _within(ordered: Sequence[float], cut: int) -> float:
    """Sum of squares inside the two groups."""
    parts = (ordered[:cut], ordered[cut:])
    return sum(pvariance(part) * len(part) for part in parts)
