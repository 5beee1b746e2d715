"""Time: a clock that tests can replace, and a budget that every phase asks."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from hztune import machine, process

LATE_S = 7.0
"""Seconds after the end of a budget at which whatever still runs is ended."""


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> float:
        """Seconds since any fixed moment; never goes back."""


class SystemClock:
    """The machine's own; it stands still while the machine sleeps, or another hztune measures."""

    def now(self) -> float:
        """Seconds since the machine started."""
        return time.monotonic() - machine.waited_s()


@dataclass
class Budget:
    """The seconds that a study may take.

    Attributes:
        clock: Where the time comes from.
        total_s: All of it that the phases share.
        spent_s: What earlier sessions of the same study used of it.
        reserved_s: What stands beside `total_s` for the panel, until it is released.
        kept_s: What stands beside both for the proof on the program, and for the smallest memory.
        part: What the phases would have of a larger budget, as a part of it; see `Division`.
    """

    clock: Clock
    total_s: float
    spent_s: float = 0.0
    reserved_s: float = 0.0
    kept_s: float = 0.0
    part: float = 1.0

    def __post_init__(self) -> None:
        """Starts the clock."""
        self._started = self.clock.now()
        self._waited_before_s = machine.waited_s()

    def running(self) -> AbstractContextManager[None]:
        """Ends whatever runs LATE_S after the budget, for as long as the block lasts.

        The block then leaves with OutOfTime.
        """
        return process.limited(lambda: self.total_s + self.beside_s + LATE_S - self.elapsed())

    @property
    def waited_s(self) -> float:
        """Seconds that this process has waited for another hztune since the budget began."""
        return machine.waited_s() - self._waited_before_s

    @property
    def beside_s(self) -> float:
        """Seconds that the phases do not share."""
        return self.reserved_s + self.kept_s

    def elapsed(self) -> float:
        """Seconds used so far, those of earlier sessions included."""
        return self.spent_s + self.clock.now() - self._started

    def release(self) -> None:
        """Lets the phases that follow share what was reserved."""
        self.total_s, self.reserved_s = self.total_s + self.reserved_s, 0.0

    def left(self, share: float = 1.0) -> float:
        """Seconds left until `share` of the budget is used; below 0 when it is overdrawn."""
        return self.total_s * share - self.elapsed()

    def allows(self, seconds: float, share: float = 1.0) -> bool:
        """Whether something that takes `seconds` ends before `share` of the budget is used."""
        return seconds <= self.left(share)


Stop = Callable[[], bool]
"""Whether the user asked to stop; asked between blocks."""
