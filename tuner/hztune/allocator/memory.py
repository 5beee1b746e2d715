"""A running process from the inside: its files in the loader's order, its data, its variables.

The loader keeps a list of what it loaded for debuggers (struct r_debug of link.h, to which the
DT_DEBUG entry of the program points), in the very order in which it looks symbols up.
/proc/PID/environ is where variables stood at the start; a program that sets its own title writes
over that place, and the C library's `environ` then still knows them.
"""

from __future__ import annotations

import contextlib
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hztune.allocator import elf
from hztune.files import MOST_VARIABLES_BYTES, variables_of

_MAPPED = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) r\S* \S+ \S+ (\d+) +(/.*)$", re.M)
_DT_NULL, _DT_DEBUG = 0, 21
_ENTRY = struct.Struct("=qQ")
_WORD = struct.Struct("=Q")
#: Offsets in struct r_debug and struct link_map, where a pointer has 64 bits.
_R_MAP, _L_ADDR, _L_NEXT = 8, 0, 24
_MOST_ENTRIES = 10_000
_MOST_TEXT = 128 * 1024


class Mapped(NamedTuple):
    """Where a file stands in a process: its lowest mapping, and the number of its inode."""

    base: int
    end: int
    inode: int


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """A process whose address space was looked at.

    Attributes:
        pid: Its number.
        program: The file that it executes.
        files: Every mapped file by address. A name is what the kernel prints, and may be that of
            another file by now: what is opened is `link`.
    """

    pid: int
    program: Path
    files: dict[Path, Mapped]

    @classmethod
    def of(cls, pid: int) -> ProcessMemory:
        """Looks at a process.

        Raises:
            OSError: There is none, or it may not be looked at.
        """
        root = Path("/proc", str(pid))
        maps = (root / "maps").read_text(encoding="utf-8", errors="replace")
        files: dict[Path, Mapped] = {}
        for start, end, inode, path in _MAPPED.findall(maps):
            files.setdefault(Path(path), Mapped(int(start, 16), int(end, 16), int(inode)))
        return cls(pid, (root / "exe").readlink(), files)

    def link(self, path: Path) -> Path:
        """Returns what opens a file of the process, whatever its name has come to mean.

        Where only root may follow the kernel's link, it is the name, if the file still has it.

        Raises:
            OSError: There is no way to open it.
        """
        root = Path("/proc", str(self.pid))
        if path == self.program:
            return root / "exe"
        mapped = self.files[path]
        link = root / "map_files" / f"{mapped.base:x}-{mapped.end:x}"
        with contextlib.suppress(PermissionError):
            link.stat()
            return link
        if path.stat().st_ino != mapped.inode:
            raise FileNotFoundError(f"{path} is another file by now")
        return path

    def headers(self, path: Path) -> elf.Elf | None:
        """Returns the headers of a file of the process; None for data, and for what is gone."""
        try:
            return elf.read(self.link(path))
        except (OSError, ValueError):
            return None

    def loaded(self) -> list[Path] | None:
        """Returns the program and its libraries in the loader's order; None: it cannot be read."""
        file = self.headers(self.program)
        entry = None if file is None else self._debug_entry(file)
        if not entry:
            return None
        files = {mapped.base: path for path, mapped in self.files.items()}
        order = {self.program: None}
        item = self._word(entry + _R_MAP)
        for _ in range(_MOST_ENTRIES):  # the list may go round in a circle
            if not item:
                break
            base = self._word(item + _L_ADDR)
            if base in files:
                order[files[base]] = None
            item = self._word(item + _L_NEXT)
        return list(order)

    def variables(self) -> dict[str, str] | None:
        """Returns the variables that it was started with; None: it has overwritten them.

        Raises:
            OSError: It may not be looked at.
        """
        entries = variables_of(self.pid)
        found = _named(_whole(entries))
        return found if found or entries == [b""] else self._current_variables()

    def data(self, path: Path, symbol: str, size: int) -> bytes | None:
        """Returns the bytes at a symbol of a mapped file; None: no such, or not to be read.

        The symbol is one that `elf.address_of` finds.
        """
        file = self.headers(path) if path in self.files else None
        if file is None:
            return None
        try:
            address = elf.address_of(self.link(path), symbol)
        except (OSError, ValueError, IndexError, struct.error):
            return None
        return None if address is None else self._read(self._base(file, path) + address, size)

    def _base(self, file: elf.Elf, path: Path) -> int:
        return 0 if file.is_fixed or path not in self.files else self.files[path].base

    def _debug_entry(self, file: elf.Elf) -> int | None:
        """Returns the address of r_debug, from the program's dynamic section as it is in memory."""
        if not file.dynamic:
            return None
        place = file.dynamic + self._base(file, self.program)
        for index in range(_MOST_ENTRIES):
            entry = self._read(place + index * _ENTRY.size, _ENTRY.size)
            tag, value = _ENTRY.unpack(entry) if entry else (_DT_NULL, 0)
            if tag in (_DT_DEBUG, _DT_NULL):
                return int(value)
        return None

    def _current_variables(self) -> dict[str, str] | None:
        """Returns what `environ` of the program, or else of its C library, points to."""
        for path in self.loaded() or []:
            file = self.headers(path)
            if file is not None and "environ" in file.defines:
                held = self.data(path, "environ", _WORD.size)
                return _named(self._texts(_WORD.unpack(held)[0])) if held else None
        return None

    def _texts(self, array: int) -> list[bytes]:
        """Returns the texts that an array of pointers, ended by a null, points to."""
        texts: list[bytes] = []
        left = MOST_VARIABLES_BYTES
        while left > 0 and len(texts) < _MOST_ENTRIES:
            pointer = self._word(array + len(texts) * _WORD.size)
            if not pointer:
                break
            texts.append(self._text(pointer))
            left -= len(texts[-1])
        return texts

    def _text(self, address: int) -> bytes:
        """Returns the text at an address, read page by page, since the next may not exist."""
        text = b""
        while b"\0" not in text and len(text) < _MOST_TEXT:
            step = 4096 - (address + len(text)) % 4096
            more = self._read(address + len(text), step)
            if not more:
                break
            text += more
        return text.partition(b"\0")[0]

    def _word(self, address: int) -> int:
        held = self._read(address, _WORD.size)
        return int(_WORD.unpack(held)[0]) if held else 0

    def _read(self, address: int, size: int) -> bytes | None:
        """Returns bytes of its memory; None where there is none, or none that we may read."""
        try:
            with Path("/proc", str(self.pid), "mem").open("rb", buffering=0) as memory:
                memory.seek(address)
                found = memory.read(size)
        except (OSError, OverflowError, ValueError):
            return None
        return found if len(found) == size else None


def _whole(entries: list[bytes]) -> list[bytes]:
    """Returns the entries with GLIBC_TUNABLES in one piece.

    The loader of glibc up to 2.37 works on a copy and ends each value in the original where its
    colon stood, so that what follows looks like variables of its own (parse_tunables in
    elf/dl-tunables.c).
    """
    whole: list[bytes] = []
    for entry in entries:
        if entry.startswith(b"glibc.") and whole and whole[-1].startswith(b"GLIBC_TUNABLES="):
            whole[-1] += b":" + entry
        else:
            whole.append(entry)
    return whole


def _named(entries: list[bytes]) -> dict[str, str]:
    pairs = (entry.decode(errors="replace").partition("=") for entry in entries)
    return {name: value for name, equals, value in pairs if equals}
