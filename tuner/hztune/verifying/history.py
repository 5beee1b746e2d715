"""A folder of profiles, and what verifications of them found: how each is measured, what is due.

A profile holds no command: `store.kept_command` reads the one beside it. A verification is a line
of $XDG_STATE_HOME/hztune/history.jsonl, written with one call and on disk before the next profile
is measured, so that a killed run has lost none, and several may write at once.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from hztune import doctor, files, profile
from hztune.arguments import printable
from hztune.blocks import Ratio
from hztune.errors import HztuneError, UsageError
from hztune.machine import WORDS, Machine, shown
from hztune.measure.program import Program
from hztune.profile import PROFILE, MachineId, Profile
from hztune.schema import TIME_FORMAT, Created, Schema, Times, Whole, as_word, time_of
from hztune.store import kept_command
from hztune.verifying.claim import Verification, VerifyAnswer
from hztune.workload import TRACE, is_trace

_SHORT = 12
_PROGRAM = "program:"

_Sentence = Annotated[str, Meta(max_length=4000)]


# ---- a folder ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kept:
    path: Path
    tuned: Profile | None = None  # what it holds; None: it is no legal profile
    words: tuple[str, ...] = ()  # of its `.args`
    fault: str = ""  # why it cannot be measured again, in one sentence; empty: it can

    @property
    def traces(self) -> list[Path]:
        named = self.tuned.workloads if self.tuned else ()
        beside = [
            self.path.parent / of.name.removeprefix(TRACE)
            for of in named
            if of.kind == "bench" and is_trace(of.name)
        ]
        return [path for path in beside if path.is_file()]


def profiles_in(folder: str | Path) -> list[Kept]:
    """The profiles of a folder, and of results directories in it; UsageError: there is none."""
    folder = Path(folder)
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise UsageError(f"cannot read the folder {str(folder)!r}: {error.strerror}") from None
    found = []
    for path in (folder / name for name in names):
        if path.name.endswith(".json") and not path.name.startswith("."):
            found.append(_kept(path))
        elif path.is_dir():
            with suppress(PermissionError):  # of what may not be looked into, reading says so
                if not (path / PROFILE).is_file():
                    continue
            found.append(_kept(path / PROFILE))
    if not found:
        raise UsageError(
            f"there is no profile in {str(folder)!r}: neither a *.json, nor a {PROFILE} in a "
            "directory of results"
        )
    return found


def _kept(path: Path) -> Kept:
    tuned = None
    try:
        tuned = profile.load(path)
        if tuned.workload.kind == "bench" or not tuned.makes_a_claim:
            return Kept(path, tuned)
        if words := kept_command.read(path):
            return Kept(path, tuned, words)
    except UsageError as error:
        return Kept(path, tuned, fault=str(error))
    missing = (
        f"it was made for a program, and {str(kept_command.place_of(path))!r} is missing: write "
        "the words of its command there, as they stand after `hztune verify PROFILE`"
    )
    return Kept(path, tuned, fault=missing)


# ---- what was found ------------------------------------------------------------------------------


class Recheck(Schema, frozen=True, tag_field="schema", tag="hztune-check/2"):
    at: Created  # when it ended
    profile: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]  # see `profile_digest`
    label: _Sentence  # what the profile is for and what it sets
    answer: VerifyAnswer
    why: _Sentence
    pairs: Whole  # fresh pairs of the interval
    found: Ratio | None  # profile / control, above 1 is better; None: too few pairs
    claimed: Ratio | None  # None: the profile carries no ratio
    rss_ratio: Times | None  # peak memory, profile / control; None: not measured
    here: dict[str, _Sentence]  # what it was measured on, see `surroundings`

    @property
    def words(self) -> str:
        ratio = f"{self.found.text}, {self.pairs} pairs" if self.found else "too few pairs"
        memory = f", {self.rss_ratio:.2f}x the memory" if self.rss_ratio is not None else ""
        return f"{self.at[:10]} {self.at[11:16]}  {ratio}{memory}: {self.answer}"


def rechecked(tuned: Profile, programs: Sequence[Program], finding: Verification) -> Recheck:
    claim, interval = tuned.claim, finding.interval
    claimed = found = None
    if claim.ratio is not None and claim.ci_low is not None and claim.ci_high is not None:
        claimed = Ratio(claim.ratio, claim.ci_low, claim.ci_high)
    if interval is not None and math.isfinite(interval.half_width):
        found = interval.ratio
    target = " and ".join(each.label for each in tuned.workloads)
    threads = f" T={tuned.threads}" if tuned.threads else ""
    sets = " ".join(f"{name}={value}" for name, value in tuned.params.items())
    return Recheck(
        at=datetime.now(timezone.utc).strftime(TIME_FORMAT),
        profile=profile_digest(tuned),
        label=printable(f"{target}{threads}: {tuned.allocator.name} {sets}".rstrip()),
        answer=finding.answer,
        why=printable(finding.why),
        pairs=interval.pairs if interval else 0,
        found=found,
        claimed=claimed,
        rss_ratio=finding.rss_ratio,
        here=surroundings(tuned, programs),
    )


def profile_digest(tuned: Profile) -> str:
    """Sixteen digits of the SHA-256 of a profile's text: the same file has the same ones."""
    return hashlib.sha256(profile.dumps(tuned).encode()).hexdigest()[:16]


def surroundings(tuned: Profile, programs: Sequence[Program]) -> dict[str, str]:
    """What may change a ratio and is known: the machine, the allocator, the programs' files."""
    here = MachineId.of(Machine.here())
    found = {name: shown(getattr(here, name)) for name in MachineId.__struct_fields__}
    if not tuned.adapter.is_inside:
        found["library"] = "not installed"
        with suppress(HztuneError):
            installed = tuned.adapter.installed()
            found["library"] = f"{installed.version} {installed.sha256[:_SHORT]}".strip()
    for program in programs:
        path = shutil.which(program.argv[0])
        content = files.sha256_of(Path(path))[:_SHORT] if path else "missing"
        found[as_word(f"{_PROGRAM}{program.label}")] = content
    return found


def changes(before: Recheck, here: Mapping[str, str]) -> tuple[str, ...]:
    """What is not as it was at a check, a sentence each; `here`: see `surroundings`."""
    told = []
    for name, old in before.here.items():
        if name in here and here[name] != old:
            what = WORDS.get(name, "library of the allocator")
            if name.startswith(_PROGRAM):
                what = f"file of the program {name.removeprefix(_PROGRAM)}"
            both = f"{old or 'unknown'} then, {here[name] or 'unknown'} now"
            told.append(f"another {what} since {before.at[:10]}: {both}")
    return tuple(told)


def due(
    tuned: Profile, last: Recheck | None, here: Mapping[str, str], now: datetime | None = None
) -> str:
    """Why a profile should be measured again, in one sentence; empty: it need not.

    It should when its term has passed since it was made or last held, when it did not hold, and
    when the machine, the kernel, a library or a program is not what it was.

    Args:
        tuned: The profile.
        last: The newest check of it; None: there was none.
        here: See `surroundings`.
        now: UTC; None: this moment.

    Raises:
        UsageError: It was made or measured on a day that does not exist.
    """
    if last is not None and last.answer != "holds":
        return f"the last time, {last.at[:10]}, the answer was: {last.answer}"
    changed = changes(last, here) if last is not None else doctor.changed_since_proof(tuned)
    if changed:
        return changed[0]
    shown = time_of("at", last.at) if last is not None else time_of("created", tuned.created)
    passed = (now or datetime.now(timezone.utc)) - shown
    if passed >= timedelta(days=tuned.term_days):
        return f"{passed.days} days have passed, and its term is {tuned.term_days} days"
    return ""


# ---- the file ------------------------------------------------------------------------------------


def history_file() -> Path:
    """Where the history is; HztuneError: this user has no home."""
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        base = named if named.is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError:
        raise HztuneError(
            "this user has no home directory, and XDG_STATE_HOME is not set"
        ) from None
    return base / "hztune" / "history.jsonl"


def append(check: Recheck) -> None:
    """Adds a check to the history; it is on disk when this returns."""
    # a writer that was killed within its line has left no end of line
    path, line = history_file(), b"\n" + msgspec.json.encode(check) + b"\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            while line:
                line = line[os.write(handle, line) :]
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise HztuneError(f"cannot write {str(path)!r}: {files.reason_of(error)}") from None


def history(tuned: Profile | None = None) -> tuple[list[Recheck], int]:
    """Every check that can be read, the oldest first, and how many lines of the file hold none.

    HztuneError: the file may not be read, or is none.
    """
    path, found, unreadable = history_file(), [], 0
    try:
        with files.opened(path) as held:
            lines = held.read().split(b"\n")
    except FileNotFoundError:
        lines = []
    except OSError as error:
        raise HztuneError(f"cannot read {str(path)!r}: {error.strerror}") from None
    for line in filter(None, lines):
        try:
            found.append(msgspec.json.decode(line, type=Recheck))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            unreadable += 1
    wanted = profile_digest(tuned) if tuned is not None else ""
    own = [check for check in found if wanted in ("", check.profile)]
    return sorted(own, key=lambda check: check.at), unreadable
