"""Rounds of load and rest: how they are asked for, and what a process tree held meanwhile.

*Kept* is what stays resident when the load has ended and the rest is over. Pages that an allocator
has given back lazily (MADV_FREE) are still resident until the kernel needs them; they are not kept,
and stand beside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from statistics import linear_regression
from typing import Literal

from msgspec import Struct

from hztune.arguments import within
from hztune.errors import UsageError
from hztune.schema import Schema

MemoryKind = Literal["rss", "kept"]  # the peak of the processes, or what they keep at rest

MEMORIES: dict[MemoryKind, str] = {"rss": "peak memory", "kept": "kept memory"}  # in sentences

DEFAULT_IDLE_S = 2.0
MOST_IDLE_S = 3600.0
MOST_RESTS = 1000

LEAST_SLOPE_ROUNDS = 3
"""Rounds without which there is no slope: the first one fills what stays, and is left out."""


class RestPlan(Schema, frozen=True):
    idle_s: float = DEFAULT_IDLE_S  # seconds from the end of a load until its memory is read
    rounds: int = 1  # loads, each with a rest behind it
    # regular expression of the line on stdout by which a program says that it rests; "" of a
    # server, which rests when its load has ended
    says: str = ""

    def __post_init__(self) -> None:
        within("--idle-s", self.idle_s, 0, MOST_IDLE_S)
        within("--rounds", self.rounds, 1, MOST_RESTS)
        try:
            re.compile(self.says)
        except (re.error, RecursionError, OverflowError) as error:
            raise UsageError(
                f"--rests {self.says[:200]!r} is no regular expression: {error}"
            ) from None

    @property
    def text(self) -> str:
        if self.rounds == 1:
            return f"one load and {self.idle_s:g} s of rest"
        return f"{self.rounds} rounds, each with {self.idle_s:g} s of rest"


class RestRound(Struct, frozen=True, array_like=True):
    """One load and the rest behind it; times are milliseconds since the start of the process."""

    load_ms: int
    rest_ms: int
    end_ms: int
    kept_kb: int
    lazy_kb: int


@dataclass(frozen=True, slots=True)
class Rested:
    speed: float  # of its loads, as the program is judged: more is better
    # (milliseconds since the start, resident KiB, KiB of it given back lazily)
    points: tuple[tuple[int, int, int], ...]
    rounds: tuple[RestRound, ...]  # in order; at least one

    @property
    def kept_kb(self) -> int:
        """Memory at the end of the last rest, KiB, at least 1."""
        return max(1, self.rounds[-1].kept_kb)

    @property
    def slope_kb(self) -> float | None:
        """KiB that one round more keeps, by least squares without the first; None: too few."""
        values = [each.kept_kb for each in self.rounds[1:]]
        if len(values) < LEAST_SLOPE_ROUNDS - 1:
            return None
        return linear_regression(range(len(values)), values).slope


def weighed_memory(objectives: str) -> MemoryKind:
    """Which memory the objectives of a front weigh: "throughput,kept"; "" of no front."""
    return "kept" if objectives.endswith(",kept") else "rss"
