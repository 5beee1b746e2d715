"""jemalloc 5: settings are `name:value` pairs in MALLOC_CONF, read back through mallctl.

A bad pair is only spoken of on stderr unless abort_conf:true stands first; names and values are
compared by prefix (`m:auto` is taken for metadata_thp), and several values are clipped in silence.
So whole names are written, in the ranges that are kept. Sources: src/jemalloc.c of 5.2.1 and 5.3.0,
src/conf.c of 5.3.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from hztune.allocator.base import Config, Environment, Installed
from hztune.allocator.knobs import AUTO, INT64_MAX, SWITCH, Row, choice, integer
from hztune.allocator.library import Library, agreed
from hztune.params import Param, Value

_CONF = "MALLOC_CONF"
_STRICT = "abort_conf:true,confirm_conf:true"
_SAID = re.compile(r"<jemalloc>: -- Set conf value: (?P<option>\S+):(?P<value>[^:\s]+)$", re.M)
#: NSTIME_SEC_MAX seconds: the longest decay that jemalloc takes, in ms.
_DECAY_MAX = 18446744072 * 1000
_LARGE_MAX = 0x7000000000000000
_TCACHE_MAX = 1 << 23
_BINS = "1-14336"


def _switch(name: str, default: bool, doc: str) -> Param:
    return choice(name, SWITCH[default], SWITCH, doc)


def _decay(name: str, default: int, doc: str) -> Param:
    doc += "; 0: at once, -1: never"
    return integer(name, default, -1, _DECAY_MAX, "log", "ms", doc)


def _row(param: Param, since: tuple[int, ...] = (5, 2), before: tuple[int, ...] = ()) -> Row:
    return Row(param, param.name, since, before)


def _new(param: Param) -> Row:
    return _row(param, (5, 3))


def _newest(param: Param) -> Row:
    return _row(param, (5, 3, 1))


TABLE = (
    _row(
        integer(
            "narenas",
            AUTO,
            1,
            4094,
            "log",
            "arenas",
            "arenas that threads are spread over; auto: 4 for each CPU (a quota is not looked at)",
        )
    ),
    _new(
        integer(
            "narenas_ratio",
            4,
            1,
            64,
            "log",
            "arenas",
            "arenas for each CPU, where narenas is auto",
        )
    ),
    _row(
        choice(
            "percpu_arena",
            "disabled",
            ("disabled", "percpu", "phycpu"),
            "an arena for each CPU, or for each physical core, instead of for threads",
        )
    ),
    Row(
        integer(
            "bin_shards", 1, 1, 64, "pow2", "shards", "locks of each small size class in an arena"
        ),
        f"bin_shards:{_BINS}",
        (5, 3),
    ),
    _row(_switch("background_thread", False, "threads of jemalloc's own return unused memory")),
    _row(
        integer("max_background_threads", AUTO, 1, 4096, "log", "threads", "of that kind; auto: 4")
    ),
    _row(_decay("dirty_decay_ms", 10000, "how long unused pages stay as they are")),
    _row(_decay("muzzy_decay_ms", 0, "how long they then stay lent to the system")),
    _row(_switch("tcache", True, "a cache in each thread")),
    _new(integer("tcache_max", 32768, 0, _TCACHE_MAX, "pow2", "bytes", "largest block it caches")),
    _row(
        integer("lg_tcache_max", 15, 0, 23, "linear", "log2", "the same, as a power"),
        (5, 2),
        (5, 3),
    ),
    _new(
        integer(
            "lg_tcache_nslots_mul",
            1,
            -16,
            16,
            "linear",
            "log2",
            "slots for each size class: this power of two times the blocks of a slab",
        )
    ),
    _new(integer("tcache_nslots_small_min", 20, 1, 2048, "log", "blocks", "fewest slots, small")),
    _new(integer("tcache_nslots_small_max", 200, 1, 2048, "log", "blocks", "most slots, small")),
    _new(integer("tcache_nslots_large", 20, 1, 2048, "log", "blocks", "slots, large classes")),
    _new(
        integer(
            "tcache_gc_incr_bytes",
            65536,
            1024,
            INT64_MAX,
            "log",
            "bytes",
            "allocated between two looks at what a thread's cache does not use",
        )
    ),
    _new(
        integer(
            "tcache_gc_delay_bytes",
            0,
            0,
            INT64_MAX,
            "log",
            "bytes",
            "allocated before such a look touches a size class again",
        )
    ),
    _new(
        integer(
            "lg_tcache_flush_small_div",
            1,
            1,
            16,
            "linear",
            "log2",
            "share of a full small cache that is kept back from a flush",
        )
    ),
    _new(
        integer("lg_tcache_flush_large_div", 1, 1, 16, "linear", "log2", "the same, large classes")
    ),
    _newest(_switch("experimental_tcache_gc", True, "clean caches by time as well as by bytes")),
    _row(
        integer(
            "oversize_threshold",
            1 << 23,
            0,
            _LARGE_MAX,
            "pow2",
            "bytes",
            "larger blocks come from one arena and are given back at once; 0: none do",
        )
    ),
    _row(
        integer(
            "lg_extent_max_active_fit",
            6,
            0,
            64,
            "linear",
            "log2",
            "how much larger than needed a reused extent may be",
        )
    ),
    _row(choice("thp", "default", ("default", "always", "never"), "transparent huge pages")),
    _row(
        choice(
            "metadata_thp",
            "disabled",
            ("disabled", "auto", "always"),
            "transparent huge pages for jemalloc's own data",
        )
    ),
    _row(_switch("retain", True, "keep unused address space instead of unmapping it")),
    _row(
        choice(
            "dss",
            "secondary",
            ("disabled", "primary", "secondary"),
            "memory by sbrk: never, before mmap, or after it fails",
        )
    ),
    _new(
        integer("mutex_max_spin", 600, -1, INT64_MAX, "log", "turns", "spun before a thread sleeps")
    ),
    _newest(_switch("cache_oblivious", True, "spread large blocks over cache sets")),
    _newest(
        integer(
            "calloc_madvise_threshold",
            1 << 23,
            0,
            _LARGE_MAX,
            "pow2",
            "bytes",
            "from here on calloc drops pages instead of writing zeros",
        )
    ),
    _newest(
        integer(
            "process_madvise_max_batch", 0, 0, 128, "pow2", "regions", "purged by one call; 0: none"
        )
    ),
    _newest(_switch("disable_large_size_classes", True, "round large sizes to pages only")),
    _newest(_switch("huge_arena_pac_thp", False, "huge pages for oversize blocks")),
)
#: For the probe. Asked with the wrong length, mallctl answers all the same and tells the right one;
#: 2 is ENOENT: this version has no such name.
_QUESTION = """
answer = {}
for knob, name, is_word in ASKED:
    raw, length = ctypes.create_string_buffer(8), ctypes.c_size_t(8)
    if this.mallctl(name, raw, ctypes.byref(length), None, ctypes.c_size_t(0)) == 2:
        continue
    value = int.from_bytes(raw.raw[: length.value], "little", signed=length.value == 8)
    if length.value == 1:
        answer[knob] = ("false", "true")[value]
    else:
        answer[knob] = ctypes.string_at(value).decode() if is_word else value
"""


class Jemalloc(Library):
    """jemalloc, from 5.2 on."""

    name = "jemalloc"
    package = "libjemalloc2"
    sonames = (("libjemalloc.so.2", package),)
    confirms = True
    table = TABLE
    version_code = (
        "(lambda v: this.mallctl(b'version', ctypes.byref(v), "
        "ctypes.byref(ctypes.c_size_t(8)), None, ctypes.c_size_t(0)) "
        "or v.value.decode().split('-')[0])(ctypes.c_char_p())"
    )

    def variables(self) -> tuple[str, ...]:
        """Returns the one variable that jemalloc reads."""
        return ("LD_PRELOAD", _CONF)

    def settings(self, config: Config, installed: Installed) -> Environment:
        """Returns MALLOC_CONF with a pair for each knob; nothing when no knob is given."""
        pairs = [f"{row.option}:{value}" for row, value in self.given(config, installed)]
        return {_CONF: ",".join(pairs)} if pairs else {}

    def confirm_environment(self, environment: Mapping[str, str]) -> Environment:
        """Returns `environment` with bad pairs fatal from the first on, and good ones said."""
        pairs = [_STRICT, *filter(None, [environment.get(_CONF, "")])]
        return {**environment, _CONF: ",".join(pairs)}

    def confirmed(self, stderr: str) -> dict[str, Value] | None:
        """Returns the pairs that jemalloc took; their values are as written, before clipping."""
        options = {row.option: row.param for row in TABLE}
        pairs: list[tuple[str, Value]] = []
        for said in _SAID.finditer(stderr):
            param = options.get(said["option"])
            if param:
                value = said["value"]
                pairs.append((param.name, value if param.kind == "enum" else int(value)))
        spoke = _STRICT.split(",")[-1] in stderr
        return agreed(pairs, self.name) or ({} if spoke else None)

    def unreadable(self) -> frozenset[str]:
        """Returns the knob that mallctl does not know."""
        return frozenset({"narenas_ratio"})

    def read_back(
        self, environment: Mapping[str, str], installed: Installed, program: Path | None = None
    ) -> dict[str, Value]:
        """Returns what mallctl says in a probe: every value after clipping."""
        asked = [
            (row.param.name, _mallctl(row), row.param.kind == "enum")
            for row in self.rows(installed)
        ]
        strict = self.confirm_environment(environment)
        answer: dict[str, Value] = self.ask(f"ASKED = {asked!r}{_QUESTION}", strict, installed)
        return answer


def _mallctl(row: Row) -> bytes:
    """Returns the name under which mallctl knows a knob."""
    name = "arenas.bin.0.nshards" if row.param.name == "bin_shards" else f"opt.{row.option}"
    return name.encode()
