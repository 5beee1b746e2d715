"""What hztune's API hands out cannot be changed by a caller, however deep one reaches into it."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from types import MappingProxyType, ModuleType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from hztune import api
from hztune.allocator import Adapter
from hztune.blocks import Arm, Outcome
from hztune.errors import HztuneError

FUNCTIONS = [name for name in api.__all__ if inspect.isfunction(getattr(api, name))]
SIMPLE = (bool, int, float, str, bytes, datetime, Path, NoneType, Enum, HztuneError, Adapter)
"""What holds nothing; an adapter answers questions about an allocator."""

MADE_ANEW = (list, dict, Sequence, Mapping, Iterator)
"""What a function itself may return: it makes another one for each call, which is the caller's."""


def names_for_types(module: ModuleType) -> dict[str, Any]:
    """The names of a module, with those that it imports for its annotations alone."""
    names = dict(vars(module))
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            source = importlib.import_module(str(node.module))
            for alias in node.names:
                names.setdefault(alias.asname or alias.name, getattr(source, alias.name, None))
    return names


def hints(of: Any) -> dict[str, Any]:
    """The types that an annotated function or class names."""
    module = importlib.import_module(of.__module__)
    return get_type_hints(of, names_for_types(module))


def returned(name: str) -> Iterator[Any]:
    """Yields the types that a function of the API hands out, what it makes anew taken apart."""
    yield from taken_apart(hints(inspect.unwrap(getattr(api, name)))["return"])


def taken_apart(kind: Any) -> tuple[Any, ...]:
    """A type itself, or of what is made anew the types of its elements."""
    if get_origin(kind) not in MADE_ANEW:
        return (kind,)
    return tuple(each for part in get_args(kind) for each in taken_apart(part))


def mutable(kind: Any, where: str, seen: set[Any]) -> Iterator[str]:
    """Yields every place in a type at which something can be changed."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind in seen or origin in (Literal, Callable) or (kind is Any and where.count(".") < 1):
        return
    seen.add(kind)
    if hasattr(kind, "_fields"):
        parts, origin = tuple(hints(kind).values()), tuple
    if origin in (tuple, frozenset, UnionType, Union):
        for part in parts:
            yield from mutable(part, where, seen) if part is not ... else ()
    elif origin is Mapping:
        yield from mutable(parts[1], where, seen)
    elif is_dataclass(kind) and isinstance(kind, type):
        if not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            yield f"{where}: {kind.__name__} is not frozen"
        found = hints(kind)
        yield from unfixed(kind, found)
        for name, of in [*found.items(), *computed(kind)]:
            yield from mutable(of, f"{kind.__name__}.{name}", seen)
    elif not (isinstance(kind, type) and issubclass(kind, SIMPLE)) and origin is not Callable:
        yield f"{where}: {kind}"


def computed(kind: type) -> Iterator[tuple[str, Any]]:
    """Yields the properties of a class with their types, what is made anew taken apart."""
    for name, value in vars(kind).items():
        if isinstance(value, property):
            of = hints(value.fget)["return"]
            yield from ((name, each) for each in taken_apart(of))


def unfixed(kind: Any, found: Mapping[str, Any]) -> Iterator[str]:
    """Yields the mappings of a dataclass that its maker could still change."""
    names = [field.name for field in fields(kind) if get_origin(found[field.name]) is Mapping]
    if names:
        made = kind(**{field.name: {} if field.name in names else None for field in fields(kind)})
        for name in names:
            if not isinstance(getattr(made, name), MappingProxyType):
                yield f"{kind.__name__}.{name} is a mapping that can be changed"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_function_of_the_api_hands_out_is_immutable_to_the_core(name: str) -> None:
    assert [each for kind in returned(name) for each in mutable(kind, name, set())] == []


def test_the_walk_sees_what_can_be_changed() -> None:
    assert list(mutable(tuple[list[int], ...], "x", set())) == ["x: list[int]"]
    assert list(mutable(Outcome, "x", set())) == []


def test_a_mapping_that_was_handed_over_is_copied() -> None:
    counters = {"refills": 1}
    outcome = Outcome(Arm("hz"), "ok", counters=counters)
    counters["refills"] = 2
    assert outcome.counters == {"refills": 1}
    with pytest.raises(TypeError):
        outcome.counters["refills"] = 3  # type: ignore[index]
