"""One table of a definition, read key by key: nothing is guessed, ignored or left over."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from hztune.errors import UsageError
from hztune.params import Value

WORD = re.compile(r"[A-Za-z0-9_.:+-]{1,64}")
"""The least that a name or value may be, so that no newline, NUL or quote can travel in it."""

_MOST_SHOWN = 40


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

    def close(self) -> None:
        """Refuses keys that were not read."""
        for key in self._left:
            raise UsageError(f"{self._path(key)[:_MOST_SHOWN]!r} is not a key of this schema")

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


def _shown(value: object) -> str:
    """The start of a value, safe to print: control characters are escaped."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    shown = ascii(value)
    return shown if len(shown) <= _MOST_SHOWN else shown[: _MOST_SHOWN - 3] + "..."
