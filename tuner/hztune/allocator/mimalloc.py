"""mimalloc 2 and 3: an option is MIMALLOC_<NAME>, and MIMALLOC_VERBOSE=1 prints all of them.

Names, defaults and even units changed between versions, and an unknown name is ignored without a
word, so that a setting counts only when the process printed it back. Table: src/options.c of v2.0.6
to v3.4.3, each built and run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from hztune.allocator.base import Config, Environment, Installed, WrongConfiguration
from hztune.allocator.knobs import INT32_MAX, number, words
from hztune.allocator.library import Library, agreed
from hztune.allocator.probe import run_true
from hztune.params import Param, Value

_PREFIX = "MIMALLOC_"
_SAID = re.compile(r"option '(?P<option>\w+)': (?P<value>-?\d+)")
#: Its settings at the start and its statistics at the end; a warning or an error is a reason.
_CHATTER = re.compile(
    r"^.*stats: +peak [\s\S]*?^mimalloc: process done.*$"
    r"|^mimalloc: (?!warning|error|assertion).*$",
    re.M,
)
#: Options of memory size: a bare number is bytes (rounded up), with K it is what is printed back.
_KIB = "KiB"
#: mi_version() has three to five digits: 209 is 2.0.9, 3208 is 3.2.8, 20302 is 2.3.2.
_VERSION = (
    "(lambda v, n: f'{v[0]}.{int(v[1:-n])}.{int(v[-n:])}')"
    "(str(this.mi_version()), 1 if this.mi_version() < 1000 else 2)"
)
_KEPT_MS = "how long unused memory stays resident before it is returned; 0: at once"
_KEPT_OR_NEVER = f"{_KEPT_MS}; -1: never"
_ADOPT = "whether freeing a block of an ended thread adopts the memory around it"
_POOL = "ask for 2 MiB pages of the system's pool, which must have been set up"
_POOL_OR_THP = f"{_POOL}; 2: transparent ones only"
_ON_EXIT = "return the unused pages of a thread's memory when the thread ends"
_TIMES = "an arena's memory waits this many times the purge delay"
_CLEAN = "slow allocations between two clean-ups of a thread's heap"
# fmt: off
TABLE = (
    # --- returning memory ---
    number("purge_delay", 25, 0, INT32_MAX, "log", "ms", _KEPT_MS,
           option="decommit_delay", versions="2.0-2.1.2"),
    number("purge_delay", 10, -1, INT32_MAX, "log", "ms", _KEPT_OR_NEVER, versions="2.1.2-3.0"),
    number("purge_delay", 1000, -1, INT32_MAX, "log", "ms", _KEPT_OR_NEVER, versions="3.0"),
    number("segment_purge_delay", 500, 0, INT32_MAX, "log", "ms",
           "how long a whole unused segment stays resident; 0: not at all",
           option="segment_decommit_delay", versions="2.0-2.1.2"),
    number("arena_purge_mult", 10, 0, 1000, "log", "times", _TIMES, versions="2.1.2-3.0"),
    number("arena_purge_mult", 1, 0, 1000, "log", "times", _TIMES, versions="3.0"),
    number("minimal_purge_size", 0, 0, 65536, "pow2", _KIB,
           "least memory that is returned at once; 0: 64 KiB", versions="3.2"),
    words("purge_decommits", "1", "0 1",
          "return memory to the system at once, or let it be taken later (0)", versions="2.1.2"),
    words("allow_decommit", "1", "0 1",
          "return unused memory to the system at all", versions="2.0-2.1.2"),
    words("page_reset", "0", "0 1",
          "tell the system that a page of free blocks is not needed", versions="2.0-2.1.2"),
    words("abandoned_purge", "0", "0 1", _ON_EXIT,
          option="abandoned_page_decommit", versions="2.0-2.1.2"),
    words("abandoned_purge", "0", "0 1", _ON_EXIT,
          option="abandoned_page_purge", versions="2.1.2-3.2"),
    # --- getting memory ---
    words("eager_commit", "1", "0 1",
          "commit a whole segment when it is made", versions="2.0-3.2"),
    number("eager_commit_delay", 1, 0, 1024, "log", "segments",
           "first segments of each thread that are not committed eagerly", versions="2.0-3.2"),
    words("arena_eager_commit", "2", "0 1 2",
          "commit whole arenas; 2: only where the system overcommits", versions="2.1.2"),
    number("arena_reserve", 1048576, 32768, 1 << 28, "pow2", _KIB,
           "address space reserved at once for an arena", versions="2.1.2"),
    words("allow_large_os_pages", "0", "0 1", _POOL, option="large_os_pages", versions="2.0-2.1.2"),
    words("allow_large_os_pages", "0", "0 1", _POOL, versions="2.1.2-2.1.9"),
    words("allow_large_os_pages", "2", "0 1 2", _POOL_OR_THP, versions="2.1.9-2.2.7"),
    words("allow_large_os_pages", "0", "0 1", _POOL, versions="2.2.7-3.0"),
    words("allow_large_os_pages", "2", "0 1 2", _POOL_OR_THP, versions="3.0-3.2"),
    words("allow_large_os_pages", "0", "0 1", _POOL, versions="3.2"),
    words("allow_thp", "1", "0 1",
          "let the system use transparent huge pages for the process", versions="2.2.7-3.0"),
    words("allow_thp", "1", "0 1 2",
          "let the system use transparent huge pages; 2: and return whole ones", versions="3.2"),
    # --- memory of threads that have ended ---
    number("max_segment_reclaim", 8, 1, 1024, "log", "segments",
           "most ownerless segments that are adopted in one try", versions="2.0-2.1.4"),
    number("max_segment_reclaim", 10, 0, 100, "linear", "percent",
           "share of the ownerless segments that is looked at in one try", versions="2.1.4-3.0"),
    words("reclaim_on_free", "1", "0 1", _ADOPT,
          option="abandoned_reclaim_on_free", versions="2.1.4-2.1.9"),
    words("reclaim_on_free", "0", "0 1", _ADOPT,
          option="abandoned_reclaim_on_free", versions="2.1.9-3.0"),
    words("reclaim_on_free", "0", "-1 0 1", f"{_ADOPT}; 0: only if it was this thread's",
          option="page_reclaim_on_free", versions="3.0.10"),
    number("page_max_reclaim", -1, -1, 65536, "log", "pages",
           "pages of a size from which on a thread takes none of its own back; -1: no limit",
           versions="3.1"),
    number("page_cross_thread_max_reclaim", 32, -1, 65536, "log", "pages",
           "pages of a size from which on a thread adopts none; -1: no limit", versions="3.1"),
    number("target_segments_per_thread", 0, 0, 4096, "log", "segments",
           "segments above which a thread gives some up; 0: it never does", versions="2.1.9-3.0"),
    # --- a thread's heap ---
    number("generic_collect", 10000, 1, INT32_MAX, "log", "calls", _CLEAN, versions="2.2-3.0"),
    number("generic_collect", 10000, 1, INT32_MAX, "log", "calls", _CLEAN, versions="3.1"),
    number("page_full_retain", 2, -1, 64, "linear", "pages",
           "free pages that each size keeps; -1: all", versions="3.0"),
    number("page_max_candidates", 4, 1, 64, "log", "pages",
           "pages that are searched for the one with the best fit", versions="3.0"),
)
# fmt: on
#: Names that spoil or shadow the ones above: old spellings, and what only talks.
_OTHERS = (
    "VERBOSE",
    "SHOW_ERRORS",
    "SHOW_STATS",
    "RESET_DELAY",
    "RESET_DECOMMITS",
    "PAGE_RESET",
    "ABANDONED_PAGE_RESET",
    "EAGER_REGION_COMMIT",
    "DECOMMIT_EXTEND_DELAY",
    "PURGE_EXTEND_DELAY",
    "RESERVE_HUGE_OS_PAGES",
    "RESERVE_OS_MEMORY",
    "LIMIT_OS_ALLOC",
    "DISALLOW_OS_ALLOC",
    "DISALLOW_ARENA_ALLOC",
)


class Mimalloc(Library):
    """mimalloc, from 2.0 on."""

    name = "mimalloc"
    check_advice = "start the program once with MIMALLOC_VERBOSE=1"
    package = "libmimalloc2.0"
    sonames = (("libmimalloc.so.3", "libmimalloc3"), ("libmimalloc.so.2", package))
    confirms = True
    chatter = _CHATTER
    table = TABLE
    saying = MappingProxyType({_PREFIX + "VERBOSE": "1"})
    version_code = _VERSION

    def variables(self) -> tuple[str, ...]:
        """Returns the variable of every option that any version has, and the old spellings."""
        options = dict.fromkeys(_PREFIX + row.option.upper() for row in TABLE)
        return ("LD_PRELOAD", *options, *(_PREFIX + name for name in _OTHERS))

    def settings(self, config: Config, installed: Installed) -> Environment:
        """Returns one variable for each option; sizes carry their K, since bare ones are bytes."""
        return {
            _PREFIX + row.option.upper(): f"{value}K" if row.param.unit == _KIB else str(value)
            for row, value in self.given(config, installed)
        }

    def requests(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        """Returns what the variables say, in any case; of a size without its K."""
        own = {name.upper(): value for name, value in environment.items()}
        return {
            name.removeprefix(_PREFIX).lower(): value.removesuffix("K")
            for name, value in own.items()
            if name.startswith(_PREFIX)
        }

    def disturbing(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Returns every MIMALLOC_ variable, in any case: the library reads them all alike."""
        return tuple(sorted(name for name in environment if name.upper().startswith(_PREFIX)))

    def confirm_environment(self, environment: Mapping[str, str]) -> Environment:
        """Returns `environment` with MIMALLOC_VERBOSE, which prints each option at the start."""
        return {**environment, **self.saying}

    def confirmed(self, stderr: str) -> dict[str, Value] | None:
        """Returns what MIMALLOC_VERBOSE printed."""
        rows = {row.option: row.param for row in TABLE}
        pairs = [
            (rows[said["option"]].name, _value(rows[said["option"]], said["value"]))
            for said in _SAID.finditer(stderr)
            if said["option"] in rows
        ]
        return agreed(pairs, self.name)

    def read_back(
        self, environment: Mapping[str, str], installed: Installed, program: Path | None = None
    ) -> dict[str, Value]:
        """Returns what a process that does nothing prints."""
        done = run_true(self.confirm_environment({"LD_PRELOAD": installed.preload, **environment}))
        said = self.confirmed(done.stderr)
        if said is None:
            raise WrongConfiguration(f"mimalloc printed no options; the process {done.describe()}")
        return said


def _value(param: Param, text: str) -> Value:
    return text if param.kind == "enum" else int(text)
