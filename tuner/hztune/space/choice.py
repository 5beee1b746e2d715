"""A space of spaces: first which allocator, then that allocator's own parameters.

Its root is a dimension like any other, and the dimensions of an allocator are active where it is
chosen; so a sampler learns which allocator is worth its time as it learns everything else. The
parameters carry their allocator's name, `jemalloc.narenas`. What changes nothing is the unchanged
program: it is the control and never proposed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest

from hztune.blocks import UNCHANGED_PROGRAM, Arm
from hztune.params import Param, Value
from hztune.space.core import Chooser, ConfigDict, Indices, Preset, Space
from hztune.space.dimension import Dimension

ROOT = "allocator"


@dataclass(frozen=True)
class Choice(Space):
    """The configurations of several allocators.

    Attributes:
        among: The space of each, in the order in which they are first measured.
    """

    among: tuple[Space, ...] = field(default=(), kw_only=True)

    @property
    def parts(self) -> tuple[Space, ...]:
        """The space of each allocator."""
        return self.among

    @classmethod
    def of(cls, parts: Sequence[Space]) -> Choice:
        """The choice between the allocators of `parts`."""
        names = tuple(part.allocator for part in parts)
        root = Param(ROOT, "enum", UNCHANGED_PROGRAM, 0, len(names) - 1, "linear", "", names, False,
                     "", "", "whose malloc the program runs on")  # fmt: skip
        dimensions = (_named(part.allocator, d) for part in parts for d in part.dimensions)
        params = (_renamed(part.allocator, p) for part in parts for p in part.params)
        return cls(
            allocator=UNCHANGED_PROGRAM,
            dimensions=(Dimension(root, names), *dimensions),
            rules=(),
            presets=_presets(parts),
            params=(root, *params),
            among=tuple(parts),
        )

    @property
    def defaults(self) -> tuple[ConfigDict, ...]:
        """Every allocator as it comes."""
        return tuple(_joined(part.allocator, {}) for part in self.parts)

    def arm(self, config: Mapping[str, Value]) -> Arm:
        """The arm of the allocator that was chosen; of no choice, the unchanged program."""
        if ROOT not in config:
            return self.control
        part, own = self._split(config)
        return part.arm(own)

    def config(self, arm: Arm) -> ConfigDict:
        """The choice that an arm stands for."""
        return {} if arm == self.control else _joined(arm.allocator, arm.config)

    def narrowed(self, allocators: Collection[str]) -> Space:
        """The choice between fewer of them."""
        if all(part.allocator in allocators for part in self.parts):
            return self
        return Choice.of([part for part in self.parts if part.allocator in allocators])

    def reduced(self, config: Mapping[str, Value]) -> ConfigDict:
        """Only what differs from the chosen allocator's defaults, and the choice itself."""
        if ROOT not in config:
            return {}
        part, own = self._split(config)
        return _joined(part.allocator, part.reduced(own))

    def decode(self, choose: Chooser) -> ConfigDict:
        """Builds a configuration: asks for the allocator, then for its active dimensions."""
        root = self.dimensions[0]
        part = self.part(str(root.value(choose(root), {})))
        own = part.decode(lambda dimension: choose(_named(part.allocator, dimension)))
        return _joined(part.allocator, own)

    def encode(self, config: Mapping[str, Value]) -> Indices:
        """The point of a configuration; that of the unchanged program has no coordinate."""
        if ROOT not in config:
            return {}
        part, own = self._split(config)
        inner = part.encode(own).items()
        index = self.dimensions[0].values.index(part.allocator)
        return {ROOT: index, **{_name(part.allocator, name): at for name, at in inner}}

    def objection(self, config: Mapping[str, Value]) -> str | None:
        """Why `config` must not be proposed, by the rules of its allocator."""
        if ROOT not in config:
            return None
        part, own = self._split(config)
        return part.objection(own)

    def size(self) -> int:
        """Number of points of all allocators together: an upper bound."""
        return sum(part.size() for part in self.parts)

    def fingerprint(self) -> str:
        """SHA-256 of everything that decides what can be proposed."""
        prints = [[part.allocator, part.fingerprint()] for part in self.parts]
        return hashlib.sha256(json.dumps(prints).encode()).hexdigest()

    def _split(self, config: Mapping[str, Value]) -> tuple[Space, ConfigDict]:
        """The chosen allocator's space, and its own configuration."""
        part = self.part(str(config[ROOT]))
        prefix = _name(part.allocator, "")
        own = {
            name.removeprefix(prefix): value
            for name, value in config.items()
            if name.startswith(prefix)
        }
        return part, own


def _presets(parts: Sequence[Space]) -> tuple[Preset, ...]:
    """Every allocator as it comes, then the presets of all in turn."""
    defaults = [Preset(p.allocator, "as it comes", _joined(p.allocator, {})) for p in parts]
    each = [
        [replace(preset, config=_joined(p.allocator, preset.config)) for preset in p.presets]
        for p in parts
    ]
    turns = chain.from_iterable(zip_longest(*each))
    return (*defaults, *(preset for preset in turns if preset is not None))


def _joined(allocator: str, own: Mapping[str, Value]) -> ConfigDict:
    """A choice with its parameters."""
    return {ROOT: allocator, **{_name(allocator, name): value for name, value in own.items()}}


def _named(allocator: str, dimension: Dimension) -> Dimension:
    return replace(dimension, param=_renamed(allocator, dimension.param))


def _renamed(allocator: str, param: Param) -> Param:
    return replace(param, name=_name(allocator, param.name))


def _name(allocator: str, param: str) -> str:
    return f"{allocator}.{param}"
