"""The parameters of a study as the sampler sees them: few levels each, one of which is the default.

A configuration is a row of level numbers, see `features`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial

from hztune.sparse.features import UNCHANGED, Axis

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

        Args:
            space: The parameters.
            defaults: The value of each that changes nothing.
            legal: Makes of a configuration the one that is meant; None: all are legal.

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
