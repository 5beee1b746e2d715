"""tcmalloc of gperftools: it parses with atoi and strtoll and never reports an error.

So a value with a unit becomes another valid value, out-of-range ones are clipped, and
TCMALLOC_TRANSFER_NUM_OBJ kills the process at 0 and hangs it below. hztune writes plain numbers in
the range that is kept, and reads them back through the library's own symbols. Sources:
src/{thread_cache,page_heap,static_vars,common}.cc of gperftools 2.10 to 2.18.1.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from pathlib import Path

from hztune.allocator.base import Config, Environment, Installed, Memory
from hztune.allocator.knobs import SWITCH, KnobRow, number, words
from hztune.allocator.library import Library
from hztune.params import Value

_RELEASE_RATE = "release_rate_percent"
# fmt: off
TABLE = (
    number("max_total_thread_cache_bytes", 33554432, 524288, 1 << 30, "pow2", "bytes",
           "most bytes that all thread caches together may hold",
           option="TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES"),
    number("transfer_num_obj", 32, 1, 8192, "pow2", "blocks",
           "most blocks that a thread cache takes or gives at once",
           option="TCMALLOC_TRANSFER_NUM_OBJ"),
    words("aggressive_decommit", "false", SWITCH,
          "give every free span back to the system at once",
          option="TCMALLOC_AGGRESSIVE_DECOMMIT"),
    number(_RELEASE_RATE, 100, 0, 1000, "log", "percent",
           "how eagerly free spans are given back as others are freed; 100: rate 1.0, 0: never",
           option="TCMALLOC_RELEASE_RATE"),
)
# fmt: on
#: What would change the allocator's behaviour or what it prints, and is never tuned.
_OTHERS = (
    "TCMALLOC_HEAP_LIMIT_MB",
    "TCMALLOC_OVERRIDE_PAGESIZE",
    "TCMALLOC_ENABLE_SIZED_DELETE",
    "TCMALLOC_SKIP_MMAP",
    "TCMALLOC_SKIP_SBRK",
    "TCMALLOC_DISABLE_MEMORY_RELEASE",
    "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD",
    "TCMALLOC_SAMPLE_PARAMETER",
    "TCMALLOC_MEMFS_MALLOC_PATH",
    "MALLOCSTATS",
)
_CACHE_SYMBOL = "_ZN8tcmalloc11ThreadCache26overall_thread_cache_size_E"
_RATE_SYMBOL = (
    "_ZN62FLAG__namespace_do_not_use_directly_use_DECLARE_double_instead"
    "27FLAGS_tcmalloc_release_rateE"
)
#: For the probe. The C++ members use no `this`; NumMoveSize(8) is the limit itself up to 8192.
_QUESTION = """
answer = {}
def number(name):
    value = ctypes.c_size_t()
    if this.MallocExtension_GetNumericProperty(name, ctypes.byref(value)):
        return value.value
answer["max_total_thread_cache_bytes"] = number(b"tcmalloc.max_total_thread_cache_bytes")
answer["aggressive_decommit"] = number(b"tcmalloc.aggressive_memory_decommit")
try:
    batch = this._ZN8tcmalloc7SizeMap11NumMoveSizeEm
    batch.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    answer["transfer_num_obj"] = batch(None, 8)
    rate = this._ZN22TCMallocImplementation20GetMemoryReleaseRateEv
    rate.argtypes, rate.restype = [ctypes.c_void_p], ctypes.c_double
    answer["release_rate_percent"] = round(100 * rate(None))
except AttributeError:
    pass
"""


class Tcmalloc(Library):
    """gperftools' tcmalloc, the minimal library: the one that only allocates."""

    name = "tcmalloc"
    check_advice = "start the program once with MALLOCSTATS=1, and look at its /proc/PID/maps"
    package = "libtcmalloc-minimal4"
    sonames = (("libtcmalloc_minimal.so.4", package),)
    table = TABLE
    version_code = (
        "(lambda a, b: this.tc_version(ctypes.byref(a), ctypes.byref(b), None) "
        "and f'{a.value}.{b.value}')(ctypes.c_int(), ctypes.c_int())"
    )

    def variables(self) -> tuple[str, ...]:
        """Returns the variable of every knob, and those that change what is measured."""
        return ("LD_PRELOAD", *(row.option for row in TABLE), *_OTHERS)

    def settings(self, config: Config, installed: Installed) -> Environment:
        """Returns one variable for each knob, as plain decimal numbers."""
        return {row.option: _written(row, value) for row, value in self.given(config, installed)}

    def requests(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the variables: an option has its variable's name."""
        return environment

    def value_of(self, row: KnobRow, text: str) -> Value:
        """Returns the value of a text; a rate is a decimal fraction there."""
        if row.param.name == _RELEASE_RATE:
            return round(100 * float(text))
        if row.param.name == "aggressive_decommit":
            return SWITCH.split()[text[:1] in "tTyY1"]
        return super().value_of(row, text)

    def unreadable(self) -> frozenset[str]:
        """Returns the two knobs that only a library with its C++ symbols lets one read."""
        return frozenset({"transfer_num_obj", _RELEASE_RATE})

    def effective(self, memory: Memory) -> dict[str, Value]:
        """Returns the two settings that stand under a name in the library's data."""
        cache, rate = memory(_CACHE_SYMBOL, 8), memory(_RATE_SYMBOL, 8)
        found: dict[str, Value] = {}
        if cache is not None:
            found["max_total_thread_cache_bytes"] = int.from_bytes(cache, sys.byteorder)
        if rate is not None:
            found[_RELEASE_RATE] = round(100 * struct.unpack("=d", rate)[0])
        return found

    def read_back(
        self, environment: Mapping[str, str], installed: Installed, program: Path | None = None
    ) -> dict[str, Value]:
        """Returns what the library's own functions say in a probe: values after clipping."""
        answer: dict[str, int | None] = self.ask(_QUESTION, environment, installed)
        return {
            name: SWITCH.split()[bool(value)] if name == "aggressive_decommit" else value
            for name, value in answer.items()
            if value is not None
        }


def _written(row: KnobRow, value: Value) -> str:
    """Returns a value as the library's parsers read it; a rate is a plain decimal fraction."""
    if row.param.name == _RELEASE_RATE:
        whole, cents = divmod(int(value), 100)
        return f"{whole}.{cents:02}"
    return str(value)
