"""The state directory, where studies leave lessons for later ones: $XDG_STATE_HOME/hztune/lessons.

A lesson is a file of its own, written whole under a name that no other one has, so that any number
of processes may read and write at once. What cannot be read, or is no lesson, is passed over: a
search without lessons is only a slower one. One from the future was left by a clock that was wrong:
how old it is is not known, so that it counts for nothing and is the first to go.
"""

from __future__ import annotations

import os
import re
import secrets
from datetime import datetime, timedelta
from pathlib import Path

from hztune import files
from hztune.errors import HztuneError, UsageError
from hztune.prior.lesson import MOST_BYTES, Lesson, dumps, parse

MOST_LESSONS = 200
"""Files that are kept, the newest; with MOST_BYTES, what all of them take at most."""

_SKEW = timedelta(days=1)
"""By which clocks that are right may differ: machines that share a home, a wrong time zone."""

_STAMP = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}\.json")
_OWN = re.compile(rf"\.?{_NAME.pattern}(\.[0-9a-f.]+)?")
"""A lesson, or what is left of one whose writer died."""


def folder() -> Path | None:
    """Where lessons are; None: this user has no home."""
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        base = named if named.is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return base / "hztune" / "lessons"


def read(now: datetime) -> list[Lesson]:
    """Every lesson that is there, can be read and is not from the future, the newest first."""
    found = []
    home = folder()
    for name in _names(home, _NAME, now)[:MOST_LESSONS]:
        assert home is not None  # or it would hold no name
        try:
            lesson = parse(files.read_small(home / name, MOST_BYTES))
        except UsageError:
            continue
        if lesson.created <= now + _SKEW:
            found.append(lesson)
    return found


def keep(lesson: Lesson) -> None:
    """Writes a lesson, and of more than MOST_LESSONS those from its future, then the oldest.

    Raises:
        HztuneError: The file system refused, or the lesson is too large.
    """
    text, home = dumps(lesson), folder()
    if home is None:
        raise HztuneError("this user has no home directory, and XDG_STATE_HOME is not set")
    if len(text) > MOST_BYTES:
        raise HztuneError(f"it is {len(text)} bytes, and at most {MOST_BYTES} are kept")
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise HztuneError(f"cannot make {str(home)!r}: {error.strerror}") from None
    stamp = lesson.created.strftime(_STAMP)
    files.write_whole(home / f"{stamp}-{secrets.token_hex(4)}.json", text)
    for name in _names(home, _OWN, lesson.created)[MOST_LESSONS:]:
        try:
            (home / name).unlink(missing_ok=True)
        except OSError:
            return


def _names(home: Path | None, pattern: re.Pattern[str], now: datetime) -> list[str]:
    """The files of that pattern, the newest first, those from the future last."""
    try:
        names = os.listdir(home) if home is not None else []
    except OSError:
        return []
    stamps = {name: name.lstrip(".") for name in names if pattern.fullmatch(name)}
    latest = (now + _SKEW).strftime(_STAMP) + "~"  # behind every name of that second
    return sorted(stamps, key=lambda name: (stamps[name] <= latest, stamps[name]), reverse=True)
