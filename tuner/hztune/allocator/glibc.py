"""glibc's own malloc: tunables in GLIBC_TUNABLES, shown by the loader's --list-tunables.

The loader shows what it parsed, and malloc then drops in silence what is past its own limits: so
the ranges here are malloc's. Setting one of four thresholds freezes the other three at 128 KiB;
hztune therefore sets both that matter, or none. Sources: elf/dl-tunables.list and malloc/malloc.c
of glibc 2.33 to 2.42 and the development version after it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from hztune.allocator import probe, target
from hztune.allocator.base import (
    Adapter,
    Config,
    Environment,
    Installed,
    WrongConfiguration,
    sha256_of,
)
from hztune.allocator.knobs import (
    AUTO,
    INT32_MAX,
    INT64_MAX,
    Row,
    choice,
    integer,
    parse_version,
    rows_of,
)
from hztune.errors import UsageError
from hztune.params import Param, Value

_TUNABLES = "GLIBC_TUNABLES"
_LISTED = re.compile(r"^(?P<name>[\w.]+): (?P<value>0x[0-9a-f]+|-?\d+) \(min:", re.M)
_OLDEST = (2, 33)
_MALLOC = "glibc.malloc."
#: glibc freezes all of these when one is set; the first two carry the meaning of the others.
_THRESHOLDS = ("mmap_threshold", "trim_threshold", "top_pad", "mmap_max")


def _threshold(name: str, doc: str) -> Row:
    doc += "; auto: adapts itself as large blocks are freed"
    param = integer(name, AUTO, 0, INT64_MAX, "pow2", "bytes", doc)
    return Row(param, _MALLOC + name)


def _depth(default: int) -> Param:
    doc = "blocks of each size that a thread's cache holds; 0: no such cache"
    return integer("tcache_count", default, 0, 65535, "log", "blocks", doc)


def _reach(high: int) -> Param:
    return integer(
        "tcache_max", 1032, 0, high, "log", "bytes", "largest block that a thread's cache holds"
    )


TABLE = (
    Row(
        integer(
            "arena_max",
            AUTO,
            1,
            65535,
            "log",
            "arenas",
            "most arenas that threads are spread over; auto: 8 a CPU, whatever the quota",
        ),
        _MALLOC + "arena_max",
    ),
    Row(
        integer(
            "arena_test",
            AUTO,
            1,
            65535,
            "log",
            "arenas",
            "arenas made before CPUs are counted, where arena_max is auto; auto: 8",
        ),
        _MALLOC + "arena_test",
    ),
    _threshold("mmap_threshold", "blocks from this size on are mapped one by one"),
    _threshold("trim_threshold", "free memory at the top of the heap that is given back"),
    _threshold("top_pad", "memory asked for at once beyond what is needed"),
    Row(
        integer(
            "mmap_max",
            AUTO,
            0,
            INT32_MAX,
            "log",
            "blocks",
            "most blocks mapped one by one; auto: 65536",
        ),
        _MALLOC + "mmap_max",
    ),
    Row(_depth(7), _MALLOC + "tcache_count", _OLDEST, (2, 42, 9000)),
    Row(_depth(16), _MALLOC + "tcache_count", (2, 42, 9000)),
    Row(_reach(1032), _MALLOC + "tcache_max", _OLDEST, (2, 42)),
    Row(_reach(4194280), _MALLOC + "tcache_max", (2, 42)),
    Row(
        integer(
            "tcache_unsorted_limit",
            0,
            0,
            INT64_MAX,
            "log",
            "blocks",
            "looked at to fill a thread's cache in one allocation; 0: no limit",
        ),
        _MALLOC + "tcache_unsorted_limit",
    ),
    Row(
        integer(
            "mxfast", 128, 0, 160, "linear", "bytes", "largest block kept unmerged in an arena"
        ),
        _MALLOC + "mxfast",
        _OLDEST,
        (2, 42, 9000),
    ),
    Row(
        choice(
            "hugetlb",
            "0",
            ("0", "1", "2"),
            "huge pages: none, transparent ones by madvise, or the system's pool",
        ),
        _MALLOC + "hugetlb",
        (2, 35),
    ),
    Row(
        integer(
            "stack_cache_size",
            41943040,
            0,
            INT64_MAX,
            "log",
            "bytes",
            "stacks of ended threads that are kept",
        ),
        "glibc.pthread.stack_cache_size",
        (2, 34),
    ),
    Row(
        choice("stack_hugetlb", "1", ("0", "1"), "transparent huge pages for thread stacks"),
        "glibc.pthread.stack_hugetlb",
        (2, 38),
    ),
)
#: Older spellings of some tunables, and what makes malloc another one (checking, mtrace).
_OTHERS = (
    "MALLOC_ARENA_MAX",
    "MALLOC_ARENA_TEST",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_MMAP_MAX_",
    "MALLOC_PERTURB_",
    "MALLOC_CHECK_",
    "MALLOC_TRACE",
)


class Glibc(Adapter):
    """The malloc of the C library that every program has, with nothing preloaded."""

    name = "glibc"
    package = "libc6"

    def installed(self) -> Installed:
        """Returns the C library that a process of this system maps."""
        answer = probe.ask(
            "this.gnu_get_libc_version.restype = ctypes.c_char_p\n"
            "files = [file for file in mapped() if '/libc.so.6' in file or '/libc-2.' in file]\n"
            "say({'files': files, 'version': this.gnu_get_libc_version().decode()})",
            {},
        )
        if not answer["files"] or parse_version(answer["version"]) < _OLDEST:
            raise UsageError(
                f"glibc {answer['version']} does not list its tunables; "
                f"{'.'.join(map(str, _OLDEST))} or newer does"
            )
        path = Path(answer["files"][0])
        return Installed(self.name, answer["version"], "", path, sha256_of(path), self.package)

    def knobs(self, installed: Installed) -> tuple[Param, ...]:
        """Returns the tunables of the installed version that bear on speed or memory."""
        return tuple(row.param for row in rows_of(TABLE, installed.version))

    def check(self, config: Config, installed: Installed) -> None:
        """Refuses, beside what is out of range, a threshold that would freeze the others."""
        super().check(config, installed)
        given = [name for name in _THRESHOLDS if config.get(name, AUTO) != AUTO]
        missing = [name for name in _THRESHOLDS[:2] if name not in given]
        if given and missing:
            raise UsageError(
                f"glibc: {given[0]} is set without {' and '.join(missing)}; glibc stops adapting "
                "all thresholds once one is set, so set both mmap_threshold and trim_threshold, "
                "or none of " + ", ".join(_THRESHOLDS)
            )

    def variables(self) -> tuple[str, ...]:
        """Returns GLIBC_TUNABLES and the older variables; LD_PRELOAD would replace this malloc."""
        return ("LD_PRELOAD", _TUNABLES, *_OTHERS)

    def settings(self, config: Config, installed: Installed) -> Environment:
        """Returns GLIBC_TUNABLES with an entry for each tunable; nothing when none is given."""
        entries = [
            f"{row.option}={config[row.param.name]}"
            for row in rows_of(TABLE, installed.version)
            if config.get(row.param.name, AUTO) != AUTO
        ]
        return {_TUNABLES: ":".join(entries)} if entries else {}

    def read_back(
        self, environment: Mapping[str, str], installed: Installed, program: Path | None = None
    ) -> dict[str, Value]:
        """Returns what the target's own loader parsed, where that is not "unset".

        The ranges of the knobs are malloc's own, so what was parsed within them is in effect.
        """
        loader = target.loader_of(program)
        done = probe.run_loader(loader, environment)
        rows = {row.option: row.param for row in rows_of(TABLE, installed.version)}
        listed = {said["name"]: int(said["value"], 0) for said in _LISTED.finditer(done.stdout)}
        if not done.ok or not rows.keys() <= listed.keys():
            raise WrongConfiguration(
                f"{loader} does not list the tunables of glibc {installed.version}; "
                f"it {done.describe()}"
            )
        named = {entry.partition("=")[0] for entry in environment.get(_TUNABLES, "").split(":")}
        return {
            param.name: _value(param, listed[option], option in named)
            for option, param in rows.items()
        }


def _value(param: Param, number: int, named: bool) -> Value:
    """Returns a listed number as a value; 0 is also what is listed for one that nobody set."""
    if number == 0 and not named:
        return param.default
    return str(number) if param.kind == "enum" else number
