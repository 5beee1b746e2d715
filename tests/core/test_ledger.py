"""libhz-ledger.so and libhz-lines.so: what they tell of hz agrees with what hz counts itself."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hztune.scale.lock_uses import LOCK_NAMES

Build = Callable[..., Path]
Run = Callable[..., tuple[dict[str, Any], dict[str, Any]]]

SOURCES = Path(__file__).parents[2] / "core" / "src"
TAKES = re.compile(r"hz_lock_(?:take|try|wait|wait_spinning)\(([^()]+)\)")


@pytest.fixture(scope="module")
def noting(as_it_stands: Build) -> Path:
    """A build with the two libraries."""
    return as_it_stands("hz_ledger", "hz_lines", "hz-bench")


@pytest.fixture
def run(noting: Path, plain_environment: dict[str, str], tmp_path: Path) -> Run:
    """Runs a workload: what hz-bench says, and what the library wrote."""

    def start(library: str, *words: str, **variables: str) -> tuple[dict[str, Any], dict[str, Any]]:
        path = tmp_path / "noted.json"
        done = subprocess.run(
            [noting / "bench" / "hz-bench", *words, "--json"],
            env={
                **plain_environment,
                "HZ_STRICT": "1",
                "LD_PRELOAD": str(noting / "ledger" / f"libhz-{library}.so"),
                f"HZ_{library.upper()}": str(path),
                **variables,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout), json.loads(path.read_text())

    return start


def holds(ledger: dict[str, Any], name: str) -> int:
    """How often the locks of a name were held."""
    rows = [row for row in ledger["locks"] if row is not None]
    return sum(row["count"] for row in rows if LOCK_NAMES[row["name"]] == name)


def test_every_lock_that_hz_takes_has_a_name() -> None:
    taken = {
        f"{path.name}: {words}"
        for path in SOURCES.glob("*.c")
        if path.name != "lock.c"
        for words in TAKES.findall(path.read_text())
    }
    assert taken == set(LOCK_NAMES)


def test_the_shipped_library_knows_no_ledger(core_build: Path) -> None:
    assert b"ledger" not in (core_build / "libhz.so").read_bytes()


def test_the_slow_paths_are_as_many_as_hz_counts(run: Run) -> None:
    said, ledger = run("ledger", "larson", "--threads", "2", "--ops", "200000")
    counters, paths = said["hz"]["counters"], ledger["paths"]
    took = counters["depot_hits"] + counters["depot_misses"]
    assert paths["hz_depot_take"]["count"] == pytest.approx(took, rel=0.01)
    assert paths["hz_pages_alloc"]["count"] >= counters["spans_made"] > 0


SMALL = {"HZ_MAGAZINE_CAP": "8", "HZ_REFILL_BATCH": "4", "HZ_FLUSH_BATCH": "4"}
"""Magazines that run empty and full often, so that locks are taken."""


def test_each_wait_for_a_lock_is_noted(run: Run) -> None:
    said, ledger = run("ledger", "remote", "--threads", "8", "--ops", "2000000", **SMALL)
    waits = sum(row["contended"] for row in ledger["locks"] if row is not None)
    assert waits == pytest.approx(said["hz"]["counters"]["lock_contended"], abs=20)
    assert holds(ledger, "depot") > 10000


def test_only_the_counted_window_is_told_of(run: Run) -> None:
    words = ["lifo", "--threads", "1", "--seconds", "0.2"]
    _, ledger = run("ledger", *words)
    assert ledger["seconds"] == pytest.approx(0.2, abs=0.1)
    assert holds(ledger, "start") == 0


def test_a_system_call_under_a_lock_is_noted_with_its_name(run: Run) -> None:
    _, ledger = run("ledger", "larson", "--threads", "2", "--ops", "100000")
    arena = next(row for row in ledger["locks"] if row["name"] == "arena.c: &arena.lock")
    assert 0 < arena["calls"]["hz_os_map"] < ledger["system_calls"]["hz_os_map"]["count"]
    assert 0 < arena["with_calls"] <= arena["count"]


def test_system_calls_last_longer_where_that_is_asked_for(run: Run) -> None:
    words = ["large", "--threads", "2", "--seconds", "0.2"]
    _, ledger = run("ledger", *words, HZ_DECAY_MS="1", HZ_LEDGER_CALL_US="300")
    calls = [call for call in ledger["system_calls"].values() if call["count"] > 0]
    assert ledger["delayed"]["calls"] >= sum(call["count"] for call in calls) > 0
    assert all(call["ns"] >= 300_000 * call["count"] for call in calls)


def test_a_holder_of_a_lock_sleeps_as_often_as_is_asked_for(run: Run) -> None:
    delays = {"HZ_LEDGER_HOLD_US": "100", "HZ_LEDGER_HOLD_EVERY": "50"}
    words = ["larson", "--threads", "2", "--ops", "100000"]
    _, ledger = run("ledger", *words, **SMALL, **delays)
    held = sum(row["count"] for row in ledger["locks"] if row is not None)
    assert ledger["delayed"]["holds"] * 50 == pytest.approx(held, rel=0.05)
    _, ledger = run("ledger", *words)
    assert ledger["delayed"] == {"calls": 0, "holds": 0}


def test_lines_of_the_depots_move_only_where_blocks_do(run: Run) -> None:
    short = {"HZ_LINES_SKIP": "20000", "HZ_LINES_CALLS": "20000"}
    words = ["--threads", "4", "--seconds", "0.3", "--warmup", "0.1"]
    taken = {}
    for share in ("0", "50"):
        _, told = run("lines", "remote", "--remote", share, *words, **short)
        assert told["threads"] == 4
        assert told["calls"] == 4 * 20000
        taken[share] = {row["name"]: row["taken"] for row in told["symbols"]}
    assert taken["50"]["depot"] > 100
    assert taken["50"]["depot"] > 10 * taken["0"].get("depot", 0)
    assert taken["50"]["rows"] == 0


def test_threads_that_share_a_cpu_wait_for_no_line(run: Run) -> None:
    short = {"HZ_LINES_SKIP": "2000", "HZ_LINES_CALLS": "1000"}
    awaited = {}
    for cpus in ("1", "2"):
        words = ["mstress", "--threads", "4", "--ops", "20000"]
        _, told = run("lines", *words, **short, HZ_LINES_CPUS=cpus)
        awaited[cpus] = sum(row["awaited"] for row in told["symbols"])
    assert awaited["1"] == 0 < awaited["2"]


MAY_CALL = {"arena", "extension of the arena", "decay", "purge", "start", "background thread"}
"""Locks that are held while the system works. For the arena's a thread waits only where it needs
the system itself. Malloc and free try those of decay, purge and the background thread, and do not
wait for them."""


@pytest.mark.parametrize("shards", ["1", "4"])
def test_no_lock_is_held_across_a_system_call_on_the_way_of_a_block(run: Run, shards: str) -> None:
    words = ["--threads", "8", "--ops", "300000"]
    for workload in ("larson", "mstress", "large"):
        _, ledger = run("ledger", workload, *words, HZ_SHARDS=shards, HZ_DECAY_MS="1")
        found = {
            LOCK_NAMES[row["name"]]: row["calls"]
            for row in ledger["locks"]
            if row is not None and row["with_calls"] > 0
        }
        assert found.keys() <= MAY_CALL, found
