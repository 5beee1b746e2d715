"""The allocators that hztune can put under a program: a table each, one interface (base.py).

`none` is the unchanged program. hztune/README.md ("To add an allocator") says what one needs.
"""

from __future__ import annotations

import re
from functools import cache

from hztune.allocator import inside
from hztune.allocator.base import (
    Adapter,
    Config,
    Environment,
    Installed,
    WrongConfiguration,
    tables,
)
from hztune.allocator.library import library_of
from hztune.errors import HztuneError, UsageError, did_you_mean

__all__ = [
    "Adapter", "Config", "Environment", "Installed", "WrongConfiguration",
    "available", "get", "names", "pattern", "states",
]  # fmt: skip


@cache
def _adapters() -> dict[str, Adapter]:
    return {name: library_of(name) for name in tables()}


def names() -> tuple[str, ...]:
    """The name of every allocator that hztune knows, installed or not."""
    return tuple(_adapters())


@cache
def pattern() -> re.Pattern[str]:
    return re.compile("|".join([*names(), inside.name_pattern().pattern]))


def get(name: str) -> Adapter:
    if name in _adapters():
        return _adapters()[name]
    if (brought := inside.adapter_of(name)) is not None:
        return brought
    hint = did_you_mean(name, names())
    raise UsageError(f"there is no allocator {name!r}{hint} (hztune knows: {' '.join(names())})")


def states() -> dict[str, Installed | HztuneError]:
    """For every allocator what is installed here, or why it cannot be used."""
    found: dict[str, Installed | HztuneError] = {}
    for name, adapter in _adapters().items():
        try:
            found[name] = adapter.installed()
        except HztuneError as error:
            found[name] = error
    return found


def available() -> tuple[Installed, ...]:
    return tuple(state for state in states().values() if isinstance(state, Installed))
