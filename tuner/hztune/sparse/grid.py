"""Configurations and trials as the sparse model sees them.

An *axis* is one parameter with its few levels in order. A configuration is a row of level numbers,
with UNCHANGED where the parameter has its default. Every axis is a *group* of features, one for
each level; so is every pair of axes that were changed together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial

Floats = NDArray[np.float64]
Levels = NDArray[np.int64]  # level numbers, shape (configurations, axes); UNCHANGED: the default

UNCHANGED = -1

_REACH = 0.35  # part of an axis over which an effect stays alike

_OWN = 0.3  # part of an effect's variance that is a level's own: thresholds, special values

ODDS = 0.15  # how likely a parameter matters, before anything is measured

_MOST_COMBINATIONS = 12  # features of a pair of axes, the first measured; others are left to chance


@dataclass(frozen=True, slots=True)
class Axis:
    name: str  # what it is called
    count: int  # number of its levels
    default: int | None  # the level of its default; None where the default is none of them
    is_ordered: bool  # whether neighbouring levels are alike


@dataclass(frozen=True, slots=True)
class Groups:
    # columns of each group, padded with the last column, which is always 0; shape (groups,
    # widest)
    columns: NDArray[np.int64]
    log_odds: Floats  # logarithm of the odds that a group matters; shape (groups,)
    parents: tuple[tuple[int, ...], ...]  # the axes of each group: one, or the two of a pair
    # of each axis, the factor by which levels become features; (levels, levels)
    factors: tuple[Floats, ...]
    # of each pair group, its combinations of levels in order of its columns
    pairs: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def of(cls, axes: Sequence[Axis], levels: Levels, pair_odds: float) -> Groups:
        """The groups of all axes, and of the pairs of axes that some configuration changes."""
        factors = tuple(_factor(axis) for axis in axes)
        found = []
        for one, other in combinations(range(len(axes)), 2):
            both = levels[(levels[:, [one, other]] != UNCHANGED).all(axis=1)][:, [one, other]]
            if len(both):
                combos = tuple(dict.fromkeys((a, b) for a, b in both.tolist()))
                found.append((one, other, combos[:_MOST_COMBINATIONS]))
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


MOST_LEVELS = 64  # values of a parameter that can be told apart

Params = dict[str, Any]
LevelRow = tuple[int, ...]
Legal = Callable[[Params], Params | None]


class Grid:
    """Parameters with their levels; `bare` is the row that changes nothing."""

    def __init__(
        self,
        space: Mapping[str, BaseDistribution],
        defaults: Mapping[str, Any],
        legal: Legal | None,
    ) -> None:
        """Makes the grid; ValueError: a parameter has too many values, or no default among them.

        `legal`: makes of a configuration the one that is meant; None: all are legal.
        """
        self.space = dict(space)
        self.axes = tuple(axis_of(name, each, defaults) for name, each in space.items())
        self.bare: LevelRow = (UNCHANGED,) * len(self.axes)
        self._values = [_values_of(name, each) for name, each in space.items()]
        self._legal = legal
        self._meant: dict[LevelRow, LevelRow | None] = {}
        self._level_rows: dict[int, LevelRow | None] = {}

    def level_row(self, params: Mapping[str, Any]) -> LevelRow:
        """A configuration's level numbers, UNCHANGED if left alone; ValueError: no such level."""
        row = []
        for axis, values in zip(self.axes, self._values, strict=True):
            level = axis.default
            if axis.name in params:
                if params[axis.name] not in values:
                    legal = self.space[axis.name]
                    raise ValueError(f"{axis.name!r} is {params[axis.name]!r}; legal is {legal}")
                level = values.index(params[axis.name])
            row.append(UNCHANGED if level is None or level == axis.default else level)
        return tuple(row)

    def level_row_of(self, trial: FrozenTrial) -> LevelRow | None:
        """The row of a trial; None where it has a value that is none of the levels."""
        if trial.number in self._level_rows:
            return self._level_rows[trial.number]
        try:
            row = self.level_row(trial.params)
        except ValueError:
            row = None
        if trial.state.is_finished():  # its parameters change no more
            self._level_rows[trial.number] = row
        return row

    def params(self, row: Sequence[int]) -> Params:
        return {
            axis.name: values[axis.default or 0 if level == UNCHANGED else level]
            for axis, values, level in zip(self.axes, self._values, row, strict=True)
        }

    def forget_meant(self) -> None:
        self._meant.clear()

    def meant(self, row: LevelRow) -> LevelRow | None:
        """The row of the configuration that is meant; None where it is not legal."""
        if self._legal is None:
            return row
        if row not in self._meant:
            asked = self.params(row)
            made = self._legal(dict(asked))
            try:
                self._meant[row] = None if made is None else self.level_row(made)
            except (TypeError, ValueError) as error:
                raise ValueError(f"`legal` makes {made!r} of {asked!r}: {error}") from None
        return self._meant[row]


def axis_of(name: str, each: BaseDistribution, defaults: Mapping[str, Any]) -> Axis:
    if name not in defaults:
        raise ValueError(f"{name!r} has no default; name it in `defaults`")
    values = _values_of(name, each)
    if defaults[name] not in values:
        raise ValueError(f"the default of {name!r} is {defaults[name]!r}; legal is {each}")
    default = values.index(defaults[name])
    return Axis(name, len(values), default, isinstance(each, IntDistribution))


def _values_of(name: str, each: BaseDistribution) -> Sequence[Any]:
    values: Sequence[Any] = ()
    if isinstance(each, CategoricalDistribution):
        values = each.choices
    elif isinstance(each, IntDistribution) and not each.log:
        values = range(each.low, each.high + 1, each.step)
    if not 0 < len(values) <= MOST_LEVELS:
        told = f"{len(each.choices)} categories" if hasattr(each, "choices") else str(each)
        raise ValueError(
            f"{name!r} is {told}; legal are categories and whole numbers in equal steps (no log), "
            f"at most {MOST_LEVELS} of them"
        )
    return values


BLOCK, VARIANCE, EXCESS = "block", "variance", "excess"
"""Attributes of a trial: its block; the variance of its value; how far it breaks a limit, in log
units, where there is one (above 0: it does)."""

FAR = -0.35  # log ratio below which it does not matter how slow a configuration is

_USUAL_VARIANCE = 0.04**2
_LEAST_VARIANCE = 1e-12  # what is measured more finely counts as if it were measured so

Variances = Callable[[FrozenTrial], Sequence[float]]


class Told(NamedTuple):
    order: int  # where it stands in the order of blocks; without a block by its own number
    block: tuple[str, int]  # what tells its block from others; without one it stands alone
    values: list[float]  # of each objective; a first one that is slower than FAR is FAR
    variances: list[float]  # of its values
    excess: float | None  # how far it breaks the limit; None: it does not say

    @classmethod
    def of(cls, trial: FrozenTrial, variances: Variances | None) -> Told:
        """`variances`: None: the attribute VARIANCE has them, for each objective or one for all."""
        told = trial.user_attrs
        block, kind = told.get(BLOCK, trial.number), "block" if BLOCK in told else "alone"
        stated = told.get(VARIANCE, _USUAL_VARIANCE) if variances is None else variances(trial)
        each: Any = stated if isinstance(stated, list | tuple) else [stated] * len(trial.values)
        return cls(
            block,
            (kind, block),
            [max(FAR, trial.values[0]), *trial.values[1:]],
            [max(_LEAST_VARIANCE, one) for one in each],
            told.get(EXCESS),
        )
