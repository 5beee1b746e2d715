"""What there is: on this machine, and in hztune."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hztune.errors import HztuneError

if TYPE_CHECKING:
    from hztune.allocator import Installed
    from hztune.doctor import Check
    from hztune.export import Format
    from hztune.machine import Machine
    from hztune.params import Param
    from hztune.workload import Workload


def doctor() -> tuple[Check, ...]:
    """What disturbs measurements on this machine, and what mends it."""
    from hztune import doctor

    return doctor.examine()


def machine() -> Machine:
    """The record of this machine that goes into results."""
    from hztune.machine import Machine

    return Machine.here()


def workloads() -> list[Workload]:
    """The built-in workloads with their settings and parameters."""
    from hztune import workload

    return list(workload.listing())


def allocators() -> dict[str, Installed | HztuneError]:
    """Every allocator that hztune knows: what is installed here, or what to do about it."""
    from hztune import allocator

    return dict(allocator.states())


def allocator_names() -> tuple[str, ...]:
    """The name of every allocator that hztune knows, installed or not."""
    from hztune import allocator

    return allocator.names()


def spaces() -> list[Path]:
    """The search spaces that come with hztune."""
    from hztune import artifacts

    return sorted(artifacts.search_spaces().glob("*.toml"))


def formats() -> tuple[Format, ...]:
    """The forms that `export` knows."""
    from hztune import export

    return tuple(export.FORMATS)


def find_format(name: str) -> Format:
    """A form of `formats` by its name.

    Raises:
        UsageError: There is none.
    """
    from hztune import export

    return export.find(name)


def parameters(allocator: str = "hz") -> Sequence[Param]:
    """The parameters of an allocator that is installed here.

    Raises:
        UsageError: There is no such allocator, or it is not installed.
    """
    from hztune import allocator as adapters
    from hztune import params

    if allocator == "hz":
        return params.table()
    adapter = adapters.get(allocator)
    return adapter.knobs(adapter.installed())


def paths() -> dict[str, Callable[[], Path]]:
    """The built parts of hz by name; each is looked for when it is called.

    Calling one raises an HztuneError where it was not built.
    """
    from hztune import artifacts

    return {
        "lib": artifacts.library,
        "static-lib": artifacts.static_library,
        "deepbind": artifacts.deepbind,
        "agent": artifacts.agent,
        "recorder": artifacts.recorder,
        "include": artifacts.include_dir,
        "cmake": artifacts.cmake_dir,
        "bench": artifacts.bench,
        "launch": artifacts.launch,
        "turns": artifacts.turns,
        "spaces": artifacts.search_spaces,
    }
