"""An allocator that is inside: linked into the program, or into a library that the program loads.

Its variables reach it, and a preloaded library does not. It is known as `inside:jemalloc`, and
with the prefix of its build as `inside:_rjem_jemalloc`: only the name of its variable differs from
the allocator's own. What the program itself gives it (`malloc_conf`, options at build time) is its
default; that and its version are complete only when a run of the program was looked at.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from hztune.allocator import elf, marks
from hztune.allocator.base import Adapter, Config, Environment, Installed, Memory
from hztune.allocator.jemalloc import Jemalloc
from hztune.allocator.library import Library
from hztune.allocator.mimalloc import Mimalloc
from hztune.allocator.tcmalloc import Tcmalloc
from hztune.errors import UsageError
from hztune.files import sha256_of
from hztune.params import Param, Value

ANY = "inside"
"""Every allocator that is inside, on a command line."""

PATTERN = r"inside:[a-z0-9_]{0,40}(jemalloc|mimalloc|tcmalloc)"
"""The names of all that can be."""

_NAME = re.compile(r"inside:(?P<prefix>[a-z0-9_]{0,40}?)(?P<family>jemalloc|mimalloc|tcmalloc)")
_PRELOAD = "LD_PRELOAD"
_CONF = "MALLOC_CONF"


class Inside(Adapter):
    """One that is inside, by the adapter of its family."""

    is_inside = True

    def __init__(self, name: str, library: Library, prefix: str) -> None:
        """Makes the adapter of a name that `adapter_of` has read."""
        self.name = name
        self.prefix = prefix
        self.confirms = library.confirms
        self.own_auto = library.own_auto
        self._library = library
        self._renamed = {_CONF: prefix.upper() + _CONF} if prefix else {}

    @property
    def family(self) -> str:
        """Name of the allocator that it is a build of."""
        return self._library.name

    def installed(self) -> Installed:
        """Refuses: only the program can show it.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"{self.name} is no library of this machine: it stands in a program; let `hztune "
            "--allocator inside -- ./program` find settings for it, and name the profile"
        )

    def knobs(self, installed: Installed) -> tuple[Param, ...]:
        """Returns those of its version; the default is what the program gives, where it does."""
        given = dict(installed.given)
        return tuple(
            replace(param, default=given[param.name], may_be_auto=False)
            if param.name in given
            else param
            for param in self._library.knobs(installed)
        )

    def variables(self) -> tuple[str, ...]:
        """Returns the family's, with the prefix of this build."""
        own = (name for name in self._library.variables() if name != _PRELOAD)
        return tuple(self._renamed.get(name, name) for name in own)

    def settings(self, config: Config, installed: Installed) -> Environment:
        """Returns the family's, with the prefix of this build."""
        return self._outward(self._library.settings(config, installed))

    def confirm_environment(self, environment: Mapping[str, str]) -> Environment:
        """Returns `environment` so that what is inside speaks, and refuses what it cannot read."""
        return self._outward(self._library.confirm_environment(self._inward(environment)))

    def saying(self) -> Environment:
        """Returns the variables under which it says what it runs with, and nothing else changes."""
        return self._outward(self._library.saying)

    def confirmed(self, stderr: str) -> dict[str, Value] | None:
        """Returns what was said on stderr, the last of what was said twice."""
        return self._library.confirmed(stderr)

    def read_back(
        self, environment: Mapping[str, str], installed: Installed, program: Path | None = None
    ) -> dict[str, Value]:
        """Returns what the variables ask for: there is no library that a probe could be given."""
        return self.requested(environment, installed)

    def requested(self, environment: Mapping[str, str], installed: Installed) -> dict[str, Value]:
        """Returns what the variables of this build ask for."""
        return self._library.requested(self._inward(environment), installed)

    def effective(self, memory: Memory) -> dict[str, Value]:
        """Returns the settings that stand in the memory of a running process, where they do."""
        return self._library.effective(memory)

    def unreadable(self) -> frozenset[str]:
        """Returns the knobs that the family has no way to read."""
        return self._library.unreadable()

    def disturbing(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Returns the variables that would change it unasked, as the family sees them."""
        found = self._library.disturbing(self._inward(environment))
        return tuple(self._renamed.get(name, name) for name in found)

    def _outward(self, environment: Mapping[str, str]) -> Environment:
        """Returns variables under the names that this build reads."""
        return {self._renamed.get(name, name): value for name, value in environment.items()}

    def _inward(self, environment: Mapping[str, str]) -> Environment:
        """Returns variables under the names that the family's adapter knows."""
        foreign = {there: here for here, there in self._renamed.items()}
        return {
            foreign.get(name, name): value
            for name, value in environment.items()
            if name not in self._renamed
        }


@cache
def _families() -> dict[str, Library]:
    every: tuple[Library, ...] = (Jemalloc(), Mimalloc(), Tcmalloc())
    return {library.name: library for library in every}


@cache
def adapter_of(name: str) -> Inside | None:
    """Returns the adapter of a name such as `inside:_rjem_jemalloc`; None: it is no such name."""
    found = _NAME.fullmatch(name)
    if found is None or (found["prefix"] and found["family"] != "jemalloc"):
        return None
    return Inside(name, _families()[found["family"]], found["prefix"])


def parts_in(path: Path) -> tuple[Installed, ...]:
    """Returns the allocators that stand in a file and that variables reach.

    Raises:
        OSError: It cannot be read.
    """
    names = {mark: f"{ANY}:{mark.prefix}{mark.family}" for mark in marks.of(path)}
    return tuple(
        Installed(name, mark.version, "", path, sha256_of(path), "")
        for mark, name in names.items()
        if adapter_of(name) is not None
    )


def parts_of(files: Iterable[Path]) -> tuple[Installed, ...]:
    """Returns what stands in mapped files, each name once; none of what is gone, or no ELF file."""
    parts: dict[str, Installed] = {}
    for path in files:
        with contextlib.suppress(OSError):
            for part in parts_in(path) if elf.read(path) is not None else ():
                parts.setdefault(part.name, part)
    return tuple(parts.values())
