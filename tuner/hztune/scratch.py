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
from pathlib import Path

from hztune.errors import HztuneError, UsageError

_PLAIN = re.compile(r"[\w./+:@%-]+")
_TRAVERSED = 0o711
"""Rights of the directory around all others: a server of another user must get through."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Makes a directory and removes it in the end; first those that dead processes left."""
    root = _root()
    with _locked(root):
        for left in root.iterdir():
            _remove_if_left(left)
        folder = Path(tempfile.mkdtemp(prefix="", dir=root))
        held = _lock(folder)
    assert held is not None, "nothing else locks it while the root is locked"
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def require_plain() -> None:
    """Sees to it that such a directory may stand in shell commands as it is.

    Raises:
        UsageError: It may not, wherever the user's quotation marks are.
    """
    place = tempfile.gettempdir()
    if not _PLAIN.fullmatch(place):
        raise UsageError(
            f"{{dir}} would be in {place!r}, and it stands in shell commands: legal are letters, "
            "digits and _ . / + : @ % - in that path; name another directory for temporary files, "
            "such as TMPDIR=/var/tmp"
        )


def _root() -> Path:
    """Returns the directory that holds those of this user.

    Raises:
        HztuneError: It cannot be made, or is not this user's own.
    """
    root = Path(tempfile.gettempdir(), f"hztune-{os.getuid()}")
    try:
        with contextlib.suppress(FileExistsError):
            root.mkdir()
            root.chmod(_TRAVERSED)
        about = root.lstat()
    except OSError as error:
        raise HztuneError(
            f"no temporary directory can be made in {root.parent}: {error.strerror}; name another "
            "directory for temporary files with TMPDIR"
        ) from error
    if about.st_uid != os.getuid() or not root.is_dir() or root.is_symlink():
        raise HztuneError(
            f"{root} is not a directory of this user's; remove it, or name another directory for "
            "temporary files with TMPDIR"
        )
    return root


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds a directory; another process that wants it waits."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _lock(folder: Path) -> int | None:
    """Returns a descriptor that holds a directory; None: a living process holds it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _remove_if_left(folder: Path) -> None:
    """Removes the directory of a process that is dead."""
    with contextlib.suppress(OSError):
        held = _lock(folder)
        if held is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(held)
