"""Rows as checksummed lines of JSON: in the database, and in `samples.jsonl`.

A line carries its number (`seq`, from 0 without a gap) and, last, the CRC-32 of the line up to
there; what else a study says of itself carries one, too (`sealed`). Before there was a `study.db`,
`samples.jsonl` was written line by line. A writer that was killed, or a full disk, left no more
than an unfinished last line; a power cut could also lose pages of the last block and leave zeros
there. Both are recognized; damage anywhere else is refused.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
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
"""In a line that was written, before `study.db`, only when everything before it was on the disk."""

_AT_ONCE = 100
"""Lines that are decoded together: that takes little more than half the time of one by one."""
_END_BYTES = len(b',"crc":"01234567"}\n')


def packed(record: Record, seq: int = 0) -> bytes:
    """Returns the line of a record."""
    text = json.dumps({"seq": seq, **record}, separators=(",", ":"), allow_nan=False).encode()[:-1]
    return text + _end(text)


def numbered(lines: Iterable[bytes], start: int = 0) -> Iterator[bytes]:
    """Yields lines under new numbers, from `start` on; nothing else in them changes."""
    for seq, line in enumerate(lines, start):
        text = b'{"seq":%d,%b' % (seq, line[line.index(b",") + 1 : -_END_BYTES])
        yield text + _end(text)


def are_whole(lines: Iterable[bytes]) -> bool:
    """Whether lines are as they were written, under whichever numbers."""
    return all(line.endswith(_end(line[:-_END_BYTES])) for line in lines)


def are_numbered(lines: Iterable[bytes]) -> bool:
    """Whether lines are as they were written, and none is missing."""
    return all(_is_whole(line, seq) for seq, line in enumerate(lines))


def sealed(held: Mapping[str, Any], beside: str = "") -> str:
    """Returns an object as JSON with the CRC-32 of itself and of what is stored beside it."""
    return json.dumps({**held, "crc": _crc(json.dumps(held), beside)})


def unsealed(text: str, beside: str = "") -> Record:
    """Returns the object in a text that `sealed` made, or that is from before there were seals.

    Raises:
        ValueError: It is not as it was written.
    """
    held: Record = json.loads(text)
    crc = held.pop("crc", None)
    if crc not in (None, _crc(json.dumps(held), beside)):
        raise ValueError("its checksum is another one")
    return held


def decoded(lines: Iterable[bytes], lean: Lean = bytes) -> Iterator[Record]:
    """Yields the records of whole lines, of each what `lean` leaves of it."""
    rest = iter(lines)
    while some := list(islice(rest, _AT_ONCE)):
        for record in json.loads(b"[%b]" % b",".join(map(lean, some))):
            record.pop("crc", None)
            yield record


def read(path: Path) -> tuple[list[bytes], bytes]:
    """Returns the whole lines of a file that may be being written, and what is torn behind them.

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
        if not _is_whole(line, len(lines)):
            break
        lines.append(line)
    rest = content[sum(map(len, lines)) :]
    if not lines and not _is_ours(rest):
        raise UsageError(f"{path} holds something else than samples; choose another --out")
    if has_lines(rest) and not _is_torn(rest):
        raise HztuneError(
            f"{path} is damaged in line {len(lines) + 1}; restore it from a copy, "
            "or start anew with another --out"
        )
    return lines, rest


def has_lines(rest: bytes) -> bool:
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
    return _FIRST.startswith(content.rstrip(b"\0")[: len(_FIRST)])


def _is_whole(line: bytes, seq: int) -> bool:
    """Whether a line is the record with this number, as it was written."""
    return line.startswith(b'{"seq":%d,' % seq) and line.endswith(_end(line[:-_END_BYTES]))


def _end(text: bytes) -> bytes:
    """What follows the text of a record: its CRC-32."""
    return b',"crc":"%08x"}\n' % zlib.crc32(text)


def _crc(*texts: str) -> str:
    return f"{zlib.crc32(chr(0).join(texts).encode()):08x}"
