"""A study that several workers share: nothing that was entered is lost, nothing stays held."""

from __future__ import annotations

import json
import multiprocessing
import random
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import pytest

from hztune import files, machine
from hztune.blocks import Arm, Block, Outcome, Role, Turn
from hztune.confirm import claim_error, front_error
from hztune.errors import HztuneError, UsageError
from hztune.lab.replay import Landscape, ModelNoise, ReplayExecutor, Truth, VirtualClock
from hztune.machine import Machine
from hztune.measure.types import Around
from hztune.progress import Quiet
from hztune.result.decision import Decision
from hztune.search import Search
from hztune.space import Space
from hztune.store import EndedElsewhere, Evidence, Plan, Sink
from hztune.store import database as databases
from hztune.store.database import Storage
from hztune.store.local import recording
from hztune.store.owners import ProcessId
from hztune.store.study import StoredStudy
from hztune.store.worker import Worker
from hztune.trial import Budget, Ledger, Workbench
from hztune.tune.candidates import TuneTarget, candidates
from hztune.tune.pareto_aim import Front
from hztune.tune.story import Aim, Story
from hztune.tune.winner import Winner

from .conftest import RESUME_S, tell

KILLS = {"ci": 20, "perf": 200}
RESTARTS = {"ci": 3, "perf": 20}
TRIALS = {"ci": 2_000, "perf": 10_000}
DEADLINE_S = 120
IDENTITY = {
    "workload": "worth",
    "program": "4567",
    "allocator": "hz 0.1.0",
    "library": "0123abcd",
    "space": "89ab",
    "limit": "none",
    "seed": "1",
}
DEFAULT = Arm("hz")
QUIET = ModelNoise(within=0.03, between=0.01, common=0.1)

how_often = pytest.mark.parametrize("how", ["ci", pytest.param("perf", marks=pytest.mark.perf)])


def begun(storage: Storage, name: str, **changes: str) -> StoredStudy:
    return StoredStudy.begin(storage, name, {**IDENTITY, **changes}, {"seed": 1})


@contextmanager
def opened(url: str, name: str) -> Iterator[StoredStudy]:
    storage = Storage(url)
    try:
        yield begun(storage, name)
    finally:
        storage.close()


def enter(worker: Worker, arms: Sequence[Arm], role: Role = "search") -> Block:
    """Enters a block of made-up numbers."""
    pair = worker.begin(role)
    turns = tuple(Turn(i, 0, 1000 * pair + i, 18_000_000, 18_000.0 + i) for i in range(4))
    outcomes = tuple(Outcome(arm, "ok", "", 1e6, turns, 5000, 4000) for arm in arms)
    block = Block(pair, role, outcomes)
    tell(worker.sink, block)
    worker.enter(float(pair))
    return block


def candidate(number: int) -> Arm:
    return Arm.of("hz", {"magazine_cap": number})


# ---- what ends a worker --------------------------------------------------------------------------


def write_for_ever(url: str, name: str, told: Connection) -> None:
    """Leads a study and enters block after block; tells of each when it has been acknowledged."""
    with opened(url, name) as study:
        worker = Worker(study, "machine")
        worker.lead()
        while True:
            worker.reserve([candidate(1)])
            told.send(enter(worker, [DEFAULT, candidate(1)]).number)


@contextmanager
def writer(url: str, name: str) -> Iterator[Connection]:
    """A process that writes, killed at the end, wherever it is."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=write_for_ever, args=(url, name, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.kill()
        process.join(DEADLINE_S)


def received(told: Connection, least: int) -> list[int]:
    """What a writer was acknowledged: some, and whatever has come meanwhile."""
    pairs = []
    for _ in range(least):
        assert told.poll(DEADLINE_S), "the writer says nothing"
        pairs.append(told.recv())
    return pairs


def rest(told: Connection) -> list[int]:
    """What a writer that is dead had still been acknowledged."""
    pairs = []
    try:
        while told.poll(0):
            pairs.append(told.recv())
    except EOFError:
        pass
    return pairs


@how_often
def test_whatever_a_killed_writer_was_acknowledged_is_there_and_nothing_stays_held(
    storage_url: str, how: str
) -> None:
    rng = random.Random(7)
    acknowledged: set[int] = set()
    resumed_s = []
    for _ in range(KILLS[how]):
        with writer(storage_url, "kills") as told:
            acknowledged.update(received(told, rng.randrange(1, 6)))
            told.poll(rng.random() * 0.02)
        acknowledged.update(rest(told))
        began = time.monotonic()
        with opened(storage_url, "kills") as study, Worker(study, "machine") as worker:
            assert worker.look().held == ()
            assert worker.reserve([candidate(1)]) == set()
            assert worker.lead()
            resumed_s.append(time.monotonic() - began)
    assert how == "ci" or max(resumed_s) <= RESUME_S
    with opened(storage_url, "kills") as study:
        stored = list(study.blocks())
        pairs = [row["pair"] for block in stored for row in block.rows if row["kind"] == "block"]
        assert len(set(pairs)) == len(pairs) >= len(acknowledged)
        assert acknowledged <= set(pairs)
        assert [block.number for block in stored] == list(range(1, len(stored) + 1))
        assert study.hosts() == []


@how_often
def test_a_writer_outlives_a_server_that_restarts_and_loses_nothing(
    postgres: Any, how: str
) -> None:
    with writer(postgres.url, "restarts") as told:
        acknowledged = received(told, 3)
        for _ in range(RESTARTS[how]):
            postgres.restart()
            acknowledged += received(told, 3)
    acknowledged += rest(told)
    with opened(postgres.url, "restarts") as study:
        pairs = [row["pair"] for block in study.blocks() for row in block.rows[:1]]
        assert len(set(pairs)) == len(pairs)
        assert set(acknowledged) <= set(pairs)


def test_a_server_that_does_not_come_back_is_waited_for_so_long_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "_PAUSE_S", 0.001)
    with opened(f"sqlite:///{tmp_path / 'study.db'}", "gone") as study:
        calls = 0

        def fail(connection: object) -> None:
            nonlocal calls
            calls += 1
            raise databases.OperationalError("", {}, Exception("server closed the connection"))

        with pytest.raises(HztuneError, match="every block that was entered is kept"):
            study.storage.run(fail, patience_s=0.01)
        assert calls > 1


def test_an_answer_that_was_lost_makes_no_second_block(tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path / 'study.db'}", "twice") as study:
        with Worker(study, "machine") as worker:
            enter(worker, [DEFAULT, candidate(1)])
            worker.enter(9.0)
        assert [block.elapsed_s for block in study.blocks()] == [0.0]


def test_a_damaged_block_is_refused_not_read(tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path / 'study.db'}", "damaged") as study:
        with Worker(study, "machine") as worker:
            enter(worker, [DEFAULT, candidate(1)])
        update = "UPDATE hztune_blocks SET rows = replace(rows, '18000.0', '19000.0')"
        study.storage.run(lambda connection: connection.exec_driver_sql(update))
        with pytest.raises(
            HztuneError, match=r"is damaged \(block 1, in the study 'damaged'\); restore"
        ):
            list(study.blocks())


# ---- owners --------------------------------------------------------------------------------------

HERE = ProcessId.here()
GONE = {
    "the host was started anew": replace(HERE, boot="another"),
    "the number belongs to another process": replace(HERE, started=HERE.started + 1),
    "the number is gone": replace(HERE, pid=1 << 40),
}
NOT_KNOWN_TO_BE_GONE = {
    "it is this process": HERE,
    "it is on another host": replace(HERE, host="elsewhere", pid=1 << 40),
    "it counts in another namespace": replace(HERE, namespace="pid:[1]", pid=1 << 40),
}


@pytest.mark.parametrize("why", GONE)
def test_an_owner_is_dead_where(why: str) -> None:
    assert HERE.sees_dead(GONE[why])


@pytest.mark.parametrize("why", NOT_KNOWN_TO_BE_GONE)
def test_an_owner_is_not_known_to_be_dead_where(why: str) -> None:
    assert not HERE.sees_dead(NOT_KNOWN_TO_BE_GONE[why])


def test_two_hosts_of_one_name_do_not_judge_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def process_of(machine_id: str, boot: str) -> ProcessId:
        monkeypatch.setattr(machine, "text_or_empty", lambda path: texts[path.name])
        texts = {"machine-id": machine_id * 32, "boot_id": boot}
        return ProcessId.here()

    one, other = process_of("a", "first"), process_of("b", "second")
    assert not one.sees_dead(other)
    assert not other.sees_dead(one)
    assert process_of("a", "third").sees_dead(one)  # it was started anew


def test_what_a_host_that_is_gone_holds_is_freed_by_hand_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(f"sqlite:///{tmp_path / 'study.db'}", "hosts") as study:
        monkeypatch.setattr(ProcessId, "here", lambda: replace(HERE, host="far"))
        far = Worker(study, "another machine")
        assert far.reserve([candidate(1), candidate(2)]) == set()
        assert far.lead()
        monkeypatch.setattr(ProcessId, "here", lambda: HERE)
        with Worker(study, "machine") as near:
            assert near.look().held == (candidate(1), candidate(2))
            assert near.reserve([candidate(2), candidate(3)]) == {candidate(2)}
            assert not near.lead()
            assert near.look().proving
            assert study.forget("far") == 1
            assert near.lead()
            assert near.look().held == ()
        with pytest.raises(HztuneError, match="was removed from the study"):
            far.begin("search")


def test_a_worker_that_leaves_gives_everything_back(tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path / 'study.db'}", "leave") as study:
        with pytest.raises(KeyboardInterrupt), Worker(study, "machine") as worker:
            worker.reserve([candidate(1)])
            worker.lead()
            raise KeyboardInterrupt
        assert study.hosts() == []


def test_samples_of_a_block_in_which_a_worker_left_are_kept(tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path / 'study.db'}", "begun") as study:
        with pytest.raises(KeyboardInterrupt), Worker(study, "machine") as worker:
            enter(worker, [DEFAULT, candidate(1)])
            worker.sink.begin(Plan(worker.begin("search"), "search", (DEFAULT,), 1))
            worker.sink.turn(0, 1, Turn(0, 0, 1, 1, 1.0), Evidence())
            raise KeyboardInterrupt
        kinds = [json.loads(line)["kind"] for line in study.samples({})]
        assert (len(list(study.blocks())), kinds[-2:]) == (1, ["block", "turn"])


# ---- which workers may take part -----------------------------------------------------------------


@pytest.mark.parametrize("name", IDENTITY)
def test_a_worker_that_would_measure_something_else_is_refused(name: str, tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path / 'study.db'}", "same") as study:
        storage = study.storage
        with pytest.raises(UsageError, match=f"{name}: {IDENTITY[name]} there, another here"):
            begun(storage, "same", **{name: "another"})


def test_a_study_of_another_schema_is_refused(tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path / 'study.db'}", "old") as study:
        update = "UPDATE hztune_studies SET schema = 99"
        study.storage.run(lambda connection: connection.exec_driver_sql(update))
        with pytest.raises(UsageError, match="of schema 99, and this hztune knows 1"):
            begun(study.storage, "old")


# ---- one flow ------------------------------------------------------------------------------------


def spin_wins(arm: Arm) -> Truth:
    return Truth(0.2 if arm.config.get("lock") == "spin" else 0.0)


@dataclass
class Telling(Around):
    """An executor that replays, tells its sink as a real one does, and may be stopped in a role."""

    inner: ReplayExecutor
    sink: Sink
    stop_in: str = ""
    patience: int = 3

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        if role == self.stop_in:
            self.patience -= 1
            if self.patience == 0:
                raise KeyboardInterrupt
        block = self.inner.measure(arms, role=role, rounds=rounds, number=number)
        tell(self.sink, block)
        return block


def test_a_new_file_that_another_process_writes_to_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "study.db"
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        Timer(0.3, other.execute, ["COMMIT"]).start()
        Storage(f"sqlite:///{file}").close()


def story(
    worker: Worker,
    space: Space,
    landscape: Landscape = spin_wins,
    stop_in: str = "",
    kind: type[Aim] = Winner,
) -> Story:
    """A simulated study as one worker takes part in it."""
    executor = Telling(ReplayExecutor(landscape, QUIET, seed=1), worker.sink, stop_in)
    ledger = Ledger(machine=worker.sink.machine)
    news = worker.look()
    for block in news.blocks:
        ledger.add(block)
    budget = Budget(executor.inner.clock, 90.0, spent_s=news.elapsed_s)
    bench = Workbench(executor, ledger, budget, Quiet(), peers=worker)
    return Story(bench, space, 1 + worker.number, kind=kind)


def confirmed(study: Story) -> int:
    """Fresh pairs that the study counts for its finalists."""
    return sum(len(record.pairs) for record in study.bench.ledger.fresh_by_arm.values())


@pytest.mark.parametrize("machine", ["one", "another"])
def test_a_worker_that_takes_over_a_proof_goes_on_with_the_pairs_of_the_same_machine_only(
    machine: str, toy_space: Space, tmp_path: Path
) -> None:
    with opened(f"sqlite:///{tmp_path / 'study.db'}", "takeover") as study:
        with Worker(study, "one") as worker:
            first = story(worker, toy_space, stop_in="confirm")
            assert first.run().verdict == "interrupted" and confirmed(first) > 0
        kept = confirmed(first) if machine == "one" else 0
        with Worker(study, machine) as worker:
            second = story(worker, toy_space)
            assert confirmed(second) == kept
            assert second.bench.ledger.attempts_of_other_machines == (0 if kept else 1)
            searched = second.bench.ledger.configurations
            assert second.run().verdict == "improved"
            assert confirmed(second) > kept
            assert second.bench.ledger.configurations == searched or not kept


@pytest.mark.parametrize("machine", ["one", "another"])
def test_a_worker_that_takes_over_the_proof_of_a_front_has_its_members_on_the_same_machine_only(
    machine: str, toy_space: Space, tmp_path: Path
) -> None:
    with opened(f"sqlite:///{tmp_path / 'study.db'}", "front") as study:
        with Worker(study, "one") as worker:
            first = story(worker, toy_space, stop_in="confirm", kind=Front)
            assert front_error(first.bench.ledger) == claim_error(0)
            assert first.run().verdict == "interrupted"
        with Worker(study, machine) as worker:
            second = story(worker, toy_space, kind=Front)
            assert confirmed(second) == (2 if machine == "one" else 0)
            decision = second.run()
            assert decision.verdict == "improved"
            assert decision.arm.config["lock"] == "spin"
            begun = [*first.bench.ledger.fresh_by_arm]
            ledger = second.bench.ledger
            fresh = [block for block in ledger.own_blocks() if block.role == "confirm"]
            pairs = sum(len(record.pairs) for record in ledger.fresh_by_arm.values())
            assert pairs == len(fresh) > 2
            if machine == "one":
                assert [*ledger.fresh_by_arm][: len(begun)] == begun
                assert front_error(ledger) == claim_error(0)
            else:
                assert front_error(ledger) == claim_error(1)


@pytest.mark.parametrize("kind", [Winner, Front])
def test_two_workers_search_together_and_one_of_them_decides(
    kind: type[Aim], toy_space: Space, tmp_path: Path
) -> None:
    decisions: list[Decision | str] = []

    def take_part() -> None:
        with opened(f"sqlite:///{tmp_path / 'study.db'}", "both") as study:
            try:
                with Worker(study, "machine") as worker:
                    decisions.append(story(worker, toy_space, kind=kind).run())
                    worker.conclude({"who": worker.name})
            except EndedElsewhere:
                decisions.append("elsewhere")

    threads = [Thread(target=take_part) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(decisions) == 2
    decided = next(each for each in decisions if isinstance(each, Decision))
    assert "elsewhere" in decisions
    assert decided.verdict == "improved"
    assert decided.arm.config["lock"] == "spin"
    with opened(f"sqlite:///{tmp_path / 'study.db'}", "both") as study:
        assert study.hosts() == []
        proving = {
            block.worker
            for block in study.blocks()
            if block.rows[0]["role"] in ("confirm", "ablate")
        }
        assert len(proving) == 1
        assert study.ending() == {"who": proving.pop()}


def test_a_study_that_has_ended_takes_no_worker_in(tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path / 'study.db'}", "ended") as study:
        with Worker(study, "machine") as worker:
            worker.lead()
            worker.conclude({"a": 1})
            worker.conclude({"a": 1})  # as after an answer that was lost
            with pytest.raises(EndedElsewhere):
                worker.conclude({"a": 2})
            with pytest.raises(EndedElsewhere):
                worker.look()
        with pytest.raises(EndedElsewhere):
            Worker(study, "machine")
        assert study.ending() == {"a": 1}


@pytest.mark.parametrize("ending", [{"where": "kind-two"}, {}], ids=["now", "before"])
def test_samples_say_on_which_of_equal_machines_the_claim_was_proved(
    ending: dict[str, str], tmp_path: Path
) -> None:
    here = Machine.here()
    where = ending.get("where", here.fingerprint)
    with opened(f"sqlite:///{tmp_path / 'study.db'}", "equal") as study:
        for name in ("kind-one", where):
            with Worker(study, name) as worker:
                enter(worker, [DEFAULT, candidate(1)], "confirm")
        with Worker(study, where) as worker:
            assert worker.lead()
            worker.conclude({**ending, "machine": asdict(here)})
        (tmp_path / "export").mkdir()
        files.write_whole(tmp_path / "export/samples.jsonl", study.samples(asdict(here)))
    found = recording(tmp_path / "export")
    ledger = Ledger.of(found.blocks, machine=found.where)
    assert [ledger.is_own(block) for block in found.blocks] == [False, True]


def test_a_block_that_comes_after_the_end_is_not_added(tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path / 'study.db'}", "late") as study:
        with Worker(study, "machine") as late, Worker(study, "machine") as leader:
            late.begin("search")
            assert leader.lead()
            leader.conclude({"a": 1})
            with pytest.raises(EndedElsewhere):
                late.enter(1.0)
        assert list(study.blocks()) == []


def test_time_in_which_no_worker_measured_is_given_back(tmp_path: Path) -> None:
    clock = VirtualClock()
    budget = Budget(clock, 100.0, spent_s=10.0)
    budget.reached(25.0)
    clock.advance(30.0)
    budget.go_back()
    assert budget.elapsed() == 25.0
    budget.reached(60.0)  # by another worker: this one has not lost the time before
    budget.go_back()
    assert budget.elapsed() == 25.0


@how_often
def test_a_long_study_opens_and_proposes_what_was_not_measured(postgres: Any, how: str) -> None:
    space = candidates(["hz"], "", TuneTarget(8)).space
    rng = random.Random(3)
    drawn = {arm.key: arm for arm in (space.arm(space.sample(rng)) for _ in range(2 * TRIALS[how]))}
    arms = list(drawn.values())[: TRIALS[how]]
    executor = ReplayExecutor(spin_wins, QUIET, seed=2)
    with opened(postgres.url, f"long-{how}") as study:
        with Worker(study, "machine") as worker:
            for start in range(0, len(arms), 6):
                beside = [DEFAULT, *arms[start : start + 6]]
                pair = worker.begin("search")
                tell(worker.sink, executor.measure(beside, role="search", rounds=4, number=pair))
                worker.enter(1.0)
        with Worker(study, "machine") as worker:
            opening = story(worker, space)
            assert opening.bench.ledger.configurations == TRIALS[how]
            batch = Search(opening.bench, space, 1)._batch(proposing=True)
            assert set(batch) - set(arms)
