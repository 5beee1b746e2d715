"""jemalloc 5: settings are `name:value` pairs in MALLOC_CONF, read back through mallctl.

A bad pair is only spoken of on stderr unless abort_conf:true stands first; names and values are
compared by prefix (`m:auto` is taken for metadata_thp), and several values are clipped in silence.
So whole names are written, in the ranges that are kept. Sources: src/jemalloc.c of 5.2.1 and 5.3.0,
src/conf.c of 5.3.1.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from hztune.allocator.base import Config, Environment, Installed, Memory
from hztune.allocator.knobs import AUTO, INT64_MAX, SWITCH, KnobRow, number, words
from hztune.allocator.library import Library, agreed
from hztune.params import Value

_CONF = "MALLOC_CONF"
_STRICT = "abort_conf:true,confirm_conf:true"
_SAID = re.compile(r"<jemalloc>: -- Set conf value: (?P<option>\S+):(?P<value>[^:\s]+)$", re.M)
#: Stands before what a process says; of one that is given an option twice, the last counts.
_BEGINS = "<jemalloc>: malloc_conf #1 "
#: NSTIME_SEC_MAX seconds: the longest decay that jemalloc takes, in ms.
_DECAY_MAX = 18446744072 * 1000
_LARGE_MAX = 1 << 62
_BINS = "1-14336"


_AT_ONCE = "; 0: at once, -1: never"
_REACH = "largest block that a thread's cache holds; 8 MiB at most, 32 KiB from 5.3.1 on"
_NEW = "5.3"
_NEWEST = "5.3.1"
# fmt: off
TABLE = (
    # --- arenas ---
    number("narenas", AUTO, 1, 4094, "log", "arenas",
           "arenas that threads are spread over; auto: 4 a CPU, whatever the quota"),
    number("narenas_ratio", 4, 1, 64, "log", "arenas",
           "arenas for each CPU where narenas is auto", versions=_NEW),
    words("percpu_arena", "disabled", "disabled percpu phycpu",
          "an arena for each CPU, or for each physical core, instead of for threads"),
    number("bin_shards", 1, 1, 64, "pow2", "shards",
           "locks of each small size class in an arena", option=f"bin_shards:{_BINS}"),
    # --- returning memory ---
    words("background_thread", "false", SWITCH,
          "let threads of jemalloc's own return unused memory"),
    number("max_background_threads", AUTO, 1, 4095, "log", "threads",
           "most threads of that kind; auto: 4"),
    number("dirty_decay_ms", 10000, -1, _DECAY_MAX, "log", "ms",
           "how long unused pages stay as they are" + _AT_ONCE),
    number("muzzy_decay_ms", 0, -1, _DECAY_MAX, "log", "ms",
           "how long they then stay lent to the system" + _AT_ONCE),
    words("retain", "true", SWITCH,
          "keep unused address space instead of unmapping it"),
    # --- a thread's cache ---
    words("tcache", "true", SWITCH, "give each thread a cache"),
    number("tcache_max", 32768, 0, 8388608, "pow2", "bytes", _REACH, versions="5.3-5.3.1"),
    number("tcache_max", 32768, 0, 32768, "pow2", "bytes", _REACH, versions=_NEWEST),
    number("lg_tcache_max", 15, 0, 23, "linear", "log2",
           "largest block that a thread's cache holds, as a power of two", versions="5.2-5.3"),
    number("lg_tcache_nslots_mul", 1, -16, 16, "linear", "log2",
           "slots of a small class: this power of two times the blocks of a slab", versions=_NEW),
    number("tcache_nslots_small_min", 20, 1, 2048, "log", "blocks",
           "fewest slots of a small class", versions=_NEW),
    number("tcache_nslots_small_max", 200, 1, 2048, "log", "blocks",
           "most slots of a small class", versions=_NEW),
    number("tcache_nslots_large", 20, 1, 2048, "log", "blocks",
           "slots of a large class", versions=_NEW),
    number("tcache_gc_incr_bytes", 65536, 1024, INT64_MAX, "log", "bytes",
           "allocated between two looks at what a cache does not use", versions=_NEW),
    number("tcache_gc_delay_bytes", 0, 0, INT64_MAX, "log", "bytes",
           "allocated before such a look takes from a class again", versions=_NEW),
    number("lg_tcache_flush_small_div", 1, 1, 16, "linear", "log2",
           "share of a full small class that is flushed, as a negative power of two",
           versions=_NEW),
    number("lg_tcache_flush_large_div", 1, 1, 16, "linear", "log2",
           "share of a full large class that is flushed, as a negative power of two",
           versions=_NEW),
    words("experimental_tcache_gc", "true", SWITCH,
          "clean caches by time as well as by bytes", versions=_NEWEST),
    # --- extents and large blocks ---
    number("oversize_threshold", 8388608, 0, _LARGE_MAX, "pow2", "bytes",
           "from here on blocks share one arena that returns them at once; 0: none do"),
    number("lg_extent_max_active_fit", 6, 0, 64, "linear", "log2",
           "how much larger than needed a reused extent may be, as a power of two"),
    words("cache_oblivious", "true", SWITCH,
          "spread large blocks over cache sets, for a page each", versions=_NEWEST),
    number("calloc_madvise_threshold", 8388608, 0, _LARGE_MAX, "pow2", "bytes",
           "from here on calloc drops pages instead of writing zeros", versions=_NEWEST),
    words("disable_large_size_classes", "true", SWITCH,
          "round large sizes up to pages only, not to classes", versions=_NEWEST),
    # --- pages ---
    words("thp", "default", "default always never",
          "transparent huge pages: as the system has it, everywhere, nowhere"),
    words("metadata_thp", "disabled", "disabled auto always",
          "transparent huge pages for jemalloc's own data"),
    words("huge_arena_pac_thp", "false", SWITCH,
          "transparent huge pages for oversize blocks", versions=_NEWEST),
    words("dss", "secondary", "disabled primary secondary",
          "memory by sbrk: never, before mmap, or after mmap fails"),
    number("mutex_max_spin", 600, -1, INT64_MAX, "log", "turns",
           "turns that a thread spins before it sleeps on a lock; -1: no limit", versions=_NEW),
)
# fmt: on
#: Where the value of an option stands in a build whose symbols were not stripped, and its C type.
_IN_MEMORY = {
    "narenas": "I",
    "background_thread": "?",
    "dirty_decay_ms": "q",
    "muzzy_decay_ms": "q",
    "oversize_threshold": "Q",
    "tcache_max": "Q",
    "lg_extent_max_active_fit": "Q",
    "lg_tcache_nslots_mul": "q",
    "tcache_nslots_small_max": "I",
    "tcache_nslots_large": "I",
    "mutex_max_spin": "q",
}
#: For the probe. Asked with a longer buffer than the value's, mallctl fills it all the same; 2 is
#: ENOENT: this version has no such name.
_QUESTION = """
answer = {}
for knob, name, form in ASKED:
    raw, length = ctypes.create_string_buffer(8), ctypes.c_size_t(8)
    if this.mallctl(name, raw, ctypes.byref(length), None, ctypes.c_size_t(0)) == 2:
        continue
    value = int.from_bytes(raw.raw, "little", signed=True)
    if form == "switch":
        answer[knob] = ("false", "true")[value]
    else:
        answer[knob] = ctypes.string_at(value).decode() if form == "word" else value
"""


class Jemalloc(Library):
    """jemalloc, from 5.2 on."""

    name = "jemalloc"
    check_advice = "start the program once with confirm_conf:true added to MALLOC_CONF"
    package = "libjemalloc2"
    sonames = (("libjemalloc.so.2", package),)
    confirms = True
    chatter = re.compile(r"^<jemalloc>: (malloc_conf #|-- Set conf value: ).*$", re.M)
    refusal = re.compile(
        r"^<jemalloc>: (?P<why>.*)\n(.*\n)*?<jemalloc>: Abort \(abort_conf:true\)", re.M
    )
    own_auto = frozenset({"metadata_thp"})
    saying = MappingProxyType({_CONF: "confirm_conf:true"})
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

    def requests(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the pairs of MALLOC_CONF; of one that stands there twice, the last."""
        pairs = (pair.rpartition(":") for pair in environment.get(_CONF, "").split(",") if pair)
        return {option: value for option, _, value in pairs}

    def confirm_environment(self, environment: Mapping[str, str]) -> Environment:
        """Returns `environment` with bad pairs fatal from the first on, and good ones said."""
        pairs = [_STRICT, *filter(None, [environment.get(_CONF, "")])]
        return {**environment, _CONF: ",".join(pairs)}

    def confirmed(self, stderr: str) -> dict[str, Value] | None:
        """Returns the pairs that jemalloc took; their values are as written, before clipping."""
        options = {row.option: row.param for row in TABLE}
        pairs: list[tuple[str, Value]] = []
        for told in stderr.split(_BEGINS):
            last: dict[str, Value] = {}
            for said in _SAID.finditer(told):
                param = options.get(said["option"])
                if param:
                    value = said["value"]
                    last[param.name] = value if param.kind == "enum" else int(value)
            pairs += last.items()
        spoke = _STRICT.split(",")[-1] in stderr
        return agreed(pairs, self.name) or ({} if spoke else None)

    def effective(self, memory: Memory) -> dict[str, Value]:
        """Returns the settings that stand under a name in the memory of a process."""
        found: dict[str, Value] = {}
        for knob, form in _IN_MEMORY.items():
            held = memory(f"*je_opt_{knob}", struct.calcsize(f"={form}"))
            if held is None and not found:
                return found
            if held is None:
                continue
            value = struct.unpack(f"={form}", held)[0]
            found[knob] = SWITCH.split()[value] if form == "?" else value
        return found

    def unreadable(self) -> frozenset[str]:
        """Returns the knobs that mallctl does not know; at the start they are said all the same."""
        return frozenset({"narenas_ratio", "calloc_madvise_threshold"})

    def read_back(
        self, environment: Mapping[str, str], installed: Installed, program: Path | None = None
    ) -> dict[str, Value]:
        """Returns what mallctl says in a probe: every value after clipping."""
        asked = [(row.param.name, *_mallctl(row)) for row in self.rows(installed)]
        strict = self.confirm_environment(environment)
        answer: dict[str, Value] = self.ask(f"ASKED = {asked!r}{_QUESTION}", strict, installed)
        return answer


def _mallctl(row: KnobRow) -> tuple[bytes, str]:
    """Returns the name under which mallctl knows a knob, and the form of its answer."""
    if row.param.name == "bin_shards":
        return b"arenas.bin.0.nshards", "number"
    form = "switch" if row.param.choices == tuple(SWITCH.split()) else "word"
    return f"opt.{row.option}".encode(), form if row.param.kind == "enum" else "number"
