"""One figure from several comparisons, each with an interval of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hztune.stats.distributions import t_quantile
from hztune.stats.sequential import Interval


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
