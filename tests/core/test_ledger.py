"""What experiments/scale's ledger shows of hz's locks."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from scale.noted import LOCK_NAMES

SOURCES = Path(__file__).parents[2] / "core" / "src"
TAKES = re.compile(r"hz_lock_(?:take|try|wait|wait_spinning)\(([^()]+)\)")


def test_every_lock_that_hz_takes_has_a_name():
    taken = {
        f"{path.name}: {words}"
        for path in SOURCES.glob("*.c")
        if path.name != "lock.c"
        for words in TAKES.findall(path.read_text())
    }
    assert taken == set(LOCK_NAMES)


MAY_CALL = {"arena", "extension of the arena", "decay", "purge", "start", "background thread"}
"""Locks that are held while the system works. For the arena's a thread waits only where it needs
the system itself. Malloc and free try those of decay, purge and the background thread, and do not
wait for them."""


@pytest.mark.slow
def test_no_lock_is_held_across_a_system_call_on_the_way_of_a_block(
    build_ledger, core_build, plain_environment, tmp_path
):
    noted = tmp_path / "noted.json"
    variables = {
        "HZ_SHARDS": "4",
        "HZ_DECAY_MS": "1",
        "HZ_STRICT": "1",
        "HZ_LEDGER": str(noted),
        "LD_PRELOAD": str(build_ledger("hz_ledger") / "libhz-ledger.so"),
    }
    for workload in ("mstress", "large"):
        subprocess.run(
            [core_build / "bench" / "hz-bench", workload, "--threads", "8", "--ops", "100000"],
            env={**plain_environment, **variables},
            check=True,
            capture_output=True,
            timeout=60,
        )
        locks = [row for row in json.loads(noted.read_text())["locks"] if row is not None]
        found = {LOCK_NAMES[row["name"]]: row["calls"] for row in locks if row["with_calls"] > 0}
        assert found.keys() <= MAY_CALL, found
        assert sum(row["count"] for row in locks) > 100
