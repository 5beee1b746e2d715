"""Whole programs: timed, counterbalanced, bounded, and judged by what they print."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hztune.allocator.live import Running
from hztune.blocks import Outcome, Turn, joined
from hztune.errors import HztuneError, UsageError
from hztune.machine import Machine
from hztune.measure import Accounting, Arm, Block, SeveralExecutor, launch, whole
from hztune.measure.disturbance import Watch
from hztune.measure.executors import ProgramExecutor, executor_for
from hztune.measure.identity import Fault
from hztune.measure.launch import Run, report_of
from hztune.measure.program import Metric, Program, bench_program
from hztune.measure.whole import Part, RunExecutor
from hztune.store import Evidence
from hztune.store.log import LocalStudy, recording
from hztune.workload import WorkloadSpec

pytestmark = pytest.mark.usefixtures("quiet_machine")

CONTROL = Arm("none")
FIRST = Arm.of("any", {"knob": 1})
SECOND = Arm.of("any", {"knob": 2})
IMPORTS = "import os, signal, sys, time\n"
SOON_S = 0.5


class OpenProof:
    """Lets every arm run; its parameters become variables, and its processes may be refused."""

    base = {"PATH": os.environ["PATH"]}  # noqa: RUF012

    def prepare(self, arm: Arm) -> dict[str, str] | Fault:
        if arm.config.get("knob") == -1:
            return Fault("rejected", "knob is below its range")
        return {f"KNOB_{name}": str(value) for name, value in arm.params}

    def program(self, arm: Arm) -> Path | None:
        return None

    def inspect(self, arm: Arm, running: Running) -> Fault | None:
        return None

    def judge(self, arm: Arm, library: str, stderr: str) -> Fault | None:
        if "wrong library" in stderr:
            return Fault("wrong_allocator", f"malloc comes from {library}")
        return Fault("wrong_config", "it says so") if "wrong config" in stderr else None


def python(code: str, **options: Any) -> Program:
    argv = (sys.executable, "-I", "-S", "-c", IMPORTS + code)
    return Program(argv, **{"timeout_s": 60.0, **options})


def executor(program: Program, sink: LocalStudy | None = None, warmups: int = 0) -> RunExecutor:
    return RunExecutor(program, sink, seed=1, identity=OpenProof(), warmups=warmups)


def measure(program: Program, *arms: Arm, rounds: int = 1, number: int = 0) -> Block:
    return executor(program).measure(arms or [CONTROL], role="search", rounds=rounds, number=number)


class WantsLibrary(OpenProof):
    """Every arm must be seen with one library."""

    def judge(self, arm: Arm, library: str, stderr: str) -> Fault | None:
        return None if library == "/lib/right" else Fault("wrong_allocator", f"{library or 'none'}")


class Unseen(RunExecutor):
    """An executor whose runs are made up: they show these libraries; "" was over too early."""

    libraries: Sequence[str] = ()

    def _play(self, parts: list[Part], *more: Any) -> float:
        (part,) = parts
        for number, library in enumerate(self.libraries):
            rate = self._rate(part, Run(None, wall_s=1.0, library=library))
            if isinstance(rate, Fault):
                part.fault = rate
                break
            self._enter(0, part, Run(None), Turn(number, 0, 0, 10**9, rate), Evidence())
        return 0.0

    def take(self, *libraries: str) -> Outcome:
        self.libraries = libraries
        return self.measure([CONTROL], role="aa", rounds=1, number=0).control


def wants_library() -> Unseen:
    return Unseen(python("pass"), seed=1, identity=WantsLibrary())


@pytest.mark.parametrize(
    ("libraries", "status", "detail"),
    [
        (["", "/lib/right", ""], "ok", ""),
        (["", "", ""], "wrong_allocator", "none"),
        (["", "/lib/wrong"], "wrong_allocator", "/lib/wrong"),
        (["/lib/right", "/lib/wrong"], "wrong_allocator", "/lib/wrong"),
    ],
)
def test_a_run_that_is_over_before_its_allocator_is_seen_has_that_of_the_arms_other_runs(
    libraries: list[str], status: str, detail: str
) -> None:
    outcome = wants_library().take(*libraries)
    assert (outcome.status, outcome.detail) == (status, detail)


def test_what_was_seen_of_an_arm_in_one_block_holds_in_the_next_one() -> None:
    executor = wants_library()
    executor.seen[CONTROL] = "/lib/right"
    assert executor.take("").status == "ok"


def ran_for(seconds: float) -> Block:
    """A block as an earlier session measured it: two runs of the control, one after the other."""
    length_ns = round(1e9 * seconds)
    turns = tuple(Turn(number, 0, number * length_ns, length_ns, 1.0) for number in range(2))
    return Block(0, "search", (Outcome(CONTROL, "ok", "", 1.0 / seconds, turns),))


def test_a_program_is_timed_and_its_memory_measured(clock: str) -> None:
    block = measure(python("block = bytearray(64 << 20); time.sleep(0.05)"), rounds=2)
    outcome = block.control
    assert outcome.status == "ok"
    assert len(outcome.turns) == 2
    assert all(turn.counted_ns > 50_000_000 for turn in outcome.turns)
    assert all(turn.rate == pytest.approx(1e9 / turn.counted_ns) for turn in outcome.turns)
    assert outcome.rss_peak_kb > 64 << 10
    assert (launch.hyperfine() is not None) == (clock == "hyperfine")


def test_a_peak_is_no_lower_than_what_was_seen_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = WorkloadSpec.from_text("burst-idle", ["idle=0", "blocks=20000"], threads=1)
    once = whole.time_once
    monkeypatch.setattr(
        whole, "time_once", lambda *args, **named: replace(once(*args, **named), rss_peak_kb=1)
    )
    outcome = measure(bench_program(spec, seconds=0.05)).control
    assert outcome.rss_peak_kb == outcome.facts["rss_idle_kb"]


HOLDS = "block = b'x' * (int(os.environ.get('KNOB_knob', {control})) << 20); time.sleep(0.1)"
"""Takes as many MiB as its knob says, and a few for itself."""

MEMORY = {
    "a candidate may take most of the memory": (10, 120, "ok"),
    "one that takes all that a greedy program leaves is ended": (170, 400, "oom"),
}


@pytest.mark.parametrize("name", MEMORY)
def test_a_candidate_gets_most_of_the_memory_and_a_greedy_control_all_it_takes(name: str) -> None:
    control_mb, candidate_mb, status = MEMORY[name]
    program = python(HOLDS.format(control=control_mb))
    player = RunExecutor(program, seed=1, identity=OpenProof(), warmups=0, memory_mb=200)
    player.measure([CONTROL, CONTROL], role="aa", rounds=1, number=0)
    candidate = Arm.of("any", {"knob": candidate_mb})
    block = player.measure([CONTROL, candidate], role="search", rounds=1, number=1)
    assert [outcome.status for outcome in block.outcomes] == ["ok", status]


@pytest.mark.parametrize(("control_mb", "limit_mb"), [(10, 160), (170, 185), (0, 160)])
def test_where_the_control_runs_a_candidate_that_takes_no_more_must_run_too(
    control_mb: int, limit_mb: int
) -> None:
    player = RunExecutor(python("pass"), seed=1, identity=OpenProof(), memory_mb=200)
    player.recall([Block(0, "aa", (Outcome(CONTROL, "ok", rss_peak_kb=control_mb << 10),))])
    parts = player._parts_of([CONTROL, FIRST])
    assert [player._own(part).rss_limit_mb for part in parts] == [0, limit_mb]


def test_the_memory_is_that_of_the_machine_or_of_its_control_group() -> None:
    boxed = replace(Machine.here(), memory_gib=64, memory_limit_kb=500 << 10)
    for machine, limit_mb in ((boxed, 400), (replace(boxed, memory_limit_kb=None), 52_429)):
        player = executor_for([Program(("true",))], seed=1, machine=machine, identity=OpenProof())
        assert isinstance(player, ProgramExecutor)
        _, part = player._runs._parts_of([CONTROL, FIRST])
        assert player._runs._own(part).rss_limit_mb == limit_mb


def test_the_memory_of_its_children_counts(clock: str) -> None:
    code = (
        "for _ in range(3):\n  if os.fork() == 0:\n"
        "    block = b'x' * (24 << 20); time.sleep(1); os._exit(0)\n"
        "for _ in range(3): os.wait()"
    )
    assert measure(python(code)).control.rss_peak_kb > 60 << 10


RATE = Metric(r"rate: (.*)/s")
NO_RATES = ("nan", "inf", "-3", "0", "1e999", "x", "")
METRICS: dict[str, tuple[Metric, str, float | str]] = {
    "a number": (RATE, "rate: 120.5/s", 120.5),
    "thousands": (RATE, "rate: 1,250/s", 1250.0),
    "the last of several": (RATE, "rate: 1e2/s\nrate: 1e3/s", 1000.0),
    "the first group": (Metric("(.)=(.)"), "4=x", 4.0),
    "less is better": (Metric(r"(\d+) ms", better="lower"), "4 ms", 0.25),
    **{f"is {text}": (RATE, f"rate: {text}/s", "the metric is") for text in NO_RATES},
    "nothing matches": (RATE, "done", "nothing it printed matches --metric-regex"),
    "a command counts": (Metric(command="wc -w"), "a b c", 3.0),
    "a command fails": (
        Metric(command="echo cannot read >&2; exit 4"),
        "",
        "--metric-cmd ended with exit status 4: cannot read",
    ),
}


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_a_number_above_zero_or_bad_output(name: str) -> None:
    metric, stdout, rate = METRICS[name]
    found = python("pass", rate=metric).measure(1.0, stdout)
    if isinstance(rate, float):
        assert found == pytest.approx(rate)
    else:
        assert isinstance(found, Fault) and found.status == "bad_output"
        assert rate in found.detail


def test_more_output_than_can_be_kept_is_bad_output() -> None:
    code = "for _ in range(100): os.write(1, b'x' * (1 << 20))"
    program = python(code, rate=Metric("(x)"))
    assert "more than 64 MiB" in measure(program).control.detail


def test_the_p99_of_a_workload_is_the_worse_one_of_malloc_and_free() -> None:
    program = bench_program(WorkloadSpec.from_text("lifo", threads=1).by("p99"))
    said = {"latency": {"malloc": {"p99_ns": 40}, "free": {"p99_ns": 80}}}
    assert program.measure(1.0, json.dumps(said)) == pytest.approx(1 / 80)
    assert program.measure(1.0, "{}") == Fault("bad_output", "hz-bench printed no latencies")


@pytest.mark.parametrize("pattern", ["(", "no group"])
def test_a_bad_metric_pattern_is_a_usage_error(pattern: str) -> None:
    with pytest.raises(UsageError, match="--metric-regex"):
        Metric(pattern)


def test_wrong_output_makes_a_configuration_infeasible() -> None:
    program = python("print(os.environ.get('KNOB_knob'))", check="grep -qv 2")
    block = measure(program, FIRST, SECOND)
    assert [outcome.status for outcome in block.outcomes] == ["ok", "bad_output"]


def test_preparation_and_cleanup_surround_every_run(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = python(
        f"open({str(log)!r}, 'a').write('run ')",
        prepare=f"printf 'prepare ' >> {log}",
        cleanup=f"echo cleanup >> {log}",
    )
    player = executor(program)
    player.measure([CONTROL, FIRST], role="search", rounds=2, number=0)
    assert log.read_text() == "prepare run cleanup\n" * 4
    assert 0.0 < player.accounting.hooks_s < player.accounting.wall_s


def test_commands_around_runs_that_take_more_than_a_third_of_the_time_are_told_of() -> None:
    assert Accounting(wall_s=3.0, hooks_s=0.9).remark == ""
    assert Accounting(wall_s=3.0, hooks_s=1.2).remark.startswith("40% of the time goes into")


def test_a_preparation_that_fails_stops_the_study_in_words() -> None:
    program = python("pass", prepare="echo no disk >&2; exit 9")
    with pytest.raises(HztuneError, match=r"--prepare .* ended with exit status 9: no disk"):
        measure(program)


def test_a_program_that_does_not_exist_is_a_usage_error(clock: str) -> None:
    with pytest.raises(UsageError, match="cannot run /no/such/program"):
        measure(Program(("/no/such/program",)))


@pytest.mark.parametrize(
    ("stderr", "code", "reason"),
    [
        ("busy\nhz-launch: no such file", 1, "no such file"),
        ("Failed to start transient scope unit: Access denied", 1, "Failed to start transient"),
        ("", 1, "it gave no reason"),
    ],
)
def test_what_keeps_a_program_from_its_start_is_the_reason(
    stderr: str, code: int, reason: str
) -> None:
    with pytest.raises(UsageError, match=f"cannot run ./app: {reason}"):
        report_of(Program(("./app",)), b"", stderr, code)


def test_no_word_of_a_program_that_killed_its_launcher_is_taken_for_the_launchers() -> None:
    assert report_of(Program(("./app",)), b"", "hz-launch: no such file", -9)["status"] == "lost"


def test_words_reach_the_program_as_they_are(clock: str, tmp_path: Path) -> None:
    words = ["", "two words", "quote's", 'double"', "dollar $HOME", "star*", "line\nbreak", "\\"]
    code = f"open({str(tmp_path / 'words')!r}, 'w').write(repr(sys.argv[1:]))"
    program = Program((*python(code).argv, *words))
    assert measure(program).control.status == "ok"
    assert (tmp_path / "words").read_text() == repr(words)


def test_words_that_are_no_utf8_reach_the_program_as_they_are(tmp_path: Path) -> None:
    program = tmp_path / "pr\udcff"
    program.symlink_to(sys.executable)
    code = "sys.exit(sys.argv[1] != chr(0xDCFE))"
    words = (str(program), "-I", "-S", "-c", IMPORTS + code, "\udcfe")
    assert measure(Program(words, timeout_s=60.0)).control.status == "ok"


def test_the_next_round_and_the_next_block_of_one_have_the_order_of_this_one_reversed() -> None:
    arms, player = [CONTROL, FIRST, SECOND], executor(python("pass"))
    block = player.measure(arms, role="search", rounds=4, number=0)
    orders = [[o.turns[number].position for o in block.outcomes] for number in range(4)]
    assert [sorted(order) for order in orders] == [[0, 1, 2]] * 4
    assert [[2 - place for place in orders[at]] for at in (0, 2)] == [orders[1], orders[3]]
    orders = []
    for pair, role in enumerate(["search", "confirm"] * 4):
        block = player.measure(arms, role=role, rounds=1, number=pair)
        orders.append([outcome.turns[0].position for outcome in block.outcomes])
    assert [[2 - place for place in order] for order in orders[::2]] == orders[1::2]
    assert len(set(map(tuple, orders))) > 2  # it is still drawn
    resumed = executor(python("pass")).measure(arms, role="search", rounds=1, number=5)
    assert [outcome.turns[0].position for outcome in resumed.outcomes] == orders[5]


def disturbed_by(monkeypatch: pytest.MonkeyPatch, *causes: str) -> None:
    """Switches the judge on again: it finds these causes, one a run, and then none."""
    found = iter(causes)
    monkeypatch.setattr(whole.DisturbanceRule, "causes", lambda *args: next(found, ""))


def test_a_disturbed_run_of_a_block_with_one_round_is_repeated_and_counts_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disturbed_by(monkeypatch, "", "steal")
    player = executor(python("time.sleep(0.02)"))
    block = player.measure([CONTROL, FIRST], role="search", rounds=1, number=0)
    spoilt, other = sorted(block.outcomes, key=lambda outcome: -outcome.turns[0].position)
    assert [turn.disturbed for turn in spoilt.turns] == ["steal", ""]
    assert [turn.disturbed for turn in other.turns] == ["", ""]
    assert spoilt.ops_per_s == pytest.approx(spoilt.turns[1].rate)
    assert (player.accounting.turns, player.accounting.disturbed) == (4, 1)


CAUSES = {
    "always disturbed": (["pressure"] * 9, [2, 1, 1, 1, 1]),
    "calm again": (["steal", "steal", "", "", "", "steal", ""], [2, 1, 1, 1, 2]),
}


@pytest.mark.parametrize("name", CAUSES)
def test_a_machine_that_is_always_disturbed_repeats_one_block_and_goes_on(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    causes, runs = CAUSES[name]
    disturbed_by(monkeypatch, *causes)
    player = executor(python("pass"))
    blocks = [player.measure([CONTROL], role="search", rounds=1, number=n) for n in range(5)]
    assert [len(block.control.turns) for block in blocks] == runs
    assert all(block.control.ok and block.control.ops_per_s > 0.0 for block in blocks)


def test_what_happens_during_a_preparation_or_a_cleanup_disturbs_no_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    class Watching(Watch):
        def __init__(self) -> None:
            super().__init__()
            done.append("watch")

        def passed(self) -> dict[str, int]:
            done.append("stop")
            return super().passed()

    monkeypatch.setattr(whole, "Watch", Watching)
    monkeypatch.setattr(whole, "hook", lambda option, command, environment: done.append(option))
    measure(python("pass"))
    assert done == ["--prepare", "watch", "stop", "--cleanup"]


def test_an_arm_that_failed_is_not_run_again_and_the_others_go_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        f"knob = os.environ.get('KNOB_knob', '-')\nopen({str(log)!r}, 'a').write(knob)\n"
        "if knob == '1': os.abort()"
    )
    block = measure(python(code), CONTROL, FIRST, Arm.of("any", {"knob": -1}), rounds=3)
    assert [outcome.status for outcome in block.outcomes] == ["ok", "crash", "rejected"]
    assert [len(outcome.turns) for outcome in block.outcomes] == [3, 0, 0]
    assert sorted(log.read_text()) == ["-", "-", "-", "1"]


def test_what_hz_says_of_itself_is_not_why_a_program_failed() -> None:
    (failed,) = measure(python("raise SystemExit(7)"), Arm("hz")).outcomes
    assert (failed.status, failed.detail) == ("failed", "exit status 7")


def test_once_the_usual_time_is_known_a_far_slower_run_is_a_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(whole, "_LEAST_TIMEOUT_S", SOON_S)
    monkeypatch.setattr(whole, "_SLOWEST", 1.0)
    player = executor(python("if 'KNOB_knob' in os.environ: time.sleep(3600)"))
    player.measure([CONTROL], role="aa", rounds=1, number=0)
    block = player.measure([CONTROL, FIRST], role="search", rounds=1, number=1)
    assert [outcome.status for outcome in block.outcomes] == ["ok", "hang"]
    assert block.outcomes[1].detail == f"it did not end within {SOON_S:.3g} s"  # no --timeout helps


def test_warm_ups_are_run_once_and_not_counted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    player = executor(python(f"open({str(log)!r}, 'a').write('x')"), warmups=2)
    for pair in range(2):
        player.measure([CONTROL], role="aa", rounds=1, number=pair)
    assert log.read_text() == "x" * 4
    assert player.accounting.turns == 2
    assert player.accounting.warmup_s > 0


@pytest.mark.parametrize("by", ["turns", "runs"])
def test_a_control_that_hangs_before_it_is_measured_is_run_once(by: str, tmp_path: Path) -> None:
    """Each run would take as long: an hour passes before a study has tried them all."""
    log = tmp_path / "log"
    program = python(
        f"open({str(log)!r}, 'a').write('x'); time.sleep(3600)", timeout_s=SOON_S, by=by
    )
    if by == "runs":
        player: Any = executor(program, warmups=3)
    else:
        player = executor_for(
            [replace(program, by="")], seed=1, machine=Machine.here(), identity=OpenProof()
        )
    copies = player.measure([CONTROL, CONTROL], role="aa", rounds=2, number=0)
    assert player.cost(2, 1) == 0.0  # the study ends by this reason, and not for want of time
    block = player.measure([CONTROL, FIRST], role="search", rounds=1, number=1)
    found = [outcome.status for outcome in (*copies.outcomes, *block.outcomes)]
    assert found == ["hang", "hang", "hang", "failed"]
    why = f"it did not end within {SOON_S:.3g} s; --timeout gives a run more"
    assert why in copies.control.detail
    assert block.outcomes[1].detail == "it was not run: the control hangs"
    assert log.read_text() == "x"


def test_the_expected_cost_follows_what_runs_have_taken_now_or_before() -> None:
    player = executor(python("time.sleep(0.2)"))
    assert player.cost(2, 3) == 6.0
    player.measure([CONTROL], role="aa", rounds=2, number=0)
    assert player.cost(2, 3) > 1.2
    hung = Block(0, "search", (Outcome(CONTROL, "hang"),))
    resumed = executor(python("pass"))
    resumed.recall([ran_for(0.1), ran_for(0.1), ran_for(0.3), hung])
    assert resumed.cost(2, 3) == pytest.approx(0.6)


def test_each_of_several_programs_learns_from_its_own_runs() -> None:
    players = [executor(python("pass")) for _ in range(2)]
    both = SeveralExecutor([(str(at), lambda sink, at=at: players[at]) for at in range(2)])
    both.recall([joined([ran_for(0.1), ran_for(2.0)], ["a", "b"])])
    assert [player.cost(1, 1) for player in players] == pytest.approx([0.1, 2.0])


def test_what_the_store_replays_is_what_was_measured(tmp_path: Path) -> None:
    program = python("if os.environ.get('KNOB_knob') == '2': os.abort()")
    with LocalStudy(tmp_path, {}, Machine.here()) as store:
        arms = [CONTROL, FIRST, SECOND]
        measured = executor(program, store).measure(arms, role="search", rounds=2, number=0)
    assert recording(tmp_path).blocks == (measured,)


FORMATS: dict[str, tuple[str, float | str]] = {
    "version 1": ('{"results": [{"mean": 0.5, "stddev": null, "times": [0.25]}]}', 0.25),
    "version 2": (
        '{"schema_version": 2, "results": [{"measurements": '
        '[{"time_wall_clock": {"value": 250, "unit": "ms"}}]}]}',
        0.25,
    ),
    "version 3": (
        '{"schema_version": 3, "results": [{}]}',
        "hyperfine exports schema 3, and hztune knows 1 and 2",
    ),
    "torn": ('{"results": [{"mean"', r"make room there, or .* TMPDIR"),
    "empty": ("", r"make room there, or .* TMPDIR"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_both_formats_of_hyperfine_are_read_and_no_other(name: str, tmp_path: Path) -> None:
    export = tmp_path / "times.json"
    text, found = FORMATS[name]
    export.write_text(text)
    if isinstance(found, float):
        assert launch._hyperfine_s(export) == pytest.approx(found)
    else:
        with pytest.raises(HztuneError, match=found):
            launch._hyperfine_s(export)
