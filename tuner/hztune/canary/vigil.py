"""Watching a canary until it is decided, through failures of its source and a kill of its own.

The log has all rows so far, what was decided, and whether the hook has ended well. A watch that
begins anew reads it: an answer that is there stays, and a hook that did not end well is run again.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import cast

from hztune import files, process
from hztune.canary.sources import MOST_ROW_BYTES, FleetRow, fetched, parsed_rows, row_line
from hztune.canary.spec import Canary
from hztune.canary.timetable import SILENT_BLOCKS
from hztune.canary.told import verdict_line, verdict_page
from hztune.canary.verdict import CanaryAnswer, CanaryVerdict, verdict_of
from hztune.errors import HztuneError
from hztune.progress import duration

_HOOK_S, _HOOK_TRIES = 600.0, 10
_AGAIN_BLOCKS = 60  # that are asked for again: rows may come late
_HOOK_PAUSE_S = 60.0
_LINES_APART = 1.3  # times the time that has passed
_MARK = b'{"decided"'  # begins a line of the log that is no row

Tell = Callable[[str], None]


def watched(
    canary: Canary, tell: Tell, *, log: Path | None = None, for_s: float = 0.0
) -> CanaryVerdict:
    """Judges a canary at each step, until it is decided or the time is over; 0: once.

    At *revert* the hook is run, by a watch until it ends well, ten times at most. HztuneError: the
    source does not answer, and there is no row yet; later it is asked again. KeyboardInterrupt: the
    user wants an end; the page of what is known is told.

    Args:
        canary: What `api.canary` read.
        tell: Gets lines for people.
        log: A file for all rows, from which a watch that was killed goes on.
        for_s: Seconds.
    """
    watch, until, told_s = _Watch(canary, tell, log), time.monotonic() + for_s, 0.0
    found = None
    try:
        while True:
            found = watch.look()
            rest_s = until - time.monotonic()
            if found.answer == "revert":
                found = watch.reverted(found, _HOOK_TRIES if rest_s > 0.0 else 1)
            if found.is_settled or rest_s <= 0.0:
                return found
            watch.tell_silence()
            if found.passed_s > _LINES_APART * told_s:
                told_s = found.passed_s
                tell(verdict_line(found))
            time.sleep(min(canary.spec.step_s, rest_s))
    except KeyboardInterrupt:
        if found is not None:
            tell(verdict_page(found, canary))
        raise


class _Watch:
    def __init__(self, canary: Canary, tell: Tell, log: Path | None) -> None:
        self._canary, self._tell, self._log = canary, tell, log
        content = files.read_small(log, MOST_ROW_BYTES) if log and log.exists() else b""
        lines = content.splitlines(keepends=True)
        self._mark: dict[str, str] = {}  # what was decided, and that the hook has ended well
        self._others: list[bytes] = []  # marks of canaries with another start
        for line in lines:
            with suppress(ValueError):  # two writers, or a full disk, may have torn it
                mark = json.loads(line) if line.startswith(_MARK) else {}
                if mark.get("start") == canary.spec.start:
                    self._mark |= mark if mark["decided"] in ("promote", "revert") else {}
                elif mark:
                    self._others.append(line)
        kept = b"".join(line for line in lines if not line.startswith(_MARK))
        self._rows = {row[:3]: row for row in parsed_rows(kept, str(log))}
        self._newest_s: dict[str, float] = {}  # row of each name that was found by this watch
        self._failures: dict[str, str] = {}  # told, and not over
        self._is_whole = False  # whether the log has all rows

    def look(self) -> CanaryVerdict:
        """The verdict now; one that was there before stays."""
        if before := self._mark.get("decided"):
            found = verdict_of(self._rows.values(), self._canary)
            told = ("it was decided before, as the log says", *found.reasons)
            return found._replace(answer=cast(CanaryAnswer, before), reasons=told, is_settled=True)
        new = [row for row in self._newest() if self._rows.get(row[:3]) != row]
        self._rows |= {row[:3]: row for row in new}
        found = verdict_of(self._rows.values(), self._canary)
        blind = [name for name in self._canary.spec.wanted if self._failures.get(name)]
        if blind and found.answer != "revert":
            told = (f"{blind[0]!r} is not answered now", *found.reasons)
            found = found._replace(answer="hold", is_settled=False, reasons=told)
        self._keep(map(row_line, new))
        if found.answer != "hold":
            self._note({"decided": found.answer})
        return found

    def reverted(self, found: CanaryVerdict, tries: int) -> CanaryVerdict:
        """Runs the hook until it has ended well; the verdict says where it never did."""
        hook, why = self._canary.spec.hook, ""
        if not hook or self._mark.get("hook"):
            return found
        page = verdict_page(found, self._canary).encode()
        for number in range(tries):
            if number:
                time.sleep(min(_HOOK_PAUSE_S, self._canary.spec.step_s))
            try:
                ended = process.run(
                    ["sh", "-c", hook], deadline_s=_HOOK_S, cwd=self._canary.folder, stdin=page
                )
                if ended.ok:
                    self._note({"hook": "done"})
                    self._tell("the hook was run")
                    return found
                why = f"the hook has failed: it {ended.describe()}"
            except HztuneError as error:
                why = f"the hook could not be started: {error}"
            self._tell(why)
        return found._replace(reasons=(*found.reasons, why))

    def tell_silence(self) -> None:
        span_s = SILENT_BLOCKS * self._canary.spec.step_s
        is_silent = max(self._newest_s.values(), default=-math.inf) < time.time() - span_s
        self._fails("", f"no row is of the last {duration(span_s)}" if is_silent else "")

    def _newest(self) -> list[FleetRow]:
        """What is new, with the last blocks again; the times of Prometheus are those of blocks."""
        spec, new = self._canary.spec, list[FleetRow]()
        begin_s, now_s = self._canary.start_s - spec.baseline_s, time.time()
        for names in [[name] for name in spec.wanted] if spec.prometheus else [spec.wanted]:
            newest_s = self._newest_s.get(names[0], -math.inf)
            since = max(0.0, (newest_s - begin_s) / spec.step_s - _AGAIN_BLOCKS)
            since_s = begin_s + math.floor(since) * spec.step_s
            try:
                found = fetched(self._canary, names, since_s, now_s)
            except HztuneError as error:
                if not self._rows:
                    raise
                self._fails(names[0], str(error))
            else:
                self._fails(names[0], "")
                # what is later is of a clock ahead, and waits; one object for NaN equals itself
                found = [row if row.value == row.value else row._replace(value=math.nan)
                         for row in found if row.at_s <= now_s + spec.step_s]  # fmt: skip
                self._newest_s[names[0]] = max((row.at_s for row in found), default=newest_s)
                new += found
        return new

    def _fails(self, what: str, why: str) -> None:
        """Tells of a failure when it begins; "": there is none."""
        if why and self._failures.get(what) != why:
            self._tell(f"{why}; watching goes on")
        self._failures[what] = why

    def _note(self, mark: dict[str, str]) -> None:
        self._mark |= {**mark, "start": self._canary.spec.start}  # a log may be of another canary
        self._keep([_line(self._mark)])

    def _keep(self, lines: Iterable[bytes]) -> None:
        """Adds lines to the log; writes all where it may end within one."""
        if self._log is None:
            return
        marks = [*self._others, *([_line(self._mark)] if self._mark else [])]
        try:
            if self._is_whole:
                files.append_to(self._log, b"".join(lines).decode(), "--log")
            else:
                files.write_whole(self._log, [*map(row_line, self._rows.values()), *marks])
            self._is_whole = True
            self._fails("--log", "")
        except HztuneError as error:  # a full disk takes the log, not the watch
            self._is_whole = False
            self._fails("--log", str(error))


def _line(mark: dict[str, str]) -> bytes:
    return json.dumps(mark).encode() + b"\n"
