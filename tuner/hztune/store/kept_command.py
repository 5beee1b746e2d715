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
_MOST_LINKS = 8
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def place_of(record: Path) -> Path:
    """Where the command stands that a profile or a comparison was made with."""
    return record.with_suffix(".args")


def write(record: Path, words: Sequence[str]) -> None:
    if words:
        files.write_whole(place_of(record), shlex.join(words) + "\n", mode=0o600)


def read(record: Path) -> tuple[str, ...]:
    """The words of the command beside a record; () where none was kept.

    UsageError: they cannot be read or split, or another user may write them.
    """
    path = place_of(record)
    try:
        return tuple(shlex.split(_own_text(path).decode(), comments=True))
    except FileNotFoundError:
        return ()
    except OSError as error:
        what = f"cannot read {str(path)!r}, which holds a command"
        raise UsageError(f"{what}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{str(path)!r} cannot be split into words: {error}") from None


def _own_text(path: Path) -> bytes:
    """What a file holds that only this user and root can have written and put there.

    What is judged is what is open: the owner of a folder above may exchange what the names mean.
    """
    folder = _opened_folder(path.parent)
    try:
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
    """Opens a folder; who made a link to it chose which command is run, and is judged, too."""
    for _ in range(_MOST_LINKS):
        handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISLNK(_require_own(handle, path)):
                return os.dup(handle)
            path = path.parent / os.readlink("", dir_fd=handle)
        finally:
            os.close(handle)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _require_own(handle: int, path: Path) -> int:
    """Sees to it that what is open is of this user or root alone; returns its mode."""
    found = os.fstat(handle)
    is_open = not stat.S_ISLNK(found.st_mode) and found.st_mode & _WRITABLE_BY_OTHERS
    if is_open or found.st_uid not in (0, os.geteuid()):
        raise UsageError(
            f"{str(path)!r} holds a command and may be written by another user; "
            "make it yours, and `chmod go-w` it"
        )
    return found.st_mode
