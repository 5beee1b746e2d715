"""The samples of a study survive what ends their writer, and are refused to any other study."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hztune.blocks import Arm, Block, Outcome, Turn, times_of
from hztune.errors import HztuneError, UsageError
from hztune.machine import Machine
from hztune.store import Evidence, Plan
from hztune.store.columns import columns
from hztune.store.local import LocalStudy, recording, samples

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
    return [json.loads(line) for line in samples(folder)]


def test_a_block_comes_back_as_it_was_measured(tmp_path: Path) -> None:
    with open_study(tmp_path) as study:
        tell(study, block(0))
        tell(study, block(1))
        assert study.replay() == (block(0), block(1))
        assert recording(tmp_path).blocks == (block(0), block(1))
    assert recording(tmp_path).blocks == (block(0), block(1))


def test_a_column_has_values_of_one_type(tmp_path: Path) -> None:
    arms = [Arm("hz"), Arm.of("hz", {"shards": "auto"}), Arm.of("hz", {"shards": 4})]
    with open_study(tmp_path) as study:
        tell(study, block(0, tuple(arms), rounds=1))
    turns = columns(samples(tmp_path), "turn")
    assert sorted(turns["params.shards"], key=str) == ["4", None, "auto"]
    assert [type(each) for each in turns["ops"]] == [int, int, int]
    assert columns(samples(tmp_path), "outcome")["counters.refills"] == [7, 7, 7]


def test_the_same_arm_twice_in_a_block_stays_two_outcomes(tmp_path: Path) -> None:
    with open_study(tmp_path) as study:
        tell(study, block(0, arms=(DEFAULT, DEFAULT)))
    assert recording(tmp_path).blocks == (block(0, arms=(DEFAULT, DEFAULT)),)


def test_turns_come_back_whatever_an_arm_and_its_parameters_are_called(tmp_path: Path) -> None:
    names = {"turn": 1, "index": 2, "cpu_ns": 3, "arm": ',"turn":9,"cpu_ns":8,', "crc": 4}
    arms = (DEFAULT, Arm.of(',"arm":"x","kind":"turn",', names))
    with open_study(tmp_path) as study:
        tell(study, block(0, arms))
    assert recording(tmp_path).blocks == (block(0, arms),)


def test_a_failed_arm_comes_back_with_its_reason(tmp_path: Path) -> None:
    crash = Outcome(CANDIDATE, "crash", "ended by SIGSEGV: it fell over")
    one = Block(0, "search", (block(0).control, crash))
    with open_study(tmp_path) as study:
        tell(study, one)
    assert recording(tmp_path).blocks == (one,)


def test_every_row_says_which_study_machine_and_number_it_has(tmp_path: Path) -> None:
    with open_study(tmp_path) as study:
        tell(study, block(0))
        label = study.study
    rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [row["seq"] for row in rows] == list(range(10))
    assert {row["study"] for row in rows} == {label}
    assert {row["machine"] for row in rows[1:]} == {MACHINE.fingerprint}
    turn = next(row for row in rows if row["kind"] == "turn")
    expected = {"schema", "study", "seq", "pair", "arm", "params", "role", "pid", "turn"}
    expected |= {"start_ns", "counted_ns", "ops", "rss_kb", "status", "disturbed", "machine", "crc"}
    assert expected <= turn.keys()


def test_a_turn_is_kept_as_soon_as_it_is_measured(tmp_path: Path) -> None:
    with open_study(tmp_path) as study:
        study.begin(Plan(0, "search", (DEFAULT,), rounds=1))
        study.turn(0, 1, block(0).control.turns[0], Evidence())
        assert [row["kind"] for row in rows_of(tmp_path)] == ["study", "block", "turn"]


def test_samples_can_be_exported_while_they_are_made(tmp_path: Path) -> None:
    with open_study(tmp_path) as study:
        tell(study, block(0))
        study.export()
        assert (tmp_path / "samples.jsonl").read_bytes() == b"".join(samples(tmp_path))
        tell(study, block(1))
    assert [row["seq"] for row in rows_of(tmp_path)] == list(range(19))
    assert (tmp_path / "samples.jsonl").read_bytes() == b"".join(samples(tmp_path))


def test_what_came_out_of_a_study_is_kept_behind_its_samples(tmp_path: Path) -> None:
    with open_study(tmp_path) as study:
        tell(study, block(0))
        assert study.ending() is None
        study.conclude({"summary": {"verdict": "no_gain"}})
    with open_study(tmp_path) as study:
        ending = study.ending()
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
    before = samples(tmp_path)
    with open_study(tmp_path) as study:
        assert study.replay() == (block(0),)
        tell(study, block(1))
        assert study.replay() == (block(0), block(1))
    assert samples(tmp_path)[: len(before)] == before
    assert [row["seq"] for row in rows_of(tmp_path)] == list(range(22))


# ---- what ends a writer --------------------------------------------------------------------------


@dataclasses.dataclass
class Cut:
    """A study whose writer ended in the middle: its files, and what was in them when.

    Attributes:
        sizes: Of the write-ahead log after each commit of its last block, bytes.
        kept: Number of samples then.
        samples: All of them, at the end.
    """

    folder: Path
    database: bytes
    log: bytes
    sizes: list[int]
    kept: list[int]
    samples: list[bytes]

    def cut(self, log: bytes) -> list[bytes]:
        """The samples of the study with another log; two more blocks can be added to it."""
        for name, content in (("study.db", self.database), ("study.db-wal", log)):
            (self.folder / name).write_bytes(content)
        (self.folder / "study.db-shm").unlink(missing_ok=True)
        (self.folder / "samples.jsonl").unlink(missing_ok=True)
        with open_study(self.folder) as study:
            kept = list(study.samples())
            blocks = study.replay()
            assert blocks in ((block(0),), (block(0), block(1)))
            tell(study, block(len(blocks)))
            assert study.replay() == tuple(block(pair) for pair in range(len(blocks) + 1))
        return kept


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Cut:
    folder = tmp_path_factory.mktemp("made")
    wal, sizes, kept = folder / "study.db-wal", [], []

    def note() -> None:
        sizes.append(wal.stat().st_size)
        kept.append(len(samples(folder)))

    with open_study(folder) as study:
        tell(study, block(0))
        note()
        study.begin(Plan(1, "search", (DEFAULT, CANDIDATE), rounds=3))
        note()
        for index, outcome in enumerate(block(1).outcomes):
            for turn in outcome.turns:
                study.turn(index, 100, turn, Evidence())
                note()
        for index, outcome in enumerate(block(1).outcomes):
            study.outcome(index, 100, outcome)
            note()
        study.end()
        note()
        content = (folder / "study.db").read_bytes(), wal.read_bytes()
        whole = samples(folder)
    assert sizes == sorted(set(sizes)) and sizes[-1] == len(content[1])
    return Cut(tmp_path_factory.mktemp("cut"), *content, sizes, kept, whole)


FRAME_BYTES = 24 + 4096


def test_a_log_cut_anywhere_in_its_last_three_commits_costs_what_was_cut_only(cut: Cut) -> None:
    begin = cut.sizes[-4]
    for size in range(begin, len(cut.log) + 1):
        within = (size - 32) % FRAME_BYTES
        if within > 24 and within % 512:
            continue
        kept = max(n for n, end in zip(cut.kept, cut.sizes, strict=True) if end <= size)
        assert cut.cut(cut.log[:size]) == cut.samples[:kept]


def test_a_page_that_a_power_cut_kept_from_the_disk_costs_the_unsynced_block_only(cut: Cut) -> None:
    for start in range(cut.sizes[0], len(cut.log), FRAME_BYTES // 2):
        torn = cut.log[:start] + bytes(512) + cut.log[start + 512 :]
        kept = cut.cut(torn)
        assert kept == cut.samples[: len(kept)]
        assert len(kept) >= cut.kept[0]


def test_turns_are_written_without_a_sync(tmp_path: Path) -> None:
    with open_study(tmp_path) as study:
        study.begin(Plan(0, "search", (DEFAULT,), rounds=1))
        writer = study._storage._writer
        assert writer is not None
        settings = ("synchronous", "journal_mode", "wal_autocheckpoint")
        found = [writer.execute(f"PRAGMA {name}").fetchone()[0] for name in settings]
        assert found == [1, "wal", 0]


def sized(limit: int, action: Callable[[], None]) -> None:
    """Does something while no file may grow beyond `limit` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        action()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def fits(folder: Path, limit: int, write: Callable[[], None]) -> bool:
    """Whether something can be written while no file may grow beyond `limit` bytes."""
    try:
        sized(limit, write)
    except HztuneError as error:
        assert f"cannot write {folder / 'study.db'}" in str(error)
        assert "every sample before this one is saved" in str(error)
        return False
    return True


def test_a_disk_that_is_full_anywhere_in_the_last_three_commits_loses_nothing(
    tmp_path: Path,
) -> None:
    one = block(1)
    wal = tmp_path / "study.db-wal"
    with open_study(tmp_path) as study:
        tell(study, block(0))
        study.begin(Plan(1, "search", (DEFAULT, CANDIDATE), rounds=3))
        for index, outcome in enumerate(one.outcomes):
            for turn in outcome.turns:
                study.turn(index, 100, turn, Evidence())
        study.outcome(0, 100, one.outcomes[0])
        last_three: list[Callable[[], None]] = [
            lambda: study.outcome(1, 101, one.outcomes[1]),
            study.end,
            lambda: study.conclude({"summary": {"verdict": "no_gain"}}),
        ]
        for write in last_three:
            before, size, room = samples(tmp_path), wal.stat().st_size, 0
            while not fits(tmp_path, size + room, write):
                assert samples(tmp_path) == before
                room += 97
            assert room > 4096
        assert study.replay() == (block(0), one)
        assert study.ending() is not None
    assert [row["seq"] for row in rows_of(tmp_path)] == list(range(20))


def test_a_new_study_whose_disk_is_full_claims_no_samples_and_begins_when_there_is_room(
    tmp_path: Path,
) -> None:
    no_claim = r"cannot write [^;]*; make room and go on with --resume"
    with pytest.raises(HztuneError, match=no_claim):
        sized(8192, lambda: open_study(tmp_path).close())
    with open_study(tmp_path) as study:
        size = (tmp_path / "study.db-wal").stat().st_size
        with pytest.raises(HztuneError, match=no_claim):
            sized(size, lambda: study.begin(Plan(0, "search", (DEFAULT,), rounds=1)))
        tell(study, block(0))
    with open_study(tmp_path) as study:
        size = (tmp_path / "study.db-wal").stat().st_size
        assert not fits(tmp_path, size, lambda: tell(study, block(1)))
    assert recording(tmp_path).blocks == (block(0),)


# ---- damage --------------------------------------------------------------------------------------


def test_a_block_that_was_changed_is_refused(tmp_path: Path) -> None:
    with open_study(tmp_path) as study:
        tell(study, block(0))
    file = tmp_path / "study.db"
    content = file.read_bytes()
    assert content.count(b'"ops":18001') == 2
    file.write_bytes(content.replace(b'"ops":18001', b'"ops":18007'))
    for action in (lambda: open_study(tmp_path).replay(), lambda: recording(tmp_path)):
        with pytest.raises(HztuneError, match=r"is damaged \(block 1, in .*\); restore it"):
            action()


def test_damage_of_the_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    with open_study(tmp_path) as study:
        for pair in range(4):
            tell(study, block(pair))
    file = tmp_path / "study.db"
    damaged = bytearray(file.read_bytes())
    damaged[4096:] = bytes(len(damaged) - 4096)
    file.write_bytes(damaged)
    with pytest.raises(HztuneError, match=r"study.db is damaged \(.*\); restore it from a copy"):
        open_study(tmp_path)
    with pytest.raises(HztuneError, match=r"study.db is damaged \(.*\); restore it from a copy"):
        recording(tmp_path)
    assert file.read_bytes() == damaged


def test_a_file_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "study.db"
    file.write_text("the work of another program\n" * 100)
    with pytest.raises(UsageError, match="holds something else than samples"):
        open_study(tmp_path)
    assert file.read_text() == "the work of another program\n" * 100


# ---- whose it is ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IDENTITY)
def test_a_directory_of_another_study_is_refused_in_words(tmp_path: Path, name: str) -> None:
    open_study(tmp_path).close()
    before = samples(tmp_path)
    with pytest.raises(UsageError, match=f"{name}: {IDENTITY[name]} there, another here"):
        open_study(tmp_path, **{name: "another"})
    assert samples(tmp_path) == before


OTHER_MACHINE = Machine(
    "CPU 9", 3, 1.5, "5.0", "musl", 65536, "always", "powersave", "on", 8, 9, "0123"
)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Machine)])
def test_a_study_of_another_machine_is_refused(tmp_path: Path, field: str) -> None:
    open_study(tmp_path).close()
    other = dataclasses.replace(MACHINE, **{field: getattr(OTHER_MACHINE, field)})
    with pytest.raises(UsageError, match="belongs to another study"):
        LocalStudy(tmp_path, IDENTITY, other, resume=True)


def test_a_point_that_only_one_study_has_is_a_difference(tmp_path: Path) -> None:
    open_study(tmp_path).close()
    with pytest.raises(UsageError, match="limit: nothing there, 512M here"):
        open_study(tmp_path, limit="512M")


def test_a_study_is_not_continued_unasked(tmp_path: Path) -> None:
    open_study(tmp_path, resume=False).close()
    with pytest.raises(UsageError, match="holds a study already; go on with it"):
        open_study(tmp_path, resume=False)


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


@pytest.mark.parametrize("name", ["study.db", "samples.jsonl"])
def test_a_symbolic_link_is_not_followed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="cannot open"):
        open_study(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_directory_without_a_study_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        recording(tmp_path)


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
