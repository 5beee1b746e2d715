"""What each parameter does, by the model of the search, for a reader of the study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from hztune.blocks import Arm
from hztune.params import Param, Value
from hztune.sparse import Axis, Measurement, SparseModel
from hztune.sparse.grid import UNCHANGED
from hztune.sparse.told import FAR
from hztune.stats.ratios import pair_ratio
from hztune.study.ledger import Ledger

_FEWEST = 4
"""Configurations without which nothing is said."""


def likely_effects(ledger: Ledger, allocator: str, params: Mapping[str, Param]) -> dict[str, float]:
    """How likely each parameter has an effect on the speed, the likeliest first.

    Args:
        ledger: What was measured.
        allocator: Whose parameters they are.
        params: By name.

    Returns:
        Parameters that were changed at all; empty for fewer than four configurations.
    """
    arms = [r.arm for r in ledger.searched.values() if r.arm.allocator == allocator and r.pairs]
    if len(arms) < _FEWEST:
        return {}
    seen = {name: ordered([param.default, *_values(arms, name)]) for name, param in params.items()}
    names = [name for name, values in seen.items() if len(values) > 1]
    axes = [
        Axis(
            name,
            len(seen[name]),
            seen[name].index(params[name].default),
            params[name].kind == "int",
        )
        for name in names
    ]
    numbers = {arm: number for number, arm in enumerate(arms)}
    levels = np.array([[_level(arm, n, seen[n], params[n]) for n in names] for arm in arms])
    model = SparseModel(
        axes,
        levels.astype(np.int64).reshape(len(arms), len(names)),
        _measurements(ledger, numbers),
        is_control=ledger.blocks[0].control.arm.allocator == allocator,
    )
    likely = zip(names, model.matters().tolist(), strict=True)
    return dict(sorted(likely, key=lambda each: -each[1]))


def ordered(values: Iterable[Value]) -> list[Value]:
    """Values from the least to the greatest, words first."""
    return sorted(set(values), key=lambda value: (not isinstance(value, str), value))


def _values(arms: Iterable[Arm], name: str) -> list[Value]:
    return [arm.config[name] for arm in arms if name in arm.config]


def _level(arm: Arm, name: str, values: list[Value], param: Param) -> int:
    value = arm.config.get(name, param.default)
    return UNCHANGED if value == param.default else values.index(value)


def _measurements(ledger: Ledger, numbers: Mapping[Arm, int]) -> list[Measurement]:
    noises, found = ledger.noises(), []
    for block in ledger.blocks:
        for outcome in block.outcomes[1:] if block.role == "search" and block.control.ok else ():
            pair = pair_ratio(block.control, outcome) if outcome.arm in numbers else None
            if pair is not None:
                variance = noises.on(block.machine).of_pair(pair.rounds)
                value = max(FAR, pair.log_ratio)
                found.append(Measurement(numbers[outcome.arm], block.number, value, variance))
    return found
