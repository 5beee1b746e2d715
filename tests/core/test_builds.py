"""What the built libraries say of themselves."""

from __future__ import annotations

import platform
import subprocess

import pytest


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
hz_malloc hz_calloc hz_realloc hz_free hz_stats_json hz_version hz_param_value
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
