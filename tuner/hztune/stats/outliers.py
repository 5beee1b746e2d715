"""Values that lie far from the others: to be told of, never to be left out.

One process in a hundred is slower than its equals for its whole life (experiments/engine): a pair
with it moves the mean and widens the interval, as it should, for such processes will be met in use,
too. A report names such pairs beside the interval, so that its width is understood.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

_LEAST_VALUES = 8
"""Fewer do not show what is usual among them."""

_LEAST_DISTANCE = 0.05
"""Log units: a value that is nearer to the others is no outlier."""

_MAD_TO_SD = 0.6745
_CUTOFF, _CUTOFF_OF_FEW = 4.2, 40.0


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
