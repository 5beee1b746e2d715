"""Configurations as the sparse model sees them: which parameters differ from the default, and how.

An *axis* is one parameter with its levels in order. A configuration is a row of level numbers, with
UNCHANGED where the parameter has its default. Every axis is a *group* of features, one for each
level; so is every pair of axes that were changed together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Levels = NDArray[np.int64]
"""Level numbers, shape (configurations, axes); UNCHANGED: the default."""

UNCHANGED = -1

_REACH = 0.35
"""Part of an axis over which an effect stays alike."""

_OWN = 0.3
"""Part of the variance of an effect that is a level's own: thresholds, special values."""

ODDS = 0.15
"""How likely a parameter matters, before anything is measured."""

_MOST_COMBINATIONS = 12
"""Features of a pair of axes, those that were measured first: the others are left to chance."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter.

    Attributes:
        name: What it is called.
        count: Number of its levels.
        default: The level of its default; None where the default is none of them.
        is_ordered: Whether neighbouring levels are alike.
    """

    name: str
    count: int
    default: int | None
    is_ordered: bool


@dataclass(frozen=True, slots=True)
class Groups:
    """The features of some configurations, group by group.

    Attributes:
        columns: Columns of each group, padded with the last column, which is always 0;
            shape (groups, widest).
        log_odds: Logarithm of the odds that a group matters; shape (groups,).
        parents: The axes of each group: one, or the two of a pair.
        factors: Of each axis, the factor by which levels become features; (levels, levels).
        pairs: Of each pair group, its combinations of levels in order of its columns.
    """

    columns: NDArray[np.int64]
    log_odds: Floats
    parents: tuple[tuple[int, ...], ...]
    factors: tuple[Floats, ...]
    pairs: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def of(cls, axes: Sequence[Axis], levels: Levels, pair_odds: float) -> Groups:
        """The groups of all axes, and of the pairs of axes that some configuration changes."""
        factors = tuple(_factor(axis) for axis in axes)
        found = [
            (one, other, combos)
            for one, other in combinations(range(len(axes)), 2)
            if (combos := _combinations(levels[:, one], levels[:, other]))
        ]
        parents = [(index,) for index in range(len(axes))] + [(a, b) for a, b, _ in found]
        widths = [axis.count for axis in axes] + [len(combos) for *_, combos in found]
        starts = np.concatenate([[0], np.cumsum(widths)])
        total = int(starts[-1])
        columns = np.full((len(widths), max(widths, default=1)), total)
        for row, width in enumerate(widths):
            columns[row, :width] = np.arange(starts[row], starts[row] + width)
        odds = np.array([ODDS] * len(axes) + [pair_odds] * len(found))
        return cls(
            columns,
            np.log(odds / (1.0 - odds)),
            tuple(parents),
            factors,
            tuple(combos for *_, combos in found),
        )

    def features(self, levels: Levels) -> Floats:
        """The features of configurations, shape (configurations, width)."""
        made = np.zeros((len(levels), self.width))
        for axis, factor in enumerate(self.factors):
            rows = np.flatnonzero(levels[:, axis] != UNCHANGED)
            made[np.ix_(rows, self.columns[axis, : len(factor)])] = factor[levels[rows, axis]]
        for place, combos in enumerate(self.pairs):
            group = len(self.factors) + place
            one, other = self.parents[group]
            for number, (a, b) in enumerate(combos):
                both = (levels[:, one] == a) & (levels[:, other] == b)
                made[both, self.columns[group, number]] = 1.0
        return made

    @property
    def width(self) -> int:
        """Number of features, the one that is always 0 included."""
        return sum(len(f) for f in self.factors) + sum(len(c) for c in self.pairs) + 1


def _combinations(one: NDArray[np.int64], other: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """The pairs of levels that some configuration has, neither of them the default."""
    both = (one != UNCHANGED) & (other != UNCHANGED)
    seen = dict.fromkeys(zip(one[both].tolist(), other[both].tolist(), strict=True))
    return tuple(seen)[:_MOST_COMBINATIONS]


@lru_cache(maxsize=1024)
def _factor(axis: Axis) -> Floats:
    """A square root of the covariance of the effects of an axis's levels, (levels, levels).

    Effects are differences to the default's: of an ordered axis, those of levels near the default
    are small, and neighbours are alike; of words, all have the default in common.
    """
    count = axis.count
    if axis.is_ordered:
        places = np.linspace(0.0, 1.0, count) if count > 1 else np.zeros(1)
        alike = np.exp(-0.5 * ((places[:, None] - places[None, :]) / _REACH) ** 2)
        alike = (1.0 - _OWN) * alike + _OWN * np.eye(count)
    else:
        alike = np.eye(count)
    if axis.default is not None:
        away = alike[:, axis.default]
        alike = alike - away[:, None] - away[None, :] + 1.0
    values, vectors = np.linalg.eigh(alike / max(1e-9, float(np.diag(alike).mean())))
    root: Floats = vectors * np.sqrt(np.maximum(values, 0.0))
    return root
