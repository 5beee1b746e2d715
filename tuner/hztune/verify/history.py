"""What verifications found over time: a line of JSON each, in $XDG_STATE_HOME/hztune/history.jsonl.

A line is written with one call and is on disk before the next profile is measured, so that a killed
run has lost none, and several runs may write at once. What cannot be read is passed over.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import cast, get_args

from hztune import files, machine_diff, profile, strictjson
from hztune.errors import HztuneError, UsageError
from hztune.files import sha256_of
from hztune.machine import WORDS
from hztune.measure.program import Program
from hztune.profile import Profile
from hztune.schema import TIME_FORMAT, as_word, time_of
from hztune.stats.intervals import Interval
from hztune.strictjson import CREATED, Fields
from hztune.verify.claim import Verification, VerifyAnswer

SCHEMA = "hztune-check/1"
_FILE = "history.jsonl"
_IDENTITY = re.compile(r"[0-9a-f]{16}")
_SENTENCE = re.compile(r"[^\x00-\x1f\x7f]{0,4000}")
_MOST_BYTES = 16 * 1024 * 1024
"""What is read of the file, from its end: some twenty thousand checks."""

_CLOCKS_DIFFER = timedelta(days=1)
"""What is dated later than that from now has the date of a clock that was wrong."""

_SHORT = 12
_PROGRAM = "program:"


@dataclass(frozen=True, slots=True)
class RatioRange:
    """A ratio, profile / control; above 1 is better.

    Attributes:
        ratio: The estimate.
        ci_low: Lower end of its 95 % interval.
        ci_high: Upper end.
    """

    ratio: float
    ci_low: float
    ci_high: float


@dataclass(frozen=True, slots=True)
class Recheck:
    """One verification of a profile.

    Attributes:
        at: When it ended, UTC, "2026-01-31T12:00:00Z".
        profile: Of which profile, see `profile_digest`.
        label: What the profile is for and what it sets, in words.
        answer: What was found.
        why: The reason, in one sentence.
        pairs: Fresh pairs of the interval.
        found: What was measured; None: too few pairs.
        claimed: What the profile claims; None: it carries no ratio.
        rss_ratio: Peak memory, profile / control; None: not measured.
        here: What it was measured on, by name, see `surroundings`.
    """

    at: str
    profile: str
    label: str
    answer: VerifyAnswer
    why: str
    pairs: int
    found: RatioRange | None
    claimed: RatioRange | None
    rss_ratio: float | None
    here: tuple[tuple[str, str], ...]

    @property
    def time(self) -> datetime:
        """When it ended."""
        return time_of("at", self.at)


def rechecked(tuned: Profile, programs: Sequence[Program], finding: Verification) -> Recheck:
    """A verification that has just ended, as the history holds it."""
    claim, interval = tuned.claim, finding.interval
    claimed = None
    if claim.ratio is not None and claim.ci_low is not None and claim.ci_high is not None:
        claimed = RatioRange(claim.ratio, claim.ci_low, claim.ci_high)
    return Recheck(
        at=datetime.now(timezone.utc).strftime(TIME_FORMAT),
        profile=profile_digest(tuned),
        label=told_in_words(tuned),
        answer=finding.answer,
        why=finding.why,
        pairs=interval.pairs if interval else 0,
        found=RatioRange(*interval.ratio) if interval and _has_ends(interval) else None,
        claimed=claimed,
        rss_ratio=finding.rss_ratio,
        here=tuple(surroundings(tuned, programs).items()),
    )


def _has_ends(interval: Interval) -> bool:
    return math.isfinite(interval.half_width)


def profile_digest(tuned: Profile) -> str:
    """Sixteen digits of the SHA-256 of a profile's text: the same file has the same ones."""
    return hashlib.sha256(profile.dumps(tuned).encode()).hexdigest()[:16]


def told_in_words(tuned: Profile) -> str:
    """What a profile is for and what it sets, in words."""
    target = " and ".join(each.label for each in tuned.workloads)
    threads = f" T={tuned.threads}" if tuned.threads else ""
    sets = " ".join(f"{name}={value}" for name, value in tuned.params.items())
    return f"{target}{threads}: {tuned.allocator.name} {sets}".rstrip()


def surroundings(tuned: Profile, programs: Sequence[Program]) -> dict[str, str]:
    """What may change a ratio and is known: the machine, the allocator, the programs' files."""
    found = machine_diff.facts_of_here()
    if not tuned.adapter.is_inside:
        try:
            installed = tuned.adapter.installed()
            found["library"] = f"{installed.version} {installed.sha256[:_SHORT]}".strip()
        except HztuneError:
            found["library"] = "not installed"
    for program in programs:
        path = shutil.which(program.argv[0])
        content = sha256_of(Path(path))[:_SHORT] if path else "missing"
        found[as_word(f"{_PROGRAM}{program.label}")] = content
    return found


def changes(before: Recheck, here: Mapping[str, str]) -> tuple[str, ...]:
    """What is not as it was when a check was made, a sentence each."""
    return tuple(
        f"another {_words(name)} since {before.at[:10]}: "
        f"{old or 'unknown'} then, {here[name] or 'unknown'} now"
        for name, old in before.here
        if name in here and here[name] != old
    )


def _words(name: str) -> str:
    """How a sentence names a part of the surroundings."""
    if name.startswith(_PROGRAM):
        return f"file of the program {name.removeprefix(_PROGRAM)}"
    return WORDS.get(name, "library of the allocator")


def due(tuned: Profile, last: Recheck | None, here: Mapping[str, str], now: datetime) -> str:
    """Why a profile should be measured again, in one sentence; empty: it need not.

    Args:
        tuned: The profile.
        last: The newest check of it; None: there was none since it was made.
        here: What is here, see `surroundings`.
        now: The time, UTC.

    Raises:
        UsageError: The profile was made on a day that does not exist.
    """
    if last is not None and last.answer != "holds":
        return f"the last time, {last.at[:10]}, the answer was: {last.answer}"
    if last is not None and (changed := changes(last, here)):
        return changed[0]
    if last is None and (differs := machine_diff.from_proved(tuned)):
        return differs[0]
    shown = last.time if last is not None else time_of("created", tuned.created)
    if shown - now > _CLOCKS_DIFFER:
        what = "it was last measured" if last is not None else "it was made"
        return f"{what} on {shown:%Y-%m-%d}, a day that is still to come: a clock was wrong"
    if now - shown >= timedelta(days=tuned.term_days):
        return f"{(now - shown).days} days have passed, and its term is {tuned.term_days} days"
    return ""


def history_file() -> Path:
    """Where the history is.

    Raises:
        HztuneError: This user has no home.
    """
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        base = named if named.is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError:
        raise HztuneError(
            "this user has no home directory, and XDG_STATE_HOME is not set"
        ) from None
    return base / "hztune" / _FILE


def append(check: Recheck) -> None:
    """Adds a check to the history; it is on disk when this returns.

    Raises:
        HztuneError: The file system refused.
    """
    path = history_file()
    line = json.dumps({"schema": SCHEMA, **asdict(check), "here": dict(check.here)})
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        handle = os.open(path, flags, 0o600)
        try:
            # a writer that was killed within its line has left no end of line
            size = os.fstat(handle).st_size
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            _write(handle, ("\n" if torn else "") + line + "\n")
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise HztuneError(f"cannot write {str(path)!r}: {error.strerror}") from None


def _write(handle: int, text: str) -> None:
    content = text.encode()
    written = os.write(handle, content)
    if written != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read() -> list[Recheck]:
    """Every check that can be read, the oldest first; none where the file itself cannot be."""
    try:
        return read_whole()
    except HztuneError:
        return []


def read_whole() -> list[Recheck]:
    """Every check that can be read, the oldest first.

    Raises:
        HztuneError: The file may not be read, or is none.
    """
    return sorted(_read(_lines()), key=lambda check: check.at)


def unreadable() -> int:
    """How many lines of the file hold no check: damaged ones, or those of another version.

    Raises:
        HztuneError: The file may not be read, or is none.
    """
    lines = _lines()
    return len(lines) - len([*_read(lines)])


def _lines() -> list[bytes]:
    """The newest lines of the file, without empty ones and the one that is cut."""
    path = history_file()
    try:
        with files.opened(path) as held:
            cut = max(0, path.stat().st_size - _MOST_BYTES)
            held.seek(cut)
            lines = held.read().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HztuneError(f"cannot read {str(path)!r}: {error.strerror}") from None
    return [line for line in lines[bool(cut) :] if line]


def rechecks_of(tuned: Profile, checks: Sequence[Recheck]) -> list[Recheck]:
    """The checks of one profile."""
    wanted = profile_digest(tuned)
    return [check for check in checks if check.profile == wanted]


def _read(lines: Sequence[bytes]) -> Iterator[Recheck]:
    for line in lines:
        try:
            yield _parse(line)
        except UsageError:
            continue


def _parse(line: bytes) -> Recheck:
    top = Fields(strictjson.parse(line))
    top.word("schema", (SCHEMA,))
    check = Recheck(
        at=top.text("at", CREATED),
        profile=top.text("profile", _IDENTITY),
        label=top.text("label", _SENTENCE),
        answer=cast("VerifyAnswer", top.word("answer", get_args(VerifyAnswer))),
        why=top.text("why", _SENTENCE),
        pairs=top.whole("pairs", 0, 10**9),
        found=_measured(top, "found"),
        claimed=_measured(top, "claimed"),
        rss_ratio=top.number_or_none("rss_ratio", 0, 1e9),
        here=top.child("here").texts(_SENTENCE),
    )
    top.close()
    _ = check.time  # or a day that does not exist would be met later
    return check


def _measured(top: Fields, key: str) -> RatioRange | None:
    held = top.anything(key)
    if held is None:
        return None
    fields = Fields(held, key)
    read = RatioRange(*(fields.number(name, 0, 1e9) for name in ("ratio", "ci_low", "ci_high")))
    fields.close()
    if not all(asdict(read).values()):
        raise UsageError(f"{key} has a ratio of 0; legal is one above")
    return read
