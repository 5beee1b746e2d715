"""mimalloc 2 and 3: an option is MIMALLOC_<NAME>, and MIMALLOC_VERBOSE=1 prints all of them.

Names, defaults and even units changed between versions, and an unknown name is ignored without a
word, so that a setting counts only when the process printed it back. Table: src/options.c of v2.0.6
to v3.4.3, each built and run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from hztune.allocator.base import Config, Environment, Installed, WrongConfiguration
from hztune.allocator.knobs import INT32_MAX, Row, choice, integer
from hztune.allocator.library import Library, agreed
from hztune.allocator.probe import run_true
from hztune.params import Param, Value

_PREFIX = "MIMALLOC_"
_SAID = re.compile(r"option '(?P<option>\w+)': (?P<value>-?\d+)")
#: Options of memory size: a bare number is bytes (rounded up), with K it is what is printed back.
_KIB = "KiB"
#: mi_version() gives 209 for 2.0.9, and since 2.3.0 five digits: 20302 for 2.3.2.
_VERSION = (
    "(lambda v, b: f'{v // b ** 2}.{v // b % b}.{v % b}')"
    "(this.mi_version(), 100 if this.mi_version() > 9999 else 10)"
)
_BITS = ("0", "1")
_TWO_STEPS = ("0", "1", "2")

_DELAY = "how long unused memory stays resident before it is returned; 0: at once"
_NEVER = _DELAY + "; -1: never"
_RECLAIM = "whether a free of a block whose thread has ended adopts the memory around it"
_LARGE = "ask for 2 MiB pages of the system's huge page pool; needs them to be set up"
_ABANDONED = "return the unused pages of a thread's memory when the thread ends"
_MULT = "memory whose owner has ended waits this many times the purge delay"


def _delay(default: int, low: int, doc: str) -> Param:
    return integer("purge_delay", default, low, INT32_MAX, "log", "ms", doc)


def _switch(name: str, default: str, doc: str) -> Param:
    return choice(name, default, _BITS, doc)


TABLE = (
    Row(_delay(25, 0, _DELAY), "decommit_delay", (2, 0), (2, 1, 2)),
    Row(_delay(10, -1, _NEVER), "purge_delay", (2, 1, 2), (3, 0)),
    Row(_delay(1000, -1, _NEVER), "purge_delay", (3, 0)),
    Row(
        integer("segment_purge_delay", 500, 0, INT32_MAX, "log", "ms", "the same, whole segments"),
        "segment_decommit_delay",
        (2, 0),
        (2, 1, 2),
    ),
    Row(
        _switch("purge_decommits", "1", "return memory at once, or let the system take it later"),
        "purge_decommits",
        (2, 1, 2),
    ),
    Row(
        _switch("allow_decommit", "1", "return unused memory to the system at all"),
        "allow_decommit",
        (2, 0),
        (2, 1, 2),
    ),
    Row(
        _switch("page_reset", "0", "tell the system that a page of free blocks is not needed"),
        "page_reset",
        (2, 0),
        (2, 1, 2),
    ),
    Row(_switch("abandoned_purge", "0", _ABANDONED), "abandoned_page_decommit", (2, 0), (2, 1, 2)),
    Row(_switch("abandoned_purge", "0", _ABANDONED), "abandoned_page_purge", (2, 1, 2), (3, 2)),
    Row(
        integer("arena_purge_mult", 10, 0, 1000, "log", "times", _MULT),
        "arena_purge_mult",
        (2, 1, 2),
        (3, 0),
    ),
    Row(integer("arena_purge_mult", 1, 0, 1000, "log", "times", _MULT), "arena_purge_mult", (3, 0)),
    Row(
        _switch("eager_commit", "1", "commit a whole segment when it is made"),
        "eager_commit",
        (2, 0),
        (3, 2),
    ),
    Row(
        integer(
            "eager_commit_delay", 1, 0, 1024, "log", "segments", "first ones not eagerly committed"
        ),
        "eager_commit_delay",
        (2, 0),
        (3, 2),
    ),
    Row(
        choice(
            "arena_eager_commit", "2", _TWO_STEPS, "commit arenas when made; 2: if it costs nothing"
        ),
        "arena_eager_commit",
        (2, 1, 2),
    ),
    Row(
        integer("arena_reserve", 1 << 20, 1 << 15, 1 << 28, "pow2", _KIB, "size of an arena"),
        "arena_reserve",
        (2, 1, 2),
    ),
    Row(_switch("allow_large_os_pages", "0", _LARGE), "large_os_pages", (2, 0), (2, 1, 2)),
    Row(
        choice("allow_large_os_pages", "0", _BITS, _LARGE),
        "allow_large_os_pages",
        (2, 1, 2),
        (2, 1, 9),
    ),
    Row(
        choice("allow_large_os_pages", "2", _TWO_STEPS, _LARGE + "; 2: only transparent ones"),
        "allow_large_os_pages",
        (2, 1, 9),
        (2, 2, 7),
    ),
    Row(_switch("allow_large_os_pages", "0", _LARGE), "allow_large_os_pages", (2, 2, 7), (3, 0)),
    Row(
        choice("allow_large_os_pages", "2", _TWO_STEPS, _LARGE + "; 2: only transparent ones"),
        "allow_large_os_pages",
        (3, 0),
        (3, 2),
    ),
    Row(_switch("allow_large_os_pages", "0", _LARGE), "allow_large_os_pages", (3, 2)),
    Row(
        _switch("allow_thp", "1", "let the system use transparent huge pages for the process"),
        "allow_thp",
        (2, 2, 7),
        (3, 0),
    ),
    Row(
        choice("allow_thp", "1", _TWO_STEPS, "transparent huge pages; 2: also purge by 2 MiB"),
        "allow_thp",
        (3, 2),
    ),
    Row(
        integer(
            "minimal_purge_size", 0, 0, 1 << 16, "pow2", _KIB, "least that is purged; 0: 64 KiB"
        ),
        "minimal_purge_size",
        (3, 2),
    ),
    Row(
        integer("max_segment_reclaim", 8, 1, 1024, "log", "segments", "adopted in one try at most"),
        "max_segment_reclaim",
        (2, 0),
        (2, 1, 4),
    ),
    Row(
        integer(
            "max_segment_reclaim", 10, 0, 100, "linear", "percent", "of ownerless ones, in one try"
        ),
        "max_segment_reclaim",
        (2, 1, 4),
        (3, 0),
    ),
    Row(
        _switch("reclaim_on_free", "1", _RECLAIM), "abandoned_reclaim_on_free", (2, 1, 4), (2, 1, 9)
    ),
    Row(_switch("reclaim_on_free", "0", _RECLAIM), "abandoned_reclaim_on_free", (2, 1, 9), (3, 0)),
    Row(
        choice("reclaim_on_free", "0", ("-1", "0", "1"), _RECLAIM + "; 0: only the first owner"),
        "page_reclaim_on_free",
        (3, 0, 10),
    ),
    Row(
        integer(
            "target_segments", 0, 0, 4096, "log", "segments", "a thread gives up more; 0: none"
        ),
        "target_segments_per_thread",
        (2, 1, 9),
        (3, 0),
    ),
    Row(
        integer(
            "generic_collect", 10000, 1, INT32_MAX, "log", "calls", "slow allocations per clean-up"
        ),
        "generic_collect",
        (2, 2),
        (3, 0),
    ),
    Row(
        integer(
            "generic_collect", 10000, 1, INT32_MAX, "log", "calls", "slow allocations per clean-up"
        ),
        "generic_collect",
        (3, 1),
    ),
    Row(
        integer("page_full_retain", 2, -1, 64, "linear", "pages", "free pages kept in each queue"),
        "page_full_retain",
        (3, 0),
    ),
    Row(
        integer("page_max_candidates", 4, 1, 64, "log", "pages", "searched for the best fit"),
        "page_max_candidates",
        (3, 0),
    ),
    Row(
        integer(
            "page_max_reclaim", -1, -1, 65536, "log", "pages", "owned before none is taken back"
        ),
        "page_max_reclaim",
        (3, 1),
    ),
    Row(
        integer(
            "page_cross_thread_max_reclaim",
            32,
            -1,
            65536,
            "log",
            "pages",
            "owned before none is taken from another thread",
        ),
        "page_cross_thread_max_reclaim",
        (3, 1),
    ),
)
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
    package = "libmimalloc2.0"
    sonames = (("libmimalloc.so.3", "libmimalloc3"), ("libmimalloc.so.2", package))
    confirms = True
    table = TABLE
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

    def disturbing(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Returns every MIMALLOC_ variable, in any case: the library reads them all alike."""
        return tuple(sorted(name for name in environment if name.upper().startswith(_PREFIX)))

    def confirm_environment(self, environment: Mapping[str, str]) -> Environment:
        """Returns `environment` with MIMALLOC_VERBOSE, which prints each option at the start."""
        return {**environment, _PREFIX + "VERBOSE": "1"}

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
        done = run_true(self.confirm_environment({"LD_PRELOAD": installed.soname, **environment}))
        said = self.confirmed(done.stderr)
        if said is None:
            raise WrongConfiguration(f"mimalloc printed no options; the process {done.describe()}")
        return said


def _value(param: Param, text: str) -> Value:
    return text if param.kind == "enum" else int(text)
