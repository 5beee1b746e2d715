"""Just enough of ELF to know how a program will be loaded and what gives it malloc.

Layout: System V ABI, chapters 4 and 5, and the generic ELF-64 and ELF-32 tables of elf(5).
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hztune.files import opened

MAGIC = b"\x7fELF"
_ET_EXEC = 2
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB, _DT_SONAME = 1, 5, 14
_SHT_SYMTAB, _SHT_DYNSYM = 2, 11
_UNDEFINED = 0
_LONGEST_TEXT = 64


@dataclass(frozen=True, slots=True)
class Elf:
    """What the headers of one file say.

    Attributes:
        machine: Kind of processor (e_machine) and word size, to tell what may load what.
        interpreter: The loader that it asks for; None for a static program and for most libraries.
        soname: The name that it goes by as a library; "" when it has none.
        needed: Sonames of the libraries that it was linked with, in order.
        defines: The functions and data that other files can see in it.
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
        version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if version not in _KNOWN:
            _KNOWN[version] = _read(file)
        return _KNOWN[version]


def _read(file: BinaryIO) -> Elf | None:
    if file.read(len(MAGIC)) != MAGIC:
        return None
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _parse(data)
        except (struct.error, ValueError, IndexError, OverflowError):
            return None


def address_of(path: Path, symbol: str) -> int | None:
    """Returns where a symbol stands, counted from where the file is loaded; None: unknown.

    Symbols that other files cannot see are found as well, unless they were stripped. `*_name` is
    the first symbol that ends so.
    """
    ending = symbol.removeprefix("*")
    with opened(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        shape = _shape(data)
        header = struct.unpack_from(shape.header, data)
        for kind in (_SHT_DYNSYM, _SHT_SYMTAB):
            for name, address in _symbols(shape, data, header, kind):
                if name == symbol or (ending != symbol and name.endswith(ending)):
                    return address
    return None


def contains(path: Path, texts: Iterable[bytes]) -> bool:
    """Whether every one of `texts` stands somewhere in the file."""
    with opened(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return all(data.find(text) >= 0 for text in texts)


def texts_ending(path: Path, ending: bytes) -> tuple[str, ...]:
    """Returns the NUL-terminated texts of the file that end so, each once, in its order."""
    found: dict[str, None] = {}
    with opened(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = data.find(ending + b"\0")
        while at >= 0:
            start = data.rfind(b"\0", max(0, at - _LONGEST_TEXT), at) + 1
            found[data[start : at + len(ending)].decode(errors="replace")] = None
            at = data.find(ending + b"\0", at + 1)
    return tuple(found)


def matches(path: Path, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
    """Returns the first place of the file that matches; None: there is none."""
    with opened(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = pattern.search(data)
        return pattern.match(found.group()) if found else None


def _parse(data: mmap.mmap) -> Elf:
    shape = _shape(data)
    header = struct.unpack_from(shape.header, data)
    segments = list(_segments(shape, data, header))
    interpreters = [
        data[s.offset : s.offset + s.size].rstrip(b"\0").decode()
        for s in segments
        if s.kind == _PT_INTERP
    ]
    dynamic = list(_dynamic(shape, data, segments))
    strings = next((value for tag, value in dynamic if tag == _DT_STRTAB), 0)
    base = _offset(segments, strings)
    named = [(tag, _text(data, base + value)) for tag, value in dynamic if _is_name(tag)]
    return Elf(
        machine=(header[1], shape.bits),
        interpreter=Path(interpreters[0]) if interpreters else None,
        soname=next((name for tag, name in named if tag == _DT_SONAME), ""),
        needed=tuple(name for tag, name in named if tag == _DT_NEEDED),
        defines=frozenset(name for name, _ in _symbols(shape, data, header, _SHT_DYNSYM)),
        dynamic=next((s.address for s in segments if s.kind == _PT_DYNAMIC), 0),
        is_fixed=header[0] == _ET_EXEC,
    )


def _shape(data: mmap.mmap) -> _Shape:
    return _Shape(">" if data[5] == 2 else "<", 64 if data[4] == 2 else 32)


def _is_name(tag: int) -> bool:
    return tag in (_DT_NEEDED, _DT_SONAME)


def _segments(shape: _Shape, data: mmap.mmap, header: tuple[int, ...]) -> Iterator[_Segment]:
    start, size, count = header[4], header[8], header[9]
    for index in range(count):
        row = struct.unpack_from(shape.program, data, start + index * size)
        if shape.bits == 64:
            yield _Segment(row[0], row[2], row[3], row[5])
        else:
            yield _Segment(row[0], row[1], row[2], row[4])


def _dynamic(shape: _Shape, data: mmap.mmap, segments: list[_Segment]) -> Iterator[tuple[int, int]]:
    for segment in segments:
        if segment.kind == _PT_DYNAMIC:
            table = data[segment.offset : segment.offset + segment.size]
            whole = len(table) - len(table) % struct.calcsize(shape.dynamic)
            yield from struct.iter_unpack(shape.dynamic, table[:whole])


def _offset(segments: list[_Segment], address: int) -> int:
    """Returns where in the file the byte at a virtual address stands."""
    for segment in segments:
        if segment.kind == _PT_LOAD and 0 <= address - segment.address < segment.size:
            return address - segment.address + segment.offset
    return 0


def _symbols(
    shape: _Shape, data: mmap.mmap, header: tuple[int, ...], kind: int
) -> Iterator[tuple[str, int]]:
    """Yields name and address of the symbols of one table that stand in this very file."""
    start, size, count = header[5], header[10], header[11]
    rows = [struct.unpack_from(shape.section, data, start + index * size) for index in range(count)]
    for row in rows:
        if row[1] == kind:
            strings = rows[row[6]][4]
            for symbol in struct.iter_unpack(shape.symbol, data[row[4] : row[4] + row[5]]):
                section, address = symbol[shape.where], symbol[shape.address]
                if section != _UNDEFINED:
                    yield _text(data, strings + symbol[0]), address


def _text(data: mmap.mmap, offset: int) -> str:
    """Returns the NUL-terminated text at `offset`."""
    return data[offset : data.find(b"\0", offset)].decode(errors="replace")
