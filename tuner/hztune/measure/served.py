"""Servers by turns: server and load are one unit, which hz-alternate lets go on and stand still.

The server's start is not counted, nor is its rest after the load. The load's report comes first,
the server's when all units are done: only then is known whether a run counts.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hztune.allocator import live
from hztune.measure.identity import Fault
from hztune.measure.launch import Run, report_of, run_of
from hztune.measure.program import Program
from hztune.measure.server import answers, ended_by_itself
from hztune.measure.watch import Watcher

READY, DROP, ON = "ready", "drop", "on"
"""Answers to hz-alternate: the server answers; it does not, and is ended; it has rested."""

_BUSY = 0.1
"""Share of a server's CPU time above which a process of it does a part of its work."""

_LAST_WORDS_S = 1.0
"""Patience with a server whose load has failed."""

_PAUSE_S = 0.02
_MOST = 0.5
"""Share of a server's CPU time that processes must have used which tell of its threads."""


@dataclass
class Server:
    """The server of one unit, as far as it has come.

    Attributes:
        program: What it is, in its place.
        base: The environment of hztune's own programs.
        pids: Takes note of its processes; see `segments.swept`.
        fault: Why it does not count, if it did not answer.
    """

    program: Program
    base: Mapping[str, str]
    pids: set[int]
    fault: Fault | None = None
    _pid: int = 0
    _program_pid: int = 0
    _before: Mapping[tuple[int, int], int] = field(default_factory=dict)
    _after: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def began(self, event: Mapping[str, Any]) -> None:
        """It was started."""
        self._pid, self._program_pid = event["pid"], event["program_pid"]

    def serve(self) -> str:
        """Waits until it answers; returns what to tell hz-alternate."""
        program = self.program
        assert program.service is not None, "not a server"
        self.fault = answers(
            program,
            self.base,
            self._has_ended,
            self._pid,
            has_network=program.has_network,
        )
        self._before = _thread_cpu_ns(self._pid)
        self.pids.update(live.descendants(self._pid))
        return DROP if self.fault else READY

    def rest(self, loads: Sequence[Run]) -> str:
        """Its loads have ended; takes note of what its threads worked.

        Where a load failed, the server may be about to end: that is then what is to be told.
        """
        assert self.program.service is not None, "not a server"
        if any(load.fault is not None and load.fault.status != "hang" for load in loads):
            deadline = time.monotonic() + _LAST_WORDS_S
            while not self._has_ended(_PAUSE_S) and time.monotonic() < deadline:
                continue
        self._after = _thread_cpu_ns(self._pid)
        return ON

    def run(self, event: Mapping[str, Any], watcher: Watcher) -> Run:
        """Returns the run of a server that has ended; its time and its load's are not in it."""
        told = json.dumps(event["result"]).encode() if event["result"] else b""
        run = run_of(report_of(self.program, told, event["stderr"]), watcher, "", event["stderr"])
        by_itself = event["ended_as"] is None
        fault = ended_by_itself(run) if by_itself else self.fault
        return replace(run, fault=fault, cpu_ns=0)

    def busy_threads(self, all_ns: int, most: int) -> float:
        """Returns how many threads of one process shared its work: 2 where two did half each.

        Args:
            all_ns: CPU time that the server used under load.
            most: Threads that any process of the unit had; they count where those that did most of
                the work are gone when the server rests.
        """
        used: dict[int, list[int]] = defaultdict(list)
        for (pid, thread), ns in self._after.items():
            used[pid].append(ns - self._before.get((pid, thread), 0))
        busy = [each for each in used.values() if sum(each) > _BUSY * max(0, all_ns)]
        if not busy or sum(map(sum, busy)) < _MOST * all_ns:
            return float(most)
        return max(sum(each) ** 2 / sum(ns**2 for ns in each) for each in busy)

    def _has_ended(self, seconds: float) -> bool:
        time.sleep(seconds)
        return not Path("/proc", str(self._program_pid)).exists()


def load_words(program: Program) -> list[str]:
    """Returns the words behind hz-launch that start the load."""
    assert program.service is not None, "not a server"
    return ["--", "/bin/sh", "-c", program.service.load]


def together(server: Run, load: Run) -> Run:
    """Returns the run of a unit: the server's memory and allocator, the load's time and output."""
    fault = load.fault and replace(load.fault, detail=f"--load: {load.fault.detail}")
    if fault is not None and fault.status != "hang":
        fault = replace(fault, status="failed")
    return replace(
        server,
        fault=server.fault or fault,
        wall_s=load.wall_s,
        stdout=load.stdout,
        cpu_ns=max(0, load.server_cpu_ns) + load.cpu_ns,
        server_cpu_ns=max(0, load.server_cpu_ns),
        was_told=load.was_told,
    )


def _thread_cpu_ns(launcher: int) -> dict[tuple[int, int], int]:
    """Returns the CPU time of each thread below hz-launch, by process and thread."""
    used = {}
    for pid in live.descendants(launcher):
        with contextlib.suppress(OSError):
            for task in Path("/proc", str(pid), "task").iterdir():
                with contextlib.suppress(OSError):
                    used[pid, int(task.name)] = int((task / "schedstat").read_text().split()[0])
    return used
