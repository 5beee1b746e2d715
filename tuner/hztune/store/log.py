"""An append-only file of checksummed JSON lines, with one writer, that survives whatever ends it.

A record is one line, written by one `write`. It carries its number (`seq`, from 0 without a gap)
and, last, the CRC-32 of the line up to there. A writer that was killed, or a disk that was full,
can leave no more than an unfinished last line: opening cuts it off. A power cut may also lose pages
of what was not synced and keep later ones: file systems show zeros for such a page, and opening
sets aside what stands from there on. Damage anywhere else is refused, not repaired. The lock
belongs to the open file, so that the kernel drops it with its holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from hztune.errors import HztuneError, UsageError

Record = dict[str, Any]
Lean = Callable[[bytes], bytes]
"""From a record's line to one of what its reader wants of it; `bytes` leaves it as it is."""

KIND_WITHIN = 64
"""Bytes of a line in which it says of what kind it is."""

_FIRST = b'{"seq":0,'
_AFTER_SYNC = (b',"kind":"block",', b',"kind":"end",')
"""In a line that `SampleStore` writes only when everything before it is on the disk."""

_AT_ONCE = 100
"""Lines that are decoded together: that takes little more than half the time of one by one."""
_END_BYTES = len(b',"crc":"01234567"}\n')


class Log:
    """The writer's end; there is one at a time."""

    def __init__(self, path: Path) -> None:
        """Opens or creates the file, locks it, cuts off what its last writer did not finish.

        Raises:
            UsageError: Another process writes it, or it cannot be opened or created.
            HztuneError: It is damaged before its end.
        """
        self.path = path
        self._is_synced = False
        self._fd = _open(path)
        try:
            _lock(self._fd, path)
            with path.open("rb") as file:
                whole = os.fstat(self._fd).st_size
                self.count, self._last, self._size = _measure(file, whole, path)
            self.cut_bytes = whole - self._size
            self._set_aside(os.pread(self._fd, self.cut_bytes, self._size))
            os.ftruncate(self._fd, self._size)
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Log:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the file."""
        self.close()

    def records(self, lean: Lean = bytes) -> Iterator[Record]:
        """Yields what the file holds, of each line what `lean` leaves of it."""
        with self.path.open("rb") as file:
            yield from _records(file, self.count, lean)

    def last(self) -> Record | None:
        """Returns the last record; None: there is none."""
        line = os.pread(self._fd, self._size - self._last, self._last)
        return next(_records(iter([line]), min(1, self.count)), None)

    def append(self, record: Record) -> None:
        """Writes a record under the next number.

        Raises:
            HztuneError: It could not be written; the file holds what it held before.
        """
        line = _encode({"seq": self.count, **record})
        self._is_synced = False
        try:
            self._write(line)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise self._failure(error) from error
        self._last = self._size
        self._size += len(line)
        self.count += 1

    def sync(self) -> None:
        """Waits until everything written is on the disk.

        Raises:
            HztuneError: The disk refused it.
        """
        if self._is_synced:
            return
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise self._failure(error) from error
        self._is_synced = True

    def close(self) -> None:
        """Closes the file and so drops the lock; once more does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, line: bytes) -> None:
        """Writes all of the line; a full disk takes a part first and then says so."""
        while line:
            line = line[os.write(self._fd, line) :]

    def _set_aside(self, rest: bytes) -> None:
        """Keeps in a file beside what is cut off, if records are in it, and says so."""
        if not _has_lines(rest):
            return
        number = 1
        while (beside := self.path.with_name(f"{self.path.name}.torn-{number}")).exists():
            number += 1
        try:
            with beside.open("xb") as file:
                file.write(rest)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise HztuneError(f"cannot write {beside}: {error.strerror}") from error
        logging.getLogger(__name__).warning(
            "%s is torn in line %d, as a power cut leaves it; what stands from there on, of the "
            "last block, is kept in %s",
            self.path,
            self.count + 1,
            beside.name,
        )

    def _failure(self, error: OSError) -> HztuneError:
        """Returns what to tell the user when writing failed."""
        return HztuneError(
            f"cannot write {self.path}: {error.strerror}; every sample before this one is kept: "
            "make room and go on with --resume"
        )


def read(path: Path, lean: Lean = bytes) -> Iterator[Record]:
    """Yields the complete records of a file, which another process may be writing.

    Args:
        path: The file.
        lean: Makes of each line one of what is wanted of it.

    Raises:
        UsageError: It cannot be read.
        HztuneError: It is damaged before its end.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    with file:
        count, *_ = _measure(file, os.fstat(file.fileno()).st_size, path)
        file.seek(0)
        yield from _records(file, count, lean)


def packed(records: Iterable[Record]) -> str:
    """Returns records as the text of a file that holds them and no other."""
    return b"".join(_encode({"seq": seq, **each}) for seq, each in enumerate(records)).decode()


def unpacked(text: str, what: str) -> list[Record]:
    """Returns the records of such a text.

    Raises:
        HztuneError: It is damaged; `what` says in the message what it is.
    """
    lines = text.encode().splitlines(keepends=True)
    if not all(_is_whole(line, seq) for seq, line in enumerate(lines)):
        raise HztuneError(f"{what} is damaged; restore it from a copy, or start anew")
    return list(_records(iter(lines), len(lines)))


def write_log(path: Path, records: Iterable[Record]) -> None:
    """Makes a file that holds the records and no other, or leaves the one that is there.

    Raises:
        HztuneError: It could not be written.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with Log(new) as log:
            for record in records:
                log.append(record)
            log.sync()
        new.rename(path)
    finally:
        new.unlink(missing_ok=True)


def _open(path: Path) -> int:
    """Opens the file for appending, creating it if need be."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags, 0o644)
    except OSError as error:
        raise UsageError(f"cannot open {path}: {error.strerror}") from error


def _lock(fd: int, path: Path) -> None:
    """Takes the writer's lock, or says who has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise UsageError(
            f"{path} is being written by {_holder(fd)}; wait for it or choose another --out"
        ) from None


def _holder(fd: int) -> str:
    """Returns "process N" for the holder of the lock, as far as the kernel tells."""
    inode = str(os.fstat(fd).st_ino)
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode:
                return f"process {words[4]}"
    return "another process"


def _encode(record: Record) -> bytes:
    """Returns the line of a record."""
    text = json.dumps(record, separators=(",", ":"), allow_nan=False).encode()[:-1]
    return text + _end(text)


def _records(lines: Iterator[bytes], count: int, lean: Lean = bytes) -> Iterator[Record]:
    """Yields the records of the first `count` lines, which have been found whole."""
    lines = islice(lines, count)
    while some := list(islice(lines, _AT_ONCE)):
        for record in json.loads(b"[%b]" % b",".join(map(lean, some))):
            record.pop("crc", None)
            yield record


def _measure(file: BinaryIO, whole: int, path: Path) -> tuple[int, int, int]:
    """Returns how many whole records there are, where the last one begins, and where it ends.

    An unfinished one may follow, or what a power cut left of records that were not synced.

    Args:
        file: Open at its beginning.
        whole: Bytes to look at: a writer may be adding more.
        path: For the words about what is wrong.
    """
    count = last = size = 0
    for line in file:
        if size + len(line) > whole or not _is_whole(line, count):
            break
        count += 1
        last, size = size, size + len(line)
    file.seek(size)
    rest = file.read(whole - size)
    if count == 0 and not _is_ours(rest):
        raise UsageError(f"{path} holds something else than samples; choose another --out")
    if _has_lines(rest) and not _is_torn(rest):
        raise HztuneError(
            f"{path} is damaged in line {count + 1}; restore it from a copy, "
            "or start anew with another --out"
        )
    return count, last, size


def _has_lines(rest: bytes) -> bool:
    """Whether more stands behind the whole records than an unfinished one."""
    return b"\n" in rest.rstrip(b"\0\n")


def _is_torn(rest: bytes) -> bool:
    """Whether a power cut can have left this: zeros, and no sign behind them of a later sync.

    Where the last block of all is complete, nothing says whether it had been synced.
    """
    first, *others = rest.splitlines(keepends=True)
    return b"\0" in first and not any(
        line.endswith(_end(line[:-_END_BYTES]))
        and any(mark in line[:KIND_WITHIN] for mark in _AFTER_SYNC)
        for line in others
    )


def _is_ours(content: bytes) -> bool:
    """Whether a file begins as the first record does, as far as it was written at all.

    What is no record may only be cut off behind records, or where the first one was torn.
    """
    begun = content.rstrip(b"\0")[: len(_FIRST)]
    return _FIRST.startswith(begun)


def _is_whole(line: bytes, seq: int) -> bool:
    """Whether a line is the record with this number, as it was written."""
    return line.startswith(b'{"seq":%d,' % seq) and line.endswith(_end(line[:-_END_BYTES]))


def _end(text: bytes) -> bytes:
    """What follows the text of a record: its CRC-32."""
    return b',"crc":"%08x"}\n' % zlib.crc32(text)
