"""Rows as checksummed lines of JSON, and what a writer that was killed may have left of the last.

A line carries its number (`seq`, from 0 without a gap) and, last, the CRC-32 of the line up to
there. A writer that was killed, or a full disk, leaves no more than an unfinished last line; a
power cut may also lose pages of what was not synced, and leave zeros there. Both are recognized:
what stands before counts. Damage anywhere else is refused.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from hztune import files
from hztune.errors import HztuneError, UsageError

Record = dict[str, Any]
Lean = Callable[[bytes], bytes]
"""From a record's line to one of what its reader wants of it; `bytes` leaves it as it is."""

KIND_WITHIN = 64
"""Bytes of a line in which it says of what kind it is."""

_FIRST = b'{"seq":0,'
_AFTER_SYNC = (b',"kind":"block",', b',"kind":"end",')
"""In a line that is written only when everything before it is on the disk."""

_AT_ONCE = 100
"""Lines that are decoded together: that takes little more than half the time of one by one."""


def packed(record: Record, seq: int) -> bytes:
    """Returns the line of a record."""
    text = json.dumps({"seq": seq, **record}, separators=(",", ":"), allow_nan=False).encode()[:-1]
    return text + _end(text)


def decoded(lines: Iterable[bytes], lean: Lean = bytes) -> Iterator[Record]:
    """Yields the records of whole lines, of each what `lean` leaves of it."""
    rest = iter(lines)
    while some := list(islice(rest, _AT_ONCE)):
        for record in json.loads(b"[%b]" % b",".join(map(lean, some))):
            record.pop("crc", None)
            yield record


def read(path: Path) -> list[bytes]:
    """Returns the whole lines of a file that may be being written.

    Raises:
        UsageError: It cannot be read, or holds something else.
        HztuneError: It is damaged before its end.
    """
    try:
        with files.opened(path) as file:
            content = file.read()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    lines: list[bytes] = []
    for line in content.splitlines(keepends=True):
        if not (line.startswith(b'{"seq":%d,' % len(lines)) and _is_whole(line)):
            break
        lines.append(line)
    rest = content[sum(map(len, lines)) :]
    if not lines and not _FIRST.startswith(rest.rstrip(b"\0")[: len(_FIRST)]):
        raise UsageError(f"{path} holds something else than samples; choose another --out")
    if b"\n" in rest.rstrip(b"\0\n") and not _is_torn(rest):
        raise HztuneError(
            f"{path} is damaged in line {len(lines) + 1}; restore it from a copy, "
            "or start anew with another --out"
        )
    return lines


def _is_torn(rest: bytes) -> bool:
    """Whether a power cut can have left this: zeros, and no sign behind them of a later sync."""
    first, *others = rest.splitlines(keepends=True)
    return b"\0" in first and not any(
        _is_whole(line) and any(mark in line[:KIND_WITHIN] for mark in _AFTER_SYNC)
        for line in others
    )


def _is_whole(line: bytes) -> bool:
    """Whether a line is as it was written."""
    return line.endswith(_end(line[: -len(_end(b""))]))


def _end(text: bytes) -> bytes:
    """What follows the text of a record: its CRC-32."""
    return b',"crc":"%08x"}\n' % zlib.crc32(text)
