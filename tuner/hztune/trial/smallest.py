"""The smallest memory in which something survives: bisection, and then confirmation.

Whether a run survives near the limit is partly chance: what was found by one run for each step is
the start. Then the limit must be survived several times in a row; where it is not, it is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

PRECISION = 0.02
"""Ratio less one of the limits between which the search ends, and by which one is raised."""

CONFIRMED_BY = 5
"""Runs in a row that must survive."""

_PAGE_KB = 4
_MOST_DOUBLINGS = 4

Survives = Callable[[int], bool]
"""Runs it with a limit, KiB, and says whether it survived."""


@dataclass(frozen=True, slots=True)
class SmallestMemory:
    """The smallest limit that was found.

    Attributes:
        kb: KiB; 0: it survived no limit that was tried.
        failed_kb: The greatest limit below it at which a run was ended, KiB; 0: none was.
        runs: How many were made.
        is_confirmed: Whether CONFIRMED_BY runs in a row survived it.
    """

    kb: int
    failed_kb: int
    runs: int
    is_confirmed: bool

    @property
    def words(self) -> str:
        """In words: "61.2 MiB, confirmed by 5 runs; 60.1 MiB was too little"."""
        if not self.kb:
            return "no limit was survived in the time that there was"
        how = f"confirmed by {CONFIRMED_BY} runs" if self.is_confirmed else "not confirmed in time"
        failed = f"; {self.failed_kb / 1024:.1f} MiB was too little" if self.failed_kb else ""
        return f"{self.kb / 1024:.1f} MiB, {how}{failed}"


def smallest_memory(
    survives: Survives, start_kb: int, has_time: Callable[[], bool]
) -> SmallestMemory:
    """Seeks the smallest limit.

    Args:
        survives: Makes one run.
        start_kb: A limit that it should survive; it is doubled a few times if it does not.
        has_time: Whether there is time for another run.
    """
    search = _Bisection(survives, has_time)
    high, low = _pages(start_kb), 0
    for _ in range(_MOST_DOUBLINGS):
        if search.run(high) is not False:
            break
        low, high = high, 2 * high
    if not search.seen:
        return SmallestMemory(0, low, search.runs, is_confirmed=False)
    while high > (1.0 + PRECISION) * low + _PAGE_KB:
        middle = _pages((low + high) // 2)
        if middle in (low, high) or (survived := search.run(middle)) is None:
            break
        low, high = (low, middle) if survived else (middle, high)
    return search.confirmed(low, high)


class _Bisection:
    """What was run so far."""

    def __init__(self, survives: Survives, has_time: Callable[[], bool]) -> None:
        self._survives = survives
        self._has_time = has_time
        self.runs = 0
        self.seen = False

    def run(self, kb: int) -> bool | None:
        """Whether a run survives; None: there is no time for one."""
        if not self._has_time():
            return None
        self.runs += 1
        survived = self._survives(kb)
        self.seen = self.seen or survived
        return survived

    def confirmed(self, low: int, high: int) -> SmallestMemory:
        """Raises the limit until enough runs in a row survive it."""
        in_a_row = 0
        while in_a_row < CONFIRMED_BY:
            survived = self.run(high)
            if survived is None:
                return SmallestMemory(high, low, self.runs, is_confirmed=False)
            in_a_row = in_a_row + 1 if survived else 0
            if not survived:
                low, high = high, _pages(round(high * (1.0 + PRECISION))) + _PAGE_KB
        return SmallestMemory(high, low, self.runs, is_confirmed=True)


def _pages(kb: int) -> int:
    return max(_PAGE_KB, kb // _PAGE_KB * _PAGE_KB)
