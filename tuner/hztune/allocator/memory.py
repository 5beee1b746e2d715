"""A running process from the inside: its files in the loader's order, its data, its variables.

The loader keeps a list of what it loaded for debuggers (struct r_debug of link.h, to which the
DT_DEBUG entry of the program points), in the very order in which it looks symbols up.
/proc/PID/environ is where variables stood at the start; a program that sets its own title writes
over that place, and the C library's `environ` then still knows them.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

from hztune.allocator import elf

_MAPPED = re.compile(
    r"^(?P<start>[0-9a-f]+)\S+ r\S* \S+ \S+ \d+ +(?P<path>/.*?)(?: \(deleted\))?$", re.M
)
_DT_NULL, _DT_DEBUG = 0, 21
_ENTRY = struct.Struct("=qQ")
_WORD = struct.Struct("=Q")
#: Offsets in struct r_debug and struct link_map, where a pointer has 64 bits.
_R_MAP, _L_ADDR, _L_NEXT = 8, 0, 24
_MOST_ENTRIES = 10_000
_MOST_TEXT = 128 * 1024


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """A process whose address space was looked at.

    Attributes:
        pid: Its number.
        program: The file that it executes.
        bases: Every mapped file with the lowest address at which it stands, by address.
    """

    pid: int
    program: Path
    bases: dict[Path, int]

    @classmethod
    def of(cls, pid: int) -> ProcessMemory:
        """Looks at a process.

        Raises:
            OSError: There is none, or it may not be looked at.
        """
        root = Path("/proc", str(pid))
        maps = (root / "maps").read_text(encoding="utf-8", errors="replace")
        bases: dict[Path, int] = {}
        for found in _MAPPED.finditer(maps):
            bases.setdefault(Path(found["path"]), int(found["start"], 16))
        return cls(pid, (root / "exe").resolve(strict=True), bases)

    def loaded(self) -> list[Path] | None:
        """Returns the program and its libraries in the loader's order; None: it cannot be read."""
        file = elf.read(self.program)
        entry = None if file is None else self._debug_entry(file)
        if not entry:
            return None
        files = {base: path for path, base in self.bases.items()}
        order = [self.program]
        item = self._word(entry + _R_MAP)
        while item and len(order) < _MOST_ENTRIES:
            base = self._word(item + _L_ADDR)
            if base in files and files[base] not in order:
                order.append(files[base])
            item = self._word(item + _L_NEXT)
        return order

    def variables(self) -> dict[str, str] | None:
        """Returns the variables that it was started with; None: it has overwritten them.

        Raises:
            OSError: It may not be looked at.
        """
        block = Path("/proc", str(self.pid), "environ").read_bytes()
        found = _named(_whole(block.split(b"\0")))
        return found if found or not block else self._current_variables()

    def data(self, path: Path, symbol: str, size: int) -> bytes | None:
        """Returns the bytes at a symbol of a mapped file; None: no such, or not to be read.

        The symbol is one that `elf.address_of` finds.
        """
        try:
            file, address = elf.read(path), elf.address_of(path, symbol)
        except OSError:
            return None
        if file is None or address is None or path not in self.bases:
            return None
        return self._read((0 if file.is_fixed else self.bases[path]) + address, size)

    def _debug_entry(self, file: elf.Elf) -> int | None:
        """Returns the address of r_debug, from the program's dynamic section as it is in memory."""
        if not file.dynamic:
            return None
        place = file.dynamic + (0 if file.is_fixed else self.bases.get(self.program, 0))
        for index in range(_MOST_ENTRIES):
            entry = self._read(place + index * _ENTRY.size, _ENTRY.size)
            tag, value = _ENTRY.unpack(entry) if entry else (_DT_NULL, 0)
            if tag in (_DT_DEBUG, _DT_NULL):
                return int(value)
        return None

    def _current_variables(self) -> dict[str, str] | None:
        """Returns what `environ` of the program, or else of its C library, points to."""
        for path in self.loaded() or []:
            file = elf.read(path)
            if file is not None and "environ" in file.defines:
                held = self.data(path, "environ", _WORD.size)
                return _named(self._texts(_WORD.unpack(held)[0])) if held else None
        return None

    def _texts(self, array: int) -> list[bytes]:
        """Returns the texts that an array of pointers, ended by a null, points to."""
        texts: list[bytes] = []
        while len(texts) < _MOST_ENTRIES:
            pointer = self._word(array + len(texts) * _WORD.size)
            if not pointer:
                break
            texts.append(self._text(pointer))
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
