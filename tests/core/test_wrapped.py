"""Preloaded libraries that stand before the C library's functions, and allocate in their own."""

from __future__ import annotations

import platform
import subprocess

import pytest

COMPUTE_ONLY = ("mem", "str", "__errno_location")
"""What functions begin with that no wrapper can make allocate, as the compiler calls them, too."""
DATA = {"environ", "__environ", "stderr"}


def imported(library):
    """The functions that a library calls of the C library, with their versions."""
    words = ["nm", "--dynamic", "--undefined-only", str(library)]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    names = [line.split() for line in listed.splitlines()]
    pairs = [name.split("@") for kind, name in names if kind == "U"]
    return [
        (name, version)
        for name, version in pairs
        if name not in DATA and not name.startswith(COMPUTE_ONLY)
    ]


@pytest.fixture(scope="module")
def wrapper(libhz, root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrapped")
    functions = imported(libhz)
    assert {"sysconf", "pthread_key_create", "snprintf"} <= {name for name, _ in functions}
    rows = (f'WRAPPED({i}, {name}, "{version}")' for i, (name, version) in enumerate(functions))
    (folder / "wrapped.def").write_text("\n".join(rows))
    library = folder / "libwrapped.so"
    source = root / "tests" / "core" / "wrapped.c"
    words = ["cc", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC", f"-I{folder}", source, "-o", library]
    subprocess.run(words, check=True)
    return library


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the wrapper has x86-64 instructions")
@pytest.mark.parametrize("is_first", [True, False], ids=["wrapper first", "hz first"])
def test_every_function_that_hz_calls_may_allocate(is_first, wrapper, libhz, holds):
    both = (wrapper, libhz) if is_first else (libhz, wrapper)
    settings = {
        "LD_PRELOAD": ":".join(map(str, both)),
        "HZ_CONFIRM": "1",
        "HZ_CONTROL": "1",
        "HZ_STATS": "stats",
        "HZ_MAGAZINE_CAP": "7",
        "HZ_REST_MS": "20",
        "HZ_DECAY_MS": "4",
    }
    check = "what a burst left goes back while the threads rest"
    done = holds("rest", check, **settings)
    assert done.stderr.count("HZ_CONFIRM {") == 1
    assert done.stderr.count("hz: HZ_MAGAZINE_CAP: ") == 1
