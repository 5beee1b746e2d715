"""The silent failures of foreign allocators: each is shown to be real, and to be avoided or told.

A process that runs with other settings than asked ends well and prints good-looking numbers. These
tests give a process what a careless tool, or a wrapper behind hztune's back, would give it.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from hztune import allocator, process
from hztune.allocator import WrongConfiguration, loaded_program, probe
from hztune.errors import UsageError

MIB = 1 << 20


@pytest.fixture(scope="module")
def found():
    adapters = [allocator.get(name) for name in ("glibc", "jemalloc", "mimalloc", "tcmalloc")]
    return {adapter.name: (adapter, adapter.installed()) for adapter in adapters}


# ---- 1: LD_PRELOAD is ignored, exit status 0 ----------------------------------------------------


def test_a_program_that_never_sees_the_library_is_refused(compiled):
    static = compiled("static", "int main(void) { return 0; }", "-static")
    done = process.run([str(static)], env={"LD_PRELOAD": "libnosuch.so.9"}, deadline_s=10)
    assert (done.ok, done.stderr) == (True, "")
    elevated = Path("/usr/bin/passwd")
    if os.getuid() == 0:
        elevated = compiled("elevated")
        os.chown(elevated, 65534, 65534)
        elevated.chmod(0o4755)
    loader = "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"
    for program, why in (
        (static, "static program"),
        (elevated, "gains rights"),
        (compiled("musl", compiled.idle, loader), "another processor or C library"),
    ):
        assert why in str(loaded_program.inspect(program).obstacle)


# ---- 2: a bad value is another valid value ------------------------------------------------------


# An allocator, a variable, a knob, what was meant, and what became of it (-: it does not say).
TRAPS = """
glibc GLIBC_TUNABLES=glibc.malloc.arena_max=64k arena_max 65535 64
glibc GLIBC_TUNABLES=glibc.malloc.arena_max=010 arena_max 10 8
glibc GLIBC_TUNABLES=glibc.malloc.arenamax=2 arena_max 2 auto
glibc GLIBC_TUNABLES=glibc.malloc.arena_max=2,glibc.malloc.tcache_count=3 tcache_count 3 7
glibc GLIBC_TUNABLES=glibc.malloc.arena_max=2:glibc.malloc.arena_max=9 arena_max 2 9
glibc MALLOC_ARENA_MAX=9 arena_max 2 9
glibc MALLOC_MMAP_THRESHOLD=1048576 mmap_threshold 1048576 auto
jemalloc MALLOC_CONF=tcache_max:999999999 tcache_max 4194304 8388608
jemalloc 'MALLOC_CONF=narenas: 4' narenas 5 4
jemalloc MALLOC_CONF=experimental_nosuch:1 narenas 63 -
mimalloc MIMALLOC_DECOMMIT_DELAY= purge_delay 0 1
mimalloc MIMALLOC_DECOMMIT_DELAY=5ms purge_delay 5 25
mimalloc MIMALLOC_PURGE_DELAY=0 purge_delay 0 25
tcmalloc TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES=64M max_total_thread_cache_bytes 67108864 524288
tcmalloc TCMALLOC_AGGRESSIVE_DECOMMIT=on aggressive_decommit true false
tcmalloc TCMALLOC_MAX_CACHE=1 max_total_thread_cache_bytes 1048576 33554432
"""


@pytest.mark.parametrize("trap", TRAPS.strip().splitlines())
def test_a_setting_that_became_another_one_is_noticed(trap, found):
    name, environment, knob, *values = shlex.split(trap)
    meant, became = (int(each) if each.isdecimal() else each for each in values)
    adapter, installed = found[name]
    variable, _, text = environment.partition("=")
    answers = adapter.read_back({variable: text}, installed)
    assert became in ("-", answers.get(knob))
    with pytest.raises(WrongConfiguration):
        adapter.verify({knob: meant}, answers)


@pytest.mark.parametrize("alone", ["mmap_threshold", "trim_threshold"])
def test_a_threshold_that_would_freeze_the_other_is_refused_alone(alone, found):
    adapter, installed = found["glibc"]
    with pytest.raises(UsageError, match="set both mmap_threshold and trim_threshold"):
        adapter.check({alone: MIB}, installed)
    adapter.check({"mmap_threshold": MIB, "trim_threshold": MIB, alone: MIB}, installed)


def test_a_bad_pair_ends_jemalloc_because_the_strict_pair_stands_first(found):
    adapter, installed = found["jemalloc"]
    for pair in ("nosuch:1", "narenas:0", "dirty_decay_ms:10s", "cache_oblivious:true",
                 "tcache_max:32K", "retain:TRUE", "tcache_ncached_max:8-16:4",
                 " narenas:4", "narenas=4", "narenas:4,", "narenas:4 ,retain:true"):  # fmt: skip
        lenient = {"LD_PRELOAD": installed.preload, "MALLOC_CONF": pair}
        assert probe.run_true(lenient).ok
        with pytest.raises(WrongConfiguration, match="abort_conf"):
            adapter.read_back({"MALLOC_CONF": pair}, installed)
        strict = adapter.confirm_environment(lenient)
        assert strict["MALLOC_CONF"].startswith("abort_conf:true,")
        assert probe.run_true(strict).code == -6


def test_of_an_older_spelling_and_tunables_the_tunables_win_in_either_order(found):
    adapter, installed = found["glibc"]
    made = adapter.environment({"arena_max": 2}, installed)
    for both in ({"MALLOC_ARENA_MAX": "9", **made}, {**made, "MALLOC_ARENA_MAX": "9"}):
        assert adapter.read_back(both, installed)["arena_max"] == 2


def test_zero_is_a_value_where_the_loader_prints_it_for_unset_too(found):
    adapter, installed = found["glibc"]
    config = {"mmap_threshold": MIB, "trim_threshold": MIB, "mmap_max": 0}
    asked = adapter.read_back(adapter.environment(config, installed), installed)
    assert (asked["mmap_max"], adapter.read_back({}, installed)["mmap_max"]) == (0, "auto")


# ---- 3: a value that kills or hangs -------------------------------------------------------------


ENDS = {"0": "SIGFPE", "abc": "SIGFPE", "-5": "did not end"}


@pytest.mark.parametrize(("text", "end"), ENDS.items())
def test_a_probe_that_dies_or_hangs_is_told_in_words(text, end, found, monkeypatch):
    adapter, installed = found["tcmalloc"]
    monkeypatch.setattr(probe, "_SECONDS", 1.0)
    with pytest.raises(WrongConfiguration, match=end):
        adapter.read_back({"TCMALLOC_TRANSFER_NUM_OBJ": text}, installed)
