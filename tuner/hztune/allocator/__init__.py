"""The allocators that hztune can put under a program: one file each, one interface (base.py).

`none` is the unchanged program. An allocator is named here, and nearly everything else is found
through its adapter; what else has to know it, hztune/README.md says ("To add an allocator"). One
that is inside a program has a name as well, made by inside.py.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache

from hztune.allocator import inside
from hztune.allocator.base import Adapter, Config, Environment, Installed, WrongConfiguration
from hztune.allocator.fixed import Rpmalloc, Snmalloc, Tbb
from hztune.allocator.glibc import Glibc
from hztune.allocator.hz import Hz
from hztune.allocator.jemalloc import Jemalloc
from hztune.allocator.mimalloc import Mimalloc
from hztune.allocator.none import Unchanged
from hztune.allocator.tcmalloc import Tcmalloc
from hztune.errors import HztuneError, UsageError

__all__ = [
    "Adapter",
    "Config",
    "Environment",
    "Installed",
    "WrongConfiguration",
    "available",
    "get",
    "names",
    "pattern",
    "states",
]


@cache
def _adapters() -> dict[str, Adapter]:
    """Every adapter by name, in the order in which allocators are listed and first measured."""
    every: tuple[Adapter, ...] = (
        Unchanged(),
        Glibc(),
        Jemalloc(),
        Mimalloc(),
        Tcmalloc(),
        Hz(),
        Tbb(),
        Snmalloc(),
        Rpmalloc(),
    )
    return {adapter.name: adapter for adapter in every}


def names() -> tuple[str, ...]:
    """Returns the name of every allocator that hztune knows, installed or not."""
    return tuple(_adapters())


@cache
def pattern() -> re.Pattern[str]:
    """Returns what matches every name that `get` knows, and few others."""
    return re.compile("|".join([*names(), inside.PATTERN]))


def get(name: str) -> Adapter:
    """Returns the adapter called `name`.

    Raises:
        UsageError: There is none; the message names those that exist.
    """
    if name in _adapters():
        return _adapters()[name]
    if (brought := inside.adapter_of(name)) is not None:
        return brought
    near = get_close_matches(name, names(), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UsageError(f"there is no allocator {name!r}{hint} (hztune knows: {' '.join(names())})")


def states() -> dict[str, Installed | HztuneError]:
    """Returns for every allocator what is installed here, or why it cannot be used."""
    return {name: _state(adapter) for name, adapter in _adapters().items()}


def available() -> tuple[Installed, ...]:
    """Returns every allocator that can be used here, each as it was found."""
    return tuple(state for state in states().values() if isinstance(state, Installed))


def _state(adapter: Adapter) -> Installed | HztuneError:
    try:
        return adapter.installed()
    except HztuneError as error:
        return error
