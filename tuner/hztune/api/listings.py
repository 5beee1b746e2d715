"""What there is: on this machine, and in hztune."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hztune import artifacts

if TYPE_CHECKING:
    from hztune.export import Format
    from hztune.machine import Machine
    from hztune.params import Param


def machine() -> Machine:
    """The record of this machine that goes into results."""
    from hztune.machine import Machine

    return Machine.here()


def spaces() -> list[Path]:
    """The search spaces that come with hztune."""
    return sorted(artifacts.search_spaces().glob("*.toml"))


def formats() -> tuple[Format, ...]:
    """The forms that `export` knows."""
    from hztune.export import FORMATS

    return FORMATS


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
