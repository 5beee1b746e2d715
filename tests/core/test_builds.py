"""What the built libraries say of themselves, which functions they call, which locks they hold."""

from __future__ import annotations

import json
import platform
import re
import subprocess

import pytest
from scale.noted import LOCK_NAMES
from tests.conftest import ROOT, built

from .conftest import variables_of


@pytest.mark.skipif(platform.machine() != "x86_64", reason="shadow stacks are x86-64's")
def test_a_process_that_loads_any_of_the_libraries_may_keep_its_shadow_stack(core_build):
    names = ("libhz.so", "libhz-deepbind.so", "libhz-agent.so", "trace/libhz-recorder.so")
    for name in names:
        notes = subprocess.check_output(["readelf", "-n", core_build / name], text=True)
        assert "SHSTK" in notes, name


SYMBOLS = """
malloc calloc realloc free memalign aligned_alloc posix_memalign valloc pvalloc reallocarray cfree
malloc_usable_size free_sized free_aligned_sized mallopt mallinfo mallinfo2 malloc_trim malloc_info
malloc_stats __libc_malloc __libc_calloc __libc_realloc __libc_free __libc_memalign
hz_malloc hz_calloc hz_realloc hz_free hz_stats_json hz_version hz_get
"""
NEW = ("", "RKSt9nothrow_t", "St11align_val_t", "St11align_val_tRKSt9nothrow_t")
DELETE = ("Pv", "Pvm", "PvRKSt9nothrow_t", "PvSt11align_val_t", "PvmSt11align_val_t")


def test_the_library_has_every_symbol_of_the_malloc_family(libhz):
    """A missing one would mix two allocators in one program."""
    nothrow = "PvSt11align_val_tRKSt9nothrow_t"
    operators = {
        *(f"_Zn{a}m{form}" for a in "wa" for form in NEW),
        *(f"_Zd{a}{form}" for a in "la" for form in (*DELETE, nothrow)),
    }
    words = ["nm", "--dynamic", "--defined-only", "--format=posix", str(libhz)]
    listed = subprocess.check_output(words, text=True)
    assert {*SYMBOLS.split(), *operators} <= {line.split()[0] for line in listed.splitlines()}


# ---- a wrapper before it -------------------------------------------------------------------------


COMPUTE_ONLY = ("mem", "str", "__errno_location")
"""What functions begin with that no wrapper can make allocate, as the compiler calls them, too."""
DATA = {"environ", "__environ", "stderr"}


@pytest.fixture(scope="module")
def wrapper(libhz, tmp_path_factory):
    """A library with the functions of the C library that hz calls, of the same versions."""
    folder = tmp_path_factory.mktemp("wrapped")
    listed = subprocess.check_output(["nm", "--dynamic", "--undefined-only", libhz], text=True)
    functions = [
        name.split("@")
        for kind, name in map(str.split, listed.splitlines())
        if kind == "U" and name.split("@")[0] not in DATA and not name.startswith(COMPUTE_ONLY)
    ]
    assert {"sysconf", "pthread_key_create", "snprintf"} <= {name for name, _ in functions}
    rows = (f'WRAPPED({i}, {name}, "{version}")' for i, (name, version) in enumerate(functions))
    (folder / "wrapped.def").write_text("\n".join(rows))
    library = folder / "libwrapped.so"
    source = ROOT / "tests/core/wrapped.c"
    words = ["cc", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC", f"-I{folder}", source, "-o", library]
    subprocess.run(words, check=True)
    return library


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the wrapper has x86-64 instructions")
@pytest.mark.parametrize("is_first", [True, False], ids=["wrapper first", "hz first"])
def test_every_function_that_hz_calls_may_allocate(is_first, wrapper, libhz, holds):
    both = (wrapper, libhz) if is_first else (libhz, wrapper)
    settings = variables_of("CONFIRM=1 CONTROL=1 STATS=stats MAGAZINE_CAP=7 REST_MS=20 DECAY_MS=4")
    check = "what a burst left goes back while the threads rest"
    done = holds("rest", check, **settings, LD_PRELOAD=":".join(map(str, both)))
    assert done.stderr.count("HZ_CONFIRM {") == 1
    assert done.stderr.count("hz: HZ_MAGAZINE_CAP: ") == 1


# ---- its locks -----------------------------------------------------------------------------------


TAKES = re.compile(r"hz_lock_(?:take|try|wait|wait_spinning)\(([^()]+)\)")


def test_every_lock_that_hz_takes_has_a_name():
    taken = {
        f"{path.name}: {words}"
        for path in (ROOT / "core/src").glob("*.c")
        if path.name != "lock.c"
        for words in TAKES.findall(path.read_text())
    }
    assert taken == set(LOCK_NAMES)


MAY_CALL = {"arena", "extension of the arena", "decay", "purge", "start", "background thread"}
"""Locks that are held while the system works. For the arena's a thread waits only where it needs
the system itself. Malloc and free try those of decay, purge and the background thread, and do not
wait for them."""


@pytest.mark.slow
def test_no_lock_is_held_across_a_system_call_on_the_way_of_a_block(
    core_build, plain_environment, tmp_path
):
    ledger = built(ROOT / "experiments/scale/ledger", {"HZ_WERROR": "ON"}, ["hz_ledger"])
    noted = tmp_path / "noted.json"
    library = {"HZ_LEDGER": str(noted), "LD_PRELOAD": str(ledger / "libhz-ledger.so")}
    variables = {**variables_of("SHARDS=4 DECAY_MS=1 STRICT=1"), **library}
    for workload in ("mstress", "large"):
        subprocess.run(
            [core_build / "bench" / "hz-bench", workload, "--threads", "8", "--ops", "100000"],
            env={**plain_environment, **variables},
            check=True,
            capture_output=True,
            timeout=60,
        )
        locks = [row for row in json.loads(noted.read_text())["locks"] if row is not None]
        found = {LOCK_NAMES[row["name"]]: row["calls"] for row in locks if row["with_calls"] > 0}
        assert found.keys() <= MAY_CALL, found
        assert sum(row["count"] for row in locks) > 100
