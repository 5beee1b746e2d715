"""The command of a study, in a file beside its profile: a profile travels, and holds none.

`profile.args` beside `profile.json` holds the words as they stand after `hztune tune`, or after
`hztune verify PROFILE`. They may hold secrets: only the user may read what hztune writes.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path

from hztune import files
from hztune.errors import UsageError

_MOST_BYTES = 64 * 1024
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def place_of(record: Path) -> Path:
    """Where the command stands that a profile or a comparison was made with."""
    return record.with_suffix(".args")


def write(record: Path, words: Sequence[str]) -> None:
    """Keeps the command beside a record; no words at all are not kept."""
    if words:
        files.write_whole(place_of(record), shlex.join(words) + "\n", mode=0o600)


def read(record: Path) -> tuple[str, ...]:
    """The words of the command beside a record; () where none was kept.

    Raises:
        UsageError: They cannot be read or split, or another user may write them.
    """
    path = place_of(record)
    try:
        return tuple(shlex.split(_own_text(path).decode(), comments=True))
    except FileNotFoundError:
        return ()
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise UsageError(f"cannot read {str(path)!r}, which holds a command: {why}") from None
    except (UnicodeDecodeError, ValueError) as error:
        raise UsageError(f"{str(path)!r} cannot be split into words: {error}") from None


def _own_text(path: Path) -> bytes:
    """Reads a file that only this user and root can have written and put there.

    Raises:
        OSError: It cannot be read, or is a link, or no regular file.
        UsageError: Another user may write it, or its folder, or it is no small file.
    """
    folder = _opened_folder(path.parent)
    try:
        _require_own(folder, path.parent)
        handle = files.regular(path.name, os.O_RDONLY | os.O_NOFOLLOW, folder=folder)
    finally:
        os.close(folder)
    with os.fdopen(handle, "rb") as file:
        _require_own(handle, path)
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise UsageError(f"{str(path)!r} is above {_MOST_BYTES} bytes, which no command is")
    return content


def _opened_folder(path: Path) -> int:
    """Opens a folder; who made a link to it chose which command is run, and is judged as well."""
    named = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        place: str | Path = f"/proc/self/fd/{named}"
        if stat.S_ISLNK(os.fstat(named).st_mode):
            _require_own(named, path)
            place = path.parent / os.readlink("", dir_fd=named)
        return os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(named)


def _require_own(handle: int, path: Path) -> None:
    found = os.fstat(handle)
    is_open = found.st_mode & _WRITABLE_BY_OTHERS and not stat.S_ISLNK(found.st_mode)
    if is_open or found.st_uid not in (0, os.geteuid()):
        raise UsageError(
            f"{str(path)!r} holds a command and may be written by another user; "
            "make it yours, and `chmod go-w` it"
        )
