"""Which allocator a running process has, and with which settings it was started.

The loader looks a function up in the program first, then in what was preloaded, then in the linked
libraries, breadth first (ld.so(8)); the first file that defines malloc gives it. Variables are read
as they were when the program was executed: what a process was asked to run with. Few allocators let
another process read what they made of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hztune.allocator import elf, target
from hztune.errors import UsageError

_MAPPED = re.compile(r"^\S+ r\S* \S+ \S+ \d+ +(?P<path>/.*?)(?: \(deleted\))?$", re.M)
_PRELOAD = re.compile(r"[ :]+")


@dataclass(frozen=True, slots=True)
class Running:
    """A process as it was found.

    Attributes:
        pid: Its number.
        program: The file that it executes.
        provider: The file that gives it malloc; the program itself when that defines it.
        allocator: Name of that allocator's adapter; "" when hztune does not know it.
        environment: Its variables at the time of its start.
    """

    pid: int
    program: Path
    provider: Path
    allocator: str
    environment: dict[str, str]


def look(pid: int) -> Running:
    """Returns what runs as `pid`.

    Raises:
        UsageError: There is no such process, it may not be looked at, or it has no malloc.
    """
    root = Path("/proc", str(pid))
    try:
        program = (root / "exe").resolve(strict=True)
        maps = (root / "maps").read_text(encoding="utf-8", errors="replace")
        environment = _variables((root / "environ").read_bytes())
    except FileNotFoundError as error:
        raise UsageError(f"there is no process {pid}, or its program is gone") from error
    except PermissionError as error:
        raise UsageError(f"process {pid} belongs to somebody else: run as its user") from error
    mapped = [Path(path) for path in dict.fromkeys(_MAPPED.findall(maps))]
    provider = provider_of(program, mapped, environment.get("LD_PRELOAD", ""))
    if provider is None:
        raise UsageError(f"process {pid} ({program}) has no library that defines malloc")
    name = target.inspect(program).inside if provider == program else target.named(provider)
    return Running(pid, program, provider, name, environment)


def provider_of(program: Path, mapped: Iterable[Path], preload: str) -> Path | None:
    """Returns the first file in the order of the loader that defines malloc.

    Args:
        program: The executed file.
        mapped: Every file in the address space.
        preload: The value of LD_PRELOAD.
    """
    files = {path: file for path in mapped if (file := _elf(path)) is not None}
    for path in _search_order(program, files, preload):
        if "malloc" in files[path].defines:
            return path
    return None


def _search_order(program: Path, files: dict[Path, elf.Elf], preload: str) -> list[Path]:
    """Returns the mapped files in the order in which the loader looks symbols up."""
    by_name = {name: path for path, file in files.items() for name in (path.name, file.soname)}
    wanted = [Path(entry).name for entry in _PRELOAD.split(preload) if entry]
    order = [program] if program in files else []
    order += [by_name[name] for name in wanted if name in by_name]
    for path in order:
        for name in files[path].needed:
            if name in by_name and by_name[name] not in order:
                order.append(by_name[name])
    return order + [path for path in files if path not in order]


def _elf(path: Path) -> elf.Elf | None:
    """Returns the headers of a mapped file; None for data, and for what is gone by now."""
    try:
        return elf.read(path)
    except (OSError, ValueError):
        return None


def _variables(block: bytes) -> dict[str, str]:
    """Returns the variables of /proc/PID/environ."""
    entries = (entry.partition("=") for entry in block.decode(errors="replace").split("\0"))
    return {name: value for name, equals, value in entries if equals}
