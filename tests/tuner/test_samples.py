"""The samples of a study survive what ends their writer, and are refused to any other study."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from hztune.blocks import Arm, Block, Outcome, Turn, times_of
from hztune.errors import HztuneError, UsageError
from hztune.machine import Machine
from hztune.store import Evidence, Plan, SampleStore, blocks
from hztune.store.log import Log

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


def block(pair: int, arms: tuple[Arm, ...] = (DEFAULT, CANDIDATE), rounds: int = 3) -> Block:
    """A block of made-up numbers."""
    outcomes = tuple(
        Outcome(
            arm=arm,
            status="ok",
            ops_per_s=1e6 + index,
            turns=tuple(
                Turn(
                    i, (i + index) % 2, 1000 * pair + i, 18_000_000, 18_000 + i, "steal" * (i == 2)
                )
                for i in range(rounds)
            ),
            rss_peak_kb=5000 + index,
            live_kb=4000,
            counters={"refills": 7},
        )
        for index, arm in enumerate(arms)
    )
    return Block(pair, "search", outcomes)


def open_store(path: Path, *, resume: bool = True, **changes: str) -> SampleStore:
    return SampleStore(path, {**IDENTITY, **changes}, MACHINE, resume=resume)


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["seq"] for line in path.read_bytes().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "samples.jsonl"


def test_a_block_comes_back_as_it_was_measured(path: Path) -> None:
    with open_store(path) as store:
        tell(store, block(0))
        tell(store, block(1))
        assert store.replay() == (block(0), block(1))
    assert blocks(path) == (block(0), block(1))


def test_the_same_arm_twice_in_a_block_stays_two_outcomes(path: Path) -> None:
    with open_store(path) as store:
        tell(store, block(0, arms=(DEFAULT, DEFAULT)))
    assert blocks(path) == (block(0, arms=(DEFAULT, DEFAULT)),)


def test_turns_come_back_whatever_an_arm_and_its_parameters_are_called(path: Path) -> None:
    names = {"turn": 1, "index": 2, "cpu_ns": 3, "arm": ',"turn":9,"cpu_ns":8,', "crc": 4}
    arms = (DEFAULT, Arm.of(',"arm":"x","kind":"turn",', names))
    with open_store(path) as store:
        tell(store, block(0, arms))
        assert store.replay() == (block(0, arms),)
    assert blocks(path) == (block(0, arms),)


def test_an_arm_that_was_stored_under_a_name_of_before_comes_back_under_todays(path: Path) -> None:
    before = Arm.of("hz", {"background_refill_us": 64, "magazine_cap": 512})
    today = Arm.of("hz", {"background_period_us": 64, "magazine_cap": 512})
    with open_store(path) as store:
        tell(store, block(0, (DEFAULT, before)))
    assert blocks(path) == (block(0, (DEFAULT, today)),)


def test_a_failed_arm_comes_back_with_its_reason(path: Path) -> None:
    crash = Outcome(CANDIDATE, "crash", "ended by SIGSEGV: it fell over")
    one = Block(0, "search", (block(0).control, crash))
    with open_store(path) as store:
        tell(store, one)
    assert blocks(path) == (one,)


def test_every_row_says_which_study_machine_and_number_it_has(path: Path) -> None:
    with open_store(path) as store:
        tell(store, block(0))
        study = store.study
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["seq"] for row in rows] == list(range(10))
    assert {row["study"] for row in rows} == {study}
    assert {row["machine"] for row in rows[1:]} == {MACHINE.fingerprint}
    turn = next(row for row in rows if row["kind"] == "turn")
    expected = {"schema", "study", "seq", "pair", "arm", "params", "role", "pid", "turn"}
    expected |= {"start_ns", "counted_ns", "ops", "rss_kb", "status", "disturbed", "machine", "crc"}
    assert expected <= turn.keys()


def test_a_turn_is_in_the_file_as_soon_as_it_is_measured(path: Path) -> None:
    with open_store(path) as store:
        store.begin(Plan(0, "search", (DEFAULT,), rounds=1))
        store.turn(0, 1, block(0).control.turns[0], Evidence())
        assert b'"kind":"turn"' in path.read_bytes()


def test_what_came_out_of_a_study_is_kept_behind_its_samples(path: Path) -> None:
    with open_store(path) as store:
        tell(store, block(0))
        assert store.ending() is None
        store.conclude({"summary": {"verdict": "no_gain"}})
    with open_store(path) as store:
        ending = store.ending()
        assert ending is not None
        assert ending["summary"] == {"verdict": "no_gain"}
        assert store.replay() == (block(0),)


def test_the_next_session_goes_on_with_the_next_number(path: Path) -> None:
    with open_store(path) as store:
        tell(store, block(0))
    with open_store(path) as store:
        tell(store, block(1))
    assert numbers(path) == list(range(19))


def test_an_interrupted_block_counts_for_nothing_and_its_repetition_for_one(path: Path) -> None:
    with open_store(path) as store:
        tell(store, block(0))
        store.begin(Plan(1, "search", (DEFAULT, CANDIDATE), rounds=3))
        store.turn(0, 7, block(9).control.turns[0], Evidence())
        store.outcome(0, 7, block(9).control)
    with open_store(path) as store:
        assert store.replay() == (block(0),)
        tell(store, block(1))
        assert store.replay() == (block(0), block(1))


def test_a_file_cut_at_every_byte_of_its_last_three_records_costs_the_torn_one_only(
    path: Path,
) -> None:
    with open_store(path) as store:
        tell(store, block(0))
        tell(store, block(1))
    whole = path.read_bytes()
    starts = [0, *(i + 1 for i, byte in enumerate(whole) if byte == 0x0A)]
    for size in range(starts[-4], len(whole)):
        path.write_bytes(whole[:size])
        kept = sum(start <= size for start in starts) - 1
        with open_store(path) as store:
            assert store.cut_bytes == size - starts[kept]
            assert store.replay() == (block(0),)
            tell(store, block(1))
            assert store.replay() == (block(0), block(1))
        assert numbers(path) == list(range(len(numbers(path))))


def test_a_tail_of_zeros_as_a_power_cut_leaves_it_is_cut(path: Path) -> None:
    with open_store(path) as store:
        tell(store, block(0))
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * 4096)
    with open_store(path) as store:
        assert store.replay() == (block(0),)
    assert path.read_bytes() == whole


PAGE = 256
"""Bytes that a disk is taken to write at once, so that records have several."""


def torn(path: Path, is_synced: bool) -> list[bytes]:
    """A study of two blocks with each page of the second one in turn lost, as a power cut does."""
    with open_store(path) as store:
        tell(store, block(0))
        synced = path.stat().st_size
        tell(store, block(1))
        end = path.stat().st_size
        if is_synced:
            store.begin(Plan(2, "search", (DEFAULT,), rounds=1))
            store.turn(0, 7, block(2).control.turns[0], Evidence())
    whole = path.read_bytes()
    last = whole.rindex(b"\n", synced, end - 1)
    lost = range(-(-synced // PAGE) * PAGE, last - PAGE, PAGE)
    assert len(lost) > 5
    return [whole[:start] + b"\0" * PAGE + whole[start + PAGE :] for start in lost]


def test_a_page_that_a_power_cut_kept_from_the_disk_costs_the_unsynced_block_only(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number, content in enumerate(torn(path, is_synced=False), start=1):
        path.write_bytes(content)
        assert blocks(path) == (block(0),)
        caplog.clear()
        with open_store(path) as store:
            beside = path.with_name(f"{path.name}.torn-{number}")
            assert path.read_bytes() + beside.read_bytes() == content
            assert f"is kept in {beside.name}" in caplog.text
            assert store.replay() == (block(0),)
            tell(store, block(1))
        assert blocks(path) == (block(0), block(1))


def test_a_page_of_a_synced_block_that_is_gone_is_damage(path: Path) -> None:
    for content in torn(path, is_synced=True):
        path.write_bytes(content)
        with pytest.raises(HztuneError, match="is damaged in line"):
            open_store(path)
        with pytest.raises(HztuneError, match="is damaged in line"):
            blocks(path)
        assert path.read_bytes() == content
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_no_block_begins_before_all_before_it_is_on_the_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = [0]
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    with open_store(path) as store:
        tell(store, block(0))
        store.begin(Plan(1, "search", (DEFAULT,), rounds=3))  # and is interrupted
        before = path.stat().st_size
        tell(store, block(1))
        assert before in synced
        store.begin(Plan(2, "search", (DEFAULT,), rounds=3))
        before = path.stat().st_size
        store.conclude({"summary": {}})
        assert before in synced


def test_a_file_torn_in_its_very_first_record_begins_anew(path: Path) -> None:
    path.write_bytes(b'{"seq":0,"schema":1,"kind":"st')
    with open_store(path) as store:
        tell(store, block(0))
    assert blocks(path) == (block(0),)


def test_damage_before_the_end_is_refused_and_left_alone(path: Path) -> None:
    with open_store(path) as store:
        tell(store, block(0))
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(HztuneError, match=r"is damaged in line \d+; restore it"):
        open_store(path)
    assert path.read_bytes() == damaged


def test_a_record_that_is_missing_in_the_middle_is_damage(path: Path) -> None:
    with open_store(path) as store:
        tell(store, block(0))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3] + lines[4:]))
    with pytest.raises(HztuneError, match="damaged in line 4"):
        open_store(path)


@pytest.mark.parametrize("name", IDENTITY)
def test_a_directory_of_another_study_is_refused_in_words(path: Path, name: str) -> None:
    open_store(path).close()
    before = path.read_bytes()
    with pytest.raises(UsageError, match=f"{name}: {IDENTITY[name]} there, another here"):
        open_store(path, **{name: "another"})
    assert path.read_bytes() == before


OTHER_MACHINE = Machine(
    "CPU 9", 3, 1.5, "5.0", "musl", 65536, "always", "powersave", "on", 8, 9, "0123"
)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Machine)])
def test_a_study_of_another_machine_is_refused(path: Path, field: str) -> None:
    open_store(path).close()
    other = dataclasses.replace(MACHINE, **{field: getattr(OTHER_MACHINE, field)})
    with pytest.raises(UsageError, match="belongs to another study"):
        SampleStore(path, IDENTITY, other, resume=True)


def test_a_point_that_only_one_study_has_is_a_difference(path: Path) -> None:
    open_store(path).close()
    with pytest.raises(UsageError, match="limit: nothing there, 512M here"):
        open_store(path, limit="512M")


def test_a_study_is_not_continued_unasked(path: Path) -> None:
    open_store(path, resume=False).close()
    with pytest.raises(UsageError, match="holds a study already; go on with it"):
        open_store(path, resume=False)


def test_a_study_in_use_is_refused_with_the_process_that_has_it(path: Path) -> None:
    with open_store(path), pytest.raises(UsageError, match=f"written by process {os.getpid()};"):
        open_store(path)
    open_store(path).close()


def test_a_symbolic_link_is_not_followed(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere"))
    with pytest.raises(UsageError, match="cannot open"):
        open_store(path)
    assert not path.with_name("elsewhere").exists()


def test_a_file_that_is_not_there_cannot_be_read(path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        blocks(path)


def sized(limit: int, action: Callable[[], None]) -> None:
    """Does something while no file may grow beyond `limit` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        action()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_at_every_byte_of_three_records_loses_nothing(path: Path) -> None:
    one = block(1)
    with open_store(path) as store:
        tell(store, block(0))
        store.begin(Plan(1, "search", (DEFAULT, CANDIDATE), rounds=3))
        for number, outcome in enumerate(one.outcomes):
            for turn in outcome.turns:
                store.turn(number, 100, turn, Evidence())
        last_three: list[Callable[[], None]] = [
            lambda: store.outcome(0, 100, one.outcomes[0]),
            lambda: store.outcome(1, 101, one.outcomes[1]),
            lambda: store.conclude({"summary": {"verdict": "no_gain"}}),
        ]
        for write in last_three:
            before = path.read_bytes()
            room = 0
            while not fits(path, len(before) + room, write):
                assert path.read_bytes() == before
                room += 1
            assert room == len(path.read_bytes()) - len(before) > 100
        assert store.replay() == (block(0), one)
        assert store.ending() is not None
    assert numbers(path) == list(range(len(numbers(path))))


def fits(path: Path, limit: int, write: Callable[[], None]) -> bool:
    """Whether something can be written while the file may not grow beyond `limit` bytes."""
    try:
        sized(limit, write)
    except HztuneError as error:
        assert f"cannot write {path}" in str(error)
        assert "every sample before this one is kept" in str(error)
        return False
    return True


def test_the_last_record_is_found_without_reading_the_others(path: Path) -> None:
    with Log(path) as log:
        assert log.last() is None
        for text in ("one", "two"):
            log.append({"text": text})
            assert log.last() == {"seq": log.count - 1, "text": text}
    with Log(path) as log:
        assert log.last() == {"seq": 1, "text": "two"}


def test_ten_thousand_blocks_are_read_whole(path: Path) -> None:
    with Log(path) as log:
        for pair in range(10_000):
            log.append({"kind": "block", "pair": pair, "role": "aa", "arms": ["k"], "rounds": 1})
            head = {"pair": pair, "role": "aa", "index": 0, "allocator": "hz", "params": {}}
            log.append(
                {"kind": "outcome", **head, "status": "ok", "detail": "", "ops_per_s": 1.0}
                | {"rss_peak_kb": 1, "live_kb": 1, "counters": {}}
            )
    assert [one.pair for one in blocks(path)] == list(range(10_000))


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
