"""Allocators that are measured as they are: they read no variable that would be worth a search."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hztune.allocator.base import Config, Environment, Installed
from hztune.allocator.library import Library
from hztune.params import Value

#: The version from the file's own name: libtbbmalloc_proxy.so.2.8 -> "2.8"; "" when it has none.
_FROM_FILE = "files[0].partition('.so')[2].strip('.')"


#: oneTBB writes it into the library that its proxy loads, and prints it under TBB_VERSION=1.
_FROM_TBB = r"""next((found[1].decode() for file in mapped() if "/libtbbmalloc.so" in file
for found in [__import__("re").search(rb"TBBmalloc: VERSION\s+([\d.]+)", open(file, "rb").read())]
if found), "")"""


_TBB = ("TBB_MALLOC_USE_HUGE_PAGES", "TBB_MALLOC_SET_HUGE_SIZE_THRESHOLD")


class Fixed(Library):
    """A library without knobs."""

    version_code = _FROM_FILE
    check_advice = "look for the library in the program's /proc/PID/maps"

    def variables(self) -> tuple[str, ...]:
        """Returns only the variable that preloads it."""
        return ("LD_PRELOAD",)

    def settings(self, config: Config, installed: Installed) -> Environment:
        """Returns nothing: there is nothing to set."""
        return {}

    def requests(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        """Returns nothing: there is nothing to ask for."""
        return {}

    def read_back(
        self, environment: Mapping[str, str], installed: Installed, program: Path | None = None
    ) -> dict[str, Value]:
        """Returns no settings, after a probe has shown that the library is in the process."""
        self.ask("answer = None", environment, installed)
        return {}


class Tbb(Fixed):
    """The allocator of oneTBB, through its proxy library."""

    name = "tbb"
    package = "libtbbmalloc2"
    sonames = (("libtbbmalloc_proxy.so.2", package),)
    version_code = _FROM_TBB

    def variables(self) -> tuple[str, ...]:
        """Returns those that change it, too; huge pages are for a system that has set them up."""
        return (*super().variables(), *_TBB)


class Snmalloc(Fixed):
    """snmalloc, as its build names the library that replaces malloc."""

    name = "snmalloc"
    sonames = (("libsnmallocshim.so", ""),)


class Rpmalloc(Fixed):
    """rpmalloc, as its build names the library that replaces malloc."""

    name = "rpmalloc"
    sonames = (("librpmallocwrap.so", ""), ("librpmalloc.so", ""))
