"""The two distributions that the estimates need, without a dependency on scipy."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

NORMAL_95 = 1.96
"""Standard errors on each side of an estimate that make a 95 % interval, where they are known."""

_NORMAL = NormalDist()
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(60)
_NEARLY_NORMAL_DF = 2000.0


def normal_tail(z: float) -> float:
    """Probability that a standard normal number is above `z`."""
    return 0.5 * math.erfc(z / math.sqrt(2.0))


def normal_quantile(probability: float) -> float:
    """The number below which a standard normal one stays with `probability`."""
    return _NORMAL.inv_cdf(probability)


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
    """The t above which Student's t with `df` degrees of freedom lies with probability `tail`.

    Args:
        tail: Between 0 and 0.5, both excluded.
        df: At least 1; beyond 2000 the normal distribution stands in.
    """
    if df > _NEARLY_NORMAL_DF:
        return -normal_quantile(tail)
    low, high = 0.0, 4.0
    while t_tail(high, df) > tail:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        if t_tail(middle, df) > tail:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)
