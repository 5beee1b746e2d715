"""What gives away the allocators that stand in a file: texts that every build of them holds.

They are there in a stripped program, too, and whatever prefix the names of its functions have. A
build of jemalloc with a prefix reads a variable of its own (JEMALLOC_CPREFIX in its configure.ac):
`_rjem_`, the prefix of Rust's tikv-jemallocator, is in `_RJEM_MALLOC_CONF`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hztune.allocator import elf
from hztune.allocator.knobs import KnobRow, Version
from hztune.allocator.mimalloc import TABLE as MIMALLOC

_MARKS = {
    "jemalloc": (b"<jemalloc>: ", b"MALLOC_CONF\0"),
    "mimalloc": (b"mimalloc: ", b"eager_commit"),
    "tcmalloc": (b"TCMALLOC_TRANSFER_NUM_OBJ", b"TCMALLOC_RELEASE_RATE"),
    "hz": (b"HZ_CONFIRM", b"HZ_REMOTE_RING_SIZE"),
}
_CONF = "MALLOC_CONF"
_PREFIX = re.compile(r"_?(?:[A-Z0-9]+_)*")
_GONE = "deprecated_"
_VERSION = {
    "jemalloc": re.compile(rb"\0(\d{1,4}\.\d{1,4}\.\d{1,4})-\d{1,4}-g[0-9a-f]{7,40}\0"),
    "tcmalloc": re.compile(rb"gperftools (\d{1,4}\.\d{1,4})"),
}


@dataclass(frozen=True, slots=True)
class Mark:
    """An allocator in a file.

    Attributes:
        family: Its adapter's name.
        prefix: Of a jemalloc's functions, in small letters ("_rjem_"); "": none.
        version: As far as the file tells: of mimalloc the first that has the same options; "": it
            does not.
    """

    family: str
    prefix: str
    version: str

    @property
    def variable(self) -> str:
        """The one variable that it reads ("_RJEM_MALLOC_CONF"); "": others, or several."""
        return self.prefix.upper() + _CONF if self.family == "jemalloc" else ""


def of(path: Path) -> tuple[Mark, ...]:
    """Returns the allocators that stand in a file.

    Raises:
        OSError: It cannot be read.
    """
    status = path.stat()
    if not status.st_size:
        return ()
    return _of(path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=256)
def _of(path: Path, version: tuple[int, ...]) -> tuple[Mark, ...]:
    """Looks into a file once for each of its versions."""
    there = elf.contained(path, {text for texts in _MARKS.values() for text in texts})
    return tuple(
        Mark(family, prefix, _version(path, family))
        for family, texts in _MARKS.items()
        if there.issuperset(texts)
        for prefix in (_prefixes(path) if family == "jemalloc" else ("",))
    )


def _prefixes(path: Path) -> tuple[str, ...]:
    """Returns the prefixes that stand before MALLOC_CONF; a sentence that ends so is none."""
    names = (text.removesuffix(_CONF) for text in elf.texts_ending(path, _CONF.encode()))
    return tuple(name.lower() for name in names if _PREFIX.fullmatch(name))


def _version(path: Path, family: str) -> str:
    if family == "mimalloc":
        return ".".join(map(str, _dated(path)))
    pattern = _VERSION.get(family)
    found = elf.matches(path, pattern) if pattern else None
    return found[1].decode() if found else ""


def _dated(path: Path) -> Version:
    """Returns the first version of mimalloc whose options are those that the file names.

    A linker lets a text be the end of a longer one, so that nothing needs to stand before a name;
    an option that is gone is kept under that name behind _GONE.
    """
    options = {row.option for row in MIMALLOC}
    texts = {f"{start}{option}\0".encode() for option in options for start in ("", _GONE)}
    held = elf.contained(path, texts)
    there = {
        option
        for option in options
        if f"{option}\0".encode() in held and f"{_GONE}{option}\0".encode() not in held
    }

    def strays(version: Version) -> int:
        return len({row.option for row in MIMALLOC if row.holds(version)} ^ there)

    return min(_turns(MIMALLOC), key=strays)


def _turns(table: tuple[KnobRow, ...]) -> list[Version]:
    """Returns the versions with which something in a table begins or ends."""
    return sorted({row.since for row in table} | {row.before for row in table} - {()})
