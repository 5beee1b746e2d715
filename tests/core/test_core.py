"""The C programs of this directory, each of them one behaviour of the allocator."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path

import pytest

Preload = Callable[..., "subprocess.CompletedProcess[str]"]

# Values for the fuzzer: the default, and others that meet the slow paths more often. Any two of
# them go together.
VALUES: Mapping[str, tuple[str, ...]] = {
    "HZ_DEPOT_LOCK": ("mutex", "spin", "lockfree"),
    "HZ_REMOTE_GROUPING": ("shard_class", "shard", "none"),
    "HZ_SHARDS": ("1", "4", "2"),
    "HZ_MAGAZINE_GROWTH": ("double", "full", "batch"),
    "HZ_DEFER_FREE": ("0", "64"),
    "HZ_DOUBLE_FREE": ("at_reuse", "at_call"),
    "HZ_HARDENING": ("off", "light", "full"),
    "HZ_BACKGROUND_PERIOD_US": ("0", "128"),
    "HZ_MAGAZINE_CAP": ("256", "32"),
    "HZ_MAGAZINE_BYTES": ("65536", "4096"),
    "HZ_THREAD_CACHE_BYTES": ("2097152", "65536"),
    "HZ_REFILL_BATCH": ("32", "4"),
    "HZ_FLUSH_BATCH": ("32", "4"),
    "HZ_REMOTE_RING_SIZE": ("1024", "64"),
    "HZ_DEPOT_SLOTS": ("64", "1"),
    "HZ_SPAN_BYTES": ("65536", "1048576"),
    "HZ_SPAN_CACHE": ("2", "0"),
    "HZ_DECAY_MS": ("100", "0"),
    "HZ_REST_MS": ("1000", "1", "0"),
    "HZ_MAX_DIRTY_BYTES": ("67108864", "0"),
    "HZ_THP": ("off", "on", "never"),
    "HZ_PREFAULT": ("off", "on"),
}

# The smallest of everything: each of these alone would be refused beside the others' defaults.
TIGHT = {
    "HZ_MAGAZINE_CAP": "8",
    "HZ_REFILL_BATCH": "8",
    "HZ_FLUSH_BATCH": "4",
    "HZ_MAGAZINE_BYTES": "4096",
    "HZ_REMOTE_RING_SIZE": "64",
    "HZ_DEPOT_SLOTS": "1",
    "HZ_SPAN_CACHE": "0",
    "HZ_DECAY_MS": "0",
}

Pair = tuple[tuple[str, str], tuple[str, str]]


def pairs_of(configuration: Mapping[str, str]) -> set[Pair]:
    """Every two settings that this configuration tries together."""
    return set(combinations(configuration.items(), 2))


def pairwise(values: Mapping[str, tuple[str, ...]], seed: int = 20261121) -> list[dict[str, str]]:
    """Few configurations that try every two settings together: the best of many draws, repeated."""
    draw = random.Random(seed)
    wanted = {
        ((a, x), (b, y)) for a, b in combinations(values, 2) for x in values[a] for y in values[b]
    }
    chosen: list[dict[str, str]] = []
    while wanted:
        drawn = [{k: draw.choice(v) for k, v in values.items()} for _ in range(200)]
        best = max(drawn, key=lambda configuration: len(pairs_of(configuration) & wanted))
        wanted -= pairs_of(best)
        chosen.append(best)
    return chosen


def changed(configuration: Mapping[str, str]) -> str:
    """The settings that are not the first of their values."""
    names = (
        f"{k.removeprefix('HZ_')}={v}"
        for k, v in configuration.items()
        if v != VALUES.get(k, ("",))[0] and k not in ("TEST_ALLOCATOR", "LD_PRELOAD")
    )
    return " ".join(names)


def require_all_held(done: subprocess.CompletedProcess[str]) -> None:
    """Fail with the checks that failed, by name."""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("not ok", "    "))]
    assert done.returncode == 0, "\n".join([*failed, done.stderr[-3000:]])


# The programs, whose checks say what holds, and the settings under which each of them runs. With
# caches as small as TIGHT some thread holds a lock at nearly every fork.
AT_CALL = {"HZ_DOUBLE_FREE": "at_call"}
STRICT = {"TEST_STRICT": "1"}  # as under overcommit_memory=2
FULL = {"HZ_HARDENING": "full"}
HARDENED = ({"HZ_HARDENING": "light", "HZ_SHARDS": "1"}, FULL | {"HZ_SHARDS": "4"})
SHARDS = ({"HZ_SHARDS": "1"}, {"HZ_SHARDS": "4"})
ONCE: tuple[Mapping[str, str], ...] = ({},)
PRELOADED: Mapping[str, tuple[Mapping[str, str], ...]] = {
    **dict.fromkeys(("api", "new_delete"), ({}, FULL)),
    **dict.fromkeys(
        ("realloc_large", "frugal", "signals", "threads", "limits"),
        ONCE,
    ),
    "offences": (
        {},
        {"HZ_SHARDS": "2"},
        {"HZ_SHARDS": "64"},
        AT_CALL | {"HZ_SHARDS": "1"},
        AT_CALL | {"HZ_DEFER_FREE": "64", "HZ_SHARDS": "2"},
        *HARDENED,
    ),
    "harmless": ({}, AT_CALL, *HARDENED),
    "double_free": SHARDS,
    "live_contents": ({"HZ_SHARDS": "4"}, AT_CALL | {"HZ_SHARDS": "1"}),
    "forks": (
        {},
        TIGHT | {"HZ_REST_MS": "1", "HZ_MAX_DIRTY_BYTES": "0"},
        TIGHT | {"HZ_DEPOT_LOCK": "spin", "HZ_BACKGROUND_PERIOD_US": "128"},
        TIGHT | FULL | {"HZ_DEPOT_LOCK": "lockfree", "HZ_SHARDS": "4"},
        TIGHT | {"HZ_REMOTE_GROUPING": "shard", "HZ_SHARDS": "2"},
    ),
    "fuzz_shadow": tuple(
        configuration | {"HZ_STRICT": "1", "TEST_STEPS": "4000", "TEST_ROUNDS": "2"}
        for configuration in (
            *pairwise(VALUES),
            *(TIGHT | {"HZ_DEPOT_LOCK": lock} for lock in VALUES["HZ_DEPOT_LOCK"]),
        )
    ),
}  # fmt: skip
LINKED: Mapping[str, tuple[Mapping[str, str], ...]] = {
    **dict.fromkeys(
        (
            "fuzz_shadow_linked", "offences_linked", "block_starts", "stand_in",
            *(f"{name}_{how}" for name in ("api", "new_delete")
              for how in ("static", "static_pie", "shared")),
        ),
        ONCE,
    ),
    # the arena starts at a random page of its place
    "arena_growth": (
        {}, {"TEST_PLACES_TAKEN": "all"}, *({"TEST_PLACES_TAKEN": "all but a small one"},) * 4,
    ),
    "in_passing": ({"HZ_SHARDS": "1"},),
    "page_pool": ({}, STRICT),
    "faults": (
        {},
        {"HZ_HARDENING": "light", "TEST_FAULT_POINTS": "1"},
        FULL | {"TEST_FAULT_POINTS": "1"},
        {
            "HZ_DECAY_MS": "0",
            "HZ_MAX_DIRTY_BYTES": "0",
            "HZ_SPAN_CACHE": "0",
            "HZ_SHARDS": "2",
            "TEST_FAULT_POINTS": "3",
        },
    ),
    "page_stress": (
        {},
        {"TEST_NODES": "3"},
        STRICT,
        {"TEST_NODES": "3", "TEST_PAGES": "1500"},
        STRICT | {"TEST_NODES": "3", "TEST_PAGES": "1500"},
    ),
    "fork_inside": (*SHARDS, {"HZ_SHARDS": "4", "TEST_NODES": "3"}, STRICT),
    "purging": SHARDS,
    "changing": SHARDS,
    "decay": (
        {"HZ_SHARDS": "1"},
        {"HZ_SHARDS": "4", "HZ_DEPOT_LOCK": "spin"},
        {"HZ_SHARDS": "1", "HZ_DEPOT_LOCK": "lockfree"},
        {"HZ_SHARDS": "4", "HZ_DEPOT_LOCK": "lockfree"},
    ),
}  # fmt: skip
RUNS = [
    (program, alone | settings)
    for programs, alone in (
        (PRELOADED, {"TEST_ALLOCATOR": "libhz.so"}),
        (LINKED, {"LD_PRELOAD": ""}),
    )
    for program, all_settings in programs.items()
    for settings in all_settings
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "settings"), RUNS, ids=[f"{name} {changed(settings)}" for name, settings in RUNS]
)
def test_the_checks_hold(
    program: str, settings: dict[str, str], core_tests: Path, preload: Preload
) -> None:
    require_all_held(preload(core_tests / "tests" / program, **settings))


SANITIZERS = {
    "ThreadSanitizer": "-fsanitize=thread",
    "AddressSanitizer and UndefinedBehaviorSanitizer": "-fsanitize=address,undefined",
}
SANITIZED_FLAGS = "-fno-sanitize-recover=all -fno-omit-frame-pointer"
SANITIZED = (
    (
        "ThreadSanitizer",
        {"HZ_SHARDS": "4", "HZ_REMOTE_RING_SIZE": "64", "HZ_DEPOT_LOCK": "lockfree"},
    ),
    (
        "ThreadSanitizer",
        {
            "HZ_SHARDS": "4",
            "HZ_REMOTE_GROUPING": "shard",
            "HZ_DEFER_FREE": "64",
            "HZ_DEPOT_LOCK": "spin",
        },
    ),
    ("ThreadSanitizer", TIGHT | {"HZ_BACKGROUND_PERIOD_US": "128", "HZ_MAX_DIRTY_BYTES": "0"}),
    ("AddressSanitizer and UndefinedBehaviorSanitizer", {}),
    ("AddressSanitizer and UndefinedBehaviorSanitizer", TIGHT | {"HZ_SHARDS": "4"}),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sanitizer", "configuration"), SANITIZED, ids=[f"{s} {changed(c)}" for s, c in SANITIZED]
)
def test_the_fuzzer_gets_no_report_of(
    sanitizer: str,
    configuration: dict[str, str],
    build_core: Callable[..., Path],
    plain_environment: dict[str, str],
) -> None:
    build = build_core(
        targets=["fuzz_shadow_linked"],
        HZ_BUILD_TESTS="ON",
        CMAKE_C_FLAGS=f"{SANITIZERS[sanitizer]} {SANITIZED_FLAGS}",
        CMAKE_C_FLAGS_RELEASE="-O1 -g",
    )
    done = subprocess.run(
        [build / "tests" / "fuzz_shadow_linked"],
        env={**plain_environment, **configuration, "TEST_STEPS": "3000", "TEST_ROUNDS": "3"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    require_all_held(done)


@pytest.mark.slow
def test_changes_beside_allocating_threads_give_no_report(
    build_core: Callable[..., Path], preload: Preload
) -> None:
    build = build_core(
        targets=["changing"],
        HZ_BUILD_TESTS="ON",
        CMAKE_C_FLAGS=f"{SANITIZERS['ThreadSanitizer']} {SANITIZED_FLAGS}",
        CMAKE_C_FLAGS_RELEASE="-O1 -g",
    )
    done = preload(build / "tests" / "changing", "threads may change", LD_PRELOAD="")
    require_all_held(done)


def test_the_library_can_be_loaded_late(core_tests: Path, libhz: Path, preload: Preload) -> None:
    program = core_tests / "tests" / "late_load"
    module = core_tests / "tests" / "libtls_module.so"
    require_all_held(preload(program, libhz, module, LD_PRELOAD=""))


def test_a_plugin_that_holds_hz_can_be_closed(core_tests: Path, preload: Preload) -> None:
    tests = core_tests / "tests"
    plugin = tests / "libholds_hz.so"
    require_all_held(preload(tests / "late_load", plugin, "unused", "closing", LD_PRELOAD=""))
