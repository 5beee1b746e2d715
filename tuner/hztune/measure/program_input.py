"""What a program reads on stdin: a regular file, which every run reads from its start."""

from __future__ import annotations

import fcntl
import os
import select
import stat
import termios
from contextlib import suppress
from dataclasses import dataclass

from hztune.errors import UsageError
from hztune.files import regular

STDIN = "-"  # stands for what stdin is redirected from

_PATIENCE_MS = 500  # for data on an open pipe: what writes to it starts with hztune

_INSTEAD = "write it to a file and give that with --input FILE, or give an empty stdin: < /dev/null"


@dataclass(frozen=True, slots=True)
class Input:
    """A regular file that was opened once, judged, and stays open as long as this process lives."""

    name: str  # as it was given
    path: str  # by which each run opens that very file, whatever its name has become
    size: int  # bytes


def input_of(name: str) -> Input | None:
    """The file of a name, or of STDIN; None: nothing is read.

    Of a terminal, an empty file, and a pipe without data nothing is read: scripts, cron and CI give
    such a stdin to programs that do not read it.
    """
    if name and name != STDIN:
        return _opened(name, name, f"--input {name!r}")
    try:
        about = os.fstat(0)
    except OSError:  # it is closed
        name = ""
    if not name:
        return None
    if stat.S_ISREG(about.st_mode):
        own = "/proc/self/fd/0"
        return _opened(own, os.readlink(own), "stdin") if about.st_size else None
    if _has_data(about):
        raise UsageError(f"stdin is a pipe with data, which only one run could read; {_INSTEAD}")
    # nobody means a terminal or /dev/null as input
    is_silent = os.isatty(0) or about.st_rdev == os.stat(os.devnull).st_rdev
    if stat.S_ISCHR(about.st_mode) and not is_silent:
        raise UsageError(f"stdin is a device, which no run reads; {_INSTEAD}")
    return None


def _has_data(about: os.stat_result) -> bool:
    """Whether stdin is a pipe or socket with data; what fills it may have just been started."""
    if not (stat.S_ISFIFO(about.st_mode) or stat.S_ISSOCK(about.st_mode)):
        return False
    waiting, asked = bytes(4), select.poll()
    asked.register(0, select.POLLIN)
    asked.poll(_PATIENCE_MS)
    with suppress(OSError):
        waiting = fcntl.ioctl(0, termios.FIONREAD, waiting)
    return waiting != bytes(4)


def _opened(path: str, name: str, called: str) -> Input:
    try:
        fd = regular(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"{called} cannot be read: {reason}; every run reads it from its start"
        ) from error
    return Input(name, f"/proc/{os.getpid()}/fd/{fd}", os.fstat(fd).st_size)
