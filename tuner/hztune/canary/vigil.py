"""Watching a canary until it is decided, through failures of its source and a kill of its own.

The log has all rows so far, and what was decided. A watch that begins anew reads it and decides the
same again: an answer that is there stays, and its hook is not run twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

from hztune import files, process
from hztune.canary.sources import MOST_ROW_BYTES, FleetRow, fetched, parsed_rows, row_line
from hztune.canary.spec import Canary
from hztune.canary.told import verdict_line, verdict_page
from hztune.canary.verdict import CanaryAnswer, CanaryVerdict, verdict_of
from hztune.errors import HztuneError

_HOOK_S = 600.0
_AGAIN_BLOCKS = 5  # that are asked for again: rows may come late
_LINES_APART = 1.3  # times the time that has passed

Tell = Callable[[str], None]


def watched(
    canary: Canary, tell: Tell, *, log: Path | None = None, for_s: float = 0.0
) -> CanaryVerdict:
    """Judges a canary at each step, until it is decided or the time is over; 0: once.

    At *revert* the hook is run. HztuneError: the source does not answer, and there is no row yet;
    later it is asked again.

    Args:
        canary: What `api.canary` read.
        tell: Gets lines for people.
        log: A file for all rows, from which a watch that was killed goes on.
        for_s: Seconds.
    """
    content = files.read_small(log, MOST_ROW_BYTES) if log and log.exists() else b""
    rows = {row[:3]: row for row in parsed_rows(content, str(log))}
    if given := [row.metric for row in rows.values() if row.unit == canary.spec.start]:
        found = verdict_of(rows.values(), canary)
        told = ("it was decided before, as the log says",)
        return found._replace(answer=cast(CanaryAnswer, given[0]), reasons=told)
    until, told_s, failures = time.monotonic() + for_s, 0.0, set[str]()
    is_kept = False  # whether the log has all rows of before
    while True:
        new = list[FleetRow]()
        try:
            new += [row for row in _newest(canary, rows.values()) if rows.get(row[:3]) != row]
            rows |= {row[:3]: row for row in new}
        except HztuneError as error:
            if not rows:
                raise
            _tell_once(error, failures, tell)
        found = verdict_of(rows.values(), canary)
        rest_s = until - time.monotonic()
        if found.answer == "revert":
            _run_hook(canary, found, tell)
        if found.answer != "hold":
            last = FleetRow(time.time(), canary.spec.start, found.answer, 1.0)
            rows[last[:3]] = last
            new.append(last)
        missing = new if is_kept else rows.values()
        is_kept = log is not None and _is_kept(log, missing, failures, tell, whole=not is_kept)
        if found.is_settled or rest_s <= 0.0:
            return found
        if found.passed_s > _LINES_APART * told_s:
            told_s = found.passed_s
            tell(verdict_line(found))
        time.sleep(min(canary.spec.step_s, rest_s))


def _is_kept(
    log: Path, rows: Iterable[FleetRow], told: set[str], tell: Tell, *, whole: bool
) -> bool:
    """Writes the whole log, or adds rows to it; false: it may end within a row."""
    try:
        if whole:
            files.write_whole(log, map(row_line, rows))
        else:
            files.append_to(log, b"".join(map(row_line, rows)).decode(), "--log")
    except HztuneError as error:  # a full disk takes the log, not the watch
        _tell_once(error, told, tell)
        return False
    return True


def _tell_once(error: HztuneError, told: set[str], tell: Tell) -> None:
    if str(error) not in told:
        tell(f"{error}; watching goes on")
    told.add(str(error))


def _newest(canary: Canary, rows: Iterable[FleetRow]) -> list[FleetRow]:
    """What is new, with the last blocks again; the times of Prometheus are those of blocks."""
    begin_s, step_s = canary.start_s - canary.spec.baseline_s, canary.spec.step_s
    last_s = max((row.at_s for row in rows), default=-math.inf)
    since = max(0.0, (last_s - begin_s) / step_s - _AGAIN_BLOCKS)
    return fetched(canary, begin_s + math.floor(since) * step_s, time.time())


def _run_hook(canary: Canary, found: CanaryVerdict, tell: Tell) -> None:
    if canary.spec.hook:
        ended = process.run(["sh", "-c", canary.spec.hook], deadline_s=_HOOK_S, cwd=canary.folder,
                            stdin=verdict_page(found, canary).encode())  # fmt: skip
        tell("the hook was run" if ended.ok else f"the hook has failed: it {ended.describe()}")
