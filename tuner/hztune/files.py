"""Files, read with a cap and written atomically; temporary directories no other user can read.

And what a program reads on stdin: a regular file, which every run reads from its start.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import select
import stat
import sys
import tempfile
import termios
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hztune.errors import HztuneError, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]


_BLOCK_BYTES = 1 << 20

MOST_VARIABLES_BYTES = 6 << 20
"""Of a process: no program starts with more, and it may say later that all its memory is those."""

STDIN = "-"  # stands for what stdin is redirected from

_PATIENCE_MS = 500  # for data on an open pipe: what writes to it starts with hztune

_INSTEAD = "write it to a file and give that with --input FILE, or give an empty stdin: < /dev/null"


def regular(path: Path | str, flags: int = os.O_RDONLY, *, folder: int | None = None) -> int:
    """Opens a regular file, and waits for no FIFO.

    What is judged is what is open, whatever the name has come to mean. OSError: it cannot be opened
    so, or is something else (EINVAL; ELOOP of a link).
    """
    try:
        opened = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o644, dir_fd=folder)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "it is a link", str(path)) from None
    if stat.S_ISREG(os.fstat(opened).st_mode):
        return opened
    os.close(opened)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def opened(path: Path | str) -> BinaryIO:
    return os.fdopen(regular(path), "rb")


def read_small(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file; UsageError: it cannot be read, or is above `most_bytes`."""
    try:
        with opened(path) as file:
            content = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {str(path)!r}: {reason_of(error)}") from None
    if len(content) > most_bytes:
        raise UsageError(
            f"{str(path)!r} is above {most_bytes} bytes, the most that such a file may be"
        )
    return content


def text_or_empty(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def sha256_of(path: Path) -> str:
    made = hashlib.sha256()
    with opened(path) as file:
        while block := file.read(_BLOCK_BYTES):
            made.update(block)
    return made.hexdigest()


def variables_of(pid: int) -> list[bytes]:
    """The variables that a process was started with, and last an empty text; else OSError."""
    with Path("/proc", str(pid), "environ").open("rb") as file:
        return file.read(MOST_VARIABLES_BYTES).split(b"\0")


def read_toml(path: Path, most_bytes: int) -> dict[str, Any]:
    """The tables of a TOML file; UsageError: it cannot be read, or is no TOML."""
    content = read_small(path, most_bytes)
    try:
        tables: dict[str, Any] = tomllib.loads(content.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is no TOML: {error}") from error
    return tables


def append_to(path: Path, text: str, option: str) -> None:
    """Adds text to a file; UsageError: it cannot be written, or is a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    flags |= os.O_NOFOLLOW * (path.parent != Path("/dev"))  # whose links are the system's
    try:
        with os.fdopen(os.open(path, flags, 0o666), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{option} {str(path)!r} cannot be written: {reason_of(error)}") from None


def require_replaceable(path: Path) -> None:
    """HztuneError: something else than a file is at this place.

    A user's link to a file may be replaced, a link of the system (/dev/stdout) never.
    """
    is_systems = path.is_symlink() and os.readlink(path).startswith(("/dev/", "/proc/"))
    if is_systems or (path.exists() and not path.is_file()):
        kind = "it is a directory" if path.is_dir() else "it is not a regular file"
        raise HztuneError(f"cannot write {str(path)!r}: {kind}")


def write_whole(path: Path, content: str | Iterable[bytes], *, mode: int = 0o666) -> None:
    """Writes `content` so that `path` holds the old text or the new one, also after a power cut.

    A symbolic link at `path` is replaced, never followed. What is no file (/dev/null, a FIFO) is
    refused with HztuneError: it would be replaced, too, for every program on the machine.
    """
    temporary = f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        require_replaceable(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            handle = os.open(temporary, flags, mode, dir_fd=folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.writelines([content.encode()] if isinstance(content, str) else content)
                    file.flush()
                    os.fsync(handle)
                os.rename(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(temporary, dir_fd=folder)
                raise
            os.fsync(folder)
        finally:
            os.close(folder)
    except (OSError, ValueError) as error:
        raise HztuneError(f"cannot write {str(path)!r}: {reason_of(error)}") from None


def reason_of(error: OSError | ValueError) -> str:
    return str(getattr(error, "strerror", None) or error)


def fresh_results(name: str) -> Path:
    begun = time.strftime("%Y%m%d-%H%M%S")  # also those of others in the same second
    return Path("hztune-results", f"{name}-{begun}-{secrets.token_hex(2)}")


def make_folder(path: Path) -> None:
    """Makes a results directory, unless it is there; UsageError: no file can be made in it."""
    try:
        path.mkdir(0o755, parents=True, exist_ok=True)  # what it holds is executed: `kept_command`
    except OSError as error:
        raise UsageError(f"cannot write results to {str(path)!r}: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write results to {str(path)!r}: it is not writable")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    place = tempfile.gettempdir()
    try:
        made = tempfile.TemporaryDirectory(prefix="hztune-", ignore_cleanup_errors=True)
    except OSError as error:
        raise HztuneError(
            f"no temporary directory can be made in {place}: {error.strerror}; name another "
            "directory for temporary files with TMPDIR"
        ) from error
    with made as folder:
        yield Path(folder)


def require_plain() -> None:
    """Raises UsageError unless such a directory may stand in shell commands as it is."""
    place = tempfile.gettempdir()
    if not re.fullmatch(r"[\w./+:@%-]+", place):
        raise UsageError(
            f"{{dir}} would be in {place!r}, and it stands in shell commands: legal are letters, "
            "digits and _ . / + : @ % - in that path; name another directory for temporary files, "
            "such as TMPDIR=/var/tmp"
        )


# ---- what a program reads on stdin ---------------------------------------------------------------


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
