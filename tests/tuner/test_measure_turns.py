"""Blocks by turns: what is measured, in what order it is kept, and what becomes of failures."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from hztune import artifacts
from hztune.blocks import Arm
from hztune.errors import HztuneError
from hztune.measure import disturbance, turns
from hztune.store import Evidence, Sink
from hztune.workload import WorkloadSpec

from .conftest import put
from .measured import FIRST, WantsLibrary

SPEC = WorkloadSpec("larson", "", (), threads=2)
DEFAULT = Arm("hz")
REFUSED = Arm.of("any", {"knob": -1})
TEMPO = turns.Tempo(turn_ms=20, skip_ms=2, warmup_ms=300)


ENDINGS = {
    "ok": (0, 0), "crash": (11, 0), "hang": (9, 0), "oom": (9, 0), "rejected": (0, 78),
    "failed": (0, 3),
}  # fmt: skip
TURN = {
    "cpu_ns": 36_000_000, "involuntary": 1, "steal_ticks": 0, "psi_us": 0, "rss_kb": 5000,
    "minor_faults": 0, "live_kb": 4000, "counted_ns": 18_000_000,
}  # fmt: skip
EXIT = {"rss_peak_kb": 6000, "minor_faults": 1, "cpu_s": 0.1}


class Conductor:
    """Stands for the process of hz-turns: the same command and events, and no arm is started.

    Attributes:
        plans: What the arm of a key does.
        is_lost: Whether the conductor itself fails.
    """

    plans, is_lost = None, False

    def __init__(self, command, env):
        self.options, self.arms, self.base = {}, defaultdict(dict), env
        at = command.index("--")
        self.program, words = command[at + 1 :], iter(command[2:at])  # behind --ask
        for name, value in zip(words, words, strict=True):
            if name == "--arm":
                arm = self.arms[value]
            elif name == "--env":
                key, _, arm[key] = value.partition("=")
            else:
                self.options[name] = value

    def lines(self, silence_s):
        alive = [*self.arms]
        for key in alive:
            yield self.told("start", key, pid=1000 + int(key))
        if self.is_lost:
            return
        done, self.wanted = 0, int(self.options["--rounds"])
        while done < self.wanted and alive:
            for position, key in enumerate([*alive]):
                if done == self.plan(key).get("ends_in_round"):
                    alive.remove(key)
                    yield self.end(key, self.plan(key)["status"])
                else:
                    yield self.turn(key, done, position)
            done += 1
            if done == self.wanted and alive:
                yield json.dumps({"event": "rounds", "done": done})
        for key in alive:
            yield self.end(key, "ok")

    def plan(self, key):
        return self.plans.get(key, {})

    def told(self, event, key, **fields):
        return json.dumps({"event": event, "arm": key, **fields})

    def turn(self, key, number, position):
        fields = {**TURN, "ops": self.plan(key).get("ops", 1000)}
        fields |= self.plan(key).get("rounds", {}).get(number, {})
        begin = {"round": number, "position": position, "start_ns": time.monotonic_ns()}
        return self.told("turn", key, **begin, **fields)

    def end(self, key, status):
        plan, (signal, code) = self.plan(key), ENDINGS[status]
        result = {"live_peak_kb": 4000, "hz": {"counters": {"refills": 7}}}
        result["allocator"] = {"path": plan.get("library", "/lib/right")}
        printed = json.dumps(plan.get("result", result)) if status == "ok" else None
        ended = {"status": status, "signal": signal, "code": code, "result": printed, **EXIT}
        return self.told("exit", key, **ended, stderr=plan.get("stderr", ""))

    def send(self, line):
        word, _, count = line.partition(" ")
        self.wanted += int(count) if word == "more" else 0

    def finish(self, grace_s):
        return SimpleNamespace(ok=not self.is_lost, describe=lambda: "ended: no turn page")


class Stage:
    """An executor on the double of hz-turns."""

    def __init__(self):
        self.proof, self.sink, self.played = WantsLibrary(), Mock(spec=Sink), []

    def executor(self, seed=1):
        return turns.TurnExecutor(SPEC, self.sink, seed=seed, tempo=TEMPO, identity=self.proof)

    def measure(self, *arms, rounds=6, number=0, seed=1, **plans):
        """Measures a block in which the arm at i does what `arm_i` says."""
        Conductor.plans = {name.removeprefix("arm_"): plan for name, plan in plans.items()}
        return self.executor(seed).measure(arms, role="search", rounds=rounds, number=number)

    @property
    def kept(self):
        """What the sink was given, in order."""
        return [name for name, *_ in self.sink.mock_calls]


@pytest.fixture
def stage(monkeypatch):
    made = Stage()

    def play(command, env, stdin):
        made.played.append(Conductor(command, env))
        return nullcontext(made.played[-1])

    monkeypatch.setattr(turns, "Child", play)
    monkeypatch.setattr(artifacts, "bench", lambda: Path("/opt/hz-bench"))
    return made


def test_every_arm_gets_its_rounds_its_rate_and_its_own_variables(stage):
    plans = {"arm_0": {"ops": 900}, "arm_1": {"ops": 1800}, "arm_2": {"ops": 900}}
    block = stage.measure(DEFAULT, FIRST, DEFAULT, **plans)
    found = [(each.arm, each.status, len(each.turns), each.ops_per_s) for each in block.outcomes]
    once = (DEFAULT, "ok", 6, pytest.approx(50_000))
    assert found == [once, (FIRST, "ok", 6, pytest.approx(100_000)), once]
    control = block.control
    assert (control.rss_peak_kb, control.live_kb, control.counters) == (6000, 4000, {"refills": 7})
    (played,) = stage.played
    assert set(played.arms["0"]) == {"HZTUNE_PADDING"}
    assert played.arms["1"]["KNOB_knob"] == "1" and "KNOB_knob" not in played.base
    assert played.program[:2] == ["/opt/hz-bench", "larson"]
    paddings = {len(environment["HZTUNE_PADDING"]) for environment in played.arms.values()}
    assert len(paddings) == 3


def test_a_block_repeats_with_its_seed_and_differs_from_the_others(stage):
    found = []
    for seed, number in ((1, 0), (1, 0), (1, 1), (2, 0)):
        stage.measure(DEFAULT, seed=seed, number=number)
        played = stage.played[-1]
        of_bench = played.program[played.program.index("--seed") + 1]
        found.append({played.options["--seed"], of_bench})
    assert found[0] == found[1]
    assert not found[0] & (found[2] | found[3])


LAST = {"ends_in_round": 2, "stderr": "first\nlast words\n"}
WRONG = {
    **{
        word: ({"status": word, **LAST}, "last words")
        for word in ("crash", "hang", "oom", "rejected", "failed")
    },
    "wrong_allocator": ({"library": "/lib/libc.so.6"}, ""),
    "wrong_config": ({"stderr": "wrong config"}, ""),
    "bad_output": ({"result": None}, "printed no result"),
}


@pytest.mark.parametrize("status", WRONG)
def test_a_failing_arm_is_typed_and_the_others_go_on(stage, status):
    plan, detail = WRONG[status]
    block = stage.measure(DEFAULT, FIRST, REFUSED, arm_1=plan)
    found = [(outcome.status, outcome.ops_per_s > 0.0) for outcome in block.outcomes]
    assert found == [("ok", True), (status, False), ("rejected", False)]
    assert block.outcomes[1].detail.endswith(detail)
    assert block.outcomes[2].detail == "knob is below its range"
    assert [*stage.played[-1].arms] == ["0", "1"]


def test_what_completes_nothing_is_no_measurement_and_a_crash_names_its_signal(stage):
    crashed = {"status": "crash", "ends_in_round": 0}
    block = stage.measure(DEFAULT, DEFAULT, arm_0={"ops": 0}, arm_1=crashed)
    assert [each.status for each in block.outcomes] == ["bad_output", "crash"]
    assert block.outcomes[1].detail == "ended by SIGSEGV"
    block = stage.measure(REFUSED, REFUSED)
    assert [outcome.status for outcome in block.outcomes] == ["rejected", "rejected"]
    assert len(stage.played) == 1  # nothing more is started


# ---- disturbances --------------------------------------------------------------------------------


def stolen(*rounds):
    """What an arm does whose turns were disturbed in these rounds."""
    return {"ops": 900, "rounds": {n: {"steal_ticks": 3, "ops": 1} for n in rounds}}


PLAYED = [([2, 4], 8), (range(100), 6), ([0, 1, *range(6, 100)], 10)]


@pytest.mark.parametrize(("disturbed", "played"), PLAYED)
def test_disturbed_rounds_are_repeated_until_most_are_and_do_not_enter_the_rate(
    disturbed, played, stage
):
    block = stage.measure(DEFAULT, FIRST, arm_1=stolen(*disturbed))
    assert [len(outcome.turns) for outcome in block.outcomes] == [played, played]
    marked = [turn.round for turn in block.outcomes[1].turns if turn.disturbed == "steal"]
    assert marked == [number for number in disturbed if number < played]
    rate = 1.0 / 0.018 if played == 6 else 50_000  # where all are disturbed, all count
    assert block.outcomes[1].ops_per_s == pytest.approx(rate)
    assert len(stage.played) == 1  # in the same processes


# ---- what is kept, and what it took --------------------------------------------------------------


def test_turns_are_kept_as_they_come_and_outcomes_after_them(stage):
    stage.measure(DEFAULT, FIRST, rounds=2)
    assert stage.kept == ["begin", *["turn"] * 4, *["outcome"] * 2, "end"]
    assert {call.args[:2] for call in stage.sink.turn.mock_calls} == {(0, 1000), (1, 1001)}
    stage.sink = Mock(spec=Sink, **{"turn.side_effect": [None, KeyboardInterrupt]})
    with pytest.raises(KeyboardInterrupt):
        stage.measure(DEFAULT)
    assert stage.kept == ["begin", "turn", "turn"]


def test_a_conductor_that_fails_is_our_error_not_the_arms(stage, monkeypatch):
    """Of one that falls silent `Child` tells (test_process.py)."""
    monkeypatch.setattr(Conductor, "is_lost", True)
    with pytest.raises(HztuneError, match="hz-turns ended: no turn page"):
        stage.measure(DEFAULT, rounds=3)
    assert stage.kept == ["begin"]


def test_the_accounts_add_up(stage):
    executor = stage.executor()
    assert executor.cost(2, 10) == pytest.approx(2 * (0.3 + 10 * 0.02))  # nothing is known yet
    Conductor.plans = {"1": stolen(2, 4)}
    for pair in range(2):
        executor.measure([DEFAULT, FIRST], role="aa", rounds=6, number=pair)
    spent = executor.accounting
    assert (spent.turns, spent.disturbed) == (32, 4)
    assert spent.measured_s == pytest.approx(32 * 0.018)
    assert spent.warmup_s > 32 * 0.002


def test_a_crowd_of_threads_gets_longer_turns_of_which_a_tenth_is_skipped():
    tempos = [
        turns.tempo_for(WorkloadSpec("larson", "", (), threads), rss_limit_mb=77)
        for threads in (1, 2, 8, 32, 128, 4096)
    ]
    lengths = [tempo.turn_ms for tempo in tempos]
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (20.0, 120.0)
    assert [tempo.skip_ms for tempo in tempos] == pytest.approx([0.1 * each for each in lengths])
    assert {tempo.rss_limit_mb for tempo in tempos} == {77}


# ---- what disturbs a turn from outside: it is never judged by how fast it was --------------------

TURN_NS = 18_000_000
QUIET = Evidence(cpu_ns=2 * TURN_NS, involuntary=2, pressure_us=900)
SECOND_NS = 1_000_000_000
WAITING = 400_000
"""Microseconds of a second in which a process waited for a CPU."""

CAUSES = {
    "a quiet turn": (QUIET, 2, TURN_NS, ""),
    "a tick of steal": (Evidence(steal_ticks=1), 2, TURN_NS, "steal"),
    "a sleep": (Evidence(suspended_ns=10**9), 2, TURN_NS, "suspend"),
    "two at once": (Evidence(steal_ticks=2, suspended_ns=10**9), 2, TURN_NS, "suspend,steal"),
    "pressure": (Evidence(pressure_us=16_000), 2, TURN_NS, "pressure"),
    "pressure of its own threads": (Evidence(pressure_us=18_000), 32, TURN_NS, ""),
    "a quota": (Evidence(throttled_us=2_000), 2, TURN_NS, "throttled"),
    "a crowd waits": (Evidence(pressure_us=WAITING, others_us=60_000), 3, SECOND_NS, ""),
    "others have its CPUs": (
        Evidence(pressure_us=WAITING, others_us=150_000), 3, SECOND_NS, "pressure",
    ),
    "own threads that are not the workload's": (
        Evidence(cpu_ns=2 * TURN_NS, pressure_us=16_000), 2, TURN_NS, "",
    ),
    "few ticks of others": (Evidence(pressure_us=90_000, others_us=45_000), 3, 10**8, ""),
}  # fmt: skip


@pytest.mark.parametrize(("evidence", "threads", "length_ns", "cause"), CAUSES.values(), ids=CAUSES)
def test_what_disturbs_a_turn_from_outside_is_named(evidence, threads, length_ns, cause):
    assert disturbance.causes(evidence, length_ns, threads, cores=2) == cause


GROUPS = {
    "version 2": ("0::/box/inner\n", "", "throttled_usec 700"),
    "version 1": ("3:cpu,cpuacct:/box/inner\n", "cpu", "throttled_time 700999"),
}


@pytest.mark.parametrize(("line", "controller", "time"), GROUPS.values(), ids=GROUPS)
def test_throttling_is_read_from_the_group_and_those_above_it(line, controller, time, tmp_path):
    group = f"sys/fs/cgroup/{controller}"
    files = {
        "proc/self/cgroup": line,
        f"{group}/box/inner/cpu.stat": f"nr_periods 9\nnr_throttled 2\n{time}\n",
        f"{group}/box/cpu.stat": f"nr_periods 9\nnr_throttled 3\n{time}\n",
        f"{group}/cpu.stat": "usage_usec 5\n",  # the root counts none
    }
    counts = disturbance.throttle_counts(put(tmp_path, files))
    assert disturbance.throttled(counts) == (5, 1400)
    put(tmp_path, {f"{group}/box/inner/cpu.stat": "nr_throttled 3\nthrottled_usec 1000\n"})
    assert disturbance.throttled(counts) == (6, 1700)


COUNTED = {
    "it was others": ("cpu 10 0 0 0", "cpu 30 2 10 900", 0.0, 320_000),
    "it was the program": ("cpu 10 0 0 0", "cpu 40 0 2 900", 0.3, 20_000),
    "nothing is counted": ("", "", 0.0, 0),
}


@pytest.mark.parametrize("name", COUNTED)
def test_the_time_of_others_is_what_the_machine_was_busy_without_us(name, monkeypatch):
    before, after, own_s, expected = COUNTED[name]
    lines = iter([before, after])
    times = iter([0.0, 0.0, 0.0, own_s])  # of this process, and of its children
    monkeypatch.setattr(
        disturbance, "cpu_ticks", lambda: [*map(int, next(lines).split()[1:]), *[0] * 8]
    )
    monkeypatch.setattr(
        disturbance.resource,
        "getrusage",
        lambda who: SimpleNamespace(ru_utime=next(times), ru_stime=0.0),
    )
    watch = disturbance.Watch()
    assert watch.passed()["others_us"] == expected
