"""glibc's own malloc: tunables in GLIBC_TUNABLES, shown by the loader's --list-tunables.

The loader shows what it parsed, and malloc then drops in silence what is past its own limits: so
the ranges here are malloc's. Setting one of four thresholds ends the adapting of the others
(no_dyn_threshold in malloc.c): those that are left stay at 128 KiB. For top_pad and mmap_max that
is told; of mmap_threshold and trim_threshold hztune sets both, or none. Sources:
elf/dl-tunables.list and malloc/malloc.c of glibc 2.33 to 2.42 and the development version after it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from hztune.allocator import loaded_program, probe
from hztune.allocator.base import (
    Adapter,
    Config,
    Environment,
    Installed,
    WrongConfiguration,
)
from hztune.allocator.knobs import (
    AUTO,
    INT32_MAX,
    INT64_MAX,
    KnobRow,
    number,
    parse_version,
    rows_of,
    words,
)
from hztune.errors import UsageError
from hztune.files import sha256_of
from hztune.params import Param, Value

_TUNABLES = "GLIBC_TUNABLES"
_LISTED = re.compile(r"^(?P<name>[\w.]+): (?P<value>0x[0-9a-f]+|-?\d+) \(min:", re.M)
_OLDEST = (2, 33)
#: What adapts itself as large blocks are freed; when one is set, the other stays at 128 KiB.
_ADAPTING = ("mmap_threshold", "trim_threshold")


_DEPTH = "blocks of each size that a thread's cache holds; 0: no such cache"
_REACH = "largest block that a thread's cache holds"
_FROZEN = "; auto: adapts as large blocks are freed, but is 131072 if top_pad or mmap_max is set"
_FREEZES = ", and mmap_threshold and trim_threshold adapt; a set value ends that"
#: The development version before 2.43, from which on there are no fastbins.
_NEWEST = "2.42.9000"
# fmt: off
TABLE = (
    number("arena_max", AUTO, 1, 65535, "log", "arenas",
           "most arenas that threads are spread over; auto: 8 a CPU, whatever the quota"),
    number("arena_test", AUTO, 1, 65535, "log", "arenas",
           "arenas made before CPUs are counted, if arena_max is auto; auto: 8"),
    number("mmap_threshold", AUTO, 0, INT64_MAX, "pow2", "bytes",
           "blocks from this size on are mapped one by one" + _FROZEN),
    number("trim_threshold", AUTO, 0, INT64_MAX, "pow2", "bytes",
           "free memory at the top of the heap above which it is returned" + _FROZEN),
    number("top_pad", AUTO, 0, INT64_MAX, "pow2", "bytes",
           "memory requested beyond the need; auto: 131072" + _FREEZES),
    number("mmap_max", AUTO, 0, INT32_MAX, "log", "blocks",
           "most blocks that are mapped one by one; auto: 65536" + _FREEZES),
    number("tcache_count", 7, 0, 65535, "log", "blocks", _DEPTH, versions=f"2.33-{_NEWEST}"),
    number("tcache_count", 16, 0, 65535, "log", "blocks", _DEPTH, versions=_NEWEST),
    number("tcache_max", 1032, 0, 1032, "log", "bytes", _REACH, versions="2.33-2.42"),
    number("tcache_max", 1032, 0, 4194280, "log", "bytes", _REACH, versions="2.42"),
    number("tcache_unsorted_limit", 0, 0, INT64_MAX, "log", "blocks",
           "most blocks looked at in one allocation to fill a thread's cache; 0: no limit"),
    number("mxfast", 128, 0, 160, "linear", "bytes",
           "largest block that an arena keeps unmerged", versions=f"2.33-{_NEWEST}"),
    words("hugetlb", "0", "0 1 2",
          "huge pages: none, transparent ones by madvise, or the system's pool", versions="2.35"),
    number("stack_cache_size", 41943040, 0, INT64_MAX, "log", "bytes",
           "stacks of ended threads that are cached for new ones", versions="2.34"),
    words("stack_hugetlb", "1", "0 1",
          "let thread stacks have transparent huge pages", versions="2.38"),
)
# fmt: on
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
    check_advice = "give the same variables to the program's loader with --list-tunables"
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
        """Refuses, beside what is out of range, half of the two thresholds that adapt together."""
        super().check(config, installed)
        given = [name for name in _ADAPTING if config.get(name, AUTO) != AUTO]
        if len(given) == 1:
            (missing,) = set(_ADAPTING) - set(given)
            raise UsageError(
                f"glibc: {given[0]} is set without {missing}; glibc stops adapting both once one "
                "is set, so set both mmap_threshold and trim_threshold, or none"
            )

    def variables(self) -> tuple[str, ...]:
        """Returns GLIBC_TUNABLES and the older variables; LD_PRELOAD would replace this malloc."""
        return ("LD_PRELOAD", _TUNABLES, *_OTHERS)

    def settings(self, config: Config, installed: Installed) -> Environment:
        """Returns GLIBC_TUNABLES with an entry for each tunable; nothing when none is given."""
        entries = [
            f"{_tunable(row)}={config[row.param.name]}"
            for row in rows_of(TABLE, installed.version)
            if config.get(row.param.name, AUTO) != AUTO
        ]
        return {_TUNABLES: ":".join(entries)} if entries else {}

    def requested(self, environment: Mapping[str, str], installed: Installed) -> dict[str, Value]:
        """Returns what GLIBC_TUNABLES and the older variables say."""
        entries = [each.partition("=") for each in environment.get(_TUNABLES, "").split(":")]
        tunables = {name: text for name, _, text in entries}
        try:
            return {
                row.param.name: text if row.param.kind == "enum" else int(text, 0)
                for row in rows_of(TABLE, installed.version)
                if (text := _asked(row, environment, tunables))
            }
        except ValueError as error:
            raise WrongConfiguration(f"glibc is given what is no number: {error}") from None

    def read_back(
        self, environment: Mapping[str, str], installed: Installed, program: Path | None = None
    ) -> dict[str, Value]:
        """Returns what the target's own loader parsed, where that is not "unset".

        The ranges of the knobs are malloc's own, so what was parsed within them is in effect.
        """
        loader = loaded_program.loader_of(program)
        done = probe.run_loader(loader, environment)
        rows = {_tunable(row): row.param for row in rows_of(TABLE, installed.version)}
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


def _asked(row: KnobRow, environment: Mapping[str, str], tunables: Mapping[str, str]) -> str:
    """Returns what is asked of a tunable; older variables may have an underscore at their end."""
    older = f"MALLOC_{row.option.upper()}"
    texts = (environment.get(name) for name in (older, f"{older}_") if name in _OTHERS)
    return tunables.get(_tunable(row)) or next(filter(None, texts), "")


def _tunable(row: KnobRow) -> str:
    """Returns the full name of a tunable."""
    group = "pthread" if row.option.startswith("stack_") else "malloc"
    return f"glibc.{group}.{row.option}"


def _value(param: Param, number: int, named: bool) -> Value:
    """Returns a listed number as a value; 0 also stands for one that was not set, or refused."""
    if number == 0 and (not named or param.low > 0):
        return param.default
    return str(number) if param.kind == "enum" else number
