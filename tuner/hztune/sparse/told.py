"""What trials tell the sampler: values and attributes, judged one by one.

Every refusal names the trial, says what it holds and what is legal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from optuna import Study
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

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
