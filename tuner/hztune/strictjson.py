"""JSON from people one need not trust: nothing is guessed, ignored or left over.

`parse` refuses what the standard parser lets pass (a key twice, NaN, a number beyond floats,
endless nesting); `Fields` reads one object, key by key, each against what is legal there.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from hztune.errors import UsageError
from hztune.params import Value

WORD = re.compile(r"[A-Za-z0-9_.:+-]{1,64}")
"""The least that a name or value may be, so that no newline, NUL or quote can travel in it."""

TEXT = re.compile(r"[A-Za-z0-9 _.:,;@()/+=#-]{0,128}")
"""A description for people; harmless in a C comment, a shell comment and YAML."""

CREATED = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
"""A time, UTC: 2026-01-31T12:00:00Z."""

VERSION = re.compile(r"[A-Za-z0-9_.:+~-]{0,64}")
SETTING = re.compile(r"[A-Za-z0-9_.:+-]{0,64}")
"""Of a workload; empty: its defaults."""

SHA256_OR_NONE = re.compile(r"([0-9a-f]{64})?")

_MOST_SHOWN = 40


def parse(content: bytes) -> object:
    """The value that `content` holds.

    Raises:
        UsageError: it is not strict JSON in UTF-8.
    """
    try:
        return json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_object_of_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except RecursionError:
        raise UsageError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise UsageError("it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"it is not JSON: {error.msg} in line {error.lineno}") from None
    except ValueError:  # a whole number of thousands of digits
        raise UsageError("it holds a number that is too long") from None


class Fields:
    """One JSON object, read key by key; `close` refuses what was not asked for."""

    def __init__(self, value: object, where: str = "") -> None:
        """Takes `value`, found at `where` ("result", or "" for the whole)."""
        if not isinstance(value, dict):
            raise UsageError(f"{where or 'it'} is {_shown(value)}; legal is an object")
        self._left: dict[str, Any] = dict(value)
        self._where = where

    def text(self, key: str, pattern: re.Pattern[str] = WORD) -> str:
        """A string that matches `pattern` as a whole."""
        value = self._take(key)
        if not isinstance(value, str) or not pattern.fullmatch(value):
            self._refuse(key, value, f"a string like {pattern.pattern}")
        return value

    def word(self, key: str, choices: tuple[str, ...]) -> str:
        """One of `choices`."""
        value = self._take(key)
        if not isinstance(value, str) or value not in choices:
            self._refuse(key, value, "one of: " + " ".join(choices))
        return value

    def whole(self, key: str, low: int, high: int) -> int:
        """A whole number from `low` to `high`."""
        value = self._take(key)
        if type(value) is not int or not low <= value <= high:
            self._refuse(key, value, f"a whole number from {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float) -> float:
        """A number from `low` to `high`."""
        value = self._take(key)
        if type(value) not in (int, float) or not low <= value <= high:
            self._refuse(key, value, f"a number from {low:g} to {high:g}")
        return float(value)

    def number_or_none(self, key: str, low: float, high: float) -> float | None:
        """A number from `low` to `high`, or null."""
        if key in self._left and self._left[key] is None:
            self._take(key)
            return None
        return self.number(key, low, high)

    def child(self, key: str) -> Fields:
        """An object."""
        return Fields(self._take(key), self._path(key))

    def children(self, key: str) -> tuple[Fields, ...]:
        """A list of objects."""
        return tuple(
            Fields(each, f"{self._path(key)}[{index}]")
            for index, each in enumerate(self.items(key))
        )

    def anything(self, key: str) -> object:
        """A value of any kind, for the caller to judge."""
        return self._take(key)

    def items(self, key: str) -> list[Any]:
        """A list of anything, for the caller to judge."""
        value = self._take(key)
        if not isinstance(value, list):
            self._refuse(key, value, "a list")
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        """An object of anything, for the caller to judge."""
        value = self._take(key)
        if not isinstance(value, dict):
            self._refuse(key, value, "an object")
        return value

    def truth(self, key: str) -> bool:
        """Either true or false."""
        value = self._take(key)
        if not isinstance(value, bool):
            self._refuse(key, value, "true or false")
        return value

    def has(self, key: str) -> bool:
        """Whether `key` is there and was not read yet."""
        return key in self._left

    def choices(self) -> tuple[tuple[str, tuple[Value, ...]], ...]:
        """All that is left: a whole number or word, or a list of them, under free names."""
        read = []
        for key in list(self._left):
            values = self._left[key] if isinstance(self._left[key], list) else [self._left[key]]
            read.append((key, tuple(self._judged(key, value) for value in values)))
            self._take(self._name(key))
        return tuple(read)

    def values(self) -> tuple[tuple[str, Value], ...]:
        """All that is left: whole numbers and words under names of the user's choice."""
        return tuple((key, self._value(key)) for key in list(self._left))

    def texts(self, pattern: re.Pattern[str] = TEXT) -> tuple[tuple[str, str], ...]:
        """All that is left: strings under names of the user's choice."""
        return tuple((self._name(key), self.text(key, pattern)) for key in list(self._left))

    def close(self) -> None:
        """Refuses keys that were not read."""
        for key in self._left:
            raise UsageError(f"{self._path(key)[:_MOST_SHOWN]!r} is not a key of this schema")

    def _value(self, key: str) -> Value:
        return self._judged(key, self._take(self._name(key)))

    def _judged(self, key: str, value: object) -> Value:
        if type(value) is int and abs(value) < 2**63:
            return value
        if isinstance(value, str) and WORD.fullmatch(value):
            return value
        self._refuse(key, value, "a whole number or a word")

    def _name(self, key: str) -> str:
        if not WORD.fullmatch(key):
            self._refuse("a key", key, f"a name like {WORD.pattern}")
        return key

    def _take(self, key: str) -> Any:
        if key not in self._left:
            raise UsageError(f"{self._path(key)} is missing")
        return self._left.pop(key)

    def _path(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where else key

    def _refuse(self, key: str, value: object, legal: str) -> NoReturn:
        raise UsageError(f"{self._path(key)} is {_shown(value)}; legal is {legal}")


def _object_of_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    held: dict[str, Any] = {}
    for key, value in pairs:
        if key in held:
            raise UsageError(f"the key {_shown(key)} stands twice")
        held[key] = value
    return held


def _refuse_constant(name: str) -> NoReturn:
    raise UsageError(f"{name} is not a number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise UsageError(f"the number {text[:_MOST_SHOWN]} is too large")
    return value


def _shown(value: object) -> str:
    """The start of a value, safe to print: control characters are escaped."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    shown = ascii(value)
    return shown if len(shown) <= _MOST_SHOWN else shown[: _MOST_SHOWN - 3] + "..."
