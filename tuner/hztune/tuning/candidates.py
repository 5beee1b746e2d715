"""Which allocators a study chooses from: those that were named, or all that are installed."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hztune import allocator, space
from hztune.allocator import Installed, inside
from hztune.blocks import UNCHANGED_PROGRAM
from hztune.errors import HztuneError, UsageError
from hztune.measure.insides import sentence, whose_malloc
from hztune.params import Value
from hztune.space import AnySpace, Choice, Dimension, Space

ANY_ALLOCATOR = "any"


@dataclass(frozen=True, slots=True)
class AllocatorChoice:
    # each as it was found, in the order in which they are first measured
    installed: tuple[Installed, ...]
    missing: tuple[str, ...]  # those that might have been among them, each with how to get it
    space: AnySpace  # what may be proposed
    # those that are installed and cannot be measured on this program, each with why
    left_out: tuple[str, ...] = ()

    def find(self, name: str) -> Installed:
        if name == UNCHANGED_PROGRAM:
            return allocator.get(UNCHANGED_PROGRAM).installed()
        return next(each for each in self.installed if each.name == name)

    @property
    def identity(self) -> dict[str, str]:
        """What makes two studies choose between the same ones, for their samples."""
        return {
            "allocator": self.label,
            "library": " ".join(each.sha256 for each in self.installed),
            **({"inside": "; ".join(map(sentence, self.inside))} if self.inside else {}),
        }

    @property
    def inside(self) -> tuple[Installed, ...]:
        return tuple(each for each in self.installed if allocator.get(each.name).is_inside)

    @property
    def label(self) -> str:
        return ", ".join(f"{each.name} {each.version}".rstrip() for each in self.installed)


@dataclass(frozen=True, slots=True)
class TuneTarget:
    threads: int  # of the target; ranges are narrowed by them
    inside: tuple[Installed, ...] = ()  # the allocators that the program brings
    # why no other one can be put under it, in a sentence; None: one can
    obstacle: str | None = None
    # the one of `inside` that the program's malloc comes from; None: none of them
    provider: Installed | None = None
    rests: bool = False  # whether memory at rest is judged
    keeping: bool = False  # whether settings are tried with which freed memory is never returned
    variables: Mapping[str, str] = field(default_factory=dict)  # that the unchanged program has
    linked: Collection[Path] = ()  # the libraries that its loader finds for it


def candidates(wanted: Sequence[str], searched: str, target: TuneTarget) -> AllocatorChoice:
    """`searched`: the space of one allocator, by name or path; "" for their own.

    UsageError: one does not exist, is not installed, has no parameters, or does not fit the target.
    """
    if is_any := tuple(wanted) == (ANY_ALLOCATOR,):
        installed, missing = _all(target)
        reasons = _left_out(target, installed)
        installed = tuple(each for each in installed if each.name not in reasons)
        left_out = tuple(f"{name} ({why})" for name, why in reasons.items())
    else:
        installed, missing, left_out = _named(wanted, target), (), ()
    if not is_any and len(wanted) == len(installed) == 1:
        return _alone(installed[0], searched, target)
    if searched:
        raise UsageError("--space is for one allocator; give its name with --allocator, too")
    chosen = tuple(each for each in installed if each.name != UNCHANGED_PROGRAM)
    parts = [_space_of(each, "", target) for each in chosen]
    unchanged = frozenset(each.name for each in chosen if _is_unchanged(each, target))
    return AllocatorChoice(chosen, missing, Choice(tuple(parts), unchanged), left_out)


def _is_unchanged(each: Installed, target: TuneTarget) -> bool:
    """Whether with its defaults the program loads and is told what it does today."""
    adapter, library = allocator.get(each.name), {each.preload, os.path.realpath(each.path)}
    words = target.variables.get("LD_PRELOAD", "").replace(":", " ").split()
    today = {os.path.realpath(word) if "/" in word else word for word in words}
    loaded = today.union(map(os.path.realpath, target.linked))
    return (
        not (each.preload and library.isdisjoint(loaded))
        and today <= library.union(adapter.preloads(each))
        and adapter.is_left_by(target.variables, each)
        and all(allocator.get(p.name).is_left_by(target.variables, p) for p in target.inside)
    )


def _left_out(target: TuneTarget, installed: Sequence[Installed]) -> dict[str, str]:
    """Those that would not be measured alone, each with the reason."""
    brought = {name for part in target.inside for name in allocator.get(part.name).variables()}
    reasons = {}
    for each in installed:
        adapter = allocator.get(each.name)
        if each.preload and brought & set(adapter.variables()):
            reasons[each.name] = "also inside the program: its variables would reach both"
        elif each.name == "glibc" and target.provider is not None:
            reasons[each.name] = whose_malloc(target.provider)
    return reasons


def _all(target: TuneTarget) -> tuple[tuple[Installed, ...], tuple[str, ...]]:
    """What the program brings, what else is installed, and what is missing."""
    if target.obstacle is not None:
        if not target.inside:
            raise UsageError(target.obstacle)
        return target.inside, ()
    brought = {each.sha256 for each in target.inside}
    states = allocator.states()
    installed = (each for each in states.values() if isinstance(each, Installed))
    missing = (
        _how_to_get(name, state) for name, state in states.items() if isinstance(state, HztuneError)
    )
    others = (each for each in installed if not each.sha256 or each.sha256 not in brought)
    return (*target.inside, *others), tuple(missing)


def _named(names: Sequence[str], target: TuneTarget) -> tuple[Installed, ...]:
    found: list[Installed] = []
    for name in names:
        if name.startswith(inside.ANY):
            found += _brought(name, target.inside)
        elif target.obstacle is not None and name != UNCHANGED_PROGRAM:
            raise UsageError(target.obstacle + _way_out(target.inside))
        elif name == "glibc" and target.provider is not None:
            why = f"{whose_malloc(target.provider)}, and nothing is preloaded for glibc"
            raise UsageError(f"glibc cannot be measured: {why}{_way_out([target.provider])}")
        else:
            found.append(allocator.get(name).installed())
    return tuple(dict.fromkeys(found))


def _brought(name: str, parts: Sequence[Installed]) -> list[Installed]:
    meant = [part for part in parts if name in (inside.ANY, part.name)]
    if not meant and name != inside.ANY:
        family = allocator.get(name).family
        builds = [part for part in parts if allocator.get(part.name).family == family]
        meant = builds if name == f"{inside.ANY}:{family}" else []
    if not meant:
        there = ", ".join(part.name for part in parts) or "none"
        raise UsageError(
            f"there is no {name} in the program, nor in what it loads as far as was seen; "
            f"inside it: {there}"
        )
    return meant


def _way_out(parts: Sequence[Installed]) -> str:
    return f"; tune what is inside: --allocator {parts[0].name}" if parts else ""


def _alone(installed: Installed, searched: str, target: TuneTarget) -> AllocatorChoice:
    name = installed.name
    if not allocator.get(name).knobs(installed):
        raise UsageError(f"{name} has no parameters, so there is nothing to tune")
    found = _space_of(installed, searched, target)
    if found.allocator != name:
        raise UsageError(
            f"the search space {searched!r} is for {found.allocator}, and the allocator is "
            f"{name}; give --allocator {found.allocator} or another --space"
        )
    return AllocatorChoice((installed,), (), found)


def _space_of(installed: Installed, searched: str, target: TuneTarget) -> Space:
    """The search space of an allocator; one without parameters has a single point."""
    adapter = allocator.get(installed.name)
    knobs = adapter.knobs(installed)
    if not knobs:
        return Space(installed.name, (), (), (), ())

    def check(config: Mapping[str, Value]) -> None:
        adapter.check(config, installed)

    facts = space.machine_facts(target.threads, rests=target.rests, keeping=target.keeping)
    found = space.load(searched or adapter.family, knobs, check=check, facts=facts)
    if not adapter.is_inside or found.allocator != adapter.family:
        return found
    dimensions = tuple(_with_default(each, dict(installed.given)) for each in found.dimensions)
    return replace(found, allocator=installed.name, dimensions=dimensions)


def _with_default(dimension: Dimension, given: Mapping[str, Value]) -> Dimension:
    """A dimension that has what the program gives among its values, so that it can be left."""
    value = given.get(dimension.name)
    if not isinstance(value, int) or value in dimension.values:
        return dimension
    numbers = sorted({value, *(each for each in dimension.values if isinstance(each, int))})
    return replace(dimension, values=tuple(numbers))


def _how_to_get(name: str, state: HztuneError) -> str:
    if not isinstance(state, UsageError):
        return f"{name} ({state})"
    package = allocator.get(name).table.package
    return f"{name} (apt-get install {package})" if package else f"{name} (no Debian package)"
