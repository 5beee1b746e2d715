"""Runs with rests: a program is loaded and rests; how much memory its tree holds meanwhile.

A server rests when its load has ended (see `server`). A program says on stdout that it does, by a
line that matches an expression of the user's, and goes on when it gets a line on stdin; hz-bench
does that.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import NamedTuple

from hztune import process
from hztune.allocator import live
from hztune.errors import HztuneError
from hztune.measure.identity import Fault
from hztune.measure.launch import GRACE_S, NOT_ENDED, Run, Unit, launched
from hztune.measure.program import OUTPUT_BYTES, TOO_MUCH
from hztune.measure.scope import Scope
from hztune.measure.watch import alongside
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

ENDED_AT_REST = Fault("failed", "it ended while it rested")


class TreeMemory(NamedTuple):
    """Memory that the processes of a tree answer for, KiB.

    Pages of mapped files are not in it: how much of them each process answers for changes when
    any other process of the machine maps the same file, and the kernel drops them when it must.
    """

    resident_kb: int  # what is resident; of a page that several share, a part of it
    lazy_kb: int  # What of it was given back lazily (MADV_FREE)

    @property
    def kept_kb(self) -> int:
        """What is resident and was not given back."""
        return max(0, self.resident_kb - self.lazy_kb)


def tree_memory(launcher: int) -> TreeMemory:
    """Reads the memory of the processes below hz-launch; of an old kernel, with mapped files."""
    resident = lazy = 0
    for pid in live.descendants(launcher):
        with contextlib.suppress(OSError):
            told = Path("/proc", str(pid), "smaps_rollup").read_text(encoding="ascii")
            found = {name: int(kb) for name, kb in _FIGURES.findall(told)}
            own = found.get("Pss_Anon", found.get("Pss", 0))
            resident += own + (found.get("Pss_Shmem", 0) if "Pss_Anon" in found else 0)
            lazy += found.get("LazyFree", 0)
    return TreeMemory(resident, lazy)


class MemoryWatch:
    """Follows one run: its curve, and its rounds of load and rest.

    Attributes:
        points: (milliseconds since the start, resident KiB, KiB of it given back lazily).
        rounds: Those that are over.
    """

    def __init__(self, launcher: int, plan: RestPlan, scope: Scope | None = None) -> None:
        """Begins now; the process has just been started, in `scope` if it has one of its own."""
        self._launcher = launcher
        self._scope = scope or Scope()
        self._plan = plan
        self._began_s = time.monotonic()
        self.points: list[tuple[int, int, int]] = []
        self.rounds: list[RestRound] = []
        self._load_ms = 0

    @property
    def load_s(self) -> float:
        """Seconds of all loads together; at least a millisecond, to which they are known."""
        return 1e-3 * max(1, sum(each.rest_ms - each.load_ms for each in self.rounds))

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
        charged_kb = self._scope.charged_kb(held.lazy_kb)
        times = self._load_ms, rest_ms, self._now_ms()
        self.rounds.append(RestRound(*times, held.kept_kb, held.lazy_kb, charged_kb))
        self.load()
        return True

    def rested(self, speed: float = 0.0) -> Rested:
        """What was seen, after one round at least; speed 0: what the program printed tells it."""
        points = [each for each in self.points if each[0] <= self.rounds[-1].end_ms]
        return Rested(speed, tuple(points), tuple(self.rounds))

    def _follow(self, ended: Event) -> None:
        """Reads again and again; when there are many points, every second one goes."""
        least_s = pause_s = _PAUSE_S
        while not ended.wait(pause_s):
            began_s = time.monotonic()
            held = tree_memory(self._launcher)
            if held.resident_kb:
                self.points.append((self._now_ms(), *held))
            if len(self.points) > _MOST_POINTS:
                self.points, least_s = self.points[::2], 2.0 * least_s
            pause_s = max(least_s, (time.monotonic() - began_s) / _COST_SHARE)

    def _now_ms(self) -> int:
        return round(1e3 * (time.monotonic() - self._began_s))


def rest_once(unit: Unit) -> Run:
    """Runs a program that says when it rests; its time is that of its loads.

    Raises:
        UsageError: The program cannot be started at all.
    """
    plan = unit.program.rest
    assert plan is not None, "not a program with rests"
    more_s = plan.rounds * plan.idle_s
    with launched(unit, more_s=more_s, keep_stdout=True, takes_lines=True) as launch:
        watch = MemoryWatch(launch.child.pid, plan, launch.scope)
        with watch.watching():
            printed, fault = _follow(launch.child, plan, watch, unit.limit_s + more_s + GRACE_S)
        done = launch.child.finish(0.0 if fault else GRACE_S)
    if done.timed_out:
        return Run(fault or NOT_ENDED, stderr=done.stderr)
    run, _ = launch.run(done)
    run = replace(run, stdout=printed + done.stdout, fault=run.fault or fault)
    if run.fault is not None:
        return run
    if len(watch.rounds) < plan.rounds:
        times = {0: "never", 1: "once"}.get(len(watch.rounds), f"{len(watch.rounds)} times")
        said = f"it said {times} that it rests (a line on stdout that matches --rests"
        why = f"{said} {plan.says!r}), and --rounds is {plan.rounds}"
        return replace(run, fault=Fault("bad_output", why))
    return replace(run, wall_s=watch.load_s, rested=watch.rested())


def _follow(
    child: process.Child, plan: RestPlan, watch: MemoryWatch, stall_s: float
) -> tuple[str, Fault | None]:
    """Reads what a program prints, and lets it rest; returns the rest of it, and what is wrong."""
    says, printed, size = re.compile(plan.says), list[str](), 0
    try:
        for line in child.lines(stall_s):
            if says.search(line):
                if len(watch.rounds) < plan.rounds and not watch.rest(child.wait):
                    return "\n".join(printed), ENDED_AT_REST
                child.send("")
                continue
            size += len(line) + 1
            if size > OUTPUT_BYTES:
                return "", TOO_MUCH
            printed.append(line)
    except process.Stalled as error:
        return "\n".join(printed), Fault("hang", str(error))
    return "\n".join([*printed, ""]), None
