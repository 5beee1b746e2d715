"""What disturbs a turn, judged from what was seen of the machine, never from the turn's speed.

Only causes from outside count: a judgement that looked at the speed, or at anything that makes a
configuration slow, would make the slow turns of a slow configuration disappear. So context switches
are no cause: threads that spin, wake each other or help in the background drive each other off
their CPUs, in some configurations far more often than in others.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hztune.blocks import Turn
from hztune.machine import quota_paths
from hztune.store import Evidence

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_TAKEN_SHARE = 0.05
_SUSPEND_NS = 200_000_000
_PRESSURE_SHARE = 0.25
_FEWEST_TICKS = 5


@dataclass(frozen=True, slots=True)
class DisturbanceRule:
    """Judges turns, each by itself."""

    threads: int  # Threads of the workload
    cores: int  # CPUs that they may use

    def causes(self, evidence: Evidence, length_ns: int) -> str:
        """Returns what disturbed a turn of that length, joined by commas; "" when nothing did."""
        taken_ns = _TAKEN_SHARE * length_ns * self.cores
        found = {
            "suspend": evidence.suspended_ns > _SUSPEND_NS,
            "steal": evidence.steal_ticks * _TICK_NS > taken_ns,
            "throttled": evidence.throttled_us * 1000 > taken_ns,
            "pressure": self._is_pressed(evidence, length_ns),
        }
        return ",".join(cause for cause, is_true in found.items() if is_true)

    def _is_pressed(self, evidence: Evidence, length_ns: int) -> bool:
        """Whether a thread waited for a CPU, and not because of the process's other threads.

        Threads for which there are not enough CPUs wait for each other all the time. With those it
        takes another program that had as much of the CPUs as steal may not have. Where there are
        enough, an allocator's own threads may be too many: then the process had all of the CPUs.
        """
        if evidence.pressure_us * 1000 <= _PRESSURE_SHARE * length_ns:
            return False
        taken_ns = _TAKEN_SHARE * length_ns * self.cores
        if self.threads <= self.cores:
            return evidence.cpu_ns < length_ns * self.cores - taken_ns
        return evidence.others_us * 1000 > max(_FEWEST_TICKS * _TICK_NS, taken_ns)


def repeats(rounds: int, done: int, turns: Iterable[Turn]) -> int:
    """Returns how many rounds more a block needs: one for each that was disturbed.

    Where most rounds are disturbed the machine is always so, and repeating would not help; so that
    a block never takes more than twice its rounds. A single round is no majority: it is repeated.

    Args:
        rounds: Undisturbed rounds that are wanted.
        done: Rounds that were played.
        turns: All their turns.
    """
    spoilt = len({turn.round for turn in turns if turn.disturbed})
    return max(0, rounds - (done - spoilt)) if spoilt <= max(1, done // 2) else 0


class Watch:
    """Looks at the machine at the beginning and at the end of a run of a whole program.

    Attributes:
        start_ns: When it began, CLOCK_MONOTONIC nanoseconds.
        length_ns: How long it took until the end, nanoseconds; 0 before.
    """

    def __init__(self) -> None:
        self._throttling = Throttling()
        self._before = self._look()
        self._after = self._before
        self.start_ns = time.monotonic_ns()
        self.length_ns = 0

    def stop(self) -> None:
        """Takes the last look."""
        self.length_ns = max(1, time.monotonic_ns() - self.start_ns)
        self._after = self._look()

    def _look(self) -> dict[str, int]:
        """Returns how the counters of the machine stand; see `Evidence`."""
        ticks = _cpu_ticks()
        return {
            "steal_ticks": sum(ticks[7:8]),  # 0 where the hypervisor does not say
            "pressure_us": _pressure_us(),
            "suspended_ns": slept_ns(),
            "throttled_us": self._throttling.us(),
            "others_us": _others_us(ticks),
        }

    def seen(self, cpu_ns: int, rss_kb: int) -> Evidence:
        """Returns what happened meanwhile, beside what is known of the program itself."""
        passed = {name: after - self._before[name] for name, after in self._after.items()}
        return Evidence(cpu_ns=cpu_ns, rss_kb=rss_kb, **passed)


class Throttling:
    """How the CPU quotas of this process's control groups, its own and those above, have acted."""

    def __init__(self, root: Path = Path("/")) -> None:
        """Finds out which groups keep count; `root` stands for / in tests."""
        paths = quota_paths(root, "cpu", "cpu.stat", "cpu.stat")
        self._paths = [path for path in paths if "nr_throttled" in _counters(path)]

    def count(self) -> int:
        """Returns how often a quota has stopped a group so far."""
        return sum(_counters(path).get("nr_throttled", 0) for path in self._paths)

    def us(self) -> int:
        """Returns for how long that was, microseconds, summed over the CPUs."""
        found = [_counters(path) for path in self._paths]
        return sum(
            each.get("throttled_usec", 0) + each.get("throttled_time", 0) // 1000 for each in found
        )


def _counters(path: Path) -> dict[str, int]:
    """Returns the lines of a cpu.stat: version 2 says throttled_usec, version 1 ns as a time."""
    with contextlib.suppress(OSError):
        lines = path.read_text(encoding="ascii").splitlines()
        return {name: int(value) for name, value in map(str.split, lines)}
    return {}


def slept_ns() -> int:
    """Returns for how long the machine has slept since it was started, nanoseconds."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def _cpu_ticks() -> list[int]:
    """Returns the ticks of all CPUs: user, nice, system, idle, ..., steal; [] where none are."""
    with contextlib.suppress(OSError):
        words = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0].split()
        return [int(word) for word in words[1:]]
    return []


def _others_us(ticks: list[int]) -> int:
    """Returns the CPU time that this process and what it has waited for did not use so far.

    The load of a server is among what it has waited for. Since two counters are compared that are
    not brought up to date together, only differences of several ticks mean something.
    """
    used = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own_s = sum(each.ru_utime + each.ru_stime for each in used)
    return sum(ticks[:3]) * _TICK_NS // 1000 - round(1e6 * own_s)


def _pressure_us() -> int:
    """Returns for how long anything has waited for a CPU so far; 0 where it is not counted."""
    with contextlib.suppress(OSError):
        text = Path("/proc/pressure/cpu").read_text(encoding="ascii")
        found = re.search(r"^some .*total=(\d+)", text, re.MULTILINE)
        return int(found[1]) if found else 0
    return 0
