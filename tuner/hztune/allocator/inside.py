"""An allocator that is inside: linked into the program, or into a library that the program loads.

Its variables reach it, and a preloaded library does not. It is known by texts that every build of
it holds, also in a stripped program, and is called `inside:jemalloc`; a build of jemalloc with a
prefix for its functions (`_rjem_`, that of Rust's tikv-jemallocator) reads a variable of its own
(`_RJEM_MALLOC_CONF`; JEMALLOC_CPREFIX in its configure.ac) and is `inside:_rjem_jemalloc`. What the
program itself gives it (`malloc_conf`, options at build time) is its default; that and its version
are complete only when a run of the program was looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from hztune.allocator import elf
from hztune.allocator.base import Adapter, Installed, Table, Version, tables
from hztune.allocator.library import library_of
from hztune.files import sha256_of

ANY = "inside"  # every allocator that is inside, on a command line

_PREFIX = re.compile(r"_?(?:[A-Z0-9]+_)*")
_GONE = "deprecated_"


class Mark(NamedTuple):
    family: str  # its adapter's name
    prefix: str  # of its functions and variable, in small letters ("_rjem_"); "": none
    version: str  # as far as the file tells: of mimalloc the first that has the same options
    variable: str  # the one that it reads ("_RJEM_MALLOC_CONF"); "": others, or several


@cache
def name_pattern() -> re.Pattern[str]:
    families = "|".join(name for name, table in tables().items() if table.marks and table.rows)
    return re.compile(rf"inside:([a-z0-9_]{{0,40}}?)({families})")


@cache
def adapter_of(name: str) -> Adapter | None:
    """The adapter of a name such as `inside:_rjem_jemalloc`; None: it is no such name."""
    found = name_pattern().fullmatch(name)
    if found is None or (found[1] and not tables()[found[2]].variable):
        return None
    return library_of(found[2], found[1])


def parts_of(files: Iterable[Path]) -> tuple[Installed, ...]:
    """What stands in files and variables reach, each name once; not what is gone, or no ELF."""
    parts: dict[str, Installed] = {}
    for path in files:
        with suppress(OSError):
            for mark in marks_of(path):
                name = f"{ANY}:{mark.prefix}{mark.family}"
                if name not in parts and adapter_of(name) is not None:
                    parts[name] = Installed(name, mark.version, "", path, sha256_of(path), "")
    return tuple(parts.values())


def marks_of(path: Path) -> tuple[Mark, ...]:
    """The allocators that stand in a file, whether variables reach them or not; else OSError."""
    status = path.stat()
    return _marks(path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=256)
def _marks(path: Path, version: tuple[int, ...]) -> tuple[Mark, ...]:
    marked = [(table, {text.encode() for text in table.marks}) for table in tables().values()]
    there = elf.contained(path, set().union(*(texts for _, texts in marked)))
    found = list[Mark]()
    for table, texts in marked:
        if texts and there.issuperset(texts):
            variable, prefixes = table.variable, [""]
            if variable:  # what stands before it; a sentence that ends so is none
                names = elf.texts_ending(path, variable.encode())
                prefixes = [name.removesuffix(variable) for name in names]
            told = _version(path, table)
            found += [
                Mark(table.name, prefix.lower(), told, prefix + variable)
                for prefix in prefixes
                if _PREFIX.fullmatch(prefix)
            ]
    return tuple(found)


def _version(path: Path, table: Table) -> str:
    """The version of an allocator in a file: beside its mark, or the first with such options.

    A linker may make a text the end of a longer one, so nothing needs to stand before a name; an
    option that is gone is kept under that name behind _GONE.
    """
    if table.mark_version:
        found = elf.matches(path, re.compile(table.mark_version.encode()))
        return found[1].decode() if found else ""
    if not table.rows:
        return ""
    options = {row.option for row in table.rows}
    texts = {f"{start}{option}\0".encode() for option in options for start in ("", _GONE)}
    held = elf.contained(path, texts)
    there = {
        option
        for option in options
        if f"{option}\0".encode() in held and f"{_GONE}{option}\0".encode() not in held
    }

    def strays(version: Version) -> int:
        return len({row.option for row in table.rows if row.holds(version)} ^ there)

    turns = {version for row in table.rows for version in row.span if version}
    first: Version = min(sorted(turns), key=strays)
    return ".".join(map(str, first))
