"""The stages of the soak: which programs run, with which settings, over and over."""

from __future__ import annotations

from dataclasses import dataclass

Settings = dict[str, str]

SMALL_CACHES: Settings = {
    "HZ_MAGAZINE_CAP": "8",
    "HZ_REFILL_BATCH": "8",
    "HZ_FLUSH_BATCH": "4",
    "HZ_MAGAZINE_BYTES": "4096",
    "HZ_DEPOT_SLOTS": "1",
    "HZ_SPAN_CACHE": "0",
    "HZ_DECAY_MS": "0",
}
ONE_SHARD: tuple[Settings, ...] = ({}, SMALL_CACHES)
SHARDS: tuple[Settings, ...] = (
    {"HZ_SHARDS": "4", "HZ_REMOTE_RING_SIZE": "64", "HZ_DEPOT_LOCK": "lockfree"},
    {"HZ_SHARDS": "2", "HZ_REMOTE_GROUPING": "shard", "HZ_DOUBLE_FREE": "at_call"},
)


@dataclass(frozen=True)
class Stage:
    """One kind of run.

    Attributes:
        goals: The ids of the goals that it serves (README.md).
        words: A program of the build of the core, and its arguments; `{build}` is that directory.
            Or pytest and its arguments: the tests make builds of their own.
        long: What makes each of its runs long.
        is_preloaded: Whether the program runs on libhz.so.
        flags: Compiler flags of the build.
        is_same: Whether each run does the same, so that one is enough.
        configurations: The settings of its runs, in turn.
    """

    goals: str
    words: tuple[str, ...]
    long: Settings
    is_preloaded: bool = True
    flags: str = ""
    is_same: bool = False
    configurations: tuple[Settings, ...] = ONE_SHARD + SHARDS

    @property
    def is_pytest(self) -> bool:
        return self.words[0] == "pytest"


def program(
    goals: str, name: str, under: tuple[Settings, ...] = ONE_SHARD + SHARDS, **long: str
) -> Stage:
    """A program of tests/core that runs on libhz.so."""
    return Stage(goals, (f"tests/{name}",), long, configurations=under)


def linked(goals: str, name: str, flags: str, **long: str) -> Stage:
    """A program of tests/core that hz is linked to, built with these flags."""
    return Stage(goals, (f"tests/{name}",), long, is_preloaded=False, flags=flags)


def by_pytest(goals: str, *words: str, is_same: bool = False, **long: str) -> Stage:
    """Tests that pytest runs."""
    words = ("pytest", *words)
    return Stage(goals, words, long, is_preloaded=False, is_same=is_same, configurations=({},))


SANITIZED = "-fno-sanitize-recover=all -fno-omit-frame-pointer"
TSAN = f"-fsanitize=thread -Wno-tsan {SANITIZED}"
ASAN = f"-fsanitize=address,undefined {SANITIZED}"

PROGRAMS = [f"tests/core/test_{name}.py" for name in ("programs", "deepbind")]
LATE = ("tests/late_load", "{build}/libhz.so", "{build}/tests/libtls_module.so")

STAGES: dict[str, Stage] = {
    "sizes": program("A2", "api", TEST_CALLS="1000000"),
    "shadow": program("A3", "fuzz_shadow", TEST_ROUNDS="80"),
    "fuzz": by_pytest("S5", "tests/fuzz", TEST_MORE="20"),
    "configurations": by_pytest("A4", "tests/core/test_core.py", "-k", "settings_are_in_effect"),
    "liveness": by_pytest(
        "A4", "tests/core/test_liveness.py", "-k", "no_claim_survives", is_same=True, TEST_MORE="2"
    ),
    "threads": linked("A5", "fuzz_shadow_linked", TSAN, TEST_ROUNDS="6"),
    "memory": linked("A5", "fuzz_shadow_linked", ASAN, TEST_ROUNDS="12"),
    "model": by_pytest(
        "A6", "tests/model", "-k", "not in_random_orders", is_same=True, HZ_MODEL_MORE="1"
    ),
    "orders": by_pytest("A6", "tests/model", "-k", "in_random_orders", HZ_MODEL_MORE="1"),
    "churn": program("A7", "threads", TEST_THREADS_TOTAL="100000"),
    "consumer": program("A8", "frugal", ONE_SHARD, TEST_BLOCKS="8000000"),
    "consumer-shards": program(
        "A8", "frugal", SHARDS, TEST_BLOCKS="8000000", TEST_RATIO_PERCENT="250"
    ),
    "fork": program("A9", "forks", TEST_FORKS="500"),
    "faults": Stage("A10", ("tests/faults",), {"TEST_FAULT_POINTS": "40"}, is_preloaded=False),
    "limits": program("A11", "limits"),
    "late": Stage("A12", LATE, {}, is_preloaded=False),
    "programs": by_pytest("A13", *PROGRAMS, TEST_MORE="10"),
    "frees": program("S1", "double_free"),
    "invalid": program("S1", "offences", TEST_CASES_ROUNDS="5"),
    "light": program("S2", "offences", HZ_HARDENING="light"),
    "full": program("S2", "offences", HZ_HARDENING="full"),
    "kills": by_pytest("T1", "tests/tuner/test_killed.py", "-k", "killed_writers", TEST_MORE="4"),
    "recording": by_pytest(
        "R1", "tests/trace/test_record.py", "-k", "none_is_lost", is_same=True, TEST_MORE="100"
    ),
    "environment": by_pytest("S4", "tests/core/test_environment.py", is_same=True),
}
