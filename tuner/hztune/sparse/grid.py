"""Configurations and trials as the sparse model sees them.

An *axis* is one parameter with its few levels in order. A configuration is a row of level numbers,
with UNCHANGED where the parameter has its default. Every axis is a *group* of features, one for
each level; so is every pair of axes that were changed together. What trials tell, their values and
attributes, is judged one by one: a refusal names the trial, says what it holds and what is legal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

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
    """One parameter."""

    name: str  # what it is called
    count: int  # number of its levels
    default: int | None  # the level of its default; None where the default is none of them
    is_ordered: bool  # whether neighbouring levels are alike


@dataclass(frozen=True, slots=True)
class Groups:
    """The features of some configurations, group by group."""

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


MOST_LEVELS = 64
"""Values of a parameter that can be told apart."""

Params = dict[str, Any]
LevelRow = tuple[int, ...]
Legal = Callable[[Params], Params | None]


class Grid:
    """Parameters with their levels, and what was worked out of their configurations.

    Attributes:
        space: The parameters.
        axes: The same as the model sees them.
    """

    def __init__(
        self,
        space: Mapping[str, BaseDistribution],
        defaults: Mapping[str, Any],
        legal: Legal | None,
    ) -> None:
        """Makes the grid.

        `defaults`: The value of each that changes nothing.
        `legal`: Makes of a configuration the one that is meant; None: all are legal.

        Raises:
            ValueError: A parameter has no default among its values, or too many values.
        """
        self.space = dict(space)
        self.axes = tuple(axis_of(name, each, defaults) for name, each in space.items())
        self._legal = legal
        self._meant: dict[LevelRow, LevelRow | None] = {}
        self._level_rows: dict[int, LevelRow | None] = {}

    @cached_property
    def bare(self) -> LevelRow:
        """The row that changes nothing."""
        return (UNCHANGED,) * len(self.axes)

    def level_row(self, params: Mapping[str, Any]) -> LevelRow:
        """A configuration as level numbers; what it leaves out, or leaves alone, is UNCHANGED.

        Raises:
            ValueError: A value is none of its parameter's levels.
        """
        row = []
        for axis in self.axes:
            level = axis.default
            if axis.name in params:
                level = level_of(self.space[axis.name], params[axis.name])
            if level is None:
                legal = self.space[axis.name]
                raise ValueError(f"{axis.name!r} is {params[axis.name]!r}; legal is {legal}")
            row.append(UNCHANGED if level == axis.default else level)
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
        """The values of all parameters in a configuration."""
        return {
            axis.name: _value(self.space[axis.name], axis.default if level == UNCHANGED else level)
            for axis, level in zip(self.axes, row, strict=True)
        }

    def forget_meant(self) -> None:
        """Has `legal` asked anew: it has learned more."""
        self._meant.clear()

    def meant(self, row: LevelRow) -> LevelRow | None:
        """The row of the configuration that is meant; None where it is not legal.

        Raises:
            ValueError: What `legal` makes of it is no configuration.
        """
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
    """A parameter as the model sees it.

    Raises:
        ValueError: It has no default among its values, or too many values.
    """
    if name not in defaults:
        raise ValueError(f"{name!r} has no default; name it in `defaults`")
    count = _count(name, each)
    default = level_of(each, defaults[name])
    if default is None:
        raise ValueError(f"the default of {name!r} is {defaults[name]!r}; legal is {each}")
    return Axis(name, count, default, isinstance(each, IntDistribution))


def level_of(each: BaseDistribution, value: Any) -> int | None:
    """The level of a value; None where it is none of them."""
    if isinstance(each, CategoricalDistribution):
        try:
            return int(each.to_internal_repr(value))
        except ValueError:
            return None
    assert isinstance(each, IntDistribution)  # _count saw to it
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    is_one = each.low <= value <= each.high and (value - each.low) % each.step == 0
    return int((value - each.low) // each.step) if is_one else None


def _value(each: BaseDistribution, level: int | None) -> Any:
    assert level is not None  # axis_of saw to it
    if isinstance(each, CategoricalDistribution):
        return each.choices[level]
    assert isinstance(each, IntDistribution)  # _count saw to it
    return each.low + level * each.step


def _count(name: str, each: BaseDistribution) -> int:
    count = MOST_LEVELS + 1
    if isinstance(each, CategoricalDistribution):
        count = len(each.choices)
    elif isinstance(each, IntDistribution) and not each.log:
        count = (each.high - each.low) // each.step + 1
    if count <= MOST_LEVELS:
        return count
    told = f"{len(each.choices)} categories" if hasattr(each, "choices") else str(each)
    raise ValueError(
        f"{name!r} is {told}; legal are categories and whole numbers in equal steps (no log), "
        f"at most {MOST_LEVELS} of them"
    )


BLOCK, VARIANCE, EXCESS = "block", "variance", "excess"
"""Attributes of a trial: its block; the variance of its value; how far it breaks a limit, in log
units, where there is one (above 0: it does)."""

FAR = -0.35
"""Log ratio below which it does not matter how slow a configuration is."""

MOST_LOG_RATIO = 100.0
"""Values beyond it, either way, are no log ratios."""

_USUAL_VARIANCE = 0.04**2
_LEAST_VARIANCE = 1e-12
"""What is measured more finely counts as if it were measured so."""

BlockKey = tuple[str, int]
Variances = Callable[[FrozenTrial], Sequence[float]]


def refuse_other_directions(study: Study) -> None:
    """Refuses a study whose objectives the sampler cannot seek.

    Raises:
        ValueError: It has more than two, or one that is minimized.
    """
    wanted = [each.name.lower() for each in study.directions]
    if len(wanted) > 2 or any(each != StudyDirection.MAXIMIZE for each in study.directions):
        raise ValueError(
            f"the study's directions are {wanted}; legal are one or two, each 'maximize': "
            "a value is the log ratio to the control, and above 0 is better"
        )


def block_of(trial: FrozenTrial) -> BlockKey:
    """What tells its block from others; without the attribute it stands alone."""
    if BLOCK not in trial.user_attrs:
        return "alone", -trial.number
    block = trial.user_attrs[BLOCK]
    if not isinstance(block, int):
        raise _refused(trial, BLOCK, block, "a whole number")
    return "block", block


def order_of(trial: FrozenTrial) -> int:
    """Where a trial stands in the order of blocks; without the attribute by its own number."""
    kind, number = block_of(trial)
    return number if kind == "block" else trial.number


def value_of(trial: FrozenTrial, objective: int) -> float:
    """What it says of an objective; slower than FAR is FAR."""
    value = trial.values[objective]
    value = max(FAR, value) if objective == 0 else value
    if not abs(value) <= MOST_LOG_RATIO:
        raise ValueError(
            f"trial {trial.number} has the value {trial.values[objective]!r}; legal is the log "
            f"ratio to the control, at most {MOST_LOG_RATIO:g} either way (0: as good as it)"
        )
    return float(value)


def variances_of(trial: FrozenTrial, told: Variances | None) -> list[float]:
    """The variance of each of its values.

    Args:
        trial: Which one.
        told: Says them; None: the attribute VARIANCE does, a number for each objective or one for
            all.
    """
    count = len(trial.values)
    stated = trial.user_attrs.get(VARIANCE, _USUAL_VARIANCE) if told is None else told(trial)
    found = [stated] * count if _is_number(stated) else stated
    if not isinstance(found, list | tuple) or len(found) != count or not all(map(_is_some, found)):
        legal = "a number above 0, or one for each objective"
        raise _refused(trial, VARIANCE, stated, legal)
    return [max(_LEAST_VARIANCE, each) for each in found]


def excess_of(trial: FrozenTrial) -> float | None:
    """How far it breaks the limit; None where it does not say."""
    if EXCESS not in trial.user_attrs:
        return None
    excess = trial.user_attrs[EXCESS]
    if not _is_number(excess) or not abs(excess) <= MOST_LOG_RATIO:
        legal = f"the log ratio to the limit, at most {MOST_LOG_RATIO:g} either way"
        raise _refused(trial, EXCESS, excess, legal)
    return float(excess)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_some(value: Any) -> bool:
    return _is_number(value) and 0.0 < value < math.inf


def _refused(trial: FrozenTrial, name: str, value: Any, legal: str) -> ValueError:
    return ValueError(
        f"the attribute {name!r} of trial {trial.number} is {value!r}; legal is {legal}"
    )
