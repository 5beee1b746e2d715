"""What people hand over: the types of arguments, and values that are written as text.

What Python code hands to a function is held against the annotations of that function. mypy finds a
wrong type in code that is checked with it. Here it is found in all code, and told in one sentence
before anything begins. Only forms that the API has are known: names joined by "|", also in one pair
of brackets.

The values of options are read here, too: a time, an amount of memory, a percentage.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from hztune.errors import UsageError

_P = ParamSpec("_P")
_R = TypeVar("_R")

_MOST_SHOWN = 60
_ELEMENTS = re.compile(r"(Sequence|tuple|Mapping)\[([^,\]]+).*\]")
_OUTER_BAR = re.compile(r"\|(?![^\[]*\])")
_WORDS = {
    "str": "a str",
    "int": "a whole number",
    "float": "a finite number",
    "bool": "True or False",
    "Path": "a Path",
}
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smh]?)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_TIMES = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,4})?)x")
_SIZE = re.compile(r"([0-9]{1,12})([KMG])")
_KB = {"K": 1, "M": 1024, "G": 1024 * 1024}
_PERCENT = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,3})?)%")

_FREE = ("Any", "Goal", "Reporter")
"""What is judged where it is used, by more than its type."""


def judged(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The same function, which raises a UsageError for an argument of another type."""
    of = signature(function)

    @wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            given = of.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise UsageError(f"{function.__name__}: {error}") from None
        for name, value in given.items():
            parameter = of.parameters[name]
            if parameter.kind is not Parameter.VAR_KEYWORD:
                judge_argument(name, value, parameter.annotation)
        return function(*args, **kwargs)

    return checked


def judge_fields(value: Any) -> None:
    """Holds the fields of a dataclass against their annotations.

    Raises:
        UsageError: One is of another type.
    """
    for field in fields(value):
        judge_argument(field.name, getattr(value, field.name), str(field.type))


def judge_argument(name: str, value: object, annotation: str) -> None:
    """Holds a value against an annotation, as it is written.

    Raises:
        UsageError: It is of another type, no finite number, or a text with a NUL.
    """
    kinds = _kinds(annotation)
    if not any(_is(value, kind) for kind in kinds):
        legal = " or ".join(map(_legal, kinds))
        raise UsageError(f"{name} is {_shown(value)}; legal is {legal}")


def _kinds(annotation: str) -> list[str]:
    """The parts of a union; a "|" within brackets is of what stands there."""
    return [kind.strip() for kind in _OUTER_BAR.split(annotation)]


def _is(value: object, kind: str) -> bool:
    """Whether a value is of a kind; of a class that is not imported here, the name decides."""
    if many := _ELEMENTS.fullmatch(kind):
        return _is_many(value, *many.groups())
    if kind in ("str", "Path"):
        known = str if kind == "str" else Path
        return isinstance(value, known) and "\0" not in str(value)
    if kind == "float":
        return _is_number(value)
    if kind in ("int", "bool"):
        return type(value).__name__ == kind
    if kind == "None":
        return value is None
    if kind.startswith("Literal["):
        return value in re.findall(r"['\"](.+?)['\"]", kind)
    return kind in _FREE or any(each.__name__ == kind for each in type(value).__mro__)


def _is_many(value: object, kind: str, of: str) -> bool:
    if kind == "Mapping":
        return isinstance(value, Mapping)
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return False
    return all(any(_is(each, one) for one in _kinds(of)) for each in value)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _legal(kind: str) -> str:
    """A kind, in words."""
    many = _ELEMENTS.fullmatch(kind)
    return (
        f"a {many[1].lower()} of {many[2].replace(' |', ' or')}" if many else _WORDS.get(kind, kind)
    )


def _shown(value: object) -> str:
    """The start of a value, and its type."""
    try:
        shown = ascii(value)
    except ValueError:  # a number of thousands of digits
        shown = "too long to be shown"
    shown = shown if len(shown) <= _MOST_SHOWN else shown[: _MOST_SHOWN - 3] + "..."
    return f"{shown} ({type(value).__name__})"


# ---- values as text ------------------------------------------------------------------------------


def parse_duration(text: str) -> float:
    """Seconds in a time as people write it: 90s, 5m, 1.5h, 90.

    Raises:
        UsageError: It is no time.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is no time; legal is a number with s, m or h: 90s, 5m, 1h")
    return float(found[1]) * _SECONDS[found[2]]


def within(option: str, value: float, low: float, high: float) -> None:
    """Sees to it that the number of an option is legal.

    Raises:
        UsageError: It is not.
    """
    if not low <= value <= high:
        raise UsageError(f"{option} is {value}; legal is a number from {low:g} to {high:g}")


def memory_amount(text: str) -> tuple[float, int]:
    """An amount of memory as people write it: (times the default's, KiB), one of them 0.

    Raises:
        UsageError: It is written in no known way, or is nothing.
    """
    relative, absolute = _TIMES.fullmatch(text), _SIZE.fullmatch(text)
    if relative and float(relative[1]) > 0:
        return float(relative[1]), 0
    if absolute and int(absolute[1]) > 0:
        return 0.0, int(absolute[1]) * _KB[absolute[2]]
    raise UsageError(
        f"{text!r}: legal is a multiple of the default's memory (1.10x) "
        "or a size with its unit (512M, 2G)"
    )


def percentage(text: str) -> float:
    """The part of 1 in a percentage as people write it: 1%, 0.5%.

    Raises:
        UsageError: It is no percentage below 100.
    """
    found = _PERCENT.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r}: legal is a percentage below 100 (1%, 0.5%)")
    return 0.01 * float(found[1])
