"""What a governor sees of a process: its CPU time, memory, faults, pressure, and its figure."""

from __future__ import annotations

import math
import os
import re
import select
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hztune import files, process
from hztune.arguments import expression
from hztune.attach import trim_process
from hztune.errors import HztuneError
from hztune.govern.policy import FigureSource
from hztune.prometheus import queried

_PAGE = os.sysconf("SC_PAGE_SIZE")
_STEP_S, _BUSY_CPUS = 0.1, 0.05  # while it rests, as a burst is to be seen at once
_PRESSURE = re.compile(r"^some avg10=([0-9.]+)", re.M)
_ANSWERED_S = 2.0  # in which a source of a figure must answer
_UNREADABLE_S = 10.0  # for which the figure may not be there
_MOST_LOG_BYTES = 1 << 16  # of a log's end that are searched


@dataclass(frozen=True, slots=True)
class Observation:
    at_s: float  # monotonic
    cpu_s: float  # CPU time of the process since its start, but for that of trimming
    memory_bytes: int  # resident, without pages of files that it shares
    work: float | None = None  # requests since its start; None: they are not counted
    figure: float | None = None  # a rate or latency to protect; None: there is none
    pressure: float = 0.0  # greatest share of the last 10 s that tasks of its group waited, %


class Watched:
    def __init__(self, pid: int, source: FigureSource) -> None:
        self._pid, self._source = pid, source
        self._trimmed_s = 0.0
        self._started, self._read_at_s = self._read()[0][19], time.monotonic()
        self._pressures = _pressure_files(pid)
        self._ended, self._end = os.pidfd_open(pid), select.poll()
        self._end.register(self._ended, select.POLLIN)
        self._regex = expression(source.regex, "figure.regex") if source.regex else None

    def look(self) -> Observation:
        """HztuneError: the process has ended, or its figure cannot be read."""
        stat, (_, resident, shared, *_), cpu_s = self._read()
        if stat[0] in "ZX" or stat[19] != self._started:
            raise HztuneError("the process has ended")
        known = self._figure() if self._source.is_given else None
        pressures = [_PRESSURE.search(files.text_or_empty(path)) for path in self._pressures]
        return Observation(
            at_s=time.monotonic(),
            cpu_s=cpu_s - self._trimmed_s,
            memory_bytes=(int(resident) - int(shared)) * _PAGE,
            work=known if self._source.counts_work else None,
            figure=None if self._source.counts_work else known,
            pressure=max((float(each[1]) for each in pressures if each), default=0.0),
        )

    def trim(self) -> None:
        """Has it return unused memory: no part of its load."""
        before_s = self._read()[2]
        trim_process(self._pid)
        self._trimmed_s += self._read()[2] - before_s

    def rest(self, seconds: float, *, until_busy: bool) -> None:
        """Waits for so long, or until the process ends, or takes CPU time."""
        step_s = min(seconds, _STEP_S) if until_busy else seconds
        with suppress(OSError):
            cpu_s = process.cpu_seconds(self._pid)
            for _ in range(math.ceil(seconds / step_s)):
                if self._end.poll(1000.0 * step_s):
                    return
                before_s, cpu_s = cpu_s, process.cpu_seconds(self._pid)
                if until_busy and cpu_s - before_s > _BUSY_CPUS * step_s:
                    return

    def close(self) -> None:
        os.close(self._ended)

    def _read(self) -> tuple[list[str], list[str], float]:
        """The words of /proc/PID/stat, from the state on, and of /proc/PID/statm; CPU seconds."""
        try:
            memory = Path("/proc", str(self._pid), "statm").read_text().split()
            return process.stat_words(self._pid), memory, process.cpu_seconds(self._pid)
        except OSError:
            raise HztuneError("the process has ended") from None

    def _figure(self) -> float | None:
        """The figure now; None: it cannot be read, as may happen for a while."""
        try:
            found = self._read_figure()
            if found is not None and not math.isfinite(found):
                raise ValueError(f"{found} is no amount")
        except (OSError, ValueError, LookupError, TypeError, HztuneError) as error:
            if time.monotonic() - self._read_at_s > _UNREADABLE_S:
                why = process.last_words(str(error))
                raise HztuneError(f"the figure of the policy cannot be read: {why}") from None
            return None
        self._read_at_s = time.monotonic()
        return found

    def _read_figure(self) -> float | None:
        source = self._source
        if source.prometheus:
            series = queried(source.prometheus, source.query, _ANSWERED_S)
            if not series:
                raise HztuneError(f"Prometheus has no series for {source.query!r}")
            return series[0][1][0][1]
        if self._regex is not None:
            with files.opened(source.log) as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - _MOST_LOG_BYTES))
                whole = log.read(_MOST_LOG_BYTES).rpartition(b"\n")[0]
            if not whole:
                return None
            found = self._regex.findall(whole.decode(errors="replace"))
            if not found:
                raise HztuneError(f"no line at the end of {source.log} matches {source.regex!r}")
            return float(found[-1] if isinstance(found[-1], str) else found[-1][0])
        ended = process.run(["sh", "-c", source.command], deadline_s=_ANSWERED_S)
        if not ended.ok:
            raise HztuneError(f"the command {ended.describe()}")
        return float(ended.stdout)


def _pressure_files(pid: int) -> tuple[Path, ...]:
    """Where the kernel tells of waiting: of the process's control group, else of the machine."""
    group = files.text_or_empty(Path("/proc", str(pid), "cgroup")).strip().rpartition("::")[2]
    found = [
        Path("/sys/fs/cgroup", group.lstrip("/"), f"{each}.pressure") for each in ("memory", "cpu")
    ]
    return tuple(own if own.is_file() else Path("/proc/pressure", own.stem) for own in found)
