"""What else may stand where a study should be: each is refused in a sentence, and left alone."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from hztune import cli
from hztune.errors import HztuneError
from hztune.store import Plan
from hztune.store.local import DATABASE, SAMPLES, recording, samples

from .conftest import tell
from .test_samples import CANDIDATE, DEFAULT, block, open_study

Make = Callable[[Path], None]


def begun(folder: Path, blocks: int = 2, **changes: str) -> Path:
    """A study that has ended, in a directory that is made; returns its database."""
    folder.mkdir(exist_ok=True)
    with open_study(folder, **changes) as study:
        for number in range(blocks):
            tell(study, block(number))
        study.conclude({"summary": {"verdict": "no_gain", "noise_floor": 0.0123}})
    return folder / DATABASE


def refused(folder: Path) -> set[str]:
    """What everything that opens a study says of a directory; all of them refuse it."""
    said = set()
    for action in (samples, recording, open_study):
        with pytest.raises(HztuneError) as caught:
            action(folder)
        said.add(str(caught.value))
    return said


def changed(file: Path, statement: str) -> None:
    """Changes a database by hand."""
    connection = sqlite3.connect(file)
    connection.execute(statement)
    connection.commit()
    connection.close()


# ---- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "old", "new"),
    [
        ("identity", "larson", "larsen"),
        ("identity", '"', ""),
        ("request", "6.1", "6.2"),
        ("request", "{", ""),
        ("ending", "0.0123", "0.0124"),
        ("ending", "}", ""),
    ],
)
def test_what_a_study_says_of_itself_is_refused_once_it_was_changed(
    column: str, old: str, new: str, tmp_path: Path
) -> None:
    file = begun(tmp_path)
    changed(file, f"UPDATE hztune_studies SET {column} = replace({column}, '{old}', '{new}')")
    with pytest.raises(HztuneError, match=r"study\.db is damaged \(what .*\); restore it from"):
        samples(tmp_path)


def test_a_study_from_before_there_were_seals_is_read(tmp_path: Path) -> None:
    file = begun(tmp_path)
    whole = samples(tmp_path)
    for column in ("request", "ending"):
        changed(file, f"UPDATE hztune_studies SET {column} = json_remove({column}, '$.crc')")
    assert samples(tmp_path) == whole
    assert len(recording(tmp_path).blocks) == 2


def test_a_damaged_sample_never_gets_into_a_block_with_a_checksum_that_fits(
    tmp_path: Path,
) -> None:
    with open_study(tmp_path) as study:
        one = block(0)
        tell(study, one)
        study.begin(Plan(1, "search", (DEFAULT, CANDIDATE), rounds=1))
        for index, outcome in enumerate(one.outcomes):
            study.outcome(index, 100 + index, outcome)
    changed(tmp_path / DATABASE, "UPDATE hztune_rows SET line = replace(line, '7', '8')")
    for action in (samples, open_study):
        with pytest.raises(HztuneError, match="a block that is not complete"):
            action(tmp_path)
    assert recording(tmp_path).blocks == (block(0),)


@pytest.mark.parametrize("seed", range(60))
def test_bytes_that_were_overwritten_are_a_sentence_or_change_nothing(
    seed: int, tmp_path: Path
) -> None:
    file = begun(tmp_path)
    whole, content = samples(tmp_path), bytearray(file.read_bytes())
    chance = random.Random(seed)
    kept = chance.choice([4096, len(content)])
    for _ in range(chance.choice([1, 8, 200])):
        content[chance.randrange(kept)] = chance.randrange(256)
    file.write_bytes(content if seed % 3 else content[: chance.randrange(1, len(content))])
    before = file.read_bytes()
    try:
        assert samples(tmp_path) == whole
    except HztuneError as error:
        assert str(file) in str(error) and len(str(error)) < 500
        with pytest.raises(HztuneError), open_study(tmp_path) as study:
            study.replay()
        assert file.read_bytes() == before


# ---- something else ------------------------------------------------------------------------------


def foreign(file: Path) -> None:
    """A database of another program."""
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE bookmarks (url)")
    connection.commit()
    connection.close()


ELSE: dict[str, tuple[Make, str]] = {
    "a database of another program": (
        lambda folder: foreign(folder / DATABASE),
        "holds something else than samples (not a database of hztune: it has a table 'bookmarks')",
    ),
    "text": (
        lambda folder: (folder / DATABASE).write_text("notes\n" * 99) and None,
        "holds something else than samples (file is not a database)",
    ),
    "a newer study": (
        lambda folder: changed(begun(folder), "UPDATE hztune_studies SET schema = 2"),
        "is of schema 2, and this hztune knows 1; install the version that began it",
    ),
}


@pytest.mark.parametrize("name", ELSE)
def test_what_is_no_study_of_this_hztune_is_refused_and_left_alone(
    name: str, tmp_path: Path
) -> None:
    make, said = ELSE[name]
    make(tmp_path)
    before = (tmp_path / DATABASE).read_bytes()
    assert all(said in each for each in refused(tmp_path))
    assert (tmp_path / DATABASE).read_bytes() == before


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["a FIFO", "a directory"])
@pytest.mark.parametrize("name", [DATABASE, SAMPLES])
def test_what_is_no_file_is_refused_without_waiting(
    name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path / name)
    assert all("cannot" in each and str(tmp_path) in each for each in refused(tmp_path))


def test_a_log_of_another_database_is_not_written_into_the_study(tmp_path: Path) -> None:
    file = begun(tmp_path / "mine")
    before = file.read_bytes()
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE bookmarks (url)")
    connection.commit()
    shutil.copy(tmp_path / "other.db-wal", file.with_name("study.db-wal"))
    connection.close()
    with pytest.raises(HztuneError):
        open_study(file.parent)
    assert file.read_bytes() == before
    file.with_name("study.db-wal").unlink()
    file.with_name("study.db-shm").unlink(missing_ok=True)
    assert len(recording(file.parent).blocks) == 2


def test_blocks_of_another_study_are_noticed(tmp_path: Path) -> None:
    file, other = begun(tmp_path / "mine"), begun(tmp_path / "other", seed="2")
    connection = sqlite3.connect(file)
    connection.execute("ATTACH ? AS other", (str(other),))
    connection.execute("DELETE FROM hztune_blocks")
    connection.execute("INSERT INTO hztune_blocks SELECT * FROM other.hztune_blocks")
    connection.commit()
    connection.close()
    with pytest.raises(HztuneError, match="block 1 is of another study"):
        samples(file.parent)


# ---- where users look for it ---------------------------------------------------------------------


@pytest.mark.parametrize("words", [["report"], ["export", "--format", "samples"]])
def test_a_file_of_a_study_in_place_of_its_directory_is_told_with_the_directory(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = begun(tmp_path)
    assert cli.status_of([*words, str(file)]) == 2
    said = capsys.readouterr().err
    assert f"cannot read a study from '{file}': it is not a directory; give the" in said
    assert said.endswith(f"('{tmp_path}' is one)\n")


def test_a_database_that_another_program_has_locked_is_said_to_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hztune.store.database._BUSY_S", 0.1)
    monkeypatch.setattr("hztune.store.database.PATIENCE_S", 0.1)
    with open_study(tmp_path) as study:
        other = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(HztuneError, match="is locked by another program; end that program"):
            study.begin(Plan(0, "search", (DEFAULT, CANDIDATE), rounds=1))
        other.execute("ROLLBACK")
        other.close()
        tell(study, block(0))
