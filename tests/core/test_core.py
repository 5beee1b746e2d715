"""The C programs of this directory, each of them one behaviour of the allocator."""

from __future__ import annotations

import json
import os
import random
from itertools import combinations
from xml.etree import ElementTree

import pytest

from .conftest import variables_of

# Values for the fuzzer: the default, and others that meet the slow paths more often. Any two of
# them go together.
VALUES = """
DEPOT_LOCK mutex spin lockfree
REMOTE_GROUPING shard_class shard none
SHARDS 1 4 2
MAGAZINE_GROWTH double full batch
DEFER_FREE 0 64
DOUBLE_FREE at_reuse at_call
HARDENING off light full
BACKGROUND_PERIOD_US 0 128
MAGAZINE_CAP 256 32
MAGAZINE_BYTES 65536 4096
THREAD_CACHE_BYTES 2097152 65536
REFILL_BATCH 32 4
FLUSH_BATCH 32 4
REMOTE_RING_SIZE 1024 64
DEPOT_SLOTS 64 1
SPAN_BYTES 65536 1048576
SPAN_CACHE 2 0
DECAY_MS 100 0
REST_MS 1000 1 0
MAX_DIRTY_BYTES 67108864 0
THP off on never adaptive
PREFAULT off on
"""


def pairwise(values):
    """Few configurations that try every two settings together: the best of many draws, repeated."""
    draw = random.Random(int(os.environ.get("TEST_SEED", "20261121")))
    wanted = {
        ((a, x), (b, y)) for a, b in combinations(values, 2) for x in values[a] for y in values[b]
    }
    chosen = []
    while wanted:
        drawn = [{k: draw.choice(v) for k, v in values.items()} for _ in range(200)]
        best = max(drawn, key=lambda each: len(wanted.intersection(combinations(each.items(), 2))))
        wanted -= set(combinations(best.items(), 2))
        chosen.append(" ".join(f"{k}={v}" for k, v in best.items()))
    return chosen


# The programs, whose checks say what holds, and the settings under which each of them runs. With
# caches as small as TIGHT some thread holds a lock at nearly every fork; TEST_STRICT=1 is as under
# overcommit_memory=2; the arena starts at a random page of its place.
PRELOADED = """
api new_delete: | HARDENING=full
realloc_large signals limits:
frugal: | SHARDS=4 TEST_RATIO_PERCENT=250
threads: | SHARDS=64
offences: | SHARDS=2 | SHARDS=64 | DOUBLE_FREE=at_call DEFER_FREE=64 SHARDS=2 \
    | HARDENING=light SHARDS=1 | HARDENING=full SHARDS=4
harmless: | DOUBLE_FREE=at_call | HARDENING=light SHARDS=1 | HARDENING=full SHARDS=4
double_free: SHARDS=1 | SHARDS=4 | DOUBLE_FREE=at_call SHARDS=1 | HARDENING=light SHARDS=1
forks: | TIGHT REST_MS=1 MAX_DIRTY_BYTES=0 | TIGHT DEPOT_LOCK=spin BACKGROUND_PERIOD_US=128 \
    | TIGHT HARDENING=full DEPOT_LOCK=lockfree SHARDS=4 | TIGHT REMOTE_GROUPING=shard SHARDS=2
accounting: | SHARDS=4 DEPOT_LOCK=lockfree | SHARDS=4 REMOTE_GROUPING=shard DEFER_FREE=64 \
    | SHARDS=2 REMOTE_GROUPING=none DOUBLE_FREE=at_call \
    | HARDENING=light SPAN_CACHE=0 MAGAZINE_CAP=32
rest rest_limits: REST_MS=20 DECAY_MS=4
"""
LINKED = """
fuzz_shadow_linked offences_linked block_starts stand_in rest_inside:
api_static api_static_pie api_shared new_delete_static new_delete_static_pie new_delete_shared:
arena_growth: | TEST_PLACES_TAKEN=all | TEST_PLACES_TAKEN=but_small | TEST_PLACES_TAKEN=but_small
in_passing: SHARDS=1
page_pool: | TEST_STRICT=1
faults: | HARDENING=light TEST_FAULT_POINTS=1 | HARDENING=full TEST_FAULT_POINTS=1 \
    | DECAY_MS=0 MAX_DIRTY_BYTES=0 SPAN_CACHE=0 SHARDS=2 TEST_FAULT_POINTS=3
page_stress: | TEST_NODES=3 | TEST_STRICT=1 | TEST_NODES=3 TEST_PAGES=1500 \
    | TEST_STRICT=1 TEST_NODES=3 TEST_PAGES=1500
fork_inside: SHARDS=1 DEPOT_LOCK=spin | SHARDS=4 | SHARDS=4 TEST_NODES=3 | TEST_STRICT=1
purging changing: SHARDS=1 | SHARDS=4
decay: SHARDS=1 | SHARDS=4 DEPOT_LOCK=spin | SHARDS=1 DEPOT_LOCK=lockfree \
    | SHARDS=4 DEPOT_LOCK=lockfree
"""
FUZZED = [
    f"{settings} STRICT=1 CONFIRM=1 TEST_STEPS=4000 TEST_ROUNDS=2"
    for settings in (
        *pairwise({row.split()[0]: row.split()[1:] for row in VALUES.strip().splitlines()}),
        *(f"TIGHT DEPOT_LOCK={lock}" for lock in ("mutex", "spin", "lockfree")),
    )
]
RUNS = [
    (program, settings.strip(), alone)
    for table, alone in ((PRELOADED, {"TEST_ALLOCATOR": "libhz.so"}), (LINKED, {"LD_PRELOAD": ""}))
    for row in table.strip().splitlines()
    for program in row.split(":")[0].split()
    for settings in row.split(":")[1].split("|")
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "settings", "alone"), RUNS, ids=[f"{name} {settings}" for name, settings, _ in RUNS]
)
def test_the_checks_hold(program, settings, alone, holds):
    holds(program, **alone, **variables_of(settings))


@pytest.mark.slow
@pytest.mark.parametrize("settings", FUZZED)
def test_the_heap_agrees_with_its_shadow_and_the_settings_are_in_effect(settings, holds):
    variables = variables_of(settings)
    said = holds("fuzz_shadow", TEST_ALLOCATOR="libhz.so", **variables).stderr
    config = json.loads(said.split("HZ_CONFIRM ")[1].splitlines()[0])["config"]
    values = {f"HZ_{name.upper()}": str(value) for name, value in config.items()}
    assert {k: v for k, v in variables.items() if k in values}.items() <= values.items()


THREADS = "-fsanitize=thread"
MEMORY = "-fsanitize=address,undefined"
FUZZER = ("fuzz_shadow_linked",)
SANITIZED = (
    (FUZZER, THREADS, "SHARDS=4 REMOTE_RING_SIZE=64 DEPOT_LOCK=lockfree"),
    (FUZZER, THREADS, "SHARDS=4 REMOTE_GROUPING=shard DEFER_FREE=64 DEPOT_LOCK=spin"),
    (FUZZER, THREADS, "TIGHT BACKGROUND_PERIOD_US=128 MAX_DIRTY_BYTES=0"),
    (FUZZER, MEMORY, ""),
    (FUZZER, MEMORY, "TIGHT SHARDS=4"),
    (("changing", "threads may change"), THREADS, ""),
)


@pytest.mark.slow
@pytest.mark.parametrize(("words", "sanitizer", "settings"), SANITIZED)
def test_there_is_no_report_of(words, sanitizer, settings, build_core, holds):
    made = build_core(
        targets=["fuzz_shadow_linked", "changing"],
        HZ_BUILD_TESTS="ON",
        CMAKE_C_FLAGS=f"{sanitizer} -fno-sanitize-recover=all -fno-omit-frame-pointer",
    )
    short = {"LD_PRELOAD": "", "TEST_STEPS": "3000", "TEST_ROUNDS": "3"}
    holds(made / "tests" / words[0], *words[1:], **short, **variables_of(settings))


def test_the_library_can_be_loaded_late_and_a_plugin_that_holds_hz_be_closed(
    core_tests, libhz, holds
):
    tests = core_tests / "tests"
    holds("late_load", libhz, tests / "libtls_module.so", LD_PRELOAD="")
    holds("late_load", tests / "libholds_hz.so", "unused", "closing", LD_PRELOAD="")


# ---- malloc_info --------------------------------------------------------------------------------


def number(parent, path, name="size"):
    """An attribute of the one element that `path` finds below `parent`."""
    found = parent.findall(path)
    assert len(found) == 1, f"{path}: {len(found)} times"
    return int(found[0].attrib[name])


def bytes_in_use(parent):
    """What the system gave, less what is free."""
    free = sum(number(parent, f"total[@type='{kind}']") for kind in ("fast", "rest"))
    return number(parent, "system[@type='current']") - free


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "tolerance"), [({"LD_PRELOAD": ""}, 0.01), ({}, 0)], ids=["glibc", "hz"]
)
def test_a_reader_of_malloc_info_understands(variables, tolerance, holds):
    told, text = holds("accounting", "--xml", **variables).stdout.split("\n", 1)
    root = ElementTree.fromstring(text)
    assert (root.tag, root.attrib["version"]) == ("malloc", "1")
    heaps = root.findall("heap")
    assert [heap.attrib["nr"] for heap in heaps] == [str(i) for i in range(len(heaps))]
    assert bytes_in_use(root) == sum(map(bytes_in_use, heaps))
    in_use = bytes_in_use(root) + number(root, "total[@type='mmap']")
    assert in_use == pytest.approx(int(told), rel=tolerance, abs=0)
    for heap in heaps:
        sizes = heap.findall("sizes/size")
        assert sizes, "no free block"
        for size in sizes:
            each = {name: int(size.attrib[name]) for name in ("from", "to", "total", "count")}
            assert each["from"] * each["count"] <= each["total"] <= each["to"] * each["count"]
    for parent in [root, *heaps]:
        most = number(parent, "system[@type='max']")
        assert number(parent, "system[@type='current']") <= most
        assert number(parent, "aspace[@type='total']") > 0
        assert number(parent, "aspace[@type='mprotect']") > 0
