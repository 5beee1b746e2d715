"""Temporary directories that do not outlive their process.

A directory is removed when it is no longer needed; where hztune itself was killed, the next one
that makes one removes it: a lock that the kernel held for the dead one is free then.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from hztune.errors import HztuneError, UsageError

_PLAIN = re.compile(r"[\w./+:@%-]+")
_PREFIX = "hztune-scratch-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Makes a directory and removes it in the end; the first time those of dead processes, too."""
    place = Path(tempfile.gettempdir())
    _remove_left(place)
    folder, held = Path(), None
    try:
        while held is None or not folder.exists():  # another process may remove it before
            if held is not None:
                os.close(held)
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
            with contextlib.suppress(FileNotFoundError):
                held = _lock(folder)
    except OSError as error:
        raise HztuneError(
            f"no temporary directory can be made in {place}: {error.strerror}; name another "
            "directory for temporary files with TMPDIR"
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def require_plain() -> None:
    """Raises UsageError unless such a directory may stand in shell commands as it is."""
    place = tempfile.gettempdir()
    if not _PLAIN.fullmatch(place):
        raise UsageError(
            f"{{dir}} would be in {place!r}, and it stands in shell commands: legal are letters, "
            "digits and _ . / + : @ % - in that path; name another directory for temporary files, "
            "such as TMPDIR=/var/tmp"
        )


def _lock(folder: Path) -> int | None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


@cache
def _remove_left(place: Path) -> None:
    """Removes what dead processes of this user left; once, as others may make any number there."""
    for folder in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            held = _lock(folder)
            if held is not None:
                if os.fstat(held).st_uid == os.geteuid():
                    shutil.rmtree(folder, ignore_errors=True)
                os.close(held)
