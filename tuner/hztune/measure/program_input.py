"""What a program reads on stdin: a regular file, which every run reads from its start."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import termios
from contextlib import suppress
from dataclasses import dataclass

from hztune.errors import UsageError

STDIN = "-"
"""Stands for what stdin is redirected from."""


@dataclass(frozen=True, slots=True)
class Input:
    """A regular file that was opened once, judged, and stays open as long as this process lives.

    Attributes:
        name: As it was given.
        path: By which each run opens that very file, whatever its name has become.
        size: Bytes.
    """

    name: str
    path: str
    size: int


def input_of(name: str) -> Input | None:
    """The file of a name, or of STDIN; None: nothing is read.

    Of a terminal, an empty file, and a pipe without data nothing is read: scripts, cron and CI give
    such a stdin to programs that do not read it.

    Raises:
        UsageError: It cannot be given to every run anew.
    """
    if not name:
        return None
    if name != STDIN:
        return _opened(name, name, f"--input {name!r}")
    try:
        about = os.fstat(0)
    except OSError:  # it is closed
        return None
    if stat.S_ISREG(about.st_mode):
        own = "/proc/self/fd/0"
        return _opened(own, os.readlink(own), "stdin") if about.st_size else None
    waiting = bytes(4)
    with suppress(OSError):
        waiting = fcntl.ioctl(0, termios.FIONREAD, waiting)
    is_pipe = stat.S_ISFIFO(about.st_mode) or stat.S_ISSOCK(about.st_mode)
    if is_pipe and struct.unpack("i", waiting)[0]:
        raise UsageError(
            "stdin is a pipe with data, which only one run could read; write it to a file and give "
            "that with --input FILE, or give an empty stdin: < /dev/null"
        )
    return None


def _opened(path: str, name: str, called: str) -> Input:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{called} cannot be read: {reason}") from error
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode):
        os.close(fd)
        raise UsageError(
            f"{called} is no regular file, and every run reads it from its start; write it to one"
        )
    return Input(name, f"/proc/{os.getpid()}/fd/{fd}", about.st_size)
