"""From what the search knows to what is proved: the shortest configuration, parameter by parameter.

A finalist is a *chain*: configurations each of which adds one parameter to the one before it (or
several, where one alone is of no use). A profile ends at the last one proved to add something.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations

import numpy as np

from hztune.blocks import Arm
from hztune.sparse import SparseModel
from hztune.sparse.grid import UNCHANGED, LevelRow
from hztune.sparse.sampler import PRICE
from hztune.stats.intervals import normal_tail
from hztune.study.proposer import Proposer

Chain = tuple[Arm, ...]  # to be proved: each changes what the one before it changes, and more

MOST_STEPS = 4  # configurations at most: all of them share the time of the proof

_LIKELY = 0.8  # how likely one more parameter adds something before it is worth its place

_MOST_CHANGED = 10
"""Parameters of a configuration of which every part is looked at; of more, those parts that leave
out up to three."""


def shortest(
    proposer: Proposer,
    top: Arm,
    refused: Collection[LevelRow],
    slack: Sequence[float] = (0.0,),
) -> LevelRow | None:
    """The row that changes least and is within one standard error of `top` in each objective.

    The rule of Breiman, Friedman, Olshen & Stone (Classification and Regression Trees, 1984), with
    the standard error of the difference, see `SparseModel.lead`. `slack`: what may be lost of each
    objective in any case, log units.
    """
    row, known = proposer.level_row(top), proposer.known()
    measured = known.modelled
    rows = [each for each in _parts(row) if _is_legal(proposer, each)]
    bare = {(UNCHANGED,) * len(row)} if proposer.is_control else set()
    out = {*refused, *known.failed, *bare}
    rows = [each for each in dict.fromkeys([*rows, *measured]) if each not in out]
    if not rows or row not in measured:
        return None
    levels = np.array(rows, dtype=np.int64)
    leads = [model.lead(measured.index(row), levels) for model in known.models]
    both = zip(leads, slack, strict=True)
    is_near = np.all([ahead <= np.maximum(error, may) for (ahead, error), may in both], axis=0)
    if not is_near.any():
        return row if row not in refused else None
    behind = np.sum([ahead for ahead, _ in leads], axis=0)
    lengths = (levels != UNCHANGED).sum(axis=1)
    near = np.flatnonzero(is_near).tolist()
    best: int = min(near, key=lambda index: (int(lengths[index]), float(behind[index])))
    return rows[best]


def chain(proposer: Proposer, row: LevelRow, refused: Collection[LevelRow], *, most: int) -> Chain:
    """The chain that leads to `row`, the strongest parameter first, and what may be added to it.

    `refused`: configurations whose proof has failed; none stands alone. Defaults that are not what
    all is compared with come first where they are better.
    """
    model = proposer.model()
    assert model is not None
    rows = [each for each in _steps(proposer, model, row) if each not in refused]
    rows = [*rows[: most - 1], row] if len(rows) > most else rows
    while len(rows) < most and (more := _addition(proposer, model, rows[-1], refused)) is not None:
        rows.append(more)
    return tuple(arm for each in rows if (arm := proposer.arm(each)) is not None)


def _parts(row: LevelRow) -> Iterator[LevelRow]:
    changed = [axis for axis, level in enumerate(row) if level != UNCHANGED]
    most = len(changed) if len(changed) <= _MOST_CHANGED else 3
    for count in range(1, most + 1):
        for left_out in combinations(changed, count):
            yield tuple(UNCHANGED if axis in left_out else v for axis, v in enumerate(row))


def _steps(proposer: Proposer, model: SparseModel, row: LevelRow) -> list[LevelRow]:
    """From the first parameter to all of them, by what each is expected to add; `row` is the last.

    A step that is not expected to be better is left out: its parameter comes with the next one.
    """
    left = [axis for axis, level in enumerate(row) if level != UNCHANGED]
    reached: LevelRow = (UNCHANGED,) * len(row)
    best, found = 0.0, list[LevelRow]()
    if not proposer.is_control and (not left or _worth(model, reached) > PRICE):
        best, found = _worth(model, reached), [reached]
    while left:
        options = [_with(reached, axis, row[axis]) for axis in left]
        worth = [_worth(model, each) for each in options]
        index = int(np.argmax(worth))
        reached = options[index]
        left.pop(index)
        if reached == row or (worth[index] > best + PRICE and _is_legal(proposer, reached)):
            found.append(reached)
            best = max(best, worth[index])
    return found


def _addition(
    proposer: Proposer, model: SparseModel, row: LevelRow, refused: Collection[LevelRow]
) -> LevelRow | None:
    """The row with the one parameter more that promises most; None: none is likely to add."""
    axes, failed = proposer.known().axes, proposer.known().failed
    likely = model.matters()
    options = [
        _with(row, axis, level)
        for axis, each in enumerate(axes)
        for level in range(each.count)
        if row[axis] == UNCHANGED and level != each.default and likely[axis] > 0.5
    ]
    options = [each for each in options if each not in refused and each not in failed]
    if not options:
        return None
    mean, error = _gain(proposer, model, row, options)
    index = int(np.argmax(mean))
    is_likely = mean[index] > PRICE and normal_tail(-mean[index] / error[index]) > _LIKELY
    return options[index] if is_likely and _is_legal(proposer, options[index]) else None


def _gain(
    proposer: Proposer, model: SparseModel, row: LevelRow, options: Sequence[LevelRow]
) -> tuple[np.ndarray, np.ndarray]:
    measured = proposer.known().modelled
    levels = np.array(options, dtype=np.int64)
    if row in measured:
        ahead, error = model.lead(measured.index(row), levels)
        return -ahead, error
    mean, error = model.expected(levels)
    return mean - _worth(model, row), error


def _worth(model: SparseModel, row: LevelRow) -> float:
    return float(model.expected(np.array([row], dtype=np.int64))[0][0])


def _with(row: LevelRow, axis: int, level: int) -> LevelRow:
    return (*row[:axis], level, *row[axis + 1 :])


def _is_legal(proposer: Proposer, row: LevelRow) -> bool:
    """Whether a row may be measured, and stands for itself."""
    arm = proposer.arm(row)
    return arm is not None and proposer.level_row(arm) == row
