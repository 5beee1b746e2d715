"""Which allocator a running process has, and with which settings it was started.

The loader looks a function up in the program first, then in what was preloaded, then in the linked
libraries, breadth first (ld.so(8)); the first file that defines malloc gives it. Variables are read
as they were when the program was executed: what a process was asked to run with. Few allocators let
another process read what they made of it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hztune.allocator import elf, target
from hztune.allocator.base import Adapter, Installed
from hztune.errors import UsageError
from hztune.params import Value

_MAPPED = re.compile(
    r"^(?P<start>[0-9a-f]+)\S+ r\S* \S+ \S+ \d+ +(?P<path>/.*?)(?: \(deleted\))?$", re.M
)
_PRELOAD = re.compile(r"[ :]+")


@dataclass(frozen=True, slots=True)
class Running:
    """A process as it was found.

    Attributes:
        pid: Its number.
        program: The file that it executes.
        provider: The file that gives it malloc; the program itself when that defines it.
        base: Where the provider is loaded.
        allocator: Name of that allocator's adapter; "" when hztune does not know it.
        environment: Its variables at the time of its start.
    """

    pid: int
    program: Path
    provider: Path
    base: int
    allocator: str
    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a running process.

    Attributes:
        value: What it is.
        is_effective: Read from the process itself; else what its variables ask for, as a fresh
            process under the same ones understands them.
    """

    value: Value
    is_effective: bool


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
    mapped = _bases(maps)
    provider = provider_of(program, mapped, environment.get("LD_PRELOAD", ""))
    if provider is None:
        raise UsageError(f"process {pid} ({program}) has no library that defines malloc")
    name = target.inspect(program).inside if provider == program else target.named(provider)
    return Running(pid, program, provider, mapped[provider], name, environment)


def settings(running: Running, adapter: Adapter, installed: Installed) -> dict[str, Setting]:
    """Returns what a process runs with, knob by knob, as far as it can be known.

    Raises:
        WrongConfiguration: Its variables are such that a fresh process would be refused.
    """
    own = {
        name: running.environment[name]
        for name in adapter.variables()
        if name in running.environment
    }
    own.pop("LD_PRELOAD", None)
    preload = {"LD_PRELOAD": str(running.provider)} if installed.soname else {}
    asked = adapter.read_back({**own, **preload}, installed, running.program)
    found = adapter.effective(lambda symbol, size: _memory(running, symbol, size))
    return {
        **{name: Setting(value, is_effective=False) for name, value in asked.items()},
        **{name: Setting(value, is_effective=True) for name, value in found.items()},
    }


def strangers(pid: int, library: Path) -> tuple[Running, ...]:
    """Returns the descendants of a process that have another allocator than `library`.

    One that has ended, or has no malloc to look at yet, is left out.
    """
    seen = []
    for child in _descendants(pid):
        with contextlib.suppress(UsageError):
            seen.append(look(child))
    return tuple(running for running in seen if not running.provider.samefile(library))


def undelivered(running: Running, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the variables of `environment` that the process was not started with as they are."""
    return tuple(
        name for name, value in environment.items() if running.environment.get(name) != value
    )


def _memory(running: Running, symbol: str, size: int) -> bytes | None:
    """Returns the bytes at a symbol of the provider; None when it has none, or none to be read."""
    try:
        address = elf.address_of(running.provider, symbol)
        if address is None:
            return None
        with Path("/proc", str(running.pid), "mem").open("rb") as memory:
            memory.seek(running.base + address)
            found = memory.read(size)
    except OSError:
        return None
    return found if len(found) == size else None


def _descendants(pid: int) -> list[int]:
    """Returns the living processes that a process started, and those that these started."""
    found: list[int] = []
    for tasks in Path("/proc", str(pid), "task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, tasks.read_text().split()):
                found += [child, *_descendants(child)]
    return found


def _bases(maps: str) -> dict[Path, int]:
    """Returns every mapped file with the lowest address at which it stands."""
    bases: dict[Path, int] = {}
    for found in _MAPPED.finditer(maps):
        bases.setdefault(Path(found["path"]), int(found["start"], 16))
    return bases


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
