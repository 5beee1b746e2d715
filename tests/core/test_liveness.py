"""Every parameter is alive: moving it moves what it is there for.

Each row of the table has a claim: a script of allocations (see liveness.c), a quantity that hz
counts or asks of the system, and what that quantity is under some values of the parameter. The
scripts are deterministic, and hz is given a clock that only they move, so the figures are exact on
any machine. That each claim watches the code that uses its parameter, and not something beside it,
is shown by experiments/liveness/mutate.py, which cuts that code out.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

Preload = Callable[..., "subprocess.CompletedProcess[str]"]
Seen = dict[str, Any]  # what was counted and seen, by name
Look = Callable[..., tuple[Seen, list[str]]]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Claim:
    """What moves, and how, when one parameter moves and all else stays."""

    sentence: str
    script: str
    moves: Mapping[str, int | str]  # value of the parameter -> the quantity
    quantity: Callable[[Seen], int | str]
    beside: Mapping[str, str] = field(default_factory=dict)  # other variables


def number(name: str) -> Callable[[Seen], int | str]:
    """The quantity of this name, as the program prints it."""
    return lambda seen: seen[name]


def blocks_kept(seen: Seen) -> int:
    """Blocks in the thread's magazines, when it holds no others."""
    return int(seen["refill_blocks"] - seen["flush_blocks"])


def blocks_waiting(seen: Seen) -> int:
    """Blocks in the quarantine, a multiple of four, without the 5 to 8 in a magazine of 8.

    How many the magazine holds depends on the lengths of the refills before, as the last one from
    a span is shorter. How many blocks a span has depends on its colour and so on its page, and that
    differs in one run of a hundred: where the system mapped something amid hz's addresses.
    """
    return (blocks_kept(seen) - 5) // 4 * 4


def flushes_kept(seen: Seen) -> int:
    """Flushes that a depot took whole."""
    return int(seen["flushes"] - seen["depot_overflows"])


def depot_keeps(seen: Seen) -> int:
    """Blocks of those flushes."""
    return flushes_kept(seen) * int(seen["flush_blocks"] // seen["flushes"])


FULL = {"HZ_MAGAZINE_GROWTH": "full"}
WIDE = FULL | {"HZ_MAGAZINE_CAP": "1024"}
WORTH_IT = {"HZ_MAGAZINE_GROWTH": "batch", "HZ_MAGAZINE_CAP": "1024", "HZ_GROWTH_RENT": "65536"}
KIB = 1024
MIB = 1024 * KIB

CLAIMS: Mapping[str, Claim] = {
    "magazine_cap": Claim(
        "bounds the blocks that a thread keeps of a small class",
        "take 2048 16 give 2048",
        {"64": 64, "256": 256, "1024": 1024},
        blocks_kept,
        FULL,
    ),
    "magazine_bytes": Claim(
        "bounds the bytes that a thread keeps of a class",
        "take 2048 16 give 2048",
        {"4096": 4096, "8192": 8192, "16384": 16384},
        lambda seen: 16 * blocks_kept(seen),
        WIDE,
    ),
    "thread_cache_bytes": Claim(
        "bounds what all the magazines of a thread may grow to",
        "take 2048 64 give 2048 take 2048 128 give 2048",
        {"65536": 60 * KIB, "67108864": 128 * KIB},
        number("grown_bytes"),
        WORTH_IT | {"HZ_MAGAZINE_BYTES": "65536", "HZ_THREAD_CACHE_SHARE": "1000"},
    ),
    "thread_cache_share": Claim(
        "bounds what they may grow to by a share of all small blocks, at least of 2 MiB",
        "take 2048 64 give 2048",
        {"1": 20 * KIB, "50": 64 * KIB},
        number("grown_bytes"),
        WORTH_IT,
    ),
    "magazine_growth": Claim(
        "sets the steps in which a magazine grows from nothing to 256 blocks",
        "take 2048 16 give 2048",
        {"full": 1, "double": 6, "batch": 4},
        number("magazines_grown"),
    ),
    "growth_rent": Claim(
        "sets what a magazine grows to that runs empty or full every millisecond",
        "pace 1000 take 2048 16 give 2048",
        {"1": 2 * KIB, "4": 8 * KIB, "65536": 16 * KIB},
        number("grown_bytes"),
        {"HZ_MAGAZINE_CAP": "1024"},
    ),
    "refill_batch": Claim(
        "sets how often 1024 blocks must be asked for",
        "take 1024 16",
        {"4": 256, "32": 32, "256": 5},
        number("refills"),
        WIDE,
    ),
    "flush_batch": Claim(
        "sets how many blocks a full magazine gives back at once",
        "take 2048 16 give 2048",
        {"4": 4, "32": 32, "256": 256},
        lambda seen: seen["flush_blocks"] // seen["flushes"],
        WIDE,
    ),
    "defer_free": Claim(
        "sets how many queues of frees 1024 of them fill",
        "take 1024 16 give 1024",
        {"0": 0, "64": 16, "1024": 1},
        number("defer_batches"),
    ),
    "double_free": Claim(
        "decides whether a free that follows a free looks for it",
        "twice 16",
        {"at_reuse": "at the next allocations", "at_call": "at the call"},
        lambda seen: seen["caught"],
    ),
    "hardening": Claim(
        "decides where a second free and a write behind a block are noticed",
        "twice 16 overrun 100",
        {
            "off": "nowhere, at the next allocations",
            "light": "nowhere, at the call",
            "full": "at the call, at the call",
        },
        lambda seen: f"{seen['overrun_caught']}, {seen['caught']}",
    ),
    "quarantine_blocks": Claim(
        "sets how many freed blocks wait under hardening=full",
        "take 16384 16 give 16384",
        {"8": 8, "16": 16, "64": 64},
        blocks_waiting,
        {"HZ_HARDENING": "full", "HZ_MAGAZINE_CAP": "8"}
        | {"HZ_REFILL_BATCH": "4", "HZ_FLUSH_BATCH": "4"},
    ),
    "remote_ring_size": Claim(
        "sets how many rings 2048 blocks of another shard fill",
        "take 2048 16 thread give 2048",
        {"64": 32, "512": 4, "2048": 1},
        number("ring_full"),
        {"HZ_SHARDS": "2"},
    ),
    "remote_grouping": Claim(
        "sets how many groups 1024 blocks of two classes and two shards are handed over in",
        "take 256 16 take 256 64 thread take 256 16 take 256 64 thread give 1024",
        {"none": 1024, "shard": 2, "shard_class": 4},
        number("handed_groups"),
        {"HZ_SHARDS": "4"},
    ),
    "shards": Claim(
        "sets how many of 4096 blocks of four threads are another shard's",
        "take 1024 16 thread take 1024 16 thread take 1024 16 thread take 1024 16 give 4096",
        {"1": 0, "2": 2048, "4": 3072},
        number("handed_blocks"),
    ),
    "depot_slots": Claim(
        "sets how many batches a depot keeps",
        "take 16384 16 give 16384",
        {"1": 1, "64": 64, "256": 256},
        flushes_kept,
        {"HZ_FLUSH_BATCH": "32"},
    ),
    "depot_lock": Claim(
        "decides what a thread does that finds a depot's lock taken",
        "take 2048 16 give 1024 meet 16 give 1024",
        {"mutex": "sleeps", "spin": "yields", "lockfree": "passes"},
        number("met"),
    ),
    "background_period_us": Claim(
        "sets how long the background thread sleeps that fills an empty depot",
        "take 1 64 await background_blocks 1",
        {"64": 64, "1024": 1024},
        number("sleep_us"),
    ),
    "span_bytes": Claim(
        "sets how many spans 4000 blocks of 64 bytes need",
        "take 4000 64",
        {"65536": 4, "131072": 2, "2097152": 1},
        number("spans_made"),
    ),
    "span_cache": Claim(
        "sets how many of the empty spans of a class are kept",
        "take 16384 64 give 16384",
        {"0": 0, "4": 4, "8": 8},
        number("spans_kept"),
        {"HZ_DEPOT_SLOTS": "1"},
    ),
    "decay_ms": Claim(
        "sets how long freed pages stay resident",
        "take 1 1000000 give 1 until purges 1",
        {"0": 0, "10": 10, "200": 200},
        number("passed_ms"),
    ),
    "rest_ms": Claim(
        "sets how long the background thread sleeps from one look at the program to the next",
        "take 1 16 rest",
        {"10": 10, "500": 500},
        number("watch_ms"),
    ),
    "max_dirty_bytes": Claim(
        "bounds the freed pages that stay resident",
        "take 16 1048576 give 16",
        {"0": 0, "4194304": 4 * MIB, "67108864": 16 * MIB},
        number("unused_bytes"),
    ),
    "thp": Claim(
        "decides whether huge pages are asked for or declined, for all that is made usable",
        "take 1 16",
        {"off": (False, False), "on": (True, False), "never": (False, True)},
        lambda seen: (
            seen["huge_bytes"] == seen["committed_bytes"],
            seen["small_bytes"] == seen["committed_bytes"],
        ),
    ),
    "prefault": Claim(
        "decides whether the pages of every new span are populated at once",
        "take 4000 64",
        {"off": 0, "on": 4 * 64 * KIB},
        number("populated_bytes"),
    ),
}


# Where a parameter acts at a second place, in a way of its own.
FURTHER: tuple[tuple[str, Claim], ...] = (
    (
        "refill_batch",
        Claim(
            "sets how many blocks the background thread puts into an empty depot",
            "take 1 64 await background_blocks 1",
            {"4": 4, "64": 64, "256": 256},
            number("background_blocks"),
            {"HZ_BACKGROUND_PERIOD_US": "64"},
        ),
    ),
    (
        "refill_batch",
        Claim(
            "sets the step of a magazine that grows by batches, up to 256 blocks",
            "take 2048 16 give 2048",
            {"16": 16, "64": 4, "128": 2},
            number("magazines_grown"),
            {"HZ_MAGAZINE_GROWTH": "batch"},
        ),
    ),
    (
        "flush_batch",
        Claim(
            "sets how many blocks the 64 slots of a locked depot keep",
            "take 16384 16 give 16384",
            {"4": 256, "32": 2048, "128": 8192},
            depot_keeps,
        ),
    ),
    (
        "flush_batch",
        Claim(
            "sets how many blocks the 64 slots of a lock-free depot keep",
            "take 16384 16 give 16384",
            {"4": 256, "32": 2048, "128": 8192},
            depot_keeps,
            {"HZ_DEPOT_LOCK": "lockfree"},
        ),
    ),
    (
        "thread_cache_bytes",
        Claim(
            "sets how many rings 64 large blocks of another shard fill",
            "take 64 262144 thread give 64",
            {"1048576": 16, "4194304": 4, "67108864": 0},
            number("ring_full"),
            {"HZ_SHARDS": "2"},
        ),
    ),
    (
        "remote_ring_size",
        Claim(
            "sets in how many parts an inbox of 4096 blocks is emptied",
            "take 4096 16 thread give 4096 thread take 4096 16",
            {"64": 64, "512": 8, "2048": 2},
            number("inbox_drains"),
            {"HZ_SHARDS": "2", "HZ_REMOTE_GROUPING": "shard"},
        ),
    ),
    (
        "remote_grouping",
        Claim(
            "decides whether blocks wait in an inbox until a thread of their shard needs some",
            "take 4096 16 thread give 4096 thread take 4096 16",
            {"shard_class": 0, "shard": 4},
            number("inbox_drains"),
            {"HZ_SHARDS": "2"},
        ),
    ),
    (
        "background_period_us",
        Claim(
            "sets how long the thread sleeps that returns what a program left before it rests",
            "take 4096 1024 give 4096 await decayed_blocks 1 await purges 1",
            {"64": 64, "1024": 1024},
            number("sleep_us"),
        ),
    ),
    (
        "decay_ms",
        Claim(
            "sets from one look at the depots to the next, of which the second finds them unasked",
            "take 4096 1024 give 4096 until decayed_blocks 1",
            {"10": 20, "200": 400},
            number("passed_ms"),
        ),
    ),
    (
        "depot_lock",
        Claim(
            "decides how a thread gets blocks from a depot whose lock is taken",
            "take 2048 16 give 2048 meet 16 take 256 16",
            {"mutex": "sleeps", "spin": "yields", "lockfree": "passes"},
            lambda seen: seen["met"] if seen["depot_hits"] > 0 else "gets none",
        ),
    ),
)
EVERY_CLAIM = (*CLAIMS.items(), *FURTHER)


def rows(root: Path) -> list[str]:
    """The names of the table's rows."""
    table = (root / "core" / "include" / "hz" / "params.def").read_text()
    return re.findall(r"^HZ_(?:EXPERIMENT_|LIVE_)?(?:INT|ENUM)\s*\(\s*(\w+),", table, re.MULTILINE)


@pytest.fixture
def look(core_tests: Path, preload: Preload) -> Look:
    """Runs a script; gives what was counted and seen, and the names of the parameters."""

    def run(script: str, **variables: str) -> tuple[Seen, list[str]]:
        program = core_tests / "tests" / "liveness"
        done = preload(program, *script.split(), LD_PRELOAD="", HZ_STRICT="1", **variables)
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        return {**said["hz"]["counters"], **said["seen"]}, list(said["hz"]["config"])

    return run


@pytest.mark.parametrize(
    ("row", "claim"),
    EVERY_CLAIM,
    ids=[f"{row} {claim.sentence}" for row, claim in EVERY_CLAIM],
)
def test_the_parameter(row: str, claim: Claim, look: Look) -> None:
    variable = f"HZ_{row.upper()}"
    found = {
        value: claim.quantity(look(claim.script, **claim.beside, **{variable: value})[0])
        for value in claim.moves
    }
    assert found == claim.moves


def test_a_magazine_whose_whole_cap_does_not_fit_grows_as_far_as_doubling_goes(look: Look) -> None:
    beside = WORTH_IT | FULL | {"HZ_THREAD_CACHE_SHARE": "1"}
    assert look("take 2048 64 give 2048", **beside)[0]["grown_bytes"] == 16 * KIB


@pytest.mark.parametrize("row", rows(ROOT))
def test_every_parameter_has_a_liveness_test(row: str) -> None:
    assert row in CLAIMS, f"say in CLAIMS what {row} moves"


def test_every_claim_names_values_that_differ_in_what_they_move() -> None:
    for row, claim in EVERY_CLAIM:
        assert len(set(claim.moves.values())) == len(claim.moves) > 1, row


def test_the_rows_are_those_of_the_running_library(look: Look) -> None:
    assert look("take 1 16")[1] == rows(ROOT)


@pytest.mark.slow
def test_no_claim_survives_the_loss_of_the_code_that_uses_its_parameter(root: Path) -> None:
    """Of one parameter, and of all of them in the soak."""
    mutate = root / "experiments" / "liveness" / "mutate.py"
    some = [] if os.environ.get("TEST_MORE", "1") != "1" else rows(root)[:1]
    words = [sys.executable, mutate, *some]
    done = subprocess.run(words, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
