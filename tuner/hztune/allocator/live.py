"""Which allocator a running process has, and with which settings it was started.

The loader looks a function up in the program first, then in what was preloaded, then in the linked
libraries, breadth first (ld.so(8)); the first file that defines malloc gives it. The loader's own
list tells that order; where it may not be read, the order is worked out from the variables.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hztune.allocator import loaded_program, marks
from hztune.allocator.base import Adapter, Installed
from hztune.allocator.memory import ProcessMemory
from hztune.errors import UsageError, no_look_at
from hztune.params import Value

_PRELOAD = "LD_PRELOAD"
_SEPARATORS = re.compile(r"[ :]+")


@dataclass(frozen=True, slots=True)
class Running:
    """A process as it was found.

    Attributes:
        pid: Its number.
        program: The file that it executes.
        provider: The file that gives it malloc; the program itself when that defines it.
        allocator: Name of that allocator's adapter; "" when hztune does not know it.
        environment: The variables that it was started with; None: it has overwritten them, and
            its memory may not be read.
        process: Its address space.
    """

    pid: int
    program: Path
    provider: Path
    allocator: str
    environment: dict[str, str] | None
    process: ProcessMemory


@dataclass(frozen=True, slots=True)
class SettingRead:
    """One setting of a running process.

    Attributes:
        value: What it is.
        is_effective: Read from the process itself; else what its variables ask for.
    """

    value: Value
    is_effective: bool


def look(pid: int) -> Running:
    """Returns what runs as `pid`.

    Raises:
        UsageError: There is no such process, it may not be looked at, or it has no malloc.
    """
    try:
        process = ProcessMemory.of(pid)
        environment = process.variables()
    except FileNotFoundError as error:
        raise UsageError(f"there is no process {pid}, or its program is gone") from error
    except (PermissionError, ProcessLookupError) as error:
        raise no_look_at(pid) from error
    program = process.program
    order = process.loaded() or search_order(process, (environment or {}).get(_PRELOAD, ""))
    provider = next((path for path in order if _has_malloc(process, path)), None)
    own = _inside(process) if provider in (None, program) else ""
    if provider is None and own:  # a static program, which shows its malloc to no other file
        provider = program
    if provider is None:
        raise UsageError(f"process {pid} ({program}) has no library that defines malloc")
    name = own if provider == program else loaded_program.named(provider)
    return Running(pid, program, provider, name, environment, process)


def settings(running: Running, adapter: Adapter, installed: Installed) -> dict[str, SettingRead]:
    """Returns what a process runs with, knob by knob, as far as its memory and variables tell.

    Nothing is started: what would have to run is the process's, not the caller's.

    Raises:
        WrongConfiguration: Its variables ask for what is no number, where one is wanted.
    """
    path = installed.path if adapter.is_inside else running.provider
    found = adapter.effective(lambda symbol, size: running.process.data(path, symbol, size))
    asked = adapter.requested(running.environment or {}, installed)
    return {
        **{name: SettingRead(value, is_effective=False) for name, value in asked.items()},
        **{name: SettingRead(value, is_effective=True) for name, value in found.items()},
    }


def strangers(pid: int, library: Path) -> tuple[Running, ...]:
    """Returns the descendants of a process that have another allocator than `library`.

    One that has ended, or has no malloc to look at yet, is left out.
    """
    seen = []
    for child in descendants(pid):
        with contextlib.suppress(UsageError):
            seen.append(look(child))
    return tuple(running for running in seen if running.provider != library)


def undelivered(running: Running, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the variables of `environment` that the process was not started with as they are.

    Raises:
        UsageError: The process has overwritten its variables.
    """
    if running.environment is None:
        raise UsageError(f"process {running.pid} has overwritten the variables it was started with")
    given = running.environment
    return tuple(name for name, value in environment.items() if given.get(name) != value)


def search_order(process: ProcessMemory, preload: str) -> list[Path]:
    """Returns mapped files in the order in which the loader looks symbols up, worked out.

    Args:
        process: Whose files they are.
        preload: The value of LD_PRELOAD.
    """
    files = {path: file for path in process.files if (file := process.headers(path)) is not None}
    by_name = {name: path for path, file in files.items() for name in (path.name, file.soname)}
    wanted = [Path(entry).name for entry in _SEPARATORS.split(preload) if entry]
    order = [process.program] if process.program in files else []
    order += [by_name[name] for name in wanted if name in by_name]
    met = set(order)
    for path in order:
        for name in files[path].needed:
            if name in by_name and by_name[name] not in met:
                met.add(by_name[name])
                order.append(by_name[name])
    return order + [path for path in files if path not in met]


def _has_malloc(process: ProcessMemory, path: Path) -> bool:
    """Whether a file defines malloc; its name tells where it was replaced and cannot be opened."""
    file = process.headers(path)
    return "malloc" in file.defines if file is not None else bool(loaded_program.named(path))


def _inside(process: ProcessMemory) -> str:
    """Returns the allocator that stands in the program itself; "": none is known."""
    with contextlib.suppress(OSError):
        return next((mark.family for mark in marks.of(process.link(process.program))), "")
    return ""


def descendants(pid: int) -> list[int]:
    """Returns the living processes that a process started, and those that these started."""
    found: list[int] = []
    tasks = Path("/proc", str(pid), "task")
    with contextlib.suppress(OSError):  # the process ends while it is looked at
        for task in os.listdir(tasks):
            with contextlib.suppress(OSError):
                for child in map(int, (tasks / task / "children").read_text().split()):
                    found += [child, *descendants(child)]
    return found
