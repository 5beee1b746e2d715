"""What pairs of epochs show of an effect, at any time.

The order of the two settings of a pair is drawn at random. So if a setting has no effect, the log
ratio d of a pair is as likely -d, whatever load, noise and drift are. Then exp(k d) / cosh(k d) has
the mean 1 for every stake k: it is a fair bet, and the product over all pairs, averaged over some
stakes, reaches 1 / error at any time with a probability of at most `error` (Ville's inequality; for
symmetric increments de la Pena, Ann. Probab. 27, 1999). So one may look after each pair, and stop
when one likes. An effect is inside of the interval as long as the bets against it have not won so
much (a confidence sequence: Howard et al., Ann. Statist. 49, 2021). No scatter is estimated, and no
noise need be normal; what it costs is pairs: at least log2(1 / error).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hztune.stats.intervals import bisected

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
