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
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

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
    """What the headers of one file say.

    Attributes:
        machine: Kind of processor (e_machine) and word size, to tell what may load what.
        interpreter: The loader that it asks for; None for a static program and for most libraries.
        soname: The name that it goes by as a library; "" when it has none.
        needed: Sonames of the libraries that it was linked with, in order.
        defines: Which of malloc and environ other files can see in it.
        dynamic: Where its dynamic section is loaded, as the file counts addresses; 0: it has none.
        is_fixed: Its addresses are final; else they count from where it is loaded.
    """

    machine: tuple[int, int]
    interpreter: Path | None
    soname: str
    needed: tuple[str, ...]
    defines: frozenset[str]
    dynamic: int
    is_fixed: bool


@dataclass(frozen=True, slots=True)
class _Shape:
    """The formats of one word size and byte order."""

    order: str
    bits: int

    @property
    def header(self) -> str:
        word = "Q" if self.bits == 64 else "I"
        return f"{self.order}16xHHI{word}{word}{word}IHHHHHH"

    @property
    def program(self) -> str:
        return self.order + ("IIQQQQQQ" if self.bits == 64 else "IIIIIIII")

    @property
    def section(self) -> str:
        return self.order + ("IIQQQQIIQQ" if self.bits == 64 else "IIIIIIIIII")

    @property
    def dynamic(self) -> str:
        return self.order + ("qQ" if self.bits == 64 else "iI")

    @property
    def symbol(self) -> str:
        return self.order + ("IBBHQQ" if self.bits == 64 else "IIIBBH")

    @property
    def where(self) -> int:
        """Place of the section's number in a symbol."""
        return 3 if self.bits == 64 else 5

    @property
    def address(self) -> int:
        """Place of the address in a symbol."""
        return 4 if self.bits == 64 else 1


@dataclass(frozen=True, slots=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


_KNOWN: dict[tuple[int, ...], Elf | None] = {}
"""Each version of a file is read once: it is asked for at every look at a process."""


def read(path: Path) -> Elf | None:
    """Returns what the headers of `path` say; None when it is no ELF file, or a broken one.

    Raises:
        OSError: It cannot be read.
    """
    with opened(path) as file:
        status = os.fstat(file.fileno())
        version = (status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)
        if version not in _KNOWN:
            _KNOWN[version] = _read(file) if status.st_size <= _MOST_BYTES else None
        return _KNOWN[version]


def _read(file: BinaryIO) -> Elf | None:
    if file.read(len(MAGIC)) != MAGIC:
        return None
    try:
        return _parse(_Content(file))
    except (struct.error, ValueError, IndexError, OverflowError):
        return None


def address_of(path: Path, symbol: str) -> int | None:
    """Returns where a symbol stands, counted from where the file is loaded; None: unknown.

    Symbols that other files cannot see are found as well, unless they were stripped. `*_name` is
    the first symbol that ends so.

    Raises:
        OSError: It cannot be read.
        ValueError, struct.error, IndexError: It is broken.
    """
    name, ending = symbol.encode(), symbol.removeprefix("*").encode()
    with opened(path) as file:
        data = _Content(file)
        shape = _shape(data)
        header = data.row(shape.header, 0)
        for kind in (_SHT_DYNSYM, _SHT_SYMTAB):
            for found, address in _symbols(shape, data, header, kind):
                if found == name or (ending != name and found.endswith(ending)):
                    return address
    return None


def contained(path: Path, texts: Collection[bytes]) -> set[bytes]:
    """Returns those of `texts` that stand somewhere in the file."""
    found: set[bytes] = set()
    for block in _blocks(path):
        found |= {text for text in texts if text not in found and text in block}
        if len(found) == len(texts):
            break
    return found


def texts_ending(path: Path, ending: bytes) -> tuple[str, ...]:
    """Returns the NUL-terminated texts of the file that end so, each once, in its order."""
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
    """Returns the first place of the file that matches; None: there is none."""
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

    def part(self, offset: int, size: int) -> bytes:
        """Returns a copy of a part.

        Raises:
            ValueError: No part of a sound file is so large, or stands there.
        """
        if size > _MOST_PART or offset > _MOST_OFFSET:
            raise ValueError
        return os.pread(self._file.fileno(), size, offset)

    def row(self, layout: str, offset: int) -> tuple[Any, ...]:
        """Returns one row of a table."""
        return struct.unpack(layout, self.part(offset, struct.calcsize(layout)))

    def text(self, offset: int) -> bytes:
        """Returns the NUL-terminated text at a place."""
        return self.part(offset, _LONGEST_NAME).partition(b"\0")[0]


def _parse(data: _Content) -> Elf:
    shape = _shape(data)
    header = data.row(shape.header, 0)
    segments = list(_segments(shape, data, header))
    interpreter = next((s.offset for s in segments if s.kind == _PT_INTERP), None)
    section = next((s for s in segments if s.kind == _PT_DYNAMIC), None)
    dynamic = _dynamic(shape, data, section) if section else []
    strings = next((value for tag, value in dynamic if tag == _DT_STRTAB), 0)
    base = _offset(segments, strings)
    named = [
        (tag, data.text(base + value).decode(errors="replace"))
        for tag, value in dynamic
        if tag in (_DT_NEEDED, _DT_SONAME)
    ]
    defined = (name for name, _ in _symbols(shape, data, header, _SHT_DYNSYM))
    return Elf(
        machine=(header[1], shape.bits),
        interpreter=None if interpreter is None else Path(data.text(interpreter).decode()),
        soname=next((name for tag, name in named if tag == _DT_SONAME), ""),
        needed=tuple(name for tag, name in named if tag == _DT_NEEDED),
        defines=frozenset(name.decode() for name in defined if name in _ASKED_FOR),
        dynamic=section.address if section else 0,
        is_fixed=header[0] == _ET_EXEC,
    )


def _shape(data: _Content) -> _Shape:
    about = data.part(0, 6)
    return _Shape(">" if about[5] == 2 else "<", 64 if about[4] == 2 else 32)


def _segments(shape: _Shape, data: _Content, header: tuple[int, ...]) -> Iterator[_Segment]:
    start, size, count = header[4], header[8], header[9]
    for index in range(count):
        row = data.row(shape.program, start + index * size)
        if shape.bits == 64:
            yield _Segment(row[0], row[2], row[3], row[5])
        else:
            yield _Segment(row[0], row[1], row[2], row[4])


def _dynamic(shape: _Shape, data: _Content, section: _Segment) -> list[tuple[int, int]]:
    table = data.part(section.offset, min(section.size, _MOST_DYNAMIC))
    whole = len(table) - len(table) % struct.calcsize(shape.dynamic)
    return list(struct.iter_unpack(shape.dynamic, table[:whole]))


def _offset(segments: list[_Segment], address: int) -> int:
    """Returns where in the file the byte at a virtual address stands."""
    for segment in segments:
        if segment.kind == _PT_LOAD and 0 <= address - segment.address < segment.size:
            return address - segment.address + segment.offset
    return 0


def _symbols(
    shape: _Shape, data: _Content, header: tuple[int, ...], kind: int
) -> Iterator[tuple[bytes, int]]:
    """Yields name and address of the symbols of one table that stand in this very file."""
    start, size, count = header[5], header[10], header[11]
    rows = [data.row(shape.section, start + index * size) for index in range(count)]
    table = next((row for row in rows if row[1] == kind), None)
    if table is None:
        return
    names = data.part(rows[table[6]][4], rows[table[6]][5])
    symbols = struct.iter_unpack(shape.symbol, data.part(table[4], table[5]))
    for symbol in islice(symbols, _MOST_SYMBOLS):
        if symbol[shape.where] != _UNDEFINED:
            start = symbol[0]
            end = names.find(b"\0", start, start + _LONGEST_NAME)
            yield names[start:end] if end >= 0 else b"", symbol[shape.address]
