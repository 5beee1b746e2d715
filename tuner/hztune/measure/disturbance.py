"""What disturbs a turn, judged from what was seen of the machine, never from the turn's speed.

Only causes from outside count: a judgement that looked at the speed, or at anything that makes a
configuration slow, would make the slow turns of a slow configuration disappear. So context switches
are no cause: threads that spin, wake each other or help in the background drive each other off
their CPUs, in some configurations far more often than in others.
"""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Iterable
from pathlib import Path

from hztune.blocks import Turn
from hztune.files import text_or_empty
from hztune.machine import quota_paths
from hztune.store import Evidence

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_TAKEN_SHARE = 0.05
_SUSPEND_NS = 200_000_000
_PRESSURE_SHARE = 0.25
_FEWEST_TICKS = 5


def causes(evidence: Evidence, length_ns: int, threads: int, cores: int) -> str:
    """What disturbed a turn of that length, joined by commas; "" when nothing did.

    With too few CPUs for the workload's threads, these wait for each other all the time: another
    program must have had as much of the CPUs as steal may not have. With enough, an allocator's own
    threads may be too many: then the process had all of the CPUs.
    """
    taken_ns = _TAKEN_SHARE * length_ns * cores
    is_of_others = (
        evidence.cpu_ns < length_ns * cores - taken_ns
        if threads <= cores
        else evidence.others_us * 1000 > max(_FEWEST_TICKS * _TICK_NS, taken_ns)
    )
    found = {
        "suspend": evidence.suspended_ns > _SUSPEND_NS,
        "steal": evidence.steal_ticks * _TICK_NS > taken_ns,
        "throttled": evidence.throttled_us * 1000 > taken_ns,
        "pressure": is_of_others and evidence.pressure_us * 1000 > _PRESSURE_SHARE * length_ns,
    }
    return ",".join(cause for cause, is_true in found.items() if is_true)


def repeats(rounds: int, done: int, turns: Iterable[Turn]) -> int:
    """How many rounds more a block needs: one for each that was disturbed.

    Where most rounds are disturbed, repeating would not help, so a block takes at most twice its
    rounds. A single round is no majority: it is repeated.
    """
    spoilt = len({turn.round for turn in turns if turn.disturbed})
    return max(0, rounds - (done - spoilt)) if spoilt <= max(1, done // 2) else 0


class Watch:
    def __init__(self, *, is_of_turns: bool = False) -> None:
        self._counts, self._is_of_turns = throttle_counts(), is_of_turns
        self._before = self._look()

    def passed(self) -> dict[str, int]:
        """By how much the counters rose since the last look; see `Evidence`."""
        before, self._before = self._before, self._look()
        return {name: after - before[name] for name, after in self._before.items()}

    def _look(self) -> dict[str, int]:
        slept_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
        found = {"suspended_ns": slept_ns, "throttled_us": throttled(self._counts)[1]}
        if not self._is_of_turns:
            ticks = cpu_ticks()
            pressure = re.search(
                r"^some .*total=(\d+)", text_or_empty(Path("/proc/pressure/cpu")), re.M
            )
            found["steal_ticks"] = ticks[7]  # 0 where the hypervisor does not say
            found["pressure_us"] = int(pressure[1]) if pressure else 0
            # What this process and what it has waited for, such as a load, did not use so far. The
            # two counters are not brought up to date together: only several ticks mean something.
            used = [
                resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
            ]
            own_s = sum(each.ru_utime + each.ru_stime for each in used)
            found["others_us"] = sum(ticks[:3]) * _TICK_NS // 1000 - round(1e6 * own_s)
        return found


def throttle_counts(root: Path = Path("/")) -> list[Path]:
    """Where control groups of this process, its own and those above, count what quotas did."""
    paths = quota_paths(root, "cpu", "cpu.stat", "cpu.stat")
    return [path for path in paths if "nr_throttled" in text_or_empty(path)]


def throttled(counts: Iterable[Path]) -> tuple[int, int]:
    """How often quotas have stopped this process, and for how many microseconds of all CPUs."""
    times, us = 0, 0
    for path in counts:
        found = {name: int(n) for name, n in map(str.split, text_or_empty(path).splitlines())}
        times += found.get("nr_throttled", 0)
        us += found.get("throttled_usec", 0) + found.get("throttled_time", 0) // 1000  # of v2, v1
    return times, us


def cpu_ticks(root: Path = Path("/")) -> list[int]:
    """Of all CPUs since the start: user, nice, system, idle, I/O wait, two more, stolen."""
    words = text_or_empty(root / "proc/stat").partition("\n")[0].split()
    return [int(word) for word in words[1:9]] if len(words) > 8 else [0] * 8
