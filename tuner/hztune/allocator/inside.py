"""An allocator that is inside: linked into the program, or into a library that the program loads.

Its variables reach it, and a preloaded library does not. It is known by texts that every build of
it holds, also in a stripped program, and is called `inside:jemalloc`; a build of jemalloc with a
prefix for its functions (`_rjem_`, that of Rust's tikv-jemallocator) reads a variable of its own
(`_RJEM_MALLOC_CONF`; JEMALLOC_CPREFIX in its configure.ac) and is `inside:_rjem_jemalloc`. What the
program itself gives it (`malloc_conf`, options at build time) is its default; that and its version
are complete only when a run of the program was looked at.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from hztune.allocator import elf
from hztune.allocator.base import Installed
from hztune.allocator.library import Library, library_of
from hztune.allocator.tables import Table, Version, tables
from hztune.files import sha256_of

ANY = "inside"
"""Every allocator that is inside, on a command line."""

_PREFIX = re.compile(r"_?(?:[A-Z0-9]+_)*")
_GONE = "deprecated_"


@dataclass(frozen=True, slots=True)
class Mark:
    """An allocator in a file."""

    family: str
    """Its adapter's name."""
    prefix: str
    """Of its functions and variable, in small letters ("_rjem_"); "": none."""
    version: str
    """As far as the file tells: of mimalloc the first that has the same options; "": it does
    not."""
    variable: str
    """The one variable that it reads ("_RJEM_MALLOC_CONF"); "": others, or several."""


@cache
def name_pattern() -> re.Pattern[str]:
    """What matches the names of all that can be: a prefix, and the family."""
    families = "|".join(name for name, table in tables().items() if table.marks and table.rows)
    return re.compile(rf"inside:([a-z0-9_]{{0,40}}?)({families})")


@cache
def adapter_of(name: str) -> Library | None:
    """The adapter of a name such as `inside:_rjem_jemalloc`; None: it is no such name."""
    found = name_pattern().fullmatch(name)
    if found is None or (found[1] and not tables()[found[2]].variable):
        return None
    return library_of(found[2], found[1])


def parts_in(path: Path) -> tuple[Installed, ...]:
    """The allocators that stand in a file and that variables reach; OSError: it cannot be read."""
    return tuple(
        Installed(name, mark.version, "", path, sha256_of(path), "")
        for mark in marks_of(path)
        if adapter_of(name := f"{ANY}:{mark.prefix}{mark.family}") is not None
    )


def parts_of(files: Iterable[Path]) -> tuple[Installed, ...]:
    """What stands in mapped files, each name once; none of what is gone, or no ELF file."""
    parts: dict[str, Installed] = {}
    for path in files:
        with contextlib.suppress(OSError):
            for part in parts_in(path) if elf.read(path) is not None else ():
                parts.setdefault(part.name, part)
    return tuple(parts.values())


def marks_of(path: Path) -> tuple[Mark, ...]:
    """The allocators that stand in a file, whether variables reach them or not; else OSError."""
    status = path.stat()
    if not status.st_size:
        return ()
    return _marks(path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=256)
def _marks(path: Path, version: tuple[int, ...]) -> tuple[Mark, ...]:
    """Looks into a file once for each of its versions."""
    texts = {t.name: {text.encode() for text in t.marks} for t in tables().values() if t.marks}
    there = elf.contained(path, {text for each in texts.values() for text in each})
    return tuple(
        Mark(name, prefix.lower(), _version(path, tables()[name]), prefix + tables()[name].variable)
        for name in texts
        if there.issuperset(texts[name])
        for prefix in _prefixes(path, tables()[name].variable)
    )


def _prefixes(path: Path, variable: str) -> list[str]:
    """What stands before the variable in a file; a sentence that ends so is none."""
    if not variable:
        return [""]
    names = (text.removesuffix(variable) for text in elf.texts_ending(path, variable.encode()))
    return [name for name in names if _PREFIX.fullmatch(name)]


def _version(path: Path, table: Table) -> str:
    """The version of an allocator in a file: beside its mark, or the first with such options.

    A linker lets a text be the end of a longer one, so that nothing needs to stand before a name;
    an option that is gone is kept under that name behind _GONE.
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
