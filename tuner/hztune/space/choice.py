"""A choice between allocators, each with a space of its own.

What changes nothing is the unchanged program: it is the control and never proposed. A configuration
belongs to one allocator, so that it is proposed by the space of that one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

from hztune.blocks import UNCHANGED_PROGRAM, Arm
from hztune.params import Param
from hztune.space.core import Space
from hztune.space.dimension import Dimension

ROOT = "allocator"


@dataclass(frozen=True, slots=True)
class Choice:
    """The configurations of several allocators.

    Attributes:
        parts: The space of each, in the order in which they are first measured.
        unchanged: The one on which the unchanged program runs with its defaults; "": none of them.
    """

    parts: tuple[Space, ...]
    unchanged: str = ""

    @property
    def control(self) -> Arm:
        """What everything is compared with."""
        return Arm(UNCHANGED_PROGRAM)

    @property
    def starts(self) -> tuple[Arm, ...]:
        """Every other allocator with its defaults, then the presets of all in turn."""
        defaults = (part.control for part in self.parts if part.allocator != self.unchanged)
        return (*defaults, *_in_turn(part.starts for part in self.parts))

    @property
    def returning(self) -> tuple[Arm, ...]:
        """What comes before all else where less memory is sought."""
        return tuple(_in_turn(part.returning for part in self.parts))

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """For a reader: the choice itself, then every parameter with its allocator's name."""
        names = tuple(part.allocator for part in self.parts)
        root = Param(ROOT, "enum", UNCHANGED_PROGRAM, 0, len(names) - 1, "linear", "", names, False,
                     "", "", "whose malloc the program runs on")  # fmt: skip
        named = (
            replace(each, param=replace(each.param, name=f"{part.allocator}.{each.name}"))
            for part in self.parts
            for each in part.dimensions
        )
        return (Dimension(root, names), *named)

    def part(self, allocator: str) -> Space:
        """The space of one allocator."""
        return next(part for part in self.parts if part.allocator == allocator)

    def holds(self, arm: Arm) -> bool:
        """Whether the arm is of one of its allocators."""
        return any(part.holds(arm) for part in self.parts)

    def size(self) -> int:
        """Number of configurations of all allocators together: an upper bound."""
        return sum(part.size() for part in self.parts)

    def fingerprint(self) -> str:
        """SHA-256 of everything that decides what can be proposed."""
        prints = [[part.allocator, part.fingerprint()] for part in self.parts]
        return hashlib.sha256(json.dumps(prints).encode()).hexdigest()


def _in_turn(each: Iterable[tuple[Arm, ...]]) -> Iterator[Arm]:
    """The first of each, then the second of each."""
    turns = chain.from_iterable(zip_longest(*each))
    return (arm for arm in turns if arm is not None)


AnySpace = Space | Choice
"""What a study searches."""
