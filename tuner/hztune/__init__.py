"""Finds the allocator configuration that is best for a workload on a machine, and proves it.

`hztune.api` has a function for everything that the command line does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hztune import api as api

    __version__: str


def version() -> str:
    """The installed version, which is the core's too."""
    from importlib.metadata import version as installed_version

    return installed_version("hztune")


def __getattr__(name: str) -> object:
    if name == "__version__":
        return version()
    if name != "api":
        raise AttributeError(f"hztune has no {name!r}; hztune.api has all that it does")
    from importlib import import_module

    return import_module("hztune.api")
