"""The C programs of this directory, each of them one behaviour of the allocator."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path

import pytest

Preload = Callable[..., "subprocess.CompletedProcess[str]"]

PRELOADED = {
    "impossible, overflowing and zero sizes are answered as documented": "api_sizes",
    "every block is as aligned as it was asked to be": "api_alignment",
    "contents, usable sizes and errno are what they should be": "api_contents",
    "the C library's own blocks, constructors and exit handlers work": "api_libc",
    "every symbol of malloc and of operator new is the library's own": "api_symbols",
    "operator new and delete work in all forms": "new_delete",
    "no hostile request is granted or refused wrongly": "hostile_sizes",
    "a large block that grows is moved and not copied": "realloc_large",
    "a double or invalid free ends the program before it does harm": "invalid_free",
    "a fork among churning threads gives a child that can allocate": "fork_churn",
    "a fork in a handler, or beside locked streams, does no harm": "fork_handlers",
    "a handler of SIGABRT may allocate": "abort_handler",
    "a thread that only frees does not hoard memory": "free_only_consumer",
    "signals and cancellation in the middle of malloc do no harm": "signals",
    "threads that come and go do not add up": "thread_churn",
    "the end of a thread loses neither blocks nor memory": "thread_exit",
    "threads keep apart what they cut, and leave their heaps to the next": "thread_heaps",
    "a limit counts what is in use": "limits",
    "a small program pays for little that it does not use": "small_program",
    "programs run out of a small address space in order": "small_address_space",
    "failing system calls give NULL and ENOMEM and break nothing": "syscall_faults",
}

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
    names = (f"{k[3:]}={v}" for k, v in configuration.items() if v != VALUES.get(k, ("",))[0])
    return " ".join(names)


def require_all_held(done: subprocess.CompletedProcess[str]) -> None:
    """Fail with the checks that failed, by name."""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("not ok", "    "))]
    assert done.returncode == 0, "\n".join([*failed, done.stderr[-3000:]])


@pytest.mark.slow
@pytest.mark.parametrize("program", PRELOADED.values(), ids=PRELOADED.keys())
def test_preloaded(program: str, core_tests: Path, preload: Preload) -> None:
    require_all_held(preload(core_tests / "tests" / program, TEST_ALLOCATOR="libhz.so"))


INTERFACE = ("api_sizes", "api_alignment", "api_contents", "api_libc", "api_symbols", "new_delete")


@pytest.mark.slow
@pytest.mark.parametrize("program", INTERFACE)
def test_the_interface_is_the_same_when_hardened(
    program: str, core_tests: Path, preload: Preload
) -> None:
    settings = {"HZ_HARDENING": "full", "TEST_ALLOCATOR": "libhz.so"}
    require_all_held(preload(core_tests / "tests" / program, **settings))


@pytest.mark.slow
@pytest.mark.parametrize(("step", "shards"), [("light", "1"), ("full", "4")])
def test_hardening_ends_what_harms_a_block(
    step: str, shards: str, core_tests: Path, preload: Preload
) -> None:
    program = core_tests / "tests" / "hardening"
    done = preload(program, HZ_HARDENING=step, HZ_SHARDS=shards, TEST_ALLOCATOR="libhz.so")
    require_all_held(done)


@pytest.mark.slow
@pytest.mark.parametrize(("double_free", "shards"), [("at_reuse", "4"), ("at_call", "1")])
def test_what_a_live_block_holds_changes_nothing(
    double_free: str, shards: str, core_tests: Path, preload: Preload
) -> None:
    program = core_tests / "tests" / "live_contents"
    settings = {"HZ_DOUBLE_FREE": double_free, "HZ_SHARDS": shards}
    require_all_held(preload(program, **settings, TEST_ALLOCATOR="libhz.so"))


@pytest.mark.slow
@pytest.mark.parametrize("shards", ["1", "4"])
def test_a_block_that_is_freed_twice_has_one_owner(
    shards: str, core_tests: Path, preload: Preload
) -> None:
    program = core_tests / "tests" / "double_free"
    require_all_held(preload(program, HZ_SHARDS=shards, TEST_ALLOCATOR="libhz.so"))


@pytest.mark.slow
@pytest.mark.parametrize("program", ["fuzz_shadow_linked", "invalid_free_linked"])
def test_a_program_linked_to_the_static_library_holds_too(
    program: str, core_tests: Path, preload: Preload
) -> None:
    require_all_held(preload(core_tests / "tests" / program, LD_PRELOAD=""))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["static", "static_pie", "shared"])
@pytest.mark.parametrize("program", ["drop_in", "drop_in_new"], ids=["C", "C++"])
def test_a_program_linked_to_the_archive_runs_on_it(
    program: str, how: str, core_tests: Path, preload: Preload
) -> None:
    require_all_held(preload(core_tests / "tests" / f"{program}_{how}", LD_PRELOAD=""))


@pytest.mark.slow
def test_blocks_start_where_they_were_cut(core_tests: Path, preload: Preload) -> None:
    require_all_held(preload(core_tests / "tests" / "block_starts", LD_PRELOAD=""))


@pytest.mark.slow
def test_the_arena_maps_no_more_than_it_needs(core_tests: Path, preload: Preload) -> None:
    program = core_tests / "tests" / "arena_growth"
    require_all_held(preload(program, LD_PRELOAD=""))
    require_all_held(preload(program, LD_PRELOAD="", TEST_PLACES_TAKEN="all"))
    for _ in range(8):  # the arena starts at a random page of its place
        require_all_held(preload(program, LD_PRELOAD="", TEST_PLACES_TAKEN="all but a small one"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"HZ_SHARDS": "1"},
        {"HZ_SHARDS": "2"},
        {"HZ_SHARDS": "4", "TEST_NODES": "3"},
        {"TEST_STRICT": "1"},
    ],
    ids=["1 shard", "2 shards", "3 nodes", "overcommit_memory=2"],
)
def test_a_child_repairs_what_it_finds_half_changed(
    settings: dict[str, str], core_tests: Path, preload: Preload
) -> None:
    program = core_tests / "tests" / "fork_inside"
    require_all_held(preload(program, LD_PRELOAD="", **settings))


def test_a_block_that_is_in_use_lies_nowhere_while_others_are_passed_on(
    core_tests: Path, preload: Preload
) -> None:
    require_all_held(preload(core_tests / "tests" / "in_passing", LD_PRELOAD="", HZ_SHARDS="1"))


@pytest.mark.slow
def test_machines_that_this_one_is_not_will_do(core_tests: Path, preload: Preload) -> None:
    require_all_held(preload(core_tests / "tests" / "stand_in", LD_PRELOAD=""))


@pytest.mark.slow
def test_a_large_request_takes_what_is_resident_and_the_rest_beside_it(
    core_tests: Path, preload: Preload
) -> None:
    require_all_held(preload(core_tests / "tests" / "page_runs", LD_PRELOAD=""))


@pytest.mark.parametrize("settings", [{}, {"TEST_STRICT": "1"}], ids=["", "overcommit_memory=2"])
def test_memory_of_another_node_serves_where_there_is_no_other(
    settings: dict[str, str], core_tests: Path, preload: Preload
) -> None:
    require_all_held(preload(core_tests / "tests" / "page_nodes", LD_PRELOAD="", **settings))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"TEST_NODES": "3"},
        {"TEST_STRICT": "1"},
        {"TEST_NODES": "3", "TEST_PAGES": "1500"},
        {"TEST_NODES": "3", "TEST_PAGES": "1500", "TEST_STRICT": "1"},
    ],
    ids=["", "3 nodes", "overcommit_memory=2", "no memory", "no memory, overcommit_memory=2"],
)
def test_every_page_has_one_state_and_one_owner(
    settings: dict[str, str], core_tests: Path, preload: Preload
) -> None:
    require_all_held(preload(core_tests / "tests" / "page_stress", LD_PRELOAD="", **settings))


@pytest.mark.slow
@pytest.mark.parametrize("shards", ["1", "4"])
def test_memory_goes_back_by_age_and_in_parts_and_under_no_lock(
    shards: str, core_tests: Path, preload: Preload
) -> None:
    require_all_held(preload(core_tests / "tests" / "purging", LD_PRELOAD="", HZ_SHARDS=shards))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lock", "shards"), [("mutex", "1"), ("spin", "4"), ("lockfree", "1"), ("lockfree", "4")]
)
def test_unused_blocks_and_pages_decay(
    lock: str, shards: str, core_tests: Path, preload: Preload
) -> None:
    program = core_tests / "tests" / "decay"
    done = preload(program, LD_PRELOAD="", HZ_DEPOT_LOCK=lock, HZ_SHARDS=shards)
    require_all_held(done)


@pytest.mark.slow
@pytest.mark.parametrize(
    "configuration",
    [*pairwise(VALUES), *(TIGHT | {"HZ_DEPOT_LOCK": lock} for lock in VALUES["HZ_DEPOT_LOCK"])],
    ids=changed,
)
def test_the_heap_agrees_with_its_shadow_under(
    configuration: dict[str, str], core_tests: Path, preload: Preload
) -> None:
    done = preload(
        core_tests / "tests" / "fuzz_shadow",
        **configuration,
        HZ_STRICT="1",
        TEST_ALLOCATOR="libhz.so",
        TEST_STEPS="4000",
        TEST_ROUNDS="2",
    )
    require_all_held(done)


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


# Frees of other shards' blocks, and frees that look for a second one at the call.
WATCHED = (
    {"HZ_SHARDS": "2"},
    {"HZ_SHARDS": "64"},
    {"HZ_SHARDS": "1", "HZ_DOUBLE_FREE": "at_call"},
    {"HZ_SHARDS": "2", "HZ_DOUBLE_FREE": "at_call"},
    {"HZ_DEFER_FREE": "64", "HZ_DOUBLE_FREE": "at_call"},
)


@pytest.mark.slow
@pytest.mark.parametrize("configuration", WATCHED, ids=changed)
def test_a_double_free_is_caught_under(
    configuration: dict[str, str], core_tests: Path, preload: Preload
) -> None:
    program = core_tests / "tests" / "invalid_free"
    require_all_held(preload(program, **configuration, TEST_ALLOCATOR="libhz.so"))


# With caches this small some thread holds a lock at nearly every fork.
FORKED = (
    TIGHT | {"HZ_REST_MS": "1", "HZ_MAX_DIRTY_BYTES": "0"},
    TIGHT | {"HZ_DEPOT_LOCK": "spin", "HZ_BACKGROUND_PERIOD_US": "128"},
    TIGHT | {"HZ_DEPOT_LOCK": "lockfree", "HZ_SHARDS": "4", "HZ_HARDENING": "full"},
    TIGHT | {"HZ_REMOTE_GROUPING": "shard", "HZ_SHARDS": "2"},
)


@pytest.mark.slow
@pytest.mark.parametrize("configuration", FORKED, ids=changed)
def test_a_fork_gives_a_child_that_can_allocate_under(
    configuration: dict[str, str], core_tests: Path, preload: Preload
) -> None:
    program = core_tests / "tests" / "fork_churn"
    require_all_held(preload(program, **configuration, TEST_FORKS="15", TEST_ALLOCATOR="libhz.so"))


@pytest.mark.slow
def test_failing_system_calls_break_nothing_where_memory_is_returned_at_once(
    core_tests: Path, preload: Preload
) -> None:
    done = preload(
        core_tests / "tests" / "syscall_faults",
        HZ_DECAY_MS="0",
        HZ_MAX_DIRTY_BYTES="0",
        HZ_SPAN_CACHE="0",
        HZ_SHARDS="2",
        TEST_FAULT_POINTS="3",
        TEST_ALLOCATOR="libhz.so",
    )
    require_all_held(done)


@pytest.mark.parametrize("step", ["light", "full"])
def test_a_malloc_of_nothing_that_fails_leaks_nothing(
    step: str, core_tests: Path, preload: Preload
) -> None:
    program = core_tests / "tests" / "syscall_faults"
    settings = {"HZ_HARDENING": step, "TEST_ALLOCATOR": "libhz.so"}
    require_all_held(preload(program, "a malloc(0) that fails", **settings))


@pytest.mark.slow
@pytest.mark.parametrize("shards", ["1", "4"])
def test_parameters_change_while_the_program_runs(
    shards: str, core_tests: Path, preload: Preload
) -> None:
    require_all_held(preload(core_tests / "tests" / "changing", LD_PRELOAD="", HZ_SHARDS=shards))


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
