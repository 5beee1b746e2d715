"""Finds the allocator configuration that is best for a workload on a machine, and proves it."""

from __future__ import annotations


def version() -> str:
    """The installed version, which is the core's too."""
    from importlib.metadata import version as installed_version

    return installed_version("hztune")
