"""The stages of the soak: which programs run, with which settings, over and over."""

from __future__ import annotations

from dataclasses import dataclass

Settings = dict[str, str]

# Each stage of the core runs under each of these.
CONFIGURATIONS: tuple[Settings, ...] = (
    {},
    {"HZ_SHARDS": "4", "HZ_REMOTE_RING_SIZE": "64", "HZ_DEPOT_LOCK": "lockfree"},
    {"HZ_SHARDS": "2", "HZ_REMOTE_GROUPING": "shard", "HZ_DOUBLE_FREE": "at_call"},
    {
        "HZ_MAGAZINE_CAP": "8",
        "HZ_REFILL_BATCH": "8",
        "HZ_FLUSH_BATCH": "4",
        "HZ_MAGAZINE_BYTES": "4096",
        "HZ_DEPOT_SLOTS": "1",
        "HZ_SPAN_CACHE": "0",
        "HZ_PURGE_DELAY_MS": "0",
    },
)


@dataclass(frozen=True)
class Stage:
    """One kind of run.

    Attributes:
        goals: The ids of the goals that it serves (README.md).
        program: A program of tests/core; or a directory of tests, which pytest runs.
        long: What makes each of its runs long.
        is_preloaded: Whether the program runs on libhz.so.
        flags: Compiler flags of the build that it is taken from.
    """

    goals: str
    program: str
    long: Settings
    is_preloaded: bool = True
    flags: str = ""


TSAN = "-fsanitize=thread -fno-sanitize-recover=all -fno-omit-frame-pointer"
ASAN = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"

STAGES: dict[str, Stage] = {
    "sizes": Stage("A2", "hostile_sizes", {"TEST_CALLS": "500000"}),
    "shadow": Stage("A3 A4", "fuzz_shadow", {"TEST_ROUNDS": "40"}),
    "threads": Stage("A5", "fuzz_shadow_linked", {"TEST_ROUNDS": "6"}, False, TSAN),
    "memory": Stage("A5", "fuzz_shadow_linked", {"TEST_ROUNDS": "6"}, False, ASAN),
    "churn": Stage("A7", "thread_churn", {"TEST_THREADS_TOTAL": "40000"}),
    "consumer": Stage("A8", "free_only_consumer", {"TEST_BLOCKS": "4000000"}),
    "fork": Stage("A9", "fork_churn", {"TEST_FORKS": "200"}),
    "faults": Stage("A10", "syscall_faults", {"TEST_FAULT_POINTS": "30"}),
    "limits": Stage("A11", "limits", {}),
    "addresses": Stage("A11", "small_address_space", {}),
    "frees": Stage("S1", "double_free", {}),
    "invalid": Stage("S1", "invalid_free", {"TEST_CASES_ROUNDS": "5"}),
    "hardening": Stage("S2", "hardening", {}),
    "model": Stage("A6", "tests/model", {"HZ_MODEL_MORE": "1"}, False),
    "programs": Stage("A12 A13", "tests/core/test_programs.py", {}, False),
    "environment": Stage("S4 S5", "tests/core/test_environment.py", {}, False),
    "fuzz": Stage("A3 S5", "tests/fuzz", {}, False),
}
