"""The memory of a process tree over time: a curve while it lives, and what it keeps at rest."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event
from typing import NamedTuple

from hztune.allocator import live
from hztune.errors import HztuneError
from hztune.measure.alongside import alongside
from hztune.measure.scope import Scope
from hztune.rests import Rested, RestPlan, RestRound

_FIGURES = re.compile(r"^(Pss|Pss_Anon|Pss_Shmem|LazyFree): +(\d+) kB$", re.M)
_PAUSE_S = 0.02
_MOST_POINTS = 240
_COST_SHARE = 0.01
"""Most of the time that may go into reading: the kernel walks all pages of a process for it."""

_READINGS = 5
_READ_FOR = 0.2
"""Share of a rest, at its end, over which the readings are spread."""

_READ_FOR_S = 0.25
"""Most seconds of it."""


class TreeMemory(NamedTuple):
    """Memory that the processes of a tree answer for.

    Pages of mapped files are not in it: how much of them each process answers for changes when
    any other process of the machine maps the same file, and the kernel drops them when it must.

    Attributes:
        resident_kb: What is resident, KiB; of a page that several share, a part of it.
        lazy_kb: What of it was given back lazily (MADV_FREE), KiB.
    """

    resident_kb: int
    lazy_kb: int

    @property
    def kept_kb(self) -> int:
        """What is resident and was not given back."""
        return max(0, self.resident_kb - self.lazy_kb)


def tree_memory(launcher: int) -> TreeMemory:
    """Reads the memory of the processes below hz-launch."""
    resident = lazy = 0
    for pid in live.descendants(launcher):
        with contextlib.suppress(OSError):
            told = Path("/proc", str(pid), "smaps_rollup").read_text(encoding="ascii")
            found = {name: int(kb) for name, kb in _FIGURES.findall(told)}
            resident += _of_no_file(found)
            lazy += found.get("LazyFree", 0)
    return TreeMemory(resident, lazy)


def _of_no_file(found: Mapping[str, int]) -> int:
    """What is resident of no mapped file, KiB; of an old kernel, which does not tell, all."""
    if "Pss_Anon" not in found:
        return found.get("Pss", 0)
    return found["Pss_Anon"] + found.get("Pss_Shmem", 0)


class MemoryWatch:
    """Follows one run: its curve, and its rounds of load and rest."""

    def __init__(self, launcher: int, plan: RestPlan, scope: Scope | None = None) -> None:
        """Begins now; the process has just been started, in `scope` if it has one of its own."""
        self._launcher = launcher
        self._scope = scope or Scope()
        self._plan = plan
        self._began_s = time.monotonic()
        self._points: list[tuple[int, int, int]] = []
        self._rounds: list[RestRound] = []
        self._load_ms = 0

    @property
    def points(self) -> tuple[tuple[int, int, int], ...]:
        """The curve: (milliseconds since the start, resident KiB, KiB of it given back lazily)."""
        return tuple(self._points)

    @property
    def rounds(self) -> int:
        """How many are over."""
        return len(self._rounds)

    @property
    def load_s(self) -> float:
        """Seconds of all loads together; at least a millisecond, to which they are known."""
        return 1e-3 * max(1, sum(each.rest_ms - each.load_ms for each in self._rounds))

    def watching(self) -> AbstractContextManager[None]:
        """Draws the curve for as long as the block lasts."""
        return alongside(self._follow, "memory")

    def load(self) -> None:
        """A load begins."""
        self._load_ms = self._now_ms()

    def rest(self, ended: Callable[[float], bool]) -> bool:
        """The load has ended: lets the process rest, and reads what it keeps.

        Args:
            ended: Waits so many seconds, and says whether the process has ended.

        Returns:
            Whether it lived to the end of the rest.

        Raises:
            HztuneError: The kernel does not tell this user what it holds.
        """
        rest_ms = self._now_ms()
        read_for_s = min(_READ_FOR_S, _READ_FOR * self._plan.idle_s)
        if ended(self._plan.idle_s - read_for_s):
            return False
        seen = []
        for _ in range(_READINGS):
            if ended(read_for_s / _READINGS):
                return False
            seen.append(tree_memory(self._launcher))
        if not any(each.resident_kb for each in seen):
            raise HztuneError(
                "the memory of the program may not be read: it runs as another user, or forbids it "
                "(PR_SET_DUMPABLE); run hztune as root"
            )
        held = sorted(seen, key=lambda each: each.kept_kb)[_READINGS // 2]
        self._rounds.append(
            RestRound(
                self._load_ms,
                rest_ms,
                self._now_ms(),
                held.kept_kb,
                held.lazy_kb,
                self._scope.charged_kb(held.lazy_kb),
            )
        )
        self.load()
        return True

    def rested(self, speed: float = 0.0) -> Rested:
        """What was seen; one round at least must be over.

        Args:
            speed: Of the loads; 0: it is worked out of what the program printed.
        """
        last = self._rounds[-1].end_ms
        return Rested(
            speed, tuple(each for each in self._points if each[0] <= last), tuple(self._rounds)
        )

    def _follow(self, ended: Event) -> None:
        """Reads again and again; when there are many points, every second one goes."""
        least_s = pause_s = _PAUSE_S
        while not ended.wait(pause_s):
            began_s = time.monotonic()
            held = tree_memory(self._launcher)
            if held.resident_kb:
                self._points.append((self._now_ms(), *held))
            if len(self._points) > _MOST_POINTS:
                self._points, least_s = self._points[::2], 2.0 * least_s
            pause_s = max(least_s, (time.monotonic() - began_s) / _COST_SHARE)

    def _now_ms(self) -> int:
        return round(1e3 * (time.monotonic() - self._began_s))
