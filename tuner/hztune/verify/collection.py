"""A folder of profiles: which are there, how each is measured again, and which are due.

A profile holds no command: `store.kept_command` reads the one beside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hztune import profile, trace_file
from hztune.errors import UsageError
from hztune.profile import PROFILE, Profile
from hztune.store import kept_command


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
        return Kept(path, tuned, _words(path, tuned), "")
    except UsageError as error:
        return Kept(path, tuned, (), str(error))


def _words(path: Path, tuned: Profile) -> tuple[str, ...]:
    """The words of the command of a profile; nothing where it was made for workloads.

    Raises:
        UsageError: They are missing, cannot be read or split, or another user may write them.
    """
    if tuned.workload.kind == "bench" or not tuned.makes_a_claim:
        return ()
    if not (words := kept_command.read(path)):
        place = str(kept_command.place_of(path))
        raise UsageError(
            f"it was made for a program, and {place!r} is missing: write the words of its command "
            "there, as they stand after `hztune verify PROFILE`"
        )
    return words
