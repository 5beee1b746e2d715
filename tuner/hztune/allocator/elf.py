"""Just enough of ELF to know how a program will be loaded and what gives it malloc.

Layout: System V ABI, chapters 4 and 5, and the generic ELF-64 and ELF-32 tables of elf(5).

A file may be another user's, who writes to it and truncates it meanwhile: parts of it are copied,
as a mapping would end in SIGBUS, and how much is read does not depend on what the file says.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hztune.files import opened

MAGIC = b"\x7fELF"
_ET_EXEC = 2
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB, _DT_SONAME = 1, 5, 14
_SHT_SYMTAB, _SHT_DYNSYM = 2, 11
_UNDEFINED = 0
_ASKED_FOR = frozenset({b"malloc", b"environ"})
_LONGEST_TEXT = 64
_MOST_TEXTS = 1000
_LONGEST_NAME = 4096
_MOST_BYTES = 8 << 30
"""Of a program or library: what is larger is none, and is not read to its end."""

_MOST_PART = 64 << 20
"""Bytes of the largest table that is read: a million symbols are 24 MiB."""

_MOST_DYNAMIC = 64 << 10
_MOST_SYMBOLS = 1 << 20
_MOST_SEARCHED = 1 << 30
"""Bytes in which texts are looked for: they stand before what is there for debuggers."""

_BLOCK_BYTES = 1 << 20
_MOST_OFFSET = 1 << 62


@dataclass(frozen=True, slots=True)
class Elf:
    """What the headers of one file say."""

    machine: tuple[int, int]
    """Kind of processor (e_machine) and word size, to tell what may load what."""
    interpreter: Path | None
    """The loader that it asks for; None for a static program and for most libraries."""
    soname: str
    needed: tuple[str, ...]
    """Sonames of the libraries that it was linked with, in order."""
    defines: frozenset[str]
    """Which of malloc and environ other files can see in it."""
    dynamic: int
    """Where its dynamic section is loaded, as the file counts addresses; 0: it has none."""
    is_fixed: bool
    """Whether its addresses are final; else they count from where it is loaded."""


class _Shape(NamedTuple):
    """Formats of the tables, and the places in their rows; each word size has its own."""

    bits: int
    header: str
    program: str
    """Its rows hold a segment's kind, and where `segment` says its offset, address and size."""
    segment: tuple[int, int, int, int]
    section: str
    dynamic: str
    symbol: str
    """Its rows hold a name, at `where` the number of the section, at `address` the address."""
    where: int
    address: int


_SHAPES = {
    1: _Shape(32, "16xHHIIIIIHHHHHH", "IIIIIIII", (0, 1, 2, 4), "IIIIIIIIII", "iI", "IIIBBH", 5, 1),
    2: _Shape(64, "16xHHIQQQIHHHHHH", "IIQQQQQQ", (0, 2, 3, 5), "IIQQQQIIQQ", "qQ", "IBBHQQ", 3, 4),
}
_Segment = tuple[int, ...]
"""Kind, offset in the file, address, size."""

_KNOWN: dict[tuple[int, ...], Elf | None] = {}
"""Each version of a file is read once: it is asked for at every look at a process."""


def read(path: Path) -> Elf | None:
    """What the headers of `path` say; None: it is no ELF file, or a broken one; else OSError."""
    with opened(path) as file:
        status = os.fstat(file.fileno())
        version = (status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)
        if version not in _KNOWN:
            _KNOWN[version] = None
            if status.st_size <= _MOST_BYTES and file.read(len(MAGIC)) == MAGIC:
                with suppress(struct.error, ValueError, IndexError, OverflowError):
                    _KNOWN[version] = _parse(_Content(file))
        return _KNOWN[version]


def address_of(path: Path, symbol: str) -> int | None:
    """Where a symbol stands, counted from where the file is loaded; None: unknown.

    Symbols that other files cannot see are found as well, unless they were stripped. `*_name` is
    the first symbol that ends so.

    Raises:
        OSError: It cannot be read.
        ValueError, struct.error, IndexError: It is broken.
    """
    name, ending = symbol.encode(), symbol.removeprefix("*").encode()
    with opened(path) as file:
        data = _Content(file)
        for kind in (_SHT_DYNSYM, _SHT_SYMTAB):
            for found, address in data.symbols(kind):
                if found == name or (ending != name and found.endswith(ending)):
                    return address
    return None


def contained(path: Path, texts: Collection[bytes]) -> set[bytes]:
    """Those of `texts` that stand somewhere in the file."""
    found: set[bytes] = set()
    for block in _blocks(path):
        found |= {text for text in texts if text not in found and text in block}
        if len(found) == len(texts):
            break
    return found


def texts_ending(path: Path, ending: bytes) -> tuple[str, ...]:
    """The NUL-terminated texts of the file that end so, each once, in its order."""
    found: dict[str, None] = {}
    for block in _blocks(path):
        at = block.find(ending + b"\0")
        while at >= 0 and len(found) < _MOST_TEXTS:
            start = block.rfind(b"\0", max(0, at - _LONGEST_TEXT), at)
            if start >= 0:
                found[block[start + 1 : at + len(ending)].decode(errors="replace")] = None
            at = block.find(ending + b"\0", at + 1)
    return tuple(found)


def matches(path: Path, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
    """The first place of the file that matches; None: there is none."""
    return next((found for block in _blocks(path) if (found := pattern.search(block))), None)


def _blocks(path: Path) -> Iterator[bytes]:
    """Yields the file in blocks that overlap, so that a text of _LONGEST_TEXT is whole in one."""
    with opened(path) as file:
        ending = b""
        for _ in range(_MOST_SEARCHED // _BLOCK_BYTES):
            block = file.read(_BLOCK_BYTES)
            if not block:
                break
            yield ending + block
            ending = block[-2 * _LONGEST_TEXT :]


class _Content:
    """Parts of a file; less where the file ends."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        about = self.part(0, 6)
        self.order = ">" if about[5] == 2 else "<"
        self.shape = _SHAPES.get(about[4], _SHAPES[1])
        self.header = self.row(self.shape.header, 0)

    def part(self, offset: int, size: int) -> bytes:
        """A copy of a part; ValueError: no part of a sound file is so large, or stands there."""
        if size > _MOST_PART or offset > _MOST_OFFSET:
            raise ValueError
        return os.pread(self._file.fileno(), size, offset)

    def row(self, layout: str, offset: int) -> tuple[Any, ...]:
        layout = self.order + layout
        return struct.unpack(layout, self.part(offset, struct.calcsize(layout)))

    def rows(self, layout: str, start: int, size: int, count: int) -> list[tuple[Any, ...]]:
        """The rows of a table whose rows take `size` bytes each."""
        return [self.row(layout, start + index * size) for index in range(count)]

    def text(self, offset: int) -> bytes:
        """The NUL-terminated text at a place."""
        return self.part(offset, _LONGEST_NAME).partition(b"\0")[0]

    def segments(self) -> list[_Segment]:
        start, size, count = self.header[4], self.header[8], self.header[9]
        rows = self.rows(self.shape.program, start, size, count)
        return [tuple(row[place] for place in self.shape.segment) for row in rows]

    def dynamic(self, offset: int, size: int) -> list[tuple[int, int]]:
        """Tag and value of each entry of the dynamic section."""
        layout = self.order + self.shape.dynamic
        table = self.part(offset, min(size, _MOST_DYNAMIC))
        whole = len(table) - len(table) % struct.calcsize(layout)
        return list(struct.iter_unpack(layout, table[:whole]))

    def symbols(self, kind: int) -> Iterator[tuple[bytes, int]]:
        """Name and address of the symbols of one table that stand in this very file."""
        start, size, count = self.header[5], self.header[10], self.header[11]
        rows = self.rows(self.shape.section, start, size, count)
        table = next((row for row in rows if row[1] == kind), None)
        if table is None:
            return
        names = self.part(rows[table[6]][4], rows[table[6]][5])
        symbols = struct.iter_unpack(self.order + self.shape.symbol, self.part(table[4], table[5]))
        for symbol in islice(symbols, _MOST_SYMBOLS):
            if symbol[self.shape.where] != _UNDEFINED:
                start = symbol[0]
                end = names.find(b"\0", start, start + _LONGEST_NAME)
                yield names[start:end] if end >= 0 else b"", symbol[self.shape.address]


def _parse(data: _Content) -> Elf:
    segments = data.segments()
    interpreter = next((offset for kind, offset, *_ in segments if kind == _PT_INTERP), None)
    section = next((each for each in segments if each[0] == _PT_DYNAMIC), None)
    dynamic = data.dynamic(section[1], section[3]) if section else []
    strings = _offset(segments, next((value for tag, value in dynamic if tag == _DT_STRTAB), 0))
    named = [
        (tag, data.text(strings + value).decode(errors="replace"))
        for tag, value in dynamic
        if tag in (_DT_NEEDED, _DT_SONAME)
    ]
    defined = {name for name, _ in data.symbols(_SHT_DYNSYM)}
    return Elf(
        machine=(data.header[1], data.shape.bits),
        interpreter=None if interpreter is None else Path(data.text(interpreter).decode()),
        soname=next((name for tag, name in named if tag == _DT_SONAME), ""),
        needed=tuple(name for tag, name in named if tag == _DT_NEEDED),
        defines=frozenset(name.decode() for name in defined & _ASKED_FOR),
        dynamic=section[2] if section else 0,
        is_fixed=data.header[0] == _ET_EXEC,
    )


def _offset(segments: list[_Segment], address: int) -> int:
    """Where in the file the byte at a virtual address stands."""
    for kind, offset, start, size in segments:
        if kind == _PT_LOAD and 0 <= address - start < size:
            return address - start + offset
    return 0
