"""Studies from before `study.db` are read, go on and are told again, without a loss."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from hztune import profile, report
from hztune.blocks import Arm, Block, Outcome, Turn
from hztune.errors import HztuneError, UsageError
from hztune.machine import Machine
from hztune.result.summary import summary_json
from hztune.store import Evidence, Plan, blocks_of
from hztune.store.database import Storage
from hztune.store.lines import decoded, packed
from hztune.store.local import LocalStudy, recording, samples
from hztune.store.study import StoredStudy
from hztune.store.worker import Worker
from hztune.tune.session import told_again

from .conftest import tell

STORED = Path(__file__).parent / "stored"
NAMES = ("ended", "interrupted")
"""A study of one workload that came to its verdict, and one of two workloads that did not."""


def unpack(name: str, folder: Path) -> list[bytes]:
    """Puts the samples of a stored study into a results directory; returns their lines."""
    content = gzip.decompress((STORED / f"{name}.jsonl.gz").read_bytes())
    (folder / "samples.jsonl").write_bytes(content)
    return content.splitlines(keepends=True)


def resumed(folder: Path, lines: list[bytes]) -> LocalStudy:
    """The study of a directory, opened as its own command would."""
    first = json.loads(lines[0])
    return LocalStudy(folder, first["identity"], Machine(**first["machine"]), resume=True)


def another(number: int) -> Block:
    """A block of made-up numbers."""
    outcomes = [Outcome(Arm("hz"), "ok", "", 1.0, (Turn(0, at, at, 1, 1.0),)) for at in (0, 1)]
    return Block(number, "aa", tuple(outcomes))


@pytest.mark.parametrize("name", NAMES)
def test_a_study_is_taken_over_and_goes_on_without_a_loss(name: str, tmp_path: Path) -> None:
    lines = unpack(name, tmp_path)
    blocks = tuple(blocks_of(decoded(lines)))
    assert len(blocks) > 2
    assert recording(tmp_path).blocks == blocks  # before it is taken over
    with resumed(tmp_path, lines) as study:
        assert study.replay() == blocks
        assert list(study.samples()) == lines
        has_ended = study.ending() is not None
        assert has_ended == (name == "ended")
        if not has_ended:
            new = another(blocks[-1].number + 1)
            tell(study, new)
            assert study.replay() == (*blocks, new)
    assert samples(tmp_path)[: len(lines)] == lines
    assert (tmp_path / "samples.jsonl").read_bytes() == b"".join(samples(tmp_path))


def test_an_ended_study_is_told_again_and_reported(tmp_path: Path) -> None:
    lines = unpack("ended", tmp_path)
    with resumed(tmp_path, lines) as study:
        ending = study.ending()
        assert ending is not None
        tuned = told_again(ending, tmp_path)
    told = json.loads(json.dumps(summary_json(tuned)))
    later = {"elsewhere": [], "left_out": [], "warnings": [], "changes": [], "added": []}
    attempts = [{**each, "steps": []} for each in ending["summary"]["attempts"]]
    later |= {
        "attempts": attempts,
        "out": str(tmp_path),
        "outliers": [],
        "findable": None,
        "follow_on": None,
    }
    assert told == {**ending["summary"], **later}
    assert json.loads(profile.dumps(tuned.profile)) == ending["profile"]
    page = report.render(tmp_path)
    assert "an earlier version of hztune did not store" in page
    other = replace(tuned.profile, created="2000-01-01T00:00:00Z")
    profile.save(other, tmp_path / "profile.json")
    assert report.render(tmp_path) == page  # of the result, whatever the file says
    for name in ("study.db", "samples.jsonl"):
        (tmp_path / name).unlink()
    unpack("ended", tmp_path)
    assert report.render(tmp_path) == page


def test_samples_of_an_unfinished_block_are_kept(tmp_path: Path) -> None:
    lines = unpack("interrupted", tmp_path)
    row = {"schema": 1, "kind": "block", "pair": 10**6, "role": "aa", "arms": ["k"], "rounds": 1}
    lines.append(packed(row, len(lines)))
    (tmp_path / "samples.jsonl").write_bytes(b"".join(lines))
    with resumed(tmp_path, lines) as study:
        assert list(study.samples()) == lines
        study.begin(Plan(10**6, "aa", (Arm("hz"),), 1))
        study.turn(0, 1, Turn(0, 0, 1, 1, 1.0), Evidence())
        assert list(study.samples())[: len(lines)] == lines


def test_a_file_cut_anywhere_in_its_last_three_records_costs_the_torn_one_only(
    tmp_path: Path,
) -> None:
    lines = unpack("interrupted", tmp_path)[:40]
    whole = b"".join(lines)
    starts = [sum(map(len, lines[:count])) for count in range(len(lines) + 1)]
    for size in range(starts[-4], len(whole), 13):
        (tmp_path / "samples.jsonl").write_bytes(whole[:size])
        (tmp_path / "study.db").unlink(missing_ok=True)
        with resumed(tmp_path, lines) as study:
            kept = sum(start <= size for start in starts) - 1
            assert list(study.samples()) == lines[:kept]


def test_what_a_power_cut_tore_is_kept_beside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = unpack("interrupted", tmp_path)
    head = max(at for at, line in enumerate(lines) if b'"kind":"block"' in line[:64])
    lost = [*lines[: head + 1], b"\0" * 256 + lines[head + 1][256:], *lines[head + 2 :]]
    (tmp_path / "samples.jsonl").write_bytes(b"".join(lost))
    with resumed(tmp_path, lines) as study:
        assert list(study.samples()) == lines[: head + 1]
        assert "is kept in samples.jsonl.torn-1" in caplog.text
    assert (tmp_path / "samples.jsonl.torn-1").read_bytes() == b"".join(lost[head + 1 :])


def test_damage_is_refused_and_left_alone(tmp_path: Path) -> None:
    lines = unpack("interrupted", tmp_path)
    damaged = [*lines[:3], *lines[4:]]
    (tmp_path / "samples.jsonl").write_bytes(b"".join(damaged))
    with pytest.raises(HztuneError, match="is damaged in line 4; restore it"):
        resumed(tmp_path, lines)
    with pytest.raises(HztuneError, match="is damaged in line 4; restore it"):
        recording(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["samples.jsonl"]


def test_a_study_that_0_1_is_measuring_is_refused(tmp_path: Path) -> None:
    lines = unpack("interrupted", tmp_path)
    with (tmp_path / "samples.jsonl").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match=f"written by process {os.getpid()};"):
            resumed(tmp_path, lines)
        assert recording(tmp_path).blocks
    with resumed(tmp_path, lines) as study:
        assert list(study.samples()) == lines


def test_a_study_that_several_workers_share_goes_on(tmp_path: Path) -> None:
    dump = gzip.decompress((STORED / "shared.sql.gz").read_bytes()).decode()
    file = tmp_path / "shared.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(dump)
        stored = connection.execute("SELECT rows FROM hztune_blocks ORDER BY number").fetchall()
    storage = Storage(f"sqlite:///{file}")
    found = StoredStudy.find(storage, "mine")
    assert found is not None and found.ending() is None
    study = StoredStudy.begin(storage, "mine", found.identity, found.request)
    assert len(list(study.blocks())) == len(stored) > 2
    with Worker(study, "machine") as worker:
        assert len(worker.look().blocks) == len(stored)
        tell(worker.sink, another(worker.begin("aa")))
        worker.enter(1.0)
    assert len(list(study.blocks())) == len(stored) + 1
    storage.close()
