"""The samples of a study survive what ends their writer, and are refused to any other study."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hztune import cli
from hztune.blocks import Arm, Block, Outcome, Turn, times_of
from hztune.errors import HztuneError, UsageError
from hztune.machine import Machine
from hztune.rests import Rested, RestRound
from hztune.store import Evidence, Plan
from hztune.store.log import SAMPLES, LocalStudy, packed, recording
from hztune.store.rows import StudyRow, columns

from .conftest import tell

MACHINE = Machine("CPU 3000", 2, None, "6.1", "glibc 2.36", 4096, "madvise", "", "", 24, None)
IDENTITY = {
    "workload": "larson",
    "threads": "32",
    "allocator": "hz",
    "library": "0123abcd",
    "space": "89ab",
    "seed": "1",
}
DEFAULT = Arm("hz")
CANDIDATE = Arm.of("hz", {"magazine_cap": 64, "depot_lock": "spin"})


def block(number: int, arms: tuple[Arm, ...] = (DEFAULT, CANDIDATE), rounds: int = 3) -> Block:
    """A block of made-up numbers."""
    outcomes = tuple(
        Outcome(
            arm=arm,
            status="ok",
            ops_per_s=1e6 + index,
            turns=tuple(
                Turn(
                    i,
                    (i + index) % 2,
                    1000 * number + i,
                    18_000_000,
                    18_000 + i,
                    "steal" * (i == 2),
                )
                for i in range(rounds)
            ),
            rss_peak_kb=5000 + index,
            live_kb=4000,
            counters={"refills": 7},
        )
        for index, arm in enumerate(arms)
    )
    return Block(number, "search", outcomes)


def open_study(folder: Path, *, resume: bool = True, **changes: str) -> LocalStudy:
    return LocalStudy(folder, {**IDENTITY, **changes}, MACHINE, resume=resume)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in recording(folder).lines]


NAMES = {"turn": 1, "index": 2, "cpu_ns": 3, "arm": ',"turn":9,"cpu_ns":8,', "crc": 4}
CRASH = Outcome(CANDIDATE, "crash", "ended by SIGSEGV: it fell over")
RESTED = Rested(1.5, ((0, 100, 0), (9, 50, 4)), (RestRound(0, 4, 9, 46, 4),))
BLOCKS = {
    "two": [block(0), block(1)],
    "the same arm twice": [block(0, arms=(DEFAULT, DEFAULT))],
    "odd names": [block(0, (DEFAULT, Arm.of(',"arm":"x","kind":"turn",', NAMES)))],
    "a failed arm": [Block(0, "search", (block(0).control, CRASH))],
    "rests": [Block(0, "search", (dataclasses.replace(block(0).control, rested=RESTED),))],
}


@pytest.mark.parametrize("case", BLOCKS)
def test_a_block_comes_back_as_it_was_measured(case: str, tmp_path: Path) -> None:
    told = tuple(BLOCKS[case])
    with open_study(tmp_path, resume=False) as study:
        for each in told:
            tell(study, each)
        assert study.replay() == recording(tmp_path).blocks == told
    assert recording(tmp_path).blocks == told
    with pytest.raises(UsageError, match="holds a study already; go on with it"):
        open_study(tmp_path, resume=False)


def test_a_column_has_values_of_one_type(tmp_path: Path) -> None:
    arms = [Arm("hz"), Arm.of("hz", {"shards": "auto"}), Arm.of("hz", {"shards": 4})]
    with open_study(tmp_path) as study:
        tell(study, block(0, tuple(arms), rounds=1))
    turns = columns(recording(tmp_path).lines, "turn")
    assert sorted(turns["params.shards"], key=str) == ["4", None, "auto"]
    assert [type(each) for each in turns["ops"]] == [int, int, int]
    assert columns(recording(tmp_path).lines, "outcome")["counters.refills"] == [7, 7, 7]


def test_every_row_says_which_study_machine_and_number_it_has(tmp_path: Path) -> None:
    with open_study(tmp_path) as study:
        tell(study, block(0))
        label = study.study
    rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [row["seq"] for row in rows] == list(range(10))
    assert {row["study"] for row in rows} == {label}
    assert {row["machine"] for row in rows[1:]} == {MACHINE.fingerprint}
    turn = next(row for row in rows if row["kind"] == "turn")
    expected = {"study", "seq", "pair", "arm", "params", "role", "pid", "turn"}
    expected |= {"start_ns", "counted_ns", "ops", "rss_kb", "disturbed", "machine", "crc"}
    assert expected <= turn.keys()


def test_what_came_out_of_a_study_is_kept_behind_its_samples(tmp_path: Path) -> None:
    with open_study(tmp_path) as study:
        tell(study, block(0))
        assert study.ending is None
        study.conclude({"summary": {"verdict": "no_gain"}})
    with open_study(tmp_path) as study:
        ending = study.ending
        assert ending is not None
        assert ending["summary"] == {"verdict": "no_gain"}
        assert study.replay() == (block(0),)
    assert rows_of(tmp_path)[-1]["kind"] == "end"


def test_an_interrupted_block_counts_for_nothing_and_its_repetition_for_one(tmp_path: Path) -> None:
    with open_study(tmp_path) as study:
        tell(study, block(0))
        study.begin(Plan(1, "search", (DEFAULT, CANDIDATE), rounds=3))
        study.turn(0, 7, block(9).control.turns[0], Evidence())
        study.outcome(0, 7, block(9).control)
    before = recording(tmp_path).lines
    with open_study(tmp_path) as study:
        assert study.replay() == (block(0),)
        tell(study, block(1))
        assert study.replay() == (block(0), block(1))
    assert recording(tmp_path).lines[: len(before)] == before
    assert [row["seq"] for row in rows_of(tmp_path)] == list(range(22))


# ---- what ends a writer --------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path: Path) -> list[bytes]:
    """The lines of a study with two blocks, the second one not synced to its end."""
    with open_study(tmp_path) as study:
        tell(study, block(0))
        tell(study, block(1))
    return recording(tmp_path).lines


def go_on(folder: Path, content: bytes) -> list[bytes]:
    """What is kept of a log that holds `content`; two more blocks can be added to it."""
    (folder / SAMPLES).write_bytes(content)
    with open_study(folder) as study:
        kept = recording(folder).lines
        blocks = study.replay()
        tell(study, block(len(blocks)))
        assert study.replay() == tuple(block(pair) for pair in range(len(blocks) + 1))
    return kept


def test_a_log_that_is_cut_anywhere_costs_only_the_line_that_is_cut(
    tmp_path: Path, written: list[bytes]
) -> None:
    whole = b"".join(written)
    for size in range(len(whole) - len(written[-1]) - 9, len(whole) + 1):
        ends = accumulate(map(len, written))
        count = sum(end <= size for end in ends)
        assert go_on(tmp_path, whole[:size]) == written[:count]


def test_a_page_that_a_power_cut_kept_from_the_disk_costs_the_unsynced_block_only(
    tmp_path: Path, written: list[bytes]
) -> None:
    whole, begin = b"".join(written), sum(map(len, written[:11]))
    for start in range(begin, len(whole), 256):
        torn = whole[:start] + bytes(512) + whole[start + 512 :]
        kept = go_on(tmp_path, torn)
        assert kept == written[: len(kept)] and len(kept) >= 11


def test_turns_are_written_without_a_sync_and_a_block_ends_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_study(tmp_path) as study:
        synced: list[int] = []
        monkeypatch.setattr(os, "fdatasync", synced.append)
        study.begin(Plan(0, "search", (DEFAULT,), rounds=1))
        study.turn(0, 100, block(0).control.turns[0], Evidence())
        assert [row["kind"] for row in rows_of(tmp_path)] == ["study", "block", "turn"]
        study.outcome(0, 100, block(0).control)
        assert not synced
        study.end()
        assert len(synced) == 1


@contextmanager
def room_for(limit: int) -> Iterator[None]:
    """Lets no file grow beyond `limit` bytes: the disk is full there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_loses_nothing_that_was_measured_and_the_study_goes_on(tmp_path: Path) -> None:
    one, log = block(1), tmp_path / SAMPLES
    full = r"cannot write .*; what was measured before is kept: make room, and go on with --resume"
    with open_study(tmp_path) as study:
        tell(study, block(0))
        study.begin(Plan(1, "search", (DEFAULT, CANDIDATE), rounds=3))
        before, size = recording(tmp_path).lines, log.stat().st_size
        for room in (0, 1, 97):
            with room_for(size + room), pytest.raises(HztuneError, match=full):
                study.turn(0, 100, one.control.turns[0], Evidence())
            assert recording(tmp_path).lines == before
        tell(study, one)
        with room_for(log.stat().st_size + 20), pytest.raises(HztuneError, match=full):
            study.conclude({"summary": {"verdict": "no_gain"}})
    with open_study(tmp_path) as study:
        assert study.replay() == (block(0), one) and study.ending is None


def test_a_new_study_whose_disk_is_full_begins_when_there_is_room(tmp_path: Path) -> None:
    with room_for(64), pytest.raises(HztuneError, match="make room"):
        open_study(tmp_path)
    with open_study(tmp_path, resume=False) as study:
        tell(study, block(0))
    assert recording(tmp_path).blocks == (block(0),)


# ---- damage, and what is no study ----------------------------------------------------------------


def test_a_sample_that_was_changed_is_refused_and_left_alone(
    tmp_path: Path, written: list[bytes]
) -> None:
    changed = b"".join(written).replace(b'"ops":18001', b'"ops":18007', 1)
    (tmp_path / SAMPLES).write_bytes(changed)
    for action in (open_study, recording):
        with pytest.raises(HztuneError, match=r"damaged in line \d+; restore it from a copy"):
            action(tmp_path)
    assert (tmp_path / SAMPLES).read_bytes() == changed


@pytest.mark.parametrize("seed", range(20))
def test_bytes_that_were_overwritten_are_a_sentence_or_cost_the_end_only(
    seed: int, tmp_path: Path, written: list[bytes]
) -> None:
    chance, content = Random(seed), bytearray(b"".join(written))
    for _ in range(chance.choice([1, 8, 200])):
        content[chance.randrange(len(content))] = chance.randrange(256)
    (tmp_path / SAMPLES).write_bytes(content)
    try:
        kept = recording(tmp_path).lines
        assert kept == written[: len(kept)]
    except HztuneError as error:
        assert str(tmp_path) in str(error) and len(str(error)) < 500
        with pytest.raises(HztuneError):
            open_study(tmp_path)
        assert (tmp_path / SAMPLES).read_bytes() == content


def test_a_newer_study_and_a_file_of_another_kind_are_refused_and_left_alone(
    tmp_path: Path,
) -> None:
    file = tmp_path / SAMPLES
    newer = packed(StudyRow(0, "x", 2, {}, MACHINE, ""))  # type: ignore[arg-type]
    notes = b"the work of another program\n" * 100
    for content, said in ((newer, "no study of schema 1"), (notes, "something else than samples")):
        file.write_bytes(content)
        for action in (open_study, recording):
            with pytest.raises(UsageError, match=said):
                action(tmp_path)
        assert file.read_bytes() == content


def link(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, link])
def test_what_is_no_file_is_refused_without_waiting(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path / SAMPLES)
    for action in (open_study, recording):
        with pytest.raises(UsageError, match="cannot"):
            action(tmp_path)


@pytest.mark.parametrize("words", [["report"], ["export", "--format", "samples"]])
def test_a_file_of_a_study_in_place_of_its_directory_is_told_with_the_directory(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_study(tmp_path).close()
    file = tmp_path / SAMPLES
    assert cli.status_of([*words, str(file)]) == 2
    said = capsys.readouterr().err
    assert f"cannot read a study from '{file}': it is not a directory; give the" in said
    assert said.endswith(f"('{tmp_path}' is one)\n")


# ---- whose it is ---------------------------------------------------------------------------------


def test_a_directory_of_another_study_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        recording(tmp_path)
    open_study(tmp_path).close()
    before = recording(tmp_path).lines
    for name in (*IDENTITY, "limit"):
        there = IDENTITY.get(name, "nothing")
        with pytest.raises(UsageError, match=f"{name}: {there} there, another here"):
            open_study(tmp_path, **{name: "another"})
    assert recording(tmp_path).lines == before


OTHER_MACHINE = Machine(
    "CPU 9", 3, 1.5, "5.0", "musl", 65536, "always", "powersave", "on", 8, 9, "0123"
)


def test_a_study_of_another_machine_is_refused(tmp_path: Path) -> None:
    open_study(tmp_path).close()
    for field in dataclasses.fields(Machine):
        other = dataclasses.replace(MACHINE, **{field.name: getattr(OTHER_MACHINE, field.name)})
        with pytest.raises(UsageError, match="belongs to another study"):
            LocalStudy(tmp_path, IDENTITY, other, resume=True)


def test_a_study_that_is_refused_before_its_first_sample_leaves_no_file(tmp_path: Path) -> None:
    def refuse(*measured: Block) -> None:
        with pytest.raises(UsageError), open_study(tmp_path) as study:
            for each in measured:
                tell(study, each)
            raise UsageError("the budget is too small")

    refuse()
    assert list(tmp_path.iterdir()) == []
    refuse(block(0))
    refuse()
    assert recording(tmp_path).blocks == (block(0),)


def test_a_study_in_use_is_refused_with_the_process_that_has_it(tmp_path: Path) -> None:
    with (
        open_study(tmp_path),
        pytest.raises(UsageError, match=f"written by process {os.getpid()};"),
    ):
        open_study(tmp_path)
    open_study(tmp_path).close()


# ---- when it was measured ------------------------------------------------------------------------


def lasting_from(begin_s: float, *arms: int) -> Block:
    """A block that begins then; each arm has so many turns of a second, all in a row."""
    outcomes, now_s = [], begin_s
    for count in arms:
        starts = [round(1e9 * (now_s + number)) for number in range(count)]
        turns = tuple(Turn(number, 0, at, 10**9, 1.0) for number, at in enumerate(starts))
        outcomes.append(Outcome(DEFAULT, "ok" if count else "hang", turns=turns))
        now_s += count
    return Block(0, "search", tuple(outcomes))


TIMES = {
    "what lies between two blocks counts": ([100, 105], [(0, 4), (5, 9)]),
    "a pause counts no more than the block behind it": ([100, 90_000], [(0, 4), (8, 12)]),
    "a clock that began anew is a pause": ([100, 3], [(0, 4), (4, 8)]),
}


@pytest.mark.parametrize("name", TIMES)
def test_the_time_of_a_study_is_read_from_its_turns(name: str) -> None:
    begins, expected = TIMES[name]
    assert list(times_of([lasting_from(begin, 2, 2) for begin in begins])) == expected


def test_a_block_without_a_turn_takes_the_time_between_its_neighbours() -> None:
    found = times_of([lasting_from(10, 3), lasting_from(13, 0, 0), lasting_from(15, 3)])
    assert list(found) == [(0, 3), (3, 3), (5, 8)]
