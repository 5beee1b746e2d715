"""What disturbs a turn, judged from what was seen of the machine, never from the turn's speed.

Only causes from outside count: a judgement that looked at the speed would make the slow turns of a
slow configuration disappear.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from statistics import median

from hztune.samples import Evidence

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_STEAL_SHARE = 0.05
_SUSPEND_NS = 200_000_000
_PRESSURE_SHARE = 0.25
_SWITCHES_FACTOR = 4.0
_SWITCHES_FLOOR_PER_S = 400.0
_FEWEST_TO_COMPARE = 4


@dataclass(slots=True)
class Judge:
    """Judges the turns of one block as they come.

    Attributes:
        threads: Threads of the workload.
        cores: CPUs that they may use.
    """

    threads: int
    cores: int
    _switches: list[float] = field(default_factory=list)

    def causes(self, evidence: Evidence, length_ns: int) -> str:
        """Returns what disturbed a turn of that length, joined by commas; "" when nothing did."""
        switches = evidence.involuntary / (length_ns * 1e-9)
        found = {
            "suspend": evidence.suspended_ns > _SUSPEND_NS,
            "steal": evidence.steal_ticks * _TICK_NS > _STEAL_SHARE * length_ns * self.cores,
            "pressure": self._is_pressed(evidence, length_ns),
            "switches": self._is_switched(switches),
        }
        self._switches.append(switches)
        return ",".join(cause for cause, is_true in found.items() if is_true)

    def _is_pressed(self, evidence: Evidence, length_ns: int) -> bool:
        """Whether somebody waited for a CPU though the workload leaves room for it."""
        if self.threads > self.cores:
            return False  # the workload's own threads wait for each other all the time
        return evidence.pressure_us * 1000 > _PRESSURE_SHARE * length_ns

    def _is_switched(self, switches: float) -> bool:
        """Whether threads were driven off their CPUs far more often than in the other turns."""
        if len(self._switches) < _FEWEST_TO_COMPARE:
            return False
        usual = median(self._switches)
        return switches > _SWITCHES_FACTOR * usual + _SWITCHES_FLOOR_PER_S
