"""The command of a study, in a file beside its profile: a profile travels, and holds none.

`profile.args` beside `profile.json` holds the words as they stand after `hztune tune`, or after
`hztune verify PROFILE`. They may hold secrets: only the user may read what hztune writes.
"""

from __future__ import annotations

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

    UsageError: they cannot be read or split, or another user may write them.
    """
    path = place_of(record)
    try:
        real = path.resolve(strict=True)
        for each in {path, real, path.parent, path.parent.resolve(), real.parent}:
            found = each.lstat()  # who made a link chose which command is run, and is judged, too
            is_open = not stat.S_ISLNK(found.st_mode) and found.st_mode & _WRITABLE_BY_OTHERS
            if is_open or found.st_uid not in (0, os.geteuid()):
                raise UsageError(
                    f"{str(each)!r} holds a command and may be written by another user; "
                    "make it yours, and `chmod go-w` it"
                )
        content = files.read_small(real, _MOST_BYTES)
        return tuple(shlex.split(content.decode(), comments=True))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{str(path)!r} cannot be split into words: {error}") from None
