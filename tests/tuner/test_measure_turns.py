"""Blocks by turns: what is measured, in what order it is kept, and what becomes of failures."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hztune import artifacts
from hztune.allocator.live import Running
from hztune.blocks import Outcome, Turn
from hztune.errors import HztuneError
from hztune.machine import Machine
from hztune.measure import Arm, Block, turns
from hztune.measure.disturbance import Throttling
from hztune.measure.identity import Fault
from hztune.measure.turns import Tempo, TurnExecutor
from hztune.store import Evidence, Plan
from hztune.store.log import LocalStudy, recording
from hztune.workload import WorkloadSpec

FAKE = Path(__file__).with_name("measure_fake_turns.py")
SPEC = WorkloadSpec("larson", "", (), threads=2)
DEFAULT = Arm("hz")
CANDIDATE = Arm.of("hz", {"magazine_cap": 64})
TEMPO = Tempo(turn_ms=20, skip_ms=2, warmup_ms=300)


class FakeProof:
    """Every arm may run, unless its name says otherwise."""

    def __init__(self, base: Mapping[str, str]) -> None:
        self.base = base

    def prepare(self, arm: Arm) -> dict[str, str] | Fault:
        if arm.allocator == "refused":
            return Fault("rejected", "magazine_cap is too small")
        return {f"SET_{name}": str(value) for name, value in arm.params}

    def program(self, arm: Arm) -> Path | None:
        return None

    def inspect(self, arm: Arm, running: Running) -> Fault | None:
        return None

    def judge(self, arm: Arm, library: str, stderr: str) -> Fault | None:
        if "wrong" in stderr:
            return Fault("wrong_config", stderr)
        return None if library == "/lib/right.so" else Fault("wrong_allocator", library)


class Recorder:
    """A sink that remembers what it was given, in order."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, Any]] = []

    def begin(self, plan: Plan) -> None:
        self.taken.append(("begin", plan))

    def turn(self, index: int, pid: int, turn: Turn, evidence: Evidence) -> None:
        self.taken.append(("turn", (index, pid, turn, evidence)))

    def outcome(self, index: int, pid: int, outcome: Outcome) -> None:
        self.taken.append(("outcome", (index, pid, outcome)))

    def end(self) -> None:
        self.taken.append(("end", None))


class Stage:
    """An executor on the double of hz-turns."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "commands"
        self.base = {"FAKE_LOG": str(self.log), "PATH": "/usr/bin:/bin"}
        self.sink: Any = Recorder()
        self.seed = 1

    def executor(self) -> TurnExecutor:
        proof = FakeProof(self.base)
        return TurnExecutor(SPEC, self.sink, seed=self.seed, tempo=TEMPO, identity=proof)

    def measure(self, *arms: Arm, rounds: int = 6, number: int = 0, **plans: Any) -> Block:
        """Measures a block in which the arm at i does what `arm_i` says."""
        names = {name.removeprefix("arm_"): plan for name, plan in plans.items()}
        self.base["FAKE_ARMS"] = json.dumps(names)
        return self.executor().measure(arms, role="search", rounds=rounds, number=number)

    def commands(self) -> list[Any]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    conductor = tmp_path / "hz-turns"
    conductor.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {FAKE} "$@"\n')
    conductor.chmod(0o755)
    monkeypatch.setattr(artifacts, "turns", lambda: conductor)
    monkeypatch.setattr(artifacts, "bench", lambda: Path("/opt/hz-bench"))
    return Stage(tmp_path)


def test_every_arm_gets_its_rounds_its_rate_and_its_own_variables(stage: Stage) -> None:
    plans = {"arm_0": {"ops": 900}, "arm_1": {"ops": 1800}, "arm_2": {"ops": 900}}
    block = stage.measure(DEFAULT, CANDIDATE, DEFAULT, **plans)
    assert [outcome.arm for outcome in block.outcomes] == [DEFAULT, CANDIDATE, DEFAULT]
    assert [outcome.status for outcome in block.outcomes] == ["ok"] * 3
    assert [len(outcome.turns) for outcome in block.outcomes] == [6, 6, 6]
    rates = [outcome.ops_per_s for outcome in block.outcomes]
    assert rates == pytest.approx([50_000, 100_000, 50_000])
    control = block.control
    assert (control.rss_peak_kb, control.live_kb, control.counters) == (6000, 4000, {"refills": 7})
    _, environments, program, base = stage.commands()[0]
    assert set(environments["0"]) == {"HZTUNE_PADDING"}
    assert environments["1"]["SET_magazine_cap"] == "64"
    assert "SET_magazine_cap" not in base
    assert program[:2] == ["/opt/hz-bench", "larson"]
    paddings = {len(environment["HZTUNE_PADDING"]) for environment in environments.values()}
    assert len(paddings) == 3


def seeds(stage: Stage, seed: int, number: int) -> list[str]:
    """The seeds of order and of requests in one block of a study."""
    stage.seed = seed
    stage.measure(DEFAULT, number=number)
    options, _, program, _ = stage.commands()[-1]
    return [options["--seed"], program[program.index("--seed") + 1]]


def test_a_block_repeats_with_its_seed_and_differs_from_the_others(stage: Stage) -> None:
    first = seeds(stage, seed=1, number=0)
    assert seeds(stage, seed=1, number=0) == first
    for other in (seeds(stage, seed=1, number=1), seeds(stage, seed=2, number=0)):
        assert not set(other) & set(first)


LAST = {"ends_in_round": 2, "stderr": "first\nlast words\n"}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    **{
        word: ({"status": word, **LAST}, "last words")
        for word in ("crash", "hang", "oom", "rejected", "failed")
    },
    "wrong_allocator": ({"library": "/lib/libc.so.6"}, ""),
    "wrong_config": ({"stderr": "wrong: 256"}, ""),
    "bad_output": ({"result": None}, "printed no result"),
}


@pytest.mark.parametrize("status", WRONG)
def test_a_failing_arm_is_typed_and_the_others_go_on(stage: Stage, status: str) -> None:
    plan, detail = WRONG[status]
    block = stage.measure(DEFAULT, CANDIDATE, Arm("refused"), arm_1=plan)
    assert [outcome.status for outcome in block.outcomes] == ["ok", status, "rejected"]
    assert [outcome.ops_per_s for outcome in block.outcomes[1:]] == [0.0, 0.0]
    assert block.outcomes[1].detail.endswith(detail)
    assert block.outcomes[2].detail == "magazine_cap is too small"
    assert list(stage.commands()[0][1]) == ["0", "1"]


def test_what_completes_nothing_is_no_measurement_and_a_crash_names_its_signal(
    stage: Stage,
) -> None:
    crashed = {"status": "crash", "ends_in_round": 0}
    block = stage.measure(DEFAULT, DEFAULT, arm_0={"ops": 0}, arm_1=crashed)
    assert [each.status for each in block.outcomes] == ["bad_output", "crash"]
    assert block.outcomes[1].detail == "ended by SIGSEGV"


def test_when_no_arm_can_be_prepared_nothing_is_started(stage: Stage) -> None:
    block = stage.measure(Arm("refused"), Arm("refused"))
    assert [outcome.status for outcome in block.outcomes] == ["rejected", "rejected"]
    assert not stage.log.exists()


STEAL = {"rounds": {"2": {"steal_ticks": 3}, "4": {"steal_ticks": 3}}}


def test_disturbed_rounds_are_flagged_and_repeated_in_the_same_processes(stage: Stage) -> None:
    block = stage.measure(DEFAULT, CANDIDATE, arm_1=STEAL)
    disturbed = [turn.round for turn in block.outcomes[1].turns if turn.disturbed]
    assert disturbed == [2, 4]
    assert [len(outcome.turns) for outcome in block.outcomes] == [8, 8]
    assert len(stage.commands()) == 1


def test_a_disturbed_turn_does_not_enter_the_rate(stage: Stage) -> None:
    plan = {"rounds": {"2": {"steal_ticks": 3, "ops": 1}}, "ops": 900}
    assert stage.measure(DEFAULT, arm_0=plan).control.ops_per_s == pytest.approx(50_000)


def test_an_arm_whose_threads_often_switch_keeps_all_its_turns(stage: Stage) -> None:
    rounds = {str(number): {"involuntary": 500, "ops": 700} for number in (1, 3, 5)}
    block = stage.measure(DEFAULT, CANDIDATE, arm_1={"rounds": rounds})
    assert [[turn.disturbed for turn in outcome.turns] for outcome in block.outcomes] == [
        [""] * 6
    ] * 2
    assert block.outcomes[1].ops_per_s == pytest.approx(850 / 0.018)


def test_a_throttled_turn_is_disturbed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter([0, 0, 0, 9_000, *[9_000] * 100])
    monkeypatch.setattr(Throttling, "us", lambda self: next(told))
    block = stage.measure(DEFAULT)
    assert [turn.disturbed for turn in block.control.turns] == ["", "", "throttled", *[""] * 4]


@pytest.mark.parametrize(("disturbed", "played"), [(range(100), 6), ([0, 1, *range(6, 100)], 10)])
def test_once_most_rounds_are_disturbed_none_is_repeated(
    disturbed: Sequence[int], played: int, stage: Stage
) -> None:
    plan = {"rounds": {str(number): {"steal_ticks": 3} for number in disturbed}}
    block = stage.measure(DEFAULT, arm_0=plan)
    assert len(block.control.turns) == played
    assert block.control.ok and block.control.ops_per_s > 0


def test_turns_are_kept_as_they_come_and_outcomes_after_them(stage: Stage) -> None:
    stage.measure(DEFAULT, CANDIDATE, rounds=2)
    assert [kind for kind, _ in stage.sink.taken] == [
        "begin",
        *["turn"] * 4,
        *["outcome"] * 2,
        "end",
    ]
    assert {(index, pid) for kind, (index, pid, *_) in stage.sink.taken[1:5]} == {
        (0, 1000),
        (1, 1001),
    }


def test_what_the_store_replays_is_what_was_measured(stage: Stage, tmp_path: Path) -> None:
    plan = {"status": "crash", "ends_in_round": 2}
    with LocalStudy(tmp_path, {}, Machine.here()) as store:
        stage.sink = store
        measured = [stage.measure(DEFAULT, CANDIDATE, arm_1=plan, number=pair) for pair in (0, 1)]
    assert list(recording(tmp_path).blocks) == measured


def test_a_conductor_that_fails_is_our_error_not_the_arms(stage: Stage) -> None:
    stage.base["FAKE_SELF"] = "fails"
    with pytest.raises(HztuneError, match=r"hz-turns ended with exit status 1: .*turn page"):
        stage.measure(DEFAULT)
    assert "outcome" not in [kind for kind, _ in stage.sink.taken]


def test_a_conductor_that_falls_silent_is_killed_and_the_turns_are_kept(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_SILENCE_S", 0.5)
    stage.base["FAKE_SELF"] = "falls silent"
    with pytest.raises(HztuneError, match="said nothing"):
        stage.measure(DEFAULT, rounds=3)
    assert [kind for kind, _ in stage.sink.taken] == ["begin", "turn", "turn", "turn"]


def test_an_interruption_keeps_the_turns_that_were_measured(stage: Stage) -> None:
    class Interrupted(Recorder):
        def turn(self, index: int, pid: int, turn: Turn, evidence: Evidence) -> None:
            super().turn(index, pid, turn, evidence)
            if turn.round == 1:
                raise KeyboardInterrupt

    stage.sink = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        stage.measure(DEFAULT)
    assert [kind for kind, _ in stage.sink.taken] == ["begin", "turn", "turn"]


def test_the_accounts_add_up(stage: Stage) -> None:
    stage.base["FAKE_ARMS"] = json.dumps({"1": STEAL})
    executor = stage.executor()
    for pair in range(2):
        executor.measure([DEFAULT, CANDIDATE], role="aa", rounds=6, number=pair)
    spent = executor.accounting
    assert (spent.turns, spent.disturbed) == (32, 4)
    assert spent.measured_s == pytest.approx(32 * 0.018)
    assert spent.warmup_s > 32 * 0.002


def test_the_expected_cost_is_the_turns_before_anything_is_known(stage: Stage) -> None:
    assert stage.executor().cost(2, 10) == pytest.approx(2 * (0.3 + 10 * 0.02))


def test_a_crowd_of_threads_gets_longer_turns_of_which_a_tenth_is_skipped() -> None:
    tempos = [
        turns.tempo_for(WorkloadSpec("larson", "", (), threads), rss_limit_mb=77)
        for threads in (1, 2, 8, 32, 128, 4096)
    ]
    lengths = [tempo.turn_ms for tempo in tempos]
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (20.0, 120.0)
    assert [tempo.skip_ms for tempo in tempos] == pytest.approx([0.1 * each for each in lengths])
    assert {tempo.rss_limit_mb for tempo in tempos} == {77}
