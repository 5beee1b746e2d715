"""The samples of a study survive what ends their writer, and are refused to any other study.

TEST_SEED chooses other moments of kills, and TEST_MORE=N N times as many (tests/soak sets both).
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import traceback
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from random import Random

import pytest
from lab.replay import ReplayExecutor

from hztune import cli
from hztune.blocks import Arm, Block, Outcome, ProofPlan, Turn, times_of
from hztune.errors import HztuneError, UsageError
from hztune.machine import Machine
from hztune.rests import Rested, RestRound
from hztune.store import Evidence, Plan
from hztune.store.log import _END_BYTES, SAMPLES, LocalStudy, _ended, packed, recording
from hztune.store.rows import StudyRow
from hztune.study.ledger import Ledger
from hztune.study.search import Search
from hztune.tuning.candidates import TuneTarget, candidates

from .conftest import MACHINE, bench_of, flat, tell

SEED = int(os.environ.get("TEST_SEED", "0"))
MORE = int(os.environ.get("TEST_MORE", "1"))
IDENTITY = {"workload": "larson", "threads": "32", "allocator": "hz", "library": "01", "seed": "1"}
DEFAULT = Arm("hz")
CANDIDATE = Arm.of("hz", {"magazine_cap": 64, "depot_lock": "spin"})


def block(number, arms=(DEFAULT, CANDIDATE), rounds=3):
    """A block of made-up numbers."""
    outcomes = []
    for index, arm in enumerate(arms):
        turns = tuple(
            Turn(i, (i + index) % 2, 1000 * number + i, 18_000_000, 18_000 + i, "steal" * (i == 2))
            for i in range(rounds)
        )
        rate, peak_kb = 1e6 + index, 5000 + index
        outcomes.append(Outcome(arm, "ok", "", rate, turns, peak_kb, 4000, {"refills": 7}))
    return Block(number, "search", tuple(outcomes))


def open_study(folder, *, resume=True, **changes):
    return LocalStudy(folder, {**IDENTITY, **changes}, MACHINE, resume=resume)


NAMES = {"turn": 1, "index": 2, "cpu_ns": 3, "arm": ',"turn":9,"cpu_ns":8,', "crc": 4}
CRASH = Outcome(CANDIDATE, "crash", "ended by SIGSEGV: it fell over")
RESTED = Rested(1.5, ((0, 100, 0), (9, 50, 4)), (RestRound(0, 4, 9, 46, 4),))
BLOCKS = {
    "two": [block(0), block(1)],
    "the same arm twice": [block(0, arms=(DEFAULT, DEFAULT))],
    "odd names": [block(0, (DEFAULT, Arm.of(',"arm":"x","kind":"turn",', NAMES)))],
    "a failed arm": [Block(0, "search", (block(0).control, CRASH))],
    "rests": [Block(0, "search", (dataclasses.replace(block(0).control, rested=RESTED),))],
    "plans": [
        dataclasses.replace(block(n), plan=plan)
        for n, plan in enumerate([None, ProofPlan(pairs=23, rounds=7, floor=0.1 + 0.2), None])
    ],
    "facts": [
        Block(0, "search", (dataclasses.replace(block(0).control, facts={"ops": 9, "faults": 4}),))
    ],
}


@pytest.mark.parametrize("case", BLOCKS)
def test_a_block_comes_back_as_it_was_measured(case, tmp_path):
    told = tuple(BLOCKS[case])
    with open_study(tmp_path, resume=False) as study:
        for each in told:
            study.note(each.plan)
            tell(study, each)
        assert study.replay() == told
    assert recording(tmp_path).blocks == told
    with pytest.raises(UsageError, match="holds a study already; go on with it"):
        open_study(tmp_path, resume=False)


def test_what_came_out_of_a_study_is_kept_behind_its_samples(tmp_path):
    ending = {"summary": {"verdict": "no_gain"}}
    with open_study(tmp_path) as study:
        tell(study, block(0))
        assert study.ending is None
        study.conclude(ending)
    with open_study(tmp_path) as study:
        assert (study.ending, study.replay()) == (ending, (block(0),))
    assert b'"kind":"end"' in recording(tmp_path).lines[-1]


def test_an_interrupted_block_counts_for_nothing_and_its_repetition_for_one(tmp_path):
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
    after = recording(tmp_path).lines
    assert (after[: len(before)], len(after)) == (before, 22)


# ---- what ends a writer --------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path):
    """The lines of a study with two blocks, the second one not synced to its end."""
    with open_study(tmp_path) as study:
        tell(study, block(0))
        tell(study, block(1))
    return recording(tmp_path).lines


def go_on(folder, content):
    """What is kept of a log that holds `content`; two more blocks can be added to it."""
    (folder / SAMPLES).write_bytes(content)
    with open_study(folder) as study:
        kept, blocks = recording(folder).lines, study.replay()
        tell(study, block(len(blocks)))
        assert study.replay() == tuple(block(pair) for pair in range(len(blocks) + 1))
    return kept


def test_a_log_that_is_cut_anywhere_costs_only_the_line_that_is_cut(tmp_path, written):
    whole = b"".join(written)
    for size in range(len(whole) - len(written[-1]) - 9, len(whole) + 1):
        count = sum(end <= size for end in accumulate(map(len, written)))
        assert go_on(tmp_path, whole[:size]) == written[:count]


def test_a_page_that_a_power_cut_lost_costs_the_unsynced_block_only(tmp_path, written):
    whole, begin = b"".join(written), sum(map(len, written[:11]))
    for start in range(begin, len(whole), 256):
        kept = go_on(tmp_path, whole[:start] + bytes(512) + whole[start + 512 :])
        assert kept == written[: len(kept)] and len(kept) >= 11


def test_turns_are_written_without_a_sync_and_a_block_ends_with_one(tmp_path, monkeypatch):
    synced = []
    with open_study(tmp_path) as study:
        monkeypatch.setattr(os, "fdatasync", synced.append)
        study.begin(Plan(0, "search", (DEFAULT,), rounds=1))
        study.turn(0, 100, block(0).control.turns[0], Evidence())
        assert b'"kind":"turn"' in recording(tmp_path).lines[-1]
        study.outcome(0, 100, block(0).control)
        assert not synced
        study.end()
        assert len(synced) == 1


@contextmanager
def room_for(limit):
    """Lets no file grow beyond `limit` bytes: the disk is full there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(HztuneError, match=r"cannot write .* is kept: make room, .* --resume"):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_loses_nothing_that_was_measured_and_the_study_goes_on(tmp_path):
    with room_for(64):
        open_study(tmp_path)
    one, log = block(1), tmp_path / SAMPLES
    with open_study(tmp_path, resume=False) as study:
        tell(study, block(0))
        study.begin(Plan(1, "search", (DEFAULT, CANDIDATE), rounds=3))
        before, size = recording(tmp_path).lines, log.stat().st_size
        for room in (0, 1, 97):
            with room_for(size + room):
                study.turn(0, 100, one.control.turns[0], Evidence())
            assert recording(tmp_path).lines == before
        tell(study, one)
        with room_for(log.stat().st_size + 20):
            study.conclude({"summary": {"verdict": "no_gain"}})
    with open_study(tmp_path) as study:
        assert study.replay() == (block(0), one) and study.ending is None


# ---- a writer that is killed ---------------------------------------------------------------------


def killed(work, after):
    """Lets a forked process work, and kills it once it has told so often, wherever it then is.

    Gives the last that it told. One that ends before is not killed.
    """
    reading, writing = os.pipe()
    pid, last = os.fork(), 0
    if pid == 0:  # it must never come back into the tests
        try:
            work(lambda number: os.write(writing, b"%d\n" % number) and None)
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as file:
            for number, line in enumerate(file, start=1):
                last = int(line) if line.endswith(b"\n") else last
                if number == after:
                    os.kill(pid, signal.SIGKILL)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return last


class Telling:
    """A sink that tells how many records are kept after each one: to count them takes longer."""

    def __init__(self, store, tell):
        self.store, self.tell, self.count = store, tell, len(records(store.folder))

    def __getattr__(self, name):
        def put(*what):
            getattr(self.store, name)(*what)
            self.count += name != "end"
            self.tell(self.count)

        return put


def records(folder):
    """Every sample that is kept, in order."""
    try:
        return [json.loads(line) for line in recording(folder).lines]
    except UsageError:  # it was killed before there was a study
        return []


@pytest.mark.parametrize("seed", range(SEED, SEED + 4 * MORE))
def test_of_sixty_killed_writers_none_loses_a_record(tmp_path, seed):
    """Each goes on where the last one ended, and is killed at any moment."""

    def write(tell_count):
        with open_study(tmp_path) as store:
            sink = Telling(store, tell_count)
            for pair in range(len(store.replay()), 1_000_000):
                tell(sink, block(pair))

    rng, before = Random(seed), []
    for _ in range(15):
        told = killed(write, after=rng.randrange(1, 60))
        with open_study(tmp_path) as store:
            kept = store.replay()
        found = records(tmp_path)
        assert len(found) >= told > len(before)
        assert found[: len(before)] == before
        assert [row["seq"] for row in found] == list(range(len(found)))
        assert kept == tuple(block(pair) for pair in range(len(kept)))
        before = found


# ---- damage, and what is no study ----------------------------------------------------------------


def refused(folder, said):
    """Neither read nor written, in these words."""
    for action in (open_study, recording):
        with pytest.raises(HztuneError, match=said):
            action(folder)


OLDER = packed(StudyRow(0, "x", 1, {}, MACHINE, "")) + _ended(b'{"kind":"end","seq":1,"result":{}')


CHANGED = [
    (lambda log: log.replace(b'"ops":18001', b'"ops":18007', 1), r"in line \d+; restore it"),
    (lambda log: OLDER, r"another version of hztune \(line 2: .* unknown field `result`"),
    (lambda log: b"the work of another program\n" * 100, "something else than samples"),
]


@pytest.mark.parametrize(("changed", "said"), CHANGED)
def test_what_was_changed_is_of_another_version_or_another_file_is_refused_and_left_alone(
    changed, said, tmp_path, written
):
    content = changed(b"".join(written))
    (tmp_path / SAMPLES).write_bytes(content)
    refused(tmp_path, said)
    assert (tmp_path / SAMPLES).read_bytes() == content


@pytest.mark.parametrize("seed", range(6))
def test_bytes_that_were_overwritten_are_a_sentence_or_cost_the_end_only(seed, tmp_path, written):
    chance, content = Random(seed), bytearray(b"".join(written))
    for _ in range(chance.choice([1, 8, 200])):
        content[chance.randrange(len(content))] = chance.randrange(256)
    (tmp_path / SAMPLES).write_bytes(content)
    try:
        kept = recording(tmp_path).lines
        assert kept == written[: len(kept)]
    except HztuneError as error:
        assert str(tmp_path) in str(error) and len(str(error)) < 500
        refused(tmp_path, "choose another|restore")
        assert (tmp_path / SAMPLES).read_bytes() == content


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("nowhere")])
def test_what_is_no_file_is_refused_without_waiting(make, tmp_path):
    make(tmp_path / SAMPLES)
    refused(tmp_path, "cannot")


@pytest.mark.parametrize("odd", [b"\x1b[2J", b"\xff", b"\\u009b2J", b"\xe2\x80\xae"])
def test_the_study_of_another_steers_no_terminal(odd, tmp_path, capsys):
    with open_study(tmp_path) as study:
        tell(study, block(0))
    lines = recording(tmp_path).lines
    texts = (line[:-_END_BYTES].replace(b'"arm":"', b'"arm":"' + odd) for line in lines)
    (tmp_path / SAMPLES).write_bytes(b"".join(map(_ended, texts)))
    cli.status_of(["report", str(tmp_path)])
    told = capsys.readouterr()
    assert all(each.isprintable() or each == "\n" for each in told.out + told.err)


# ---- whose it is ---------------------------------------------------------------------------------


def test_a_directory_of_another_study_or_machine_is_refused_in_words(tmp_path):
    with pytest.raises(UsageError, match="cannot read"):
        recording(tmp_path)
    open_study(tmp_path).close()
    before = recording(tmp_path).lines
    for name in (*IDENTITY, "limit"):
        there = IDENTITY.get(name, "nothing")
        with pytest.raises(UsageError, match=f"{name}: {there} there, another here"):
            open_study(tmp_path, **{name: "another"})
    for field in dataclasses.fields(Machine):
        value = getattr(MACHINE, field.name)
        changed = {field.name: f"{value}x" if isinstance(value, str) else 77}
        with pytest.raises(UsageError, match="belongs to another study"):
            LocalStudy(tmp_path, IDENTITY, dataclasses.replace(MACHINE, **changed), resume=True)
    assert recording(tmp_path).lines == before


def test_a_study_that_is_refused_before_its_first_sample_leaves_no_file(tmp_path):
    for measured, left in (((), False), ((block(0),), True), ((), True)):
        with pytest.raises(UsageError, match="too small"), open_study(tmp_path) as study:
            for each in measured:
                tell(study, each)
            raise UsageError("the budget is too small")
        assert [*tmp_path.iterdir()] == [tmp_path / SAMPLES] * left
    assert recording(tmp_path).blocks == (block(0),)


def test_a_study_in_use_is_refused(tmp_path):
    with open_study(tmp_path), pytest.raises(UsageError, match="written by another process;"):
        open_study(tmp_path)
    open_study(tmp_path).close()


# ---- when it was measured ------------------------------------------------------------------------


def lasting_from(begin_s, *arms):
    """A block that begins then; each arm has so many turns of a second, all in a row."""
    outcomes, now_s = [], begin_s
    for count in arms:
        turns = (Turn(i, 0, round(1e9 * (now_s + i)), 10**9, 1.0) for i in range(count))
        outcomes.append(Outcome(DEFAULT, "ok" if count else "hang", turns=tuple(turns)))
        now_s += count
    return Block(0, "search", tuple(outcomes))


TIMES = [
    ([(100, 2, 2), (105, 2, 2)], [(0, 4), (5, 9)]),  # what lies between two blocks counts
    ([(100, 2, 2), (90_000, 2, 2)], [(0, 4), (8, 12)]),  # a pause as the block behind it
    ([(100, 2, 2), (3, 2, 2)], [(0, 4), (4, 8)]),  # a clock that began anew is a pause
    ([(10, 3), (13, 0, 0), (15, 3)], [(0, 3), (3, 3), (5, 8)]),  # a block without a turn
]


@pytest.mark.parametrize(("blocks", "expected"), TIMES)
def test_the_time_of_a_study_is_read_from_its_turns(blocks, expected):
    assert list(times_of([lasting_from(*each) for each in blocks])) == expected


# ---- thousands of trials -------------------------------------------------------------------------


TRIALS, CANDIDATES = 2000, 6


@pytest.mark.slow
def test_a_study_of_two_thousand_trials_opens_and_asks_for_new_ones(tmp_path):
    rng, executor, arms = Random(1), ReplayExecutor(flat, seed=1), dict[str, Arm]()
    hz = candidates(["hz"], "", TuneTarget(8)).space
    while len(arms) < TRIALS:
        arm = hz.arm(hz.sample(rng))
        arms[arm.key] = arm
    with LocalStudy(tmp_path, {}, MACHINE) as store:
        for pair, start in enumerate(range(0, TRIALS, CANDIDATES)):
            beside = [Arm("hz"), *[*arms.values()][start : start + CANDIDATES]]
            tell(store, executor.measure(beside, role="search", rounds=4, number=pair))
    with LocalStudy(tmp_path, {}, MACHINE, resume=True) as store:
        ledger = Ledger.of(store.replay())
    bench = bench_of(flat, ledger=ledger, budget_s=1e6)
    bench.calibrated(0.001)
    proposed = {arm.key for arm in Search(bench, hz, seed=1)._batch(proposing=True)}
    assert len(ledger.searched) == TRIALS
    assert proposed - {*ledger.searched}
