"""A space: which configurations a search may propose, and each as indices.

Glossary: a *configuration* holds only what differs from the defaults; its *indices* say which value
each active dimension has (its `when` holds); a *preset* is a configuration that is tried early, for
a reason that stands beside it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from random import Random

from hztune.blocks import Arm, fixed
from hztune.errors import UsageError
from hztune.params import Param, Value
from hztune.space.dimension import Dimension
from hztune.space.expression import Expression

ConfigDict = dict[str, Value]
Indices = dict[str, int]
Chooser = Callable[[Dimension], int]
"""Picks an index of a dimension: a sampler, or indices that are being read back."""

_RANDOM_TRIES = 200
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


@dataclass(frozen=True, slots=True)
class Rule:
    """A relation of parameters, and why it must not be proposed, or which programs it may harm."""

    rule: Expression
    why: str


@dataclass(frozen=True, slots=True)
class Preset:
    """A named configuration that is measured in the first blocks, beside proposals."""

    name: str
    why: str
    config: Mapping[str, Value]
    returns: bool = False
    """Whether it is known to return memory: it comes first where less memory is sought."""

    def __post_init__(self) -> None:
        """Takes a copy of the configuration, which nothing can change."""
        object.__setattr__(self, "config", fixed(self.config))


def _legal_everywhere(config: Mapping[str, Value]) -> None:
    """The check of an allocator whose knobs do not depend on each other."""


@dataclass(frozen=True)
class Space:
    """The configurations that a search may propose.

    Attributes:
        allocator: Name of the adapter whose knobs these are.
        dimensions: In an order in which each one stands after those it needs.
        rules: What is legal but senseless.
        presets: In the order in which they are measured.
        params: Every knob of the allocator, searched or not.
        check: Raises UsageError when the allocator would refuse a whole configuration.
        risks: What is known to harm some programs, whatever it does to the user's.
    """

    allocator: str
    dimensions: tuple[Dimension, ...]
    rules: tuple[Rule, ...]
    presets: tuple[Preset, ...]
    params: tuple[Param, ...]
    check: Callable[[Mapping[str, Value]], None] = _legal_everywhere
    risks: tuple[Rule, ...] = ()

    @property
    def default(self) -> ConfigDict:
        """The configuration that changes nothing."""
        return {}

    @property
    def control(self) -> Arm:
        """What everything is compared with: the allocator with its defaults."""
        return Arm(self.allocator)

    def arm(self, config: Mapping[str, Value]) -> Arm:
        """What is measured for a configuration."""
        return Arm.of(self.allocator, config)

    @property
    def starts(self) -> tuple[Arm, ...]:
        """What is measured in the first blocks, beside proposals."""
        return tuple(self.arm(preset.config) for preset in self.presets)

    @property
    def returning(self) -> tuple[Arm, ...]:
        """What comes before all else where less memory is sought."""
        return tuple(self.arm(preset.config) for preset in self.presets if preset.returns)

    @property
    def unchanged(self) -> str:
        """The allocator whose defaults are the control."""
        return self.allocator

    @property
    def parts(self) -> tuple[Space, ...]:
        """The space of each allocator."""
        return (self,)

    def part(self, allocator: str) -> Space:
        """The space of its allocator; a `Choice` has several."""
        assert allocator == self.allocator
        return self

    def holds(self, arm: Arm) -> bool:
        """Whether the arm is of its allocator."""
        return arm.allocator == self.allocator

    @cached_property
    def _indices(self) -> dict[frozenset[tuple[str, Value]], Indices]:
        """What was encoded before: a search tells its sampler the same findings again and again."""
        return {}

    def full(self, config: Mapping[str, Value]) -> ConfigDict:
        """Every knob's value under `config`."""
        return {param.name: config.get(param.name, param.default) for param in self.params}

    def reduced(self, config: Mapping[str, Value]) -> ConfigDict:
        """Only what differs from the defaults, in the order of the knobs."""
        full = self.full(config)
        return {p.name: full[p.name] for p in self.params if full[p.name] != p.default}

    def without(self, config: Mapping[str, Value], names: Collection[str]) -> ConfigDict:
        """`config` with some knobs at their defaults, and those that lose their meaning thereby."""
        left = {name: value for name, value in config.items() if name not in names}
        full = self.full(left)
        idle = {d.name for d in self.dimensions if d.when is not None and not d.when.holds(full)}
        return self.reduced({name: value for name, value in left.items() if name not in idle})

    def decode(self, choose: Chooser) -> ConfigDict:
        """Builds a configuration by asking `choose` for the index of each active dimension."""
        full = self.full({})
        for dimension in self.dimensions:
            if dimension.when is None or dimension.when.holds(full):
                full[dimension.name] = dimension.value(choose(dimension), full)
        return self.reduced(full)

    def at(self, indices: Mapping[str, int]) -> ConfigDict:
        """The configuration of these indices."""
        return self.decode(lambda dimension: indices[dimension.name])

    def encode(self, config: Mapping[str, Value]) -> Indices:
        """The indices of a configuration; a value off the grid becomes the nearest one on it."""
        known = frozenset(config.items())
        if known not in self._indices:
            full = self.full(config)
            self._indices[known] = {
                d.name: d.nearest(full[d.name], full) for d in self._active(full)
            }
        return self._indices[known].copy()

    def indices(self, config: Mapping[str, Value]) -> Indices:
        """The same with all dimensions: one that is not active has its default's index."""
        full = self.full({})
        usual = {d.name: d.nearest(full[d.name], full) for d in self.dimensions}
        return usual | self.encode(config)

    def objection(self, config: Mapping[str, Value]) -> str | None:
        """Why `config` must not be proposed, in one sentence; None when it may be."""
        full = self.full(config)
        for rule in self.rules:
            if rule.rule.holds(full):
                return f"{rule.rule.text}: {rule.why}"
        try:
            self.check(full)
        except UsageError as error:
            return str(error)
        return None

    def known_risks(self, config: Mapping[str, Value]) -> list[tuple[ConfigDict, str]]:
        """The known risks of a configuration: the parameters that have each, and the sentence."""
        full = self.full(config)
        changed = self.reduced(config)
        return [
            ({name: changed[name] for name in changed if name in risk.rule.names}, risk.why)
            for risk in self.risks
            if risk.rule.names & changed.keys() and risk.rule.holds(full)
        ]

    def contains(self, config: Mapping[str, Value]) -> bool:
        """Whether `config` is on the grid and nothing speaks against it."""
        on_grid = self.at(self.encode(config)) == self.reduced(config)
        return on_grid and self.objection(config) is None

    def sample(self, rng: Random) -> ConfigDict:
        """A random configuration that may be proposed; the default when none was found."""
        for _ in range(_RANDOM_TRIES):
            config = self.decode(lambda dimension: rng.randrange(len(dimension.values)))
            if self.objection(config) is None:
                return config
        return self.default

    def size(self) -> int:
        """Number of configurations when every dimension is active: an upper bound."""
        size = 1
        for dimension in self.dimensions:
            size *= len(dimension.values)
        return size

    def fingerprint(self) -> str:
        """SHA-256 of everything that decides what can be proposed."""
        shape = [
            [self.allocator],
            [
                [d.name, d.values, d.low, d.high, d.share_of, d.when and d.when.text]
                for d in self.dimensions
            ],
            [rule.rule.text for rule in self.rules],
            [[preset.name, sorted(preset.config.items())] for preset in self.presets],
            [[param.name, param.default] for param in self.params],
        ]
        return hashlib.sha256(json.dumps(shape).encode()).hexdigest()

    def _active(self, full: Mapping[str, Value]) -> Iterator[Dimension]:
        return (d for d in self.dimensions if d.when is None or d.when.holds(full))
