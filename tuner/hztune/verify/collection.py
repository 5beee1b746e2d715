"""A folder of profiles: which are there, how each is measured again, and which are due.

A profile holds no command. One that was made for a program has its words in a file beside it, whose
name ends in `.args` instead of `.json`, as they would stand on the command line of
`hztune verify`: `-- ./program its arguments`, or `--server '...' --load '...'`.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hztune import files, profile, trace_file
from hztune.errors import UsageError
from hztune.profile import PROFILE, Profile

ARGUMENTS = ".args"
_MOST_BYTES = 64 * 1024
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Kept:
    """A profile of a folder.

    Attributes:
        path: Its file.
        tuned: What it holds; None: it is no legal profile.
        words: Of its `.args`.
        fault: Why it cannot be measured again, in one sentence; empty: it can.
    """

    path: Path
    tuned: Profile | None
    words: tuple[str, ...]
    fault: str

    @property
    def traces(self) -> list[Path]:
        """The traces that it was made for, as far as they stand beside it."""
        named = self.tuned.workloads if self.tuned else ()
        beside = [
            self.path.parent / of.name.removeprefix(trace_file.PREFIX)
            for of in named
            if of.kind == "bench" and trace_file.is_trace(of.name)
        ]
        return [path for path in beside if path.is_file()]


def profiles_in(folder: Path) -> list[Kept]:
    """The profiles of a folder, `*.json`, and those of results directories below it, by name.

    Raises:
        UsageError: It is no folder that can be read, or holds none.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise UsageError(f"cannot read the folder {str(folder)!r}: {error.strerror}") from None
    found = [_kept(path) for path in _files(folder, names)]
    if not found:
        raise UsageError(
            f"there is no profile in {str(folder)!r}: neither a *.json, nor a {PROFILE} in a "
            "directory of results"
        )
    return found


def _files(folder: Path, names: list[str]) -> Iterator[Path]:
    for name in names:
        path = folder / name
        if name.endswith(".json") and not name.startswith("."):
            yield path
        elif _may_be_there(path / PROFILE):
            yield path / PROFILE


def _may_be_there(path: Path) -> bool:
    """Whether there is a file, or a folder that does not let one see: then reading it says so."""
    try:
        return path.is_file()
    except OSError:
        return True


def _kept(path: Path) -> Kept:
    try:
        tuned = profile.load(path)
    except UsageError as error:
        return Kept(path, None, (), str(error))
    try:
        return Kept(path, tuned, _words(path.with_suffix(ARGUMENTS), tuned), "")
    except UsageError as error:
        return Kept(path, tuned, (), str(error))


def _words(path: Path, tuned: Profile) -> tuple[str, ...]:
    """What stands in the `.args` of a profile; nothing where it was made for workloads.

    Raises:
        UsageError: It is missing, cannot be read or split, or another user may write it.
    """
    if tuned.workload.kind == "bench" or not tuned.makes_a_claim:
        return ()
    try:
        found = path.stat()
    except OSError:
        raise UsageError(
            f"it was made for a program, and {str(path)!r} is missing: write the words of its "
            "command there, as they stand after `hztune verify PROFILE`"
        ) from None
    if found.st_mode & _WRITABLE_BY_OTHERS or found.st_uid not in (0, os.geteuid()):
        raise UsageError(
            f"{str(path)!r} holds a command and may be written by another user; "
            "make it yours, and `chmod go-w` it"
        )
    try:
        return tuple(shlex.split(files.read_small(path, _MOST_BYTES).decode(), comments=True))
    except (UnicodeDecodeError, ValueError) as error:
        raise UsageError(f"{str(path)!r} cannot be split into words: {error}") from None
