"""Real processes on one study in a PostgreSQL: one is killed, the other comes to the verdict."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hztune.store.database import Storage
from hztune.store.study import StoredBlock, StoredStudy

Build = Callable[..., Path]

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
DEADLINE_S = 180
SPACE = """
schema = 1
allocator = "hz"
[parameters.trial_mode]
values = ["plain", "faster"]
[parameters.trial_idle]
"""


@dataclass
class Shared:
    """hztune on a core with a parameter whose worth is known, and a study in a storage."""

    core: Path
    folder: Path
    url: str
    name: str

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A worker of the study in a process of its own."""
        place = ["--storage", self.url, "--study", self.name]
        return subprocess.Popen(
            [sys.executable, "-m", "hztune", *words, *place],
            env={**os.environ, "HZTUNE_CORE": str(self.core), "NO_COLOR": "1"},
            cwd=self.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def end(self, process: subprocess.Popen[str], status: int = 0) -> str:
        """What a process printed that ends as it should."""
        with process:
            out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == status, err
        return out

    def look(self) -> tuple[list[StoredBlock], list[str]]:
        """The blocks, and the hosts of the workers."""
        storage = Storage(self.url)
        try:
            study = StoredStudy.find(storage, self.name)
            return (list(study.blocks()), study.hosts()) if study else ([], [])
        finally:
            storage.close()

    def wait_for(self, workers: int) -> list[StoredBlock]:
        """Waits until so many workers have entered a block."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            found, _ = self.look()
            if len({block.worker for block in found}) >= workers:
                return found
            time.sleep(0.1)
        raise AssertionError(f"{workers} workers have not entered a block each")


def windows(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """When the turns of each block began and ended, in order of time."""
    spans: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        if row["kind"] == "turn":
            spans[row["pair"]] += [row["start_ns"], row["start_ns"] + row["counted_ns"]]
    return sorted((min(span), max(span)) for span in spans.values())


def test_of_two_workers_one_is_killed_and_the_other_ends_the_study_without_a_loss(
    build_tuner: Build, postgres: Any, tmp_path: Path
) -> None:
    core = build_tuner(
        targets=["_core", "hz_shared", "hz_deepbind", "hz-bench", "hz-turns", "hz-launch"],
        HZ_EXTRA_PARAMS=str(HERE / "tune_worth.def"),
        HZ_EXTRA_WORKLOAD=str(HERE / "tune_worth.c"),
    )
    shared = Shared(core, tmp_path, postgres.url, "two")
    space = tmp_path / "worth.toml"
    space.write_text(SPACE)
    request = ["--workload", "worth", "--threads", "1", "--space", str(space), "--budget", "35s"]
    first = shared.start("tune", *request)
    shared.wait_for(workers=1)
    space.unlink()  # a worker that joins has it from the storage
    second = shared.start("worker", "--json")
    before = shared.wait_for(workers=2)
    first.send_signal(signal.SIGKILL)
    shared.end(first, -signal.SIGKILL)
    verdict = json.loads(shared.end(second))["verdict"]
    assert verdict in ("improved", "no_gain")

    after, owners = shared.look()
    assert owners == []
    assert after[: len(before)] == before
    assert [block.number for block in after] == list(range(1, len(after) + 1))
    pairs = [block.rows[0]["pair"] for block in after]
    assert len(set(pairs)) == len(pairs)

    assert f"verdict: {verdict}" in shared.end(shared.start("tune", "--out", "out"))
    assert shared.look() == (after, [])
    assert json.loads((tmp_path / "out/profile.json").read_text())["result"]["verdict"] == verdict
    assert (tmp_path / "out/report.html").is_file()
    rows = [json.loads(line) for line in (tmp_path / "out/samples.jsonl").open()]
    assert [row["pair"] for row in rows if row["kind"] == "block"] == pairs
    assert rows[-1]["kind"] == "end"
    assert all(one[1] <= other[0] for one, other in pairwise(windows(rows)))
    space.write_text(SPACE)
    resumed = [sys.executable, "-m", "hztune", *request, "--resume", "--out", "out"]
    done = subprocess.run(
        resumed, env={**os.environ, "HZTUNE_CORE": str(core)}, cwd=tmp_path,
        capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "this study has ended" in done.stderr
