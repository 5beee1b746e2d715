"""A running process: which allocator it has, with which settings, and what stands in its memory.

The loader looks a function up in the program first, then in what was preloaded, then in the linked
libraries, breadth first (ld.so(8)); the first file that defines malloc gives it. The loader's own
list, which it keeps for debuggers (struct r_debug of link.h, to which the DT_DEBUG entry of the
program points), tells that order; where it may not be read, an allocator is taken to be the first.
/proc/PID/environ is where variables stood at the start; a program that sets its own title writes
over that place, and the C library's `environ` then still knows them.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from hztune.allocator import elf, inside, loaded_program
from hztune.allocator.base import Adapter, Installed
from hztune.errors import UsageError, no_look_at
from hztune.files import MOST_VARIABLES_BYTES, variables_of
from hztune.params import Value

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
    pid: int
    program: Path
    files: dict[Path, Mapped]  # by address; a name may be another file's by now: `link` opens it

    @classmethod
    def of(cls, pid: int) -> ProcessMemory:
        """Looks at a process; OSError: there is none, or it may not be looked at."""
        root = Path("/proc", str(pid))
        maps = (root / "maps").read_text(encoding="utf-8", errors="replace")
        files: dict[Path, Mapped] = {}
        for start, end, inode, path in _MAPPED.findall(maps):
            files.setdefault(Path(path), Mapped(int(start, 16), int(end, 16), int(inode)))
        return cls(pid, (root / "exe").readlink(), files)

    def link(self, path: Path) -> Path:
        """What opens a file of the process, whatever its name has come to mean; else OSError.

        Where only root may follow the kernel's link, it is the name, if the file still has it.
        """
        root = Path("/proc", str(self.pid))
        if path == self.program:
            return root / "exe"
        mapped = self.files[path]
        link = root / "map_files" / f"{mapped.base:x}-{mapped.end:x}"
        with suppress(PermissionError):
            link.stat()
            return link
        if path.stat().st_ino != mapped.inode:
            raise FileNotFoundError(f"{path} is another file by now")
        return path

    def headers(self, path: Path) -> elf.Elf | None:
        """The headers of a file of the process; None for data, and for what is gone."""
        try:
            return elf.read(self.link(path))
        except (OSError, ValueError):
            return None

    def loaded(self) -> list[Path] | None:
        """The program and its libraries in the loader's order; None: it cannot be read."""
        file = self.headers(self.program)
        if file is None or not file.dynamic:
            return None
        tag, item = -1, 0
        place = file.dynamic + self._base(file, self.program)
        for index in range(_MOST_ENTRIES):  # as the loader has changed them in memory
            entry = self._read(place + index * _ENTRY.size, _ENTRY.size)
            tag, item = _ENTRY.unpack(entry) if entry else (_DT_NULL, 0)
            if tag in (_DT_DEBUG, _DT_NULL):
                break
        if tag != _DT_DEBUG or not item:
            return None
        paths = {mapped.base: path for path, mapped in self.files.items()}
        order, item = {self.program: None}, self._word(item + _R_MAP)
        for _ in range(_MOST_ENTRIES):  # the list may go round in a circle
            if not item:
                break
            base = self._word(item + _L_ADDR)
            if base in paths:
                order[paths[base]] = None
            item = self._word(item + _L_NEXT)
        return list(order)

    def variables(self) -> dict[str, str] | None:
        """The variables that it was started with; None: it has overwritten them; else OSError."""
        entries = variables_of(self.pid)
        found = _named(entries)
        if found or entries == [b""]:
            return found
        for path in self.loaded() or []:  # `environ` of the program, or else of its C library
            file = self.headers(path)
            if file is not None and "environ" in file.defines:
                held = self.data(path, "environ", _WORD.size)
                return _named(self._texts(_WORD.unpack(held)[0])) if held else None
        return None

    def data(self, path: Path, symbol: str, size: int) -> bytes | None:
        """The bytes at a symbol, see `elf.address_of`, of a mapped file; None: not to be had."""
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

    def _texts(self, array: int) -> list[bytes]:
        texts: list[bytes] = []
        left = MOST_VARIABLES_BYTES
        while left > 0 and len(texts) < _MOST_ENTRIES:
            pointer, text = self._word(array + len(texts) * _WORD.size), b""
            if not pointer:
                break
            while b"\0" not in text and len(text) < _MOST_TEXT:  # the next page may not exist
                more = self._read(pointer + len(text), 4096 - (pointer + len(text)) % 4096)
                if not more:
                    break
                text += more
            texts.append(text.partition(b"\0")[0])
            left -= len(texts[-1])
        return texts

    def _word(self, address: int) -> int:
        held = self._read(address, _WORD.size)
        return int(_WORD.unpack(held)[0]) if held else 0

    def _read(self, address: int, size: int) -> bytes | None:
        try:
            with Path("/proc", str(self.pid), "mem").open("rb", buffering=0) as memory:
                memory.seek(address)
                found = memory.read(size)
        except (OSError, OverflowError, ValueError):
            return None
        return found if len(found) == size else None


@dataclass(frozen=True, slots=True)
class Running:
    pid: int
    program: Path
    provider: Path  # the file that gives it malloc; the program itself when that defines it
    allocator: str  # name of that allocator's adapter; "": hztune does not know it
    environment: dict[str, str] | None  # what it was started with; None: that is overwritten, and
    # its memory may not be read
    process: ProcessMemory


class SettingRead(NamedTuple):
    value: Value
    is_effective: bool  # read from the process itself; else what its variables ask for


def look(pid: int) -> Running:
    """What runs as `pid`; else UsageError."""
    try:
        process = ProcessMemory.of(pid)
        environment = process.variables()
    except FileNotFoundError as error:
        raise UsageError(f"there is no process {pid}, or its program is gone") from error
    except (PermissionError, ProcessLookupError) as error:
        raise no_look_at(f"process {pid}") from error
    program = process.program
    ranks = {"": 2, "glibc": 3}  # as far as names tell which of the files gives it malloc
    order = process.loaded() or sorted(
        process.files, key=lambda file: (file != program) * ranks.get(loaded_program.named(file), 1)
    )
    provider = next((path for path in order if _has_malloc(process, path)), None)
    own = ""
    if provider in (None, program):
        with suppress(OSError):
            own = next((mark.family for mark in inside.marks_of(process.link(program))), "")
    if provider is None and own:  # a static program, which shows its malloc to no other file
        provider = program
    if provider is None:
        raise UsageError(f"process {pid} ({program}) has no library that defines malloc")
    name = own if provider == program else loaded_program.named(provider)
    return Running(pid, program, provider, name, environment, process)


def settings(running: Running, adapter: Adapter, installed: Installed) -> dict[str, SettingRead]:
    """What a process runs with, knob by knob, as far as its memory and variables tell.

    Nothing is started: it would be the process's code, not the caller's. WrongConfiguration: its
    variables ask for what is no number, where one is wanted.
    """
    path = installed.path if adapter.is_inside else running.provider
    found = adapter.effective(lambda symbol, size: running.process.data(path, symbol, size))
    asked = adapter.requested(running.environment or {}, installed)
    return {
        **{name: SettingRead(value, is_effective=False) for name, value in asked.items()},
        **{name: SettingRead(value, is_effective=True) for name, value in found.items()},
    }


def strangers(pid: int, library: Path) -> tuple[Running, ...]:
    """The living descendants of a process that have a malloc, and another than `library`."""
    seen = []
    for child in descendants(pid):
        with suppress(UsageError):
            seen.append(look(child))
    return tuple(running for running in seen if running.provider != library)


def undelivered(running: Running, environment: Mapping[str, str]) -> tuple[str, ...]:
    if running.environment is None:
        raise UsageError(f"process {running.pid} has overwritten the variables it was started with")
    given = running.environment
    return tuple(name for name, value in environment.items() if given.get(name) != value)


def _has_malloc(process: ProcessMemory, path: Path) -> bool:
    """Whether a file defines malloc; its name tells where it was replaced and cannot be opened."""
    file = process.headers(path)
    return "malloc" in file.defines if file is not None else bool(loaded_program.named(path))


def descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in islice(found, _MOST_ENTRIES):  # which grows
        tasks = Path("/proc", str(parent), "task")
        with suppress(OSError):  # the process ends while it is looked at
            for task in os.listdir(tasks):
                with suppress(OSError):
                    found += map(int, (tasks / task / "children").read_text().split())
    return found[1:]


def _named(entries: list[bytes]) -> dict[str, str]:
    """The variables of the entries, GLIBC_TUNABLES in one piece.

    The loader of glibc up to 2.37 ends each value in the original where its colon stood, so that
    what follows looks like variables of its own (parse_tunables in elf/dl-tunables.c).
    """
    found, last = dict[str, str](), ""
    for entry in entries:
        text = entry.decode(errors="replace")
        name, equals, value = text.partition("=")
        if text.startswith("glibc.") and last == "GLIBC_TUNABLES":
            found[last] += f":{text}"
        elif equals:
            found[name], last = value, name
        else:
            last = ""
    return found
