"""Just enough of ELF to know how a program will be loaded and what gives it malloc.

Layout: System V ABI, chapters 4 and 5, and the generic ELF-64 tables of elf(5). Of a file for
processors of another word size or byte order only that is known.

A file may be another user's, who writes to it and truncates it meanwhile: parts of it are copied,
as a mapping would end in SIGBUS, and how much is read does not depend on what the file says.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from hztune.files import opened

_MAGIC = b"\x7fELF"
_OURS = b"\2" + (b"\1" if sys.byteorder == "little" else b"\2")  # 64 bits, and the byte order
_ET_EXEC = 2
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB, _DT_SONAME = 1, 5, 14
_SHT_SYMTAB, _SHT_DYNSYM = 2, 11
_UNDEFINED = 0
_HEADER, _SEGMENT, _SECTION, _ENTRY, _SYMBOL = (
    "=16xHHIQQQIHHHHHH", "=IIQQQQQQ", "=IIQQQQIIQQ", "=qQ", "=IBBHQQ",
)  # fmt: skip
_ASKED_FOR = frozenset({b"malloc", b"environ"})
_LONGEST_TEXT = 64
_MOST_TEXTS = 1000
_LONGEST_NAME = 4096
_MOST_BYTES = 8 << 30  # of a program or library: what is larger is none, and is not read to its end
_MOST_PART = 64 << 20  # bytes of the largest table that is read: a million symbols are 24 MiB
_MOST_DYNAMIC = 64 << 10
_MOST_SYMBOLS = 1 << 20
_MOST_SEARCHED = 1 << 30  # bytes in which texts are looked for
_BLOCK_BYTES = 1 << 20
_MOST_OFFSET = 1 << 62


@dataclass(frozen=True, slots=True)
class Elf:
    machine: tuple[int, bytes]  # kind of processor (e_machine), word size and byte order
    interpreter: Path | None = None  # the loader that it asks for; a static program and most
    # libraries ask for none
    soname: str = ""
    needed: tuple[str, ...] = ()  # sonames of the libraries that it was linked with, in order
    defines: frozenset[str] = frozenset()  # which of malloc and environ other files can see in it
    dynamic: int = 0  # where its dynamic section is loaded, as the file counts; 0: it has none
    is_fixed: bool = False  # whether its addresses are final; else from where it is loaded
    loaded: int = 0  # bytes from the start of the file up to the end of what is loaded of it


_KNOWN: dict[tuple[int, ...], Elf | None] = {}
"""Each version of a file is read once: it is asked for at every look at a process."""


def read(path: Path) -> Elf | None:
    """What the headers of `path` say; None: it is no ELF file, or a broken one; else OSError."""
    with opened(path) as file:
        status = os.fstat(file.fileno())
        version = (status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)
        if version not in _KNOWN:
            _KNOWN[version] = None
            if status.st_size <= _MOST_BYTES and file.read(len(_MAGIC)) == _MAGIC:
                with suppress(struct.error, ValueError, IndexError, OverflowError):
                    _KNOWN[version] = _parse(_Content(file))
        return _KNOWN[version]


def address_of(path: Path, symbol: str) -> int | None:
    """Where a symbol stands, counted from where the file is loaded; None: unknown.

    Symbols that other files cannot see are found as well, unless they were stripped. `*_name` is
    the first symbol that ends so. A broken file raises ValueError, struct.error or IndexError.
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
    return next((found for block in _blocks(path) if (found := pattern.search(block))), None)


def _blocks(path: Path) -> Iterator[bytes]:
    """Yields the file in blocks that overlap, so that a text of _LONGEST_TEXT is whole in one."""
    about = read(path)
    with opened(path) as file:
        ending = b""
        for _ in range(0, min(about.loaded if about else 0, _MOST_SEARCHED), _BLOCK_BYTES):
            block = file.read(_BLOCK_BYTES)
            if not block:
                break
            yield ending + block
            ending = block[-2 * _LONGEST_TEXT :]


class _Content:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.kind = self.part(4, 2)  # word size and byte order
        self.header = self.rows(_HEADER, 0, 64, 1)[0]

    def part(self, offset: int, size: int) -> bytes:
        """A copy of a part; ValueError: no part of a sound file is so large, or stands there."""
        if size > _MOST_PART or offset > _MOST_OFFSET:
            raise ValueError
        return os.pread(self._file.fileno(), size, offset)

    def rows(self, layout: str, start: int, size: int, count: int) -> list[tuple[Any, ...]]:
        needed = struct.calcsize(layout)
        parts = (self.part(start + index * size, needed) for index in range(count))
        return [struct.unpack(layout, part) for part in parts]

    def text(self, offset: int) -> str:
        return self.part(offset, _LONGEST_NAME).partition(b"\0")[0].decode(errors="replace")

    def symbols(self, kind: int) -> Iterator[tuple[bytes, int]]:
        """Name and address of the symbols of one table that stand in this very file."""
        rows = self.rows(_SECTION, self.header[5], self.header[10], self.header[11])
        table = next((row for row in rows if row[1] == kind), None)
        if table is None:
            return
        names = self.part(rows[table[6]][4], rows[table[6]][5])
        symbols = struct.iter_unpack(_SYMBOL, self.part(table[4], table[5]))
        for start, _, _, section, address, _ in islice(symbols, _MOST_SYMBOLS):
            if section != _UNDEFINED:
                end = names.find(b"\0", start, start + _LONGEST_NAME)
                yield names[start:end] if end >= 0 else b"", address


def _parse(data: _Content) -> Elf:
    machine = data.header[1], data.kind
    if data.kind != _OURS:
        return Elf(machine)
    # Of each segment: kind, offset in the file, address, size.
    rows = data.rows(_SEGMENT, data.header[4], data.header[8], data.header[9])
    segments = [(row[0], row[2], row[3], row[5]) for row in rows]
    interpreter = next((offset for kind, offset, *_ in segments if kind == _PT_INTERP), None)
    section = next((each for each in segments if each[0] == _PT_DYNAMIC), None)
    table = data.part(section[1], min(section[3], _MOST_DYNAMIC)) if section else b""
    whole = len(table) - len(table) % struct.calcsize(_ENTRY)
    dynamic = list(struct.iter_unpack(_ENTRY, table[:whole]))
    address = next((value for tag, value in dynamic if tag == _DT_STRTAB), 0)
    strings = next(
        (
            address - start + offset
            for kind, offset, start, size in segments
            if kind == _PT_LOAD and 0 <= address - start < size
        ),
        0,
    )
    named = [
        (tag, data.text(strings + value))
        for tag, value in dynamic
        if tag in (_DT_NEEDED, _DT_SONAME)
    ]
    defined = {name for name, _ in data.symbols(_SHT_DYNSYM)}
    return Elf(
        machine=machine,
        interpreter=None if interpreter is None else Path(data.text(interpreter)),
        soname=next((name for tag, name in named if tag == _DT_SONAME), ""),
        needed=tuple(name for tag, name in named if tag == _DT_NEEDED),
        defines=frozenset(name.decode() for name in defined & _ASKED_FOR),
        dynamic=section[2] if section else 0,
        is_fixed=data.header[0] == _ET_EXEC,
        loaded=max((row[1] + row[3] for row in segments if row[0] == _PT_LOAD), default=0),
    )
