"""What a study tells its user while it runs: a live line on a terminal, plain lines elsewhere.

The logic only knows `Reporter`; everything goes to stderr, since stdout is for data.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import expm1
from shutil import get_terminal_size
from typing import TextIO

from hztune.arguments import printable


@dataclass(frozen=True, slots=True)
class StudyStatus:
    phase: str
    trials: int
    failed: int
    best: float  # log ratio to the default, of the best configuration by now or of the subject
    error: float  # half-width of its 95 % interval; infinite: unknown
    floor: float  # noise floor, log units; 0: unknown
    left_s: float
    pairs: int = 0  # fresh pairs of what is being proved
    planned: int = 0
    subject: str = ""  # what is being proved

    def line(self) -> str:
        left = f"{duration(self.left_s)} left"
        if self.subject:
            of = f" of {self.planned}" if self.planned else ""
            best = self.best_text()
            return f"{self.phase:<9} pair {self.pairs}{of}  {self.subject}: {best}  {left}"
        floor = percent(self.floor, sign=False) if self.floor else "?"
        failed = f" ({self.failed} failed)" if self.failed else ""
        searched = f"{self.trials} configuration{'s' * (self.trials != 1)}{failed}"
        best = f"best so far {self.best_text()}  noise floor {floor}"
        return f"{self.phase:<9} {searched}  {best}  {left}"

    def best_text(self) -> str:
        if self.trials == 0 and not self.subject:
            return "-"
        within = f" ± {percent(self.error, sign=False)}" if self.error != float("inf") else ""
        return percent(self.best) + within


class Reporter:
    """Is told how a study goes: a display, a test, or this one, which shows nothing."""

    def say(self, line: str) -> None:
        """Something that should stay on the screen."""

    def warn(self, line: str) -> None:
        """A line that is shown even where no progress is."""

    def update(self, status: StudyStatus) -> None:
        """The newest status; it may replace the one before."""


class Plain(Reporter):
    """Lines for a log: every `say`, and a status at most every `every_s` seconds of budget."""

    def __init__(self, stream: TextIO, every_s: float = 10.0) -> None:
        self._stream = stream
        self._every_s = every_s
        self._shown_at: float | None = None
        self._phase = ""

    def say(self, line: str) -> None:
        """Writes the line; a log whose disk is full or whose reader is gone ends no study."""
        with suppress(OSError):
            self._stream.write(printable(line) + "\n")
            self._stream.flush()

    warn = say

    def update(self, status: StudyStatus) -> None:
        due = self._shown_at is None or self._shown_at - status.left_s >= self._every_s
        if due or status.phase != self._phase:
            self._shown_at, self._phase = status.left_s, status.phase
            self.say(status.line())


class Live(Reporter):
    """One line, kept up to date below the lines that stay; for a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = ""

    def say(self, line: str) -> None:
        self._write(f"{printable(line)}\n{self._shown}")

    warn = say

    def update(self, status: StudyStatus) -> None:
        self._shown = printable(status.line())[: get_terminal_size().columns - 1]
        self._write(self._shown)

    def clear(self) -> None:
        self._write("")

    def _write(self, text: str) -> None:
        with suppress(OSError):  # the terminal is gone
            self._stream.write(f"\r\x1b[K{text}")
            self._stream.flush()


@contextmanager
def reporter(*, quiet: bool, stream: TextIO | None = None) -> Iterator[Reporter]:
    """The reporter that suits `stream` (None: stderr); of `quiet` only warnings."""
    out = stream if stream is not None else sys.stderr
    shown = Live(out) if out.isatty() else Plain(out)
    hushed = Reporter()
    hushed.warn = shown.say  # type: ignore[method-assign]
    try:
        yield hushed if quiet else shown
    finally:
        if isinstance(shown, Live):
            shown.clear()


def percent(log_ratio: float, *, sign: bool = True) -> str:
    change = 100.0 * expm1(log_ratio)
    return f"{change:+.1f} %" if sign else f"{change:.1f} %"


def duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole >= 3600:
        return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    return f"{whole // 60}:{whole % 60:02d}" if whole >= 60 else f"{whole} s"


def mib(size: float, unit: str = " MiB") -> str:
    """Bytes as a number of MiB."""
    return f"{size / (1 << 20):.1f}{unit}"
