"""The effect on a fleet, with an interval that holds at all times together.

Time is cut into blocks. A block's own level (load, time of day, drift of all) and a unit's own
level are taken out by a fit of both, before the change and after it. What is left is a number for
each unit, its level after, and those are regressed on the treatment, the strata and the levels
before (CUPED: Deng et al., WSDM 2013). Units were drawn, not moments: the variance is that between
units, so that noise within a unit may be correlated in any way. It is HC2's, with the degrees of
freedom of Bell and McCaffrey (Imbens & Kolesar, Rev. Econ. Stat. 98, 2016): as Welch's, it minds
neither groups of unlike size nor of unlike scatter.

The interval is that of the normal mixture (Robbins, Ann. Math. Statist. 41, 1970): a Brownian
motion with variance v passes sqrt((v + 1)(log(v + 1) - 2 log a)) at any v with a probability of at
most a on either side. The estimate at a time is a mean from the start. Between two times s < t such
means of noise that is correlated, drifts, or has a common baseline correlate by sqrt(s / t) or
more, and by Slepian's inequality they pass a bound less often than the Brownian motion, for which
it is sqrt(s / t). So only the share of planned time that has passed must be known. Each critical
value is carried over to Student's t at the same tail, as in `stats.intervals`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hztune.stats.intervals import normal_tail, t_quantile

FloatTable = NDArray[np.float64]

_NARROWEST = 12.0  # times the mixture's variance: least for errors of 0.0045, 0.2 % wider at 0.02
_LEAST_TAIL = 1e-9  # passed at one of 10,000 looks in a hundred-thousandth of cases
_ROUNDS = 50  # at most of the fit of two ways
_SAME = 1e-6
_SPARE_DF = 6  # with less, the level before is subtracted, as its weight cannot be estimated
LEAST_UNITS = 2  # of a group, that there is an interval


class UnitEffects(NamedTuple):
    estimate: float  # treated less control
    error: float  # its standard error
    df: float  # degrees of freedom
    deviations: FloatTable  # of each unit from what it would be without the change


def levels(table: FloatTable) -> FloatTable:
    """Each unit's level without the blocks', of a table (blocks, units); NaN: nothing is known."""
    known = np.isfinite(table)
    count = known.sum(axis=0)
    filled, level = np.where(known, table, 0.0), np.zeros(table.shape[1])
    of_block = np.maximum(known.sum(axis=1), 1)
    for _ in range(_ROUNDS):
        blocks, old = (filled - known * level).sum(axis=1) / of_block, level
        level = (filled - known * blocks[:, None]).sum(axis=0) / np.maximum(count, 1)
        if np.abs(level - old).max() <= _SAME * np.abs(level).max():
            break
    return np.where(count > 0, level, np.nan)


def effect_of(
    after: FloatTable, before: FloatTable, treated: NDArray[np.bool_], strata: NDArray[np.int_],
    weights: FloatTable,
) -> UnitEffects | None:  # fmt: skip
    """The effect on units by their levels after and before a change, all of shape (units,).

    `before` may be NaN. `weights`: how much of the time a unit was seen. None: the units cannot
    tell, as there are too few, or no stratum has both groups.
    """
    use = np.isfinite(after)
    groups = treated[use], ~treated[use]
    if min(group.sum() for group in groups) < LEAST_UNITS:
        return None
    y, prior = after[use], before[use]
    dummies = (strata[use][:, None] == np.unique(strata[use])[None, :]).astype(float)
    columns = [groups[0].astype(float)[:, None], dummies]
    has = np.isfinite(prior)
    if len(y) - dummies.shape[1] - 2 >= _SPARE_DF and has.any():
        columns.append(np.where(has, prior - prior[has].mean(), 0.0)[:, None])
        columns += [(~has).astype(float)[:, None]] if not has.all() else []
    elif has.all():
        y = y - prior
    elif min((group & has).sum() for group in groups) >= LEAST_UNITS:
        old = np.where(np.isfinite(before), after, np.nan)  # new ones would hide the others'
        return effect_of(old, before, treated, strata, weights)
    root = np.sqrt(weights[use])[:, None]
    x = np.hstack(columns) * root
    inverse = np.linalg.pinv(x)
    if not math.isclose((inverse @ x)[0, 0], 1.0, abs_tol=1e-6):
        return None  # the treatment is a sum of other columns
    rest = 1.0 - (x * inverse.T).sum(axis=1)
    exact = rest < _SAME  # whatever such a unit did is fitted: nothing shows its scatter
    if np.abs(inverse[0][exact]).max(initial=0.0) > _SAME * np.abs(inverse[0]).max():
        return None
    fitted = inverse @ (y * root[:, 0])
    residuals = y * root[:, 0] - x @ fitted
    share = np.where(exact, 0.0, inverse[0] ** 2 / np.maximum(rest, _SAME))
    trace, crossed = float(rest @ share), inverse @ (share[:, None] * x)
    spread = float(share**2 @ (2.0 * rest - 1.0) + (crossed * crossed.T).sum())
    deviations = np.full(len(after), np.nan)
    deviations[use] = residuals / root[:, 0] + groups[0] * fitted[0]
    error, df = math.sqrt(float(share @ residuals**2)), max(1.0, trace**2 / spread)
    return UnitEffects(float(fitted[0]), error, df, deviations)


def critical(passed: float, error: float, df: float) -> float:
    """The standard errors on one side of an estimate, which it leaves at no time but with `error`.

    `passed`: the share of the planned time that has passed, above 0; it may be above 1.
    """
    v = _NARROWEST * passed
    z = math.sqrt((1.0 + 1.0 / v) * (math.log1p(v) - 2.0 * math.log(2.0 * error)))
    return t_quantile(max(_LEAST_TAIL, normal_tail(z)), df)
