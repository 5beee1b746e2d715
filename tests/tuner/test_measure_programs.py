"""Whole programs, by runs and by turns: timed, bounded, judged by what they print or keep."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from hztune import process
from hztune.blocks import COMMAND, Arm, Block, Outcome, Turn, joined
from hztune.errors import HztuneError, OutOfTime, UsageError
from hztune.machine import Machine
from hztune.measure import SeveralExecutor, disturbance, launch, server, watch, whole
from hztune.measure.alternate import BY_TURNS, Pace, without_strangers
from hztune.measure.disturbance import Watch
from hztune.measure.examine import Finding, Tryout
from hztune.measure.executors import ProgramExecutor, executor_for
from hztune.measure.identity import Fault
from hztune.measure.launch import Run, report_of
from hztune.measure.program import Metric, Program
from hztune.measure.turns import bench_program
from hztune.rests import RestPlan
from hztune.store.log import LocalStudy, recording
from hztune.workload import WorkloadSpec

from . import measured
from .measured import BUSY, CONTROL, FIRST, SECOND, OpenProof, by_runs, by_turns, executor, python

pytestmark = pytest.mark.usefixtures("quiet_machine")


def logs(path, code="pass"):
    """Code that notes its knob in a file."""
    return f"open({str(path)!r}, 'a').write(os.environ.get('KNOB_knob', '-'))\n{code}"


# ---- what a run shows ----------------------------------------------------------------------------


def test_a_run_too_short_for_its_allocator_to_be_seen_has_that_of_the_other_runs(monkeypatch):
    """A run that was over too early shows no library."""
    player = executor(python("pass"), identity=measured.WantsLibrary())
    for libraries, status, detail in (
        (["", "", ""], "wrong_allocator", "none"),
        (["", "/lib/wrong"], "wrong_allocator", "/lib/wrong"),
        (["/lib/right", "/lib/wrong"], "wrong_allocator", "/lib/wrong"),
        (["", "/lib/right", ""], "ok", ""),
        ([""], "ok", ""),  # it was seen in an earlier block
    ):
        runs = (Run(None, wall_s=1.0, library=library) for library in libraries)
        monkeypatch.setattr(server, "time_once", lambda unit, runs=runs: next(runs))
        found = player.measure([CONTROL], role="aa", rounds=len(libraries), number=0).control
        assert (found.status, found.detail) == (status, detail)
        if status != "ok":
            player.seen.clear()


def test_a_program_is_timed_and_the_memory_of_its_children_counts(clock):
    code = (
        "for _ in range(3):\n  if os.fork() == 0:\n"
        "    block = b'x' * (24 << 20); time.sleep(0.3); os._exit(0)\n"
        "for _ in range(3): os.wait()"
    )
    outcome = by_runs(python(code), rounds=2).control
    assert (outcome.status, len(outcome.turns)) == ("ok", 2)
    assert all(turn.counted_ns > 300_000_000 for turn in outcome.turns)
    assert all(turn.rate == pytest.approx(1e9 / turn.counted_ns) for turn in outcome.turns)
    assert outcome.rss_peak_kb > 60 << 10
    assert (launch.hyperfine() is not None) == (clock == "hyperfine")


def test_a_run_by_turns_is_a_turn_of_its_own_time():
    block = by_turns(python(BUSY), CONTROL, FIRST, SECOND, rounds=2)
    for outcome in block.outcomes:
        assert outcome.status == "ok" and BY_TURNS in outcome.facts
        assert [turn.round for turn in outcome.turns] == [0, 1]
        assert all(turn.counted_ns > 0.1e9 for turn in outcome.turns)
        assert all(turn.rate == pytest.approx(1e9 / turn.counted_ns) for turn in outcome.turns)
        assert outcome.rss_peak_kb > 1024
    assert sorted(outcome.turns[0].position for outcome in block.outcomes) == [0, 1, 2]


def test_what_other_programs_took_of_turns_is_left_out_where_it_is_known_of_all_arms():
    for threads, own_s in (([1, 1], 0.75), ([1, 2], 1.0)):
        run = Run(None, wall_s=1.0, delay_s=0.25, processes=1)  # others took a quarter
        runs = [replace(run, threads=each) for each in threads]
        assert [each.wall_s for _, each in without_strangers([*enumerate(runs)])] == [own_s, own_s]


def test_a_peak_is_no_lower_than_what_was_seen_at_rest(monkeypatch):
    spec = WorkloadSpec.from_text("burst-idle", ["idle=0", "blocks=20000"], 1)
    once = server.time_once
    monkeypatch.setattr(server, "time_once", lambda unit: replace(once(unit), rss_peak_kb=1))
    outcome = by_runs(bench_program(spec, seconds=0.05)).control
    assert outcome.rss_peak_kb == outcome.facts["rss_idle_kb"]


def test_where_the_control_runs_a_candidate_that_takes_no_more_must_run_too():
    for control_mb, limit_mb in ((10, 160), (170, 185), (0, 160)):
        player = executor(python("pass"), memory_mb=200)
        player.recall([Block(0, "aa", (Outcome(CONTROL, "ok", rss_peak_kb=control_mb << 10),))])
        parts = player._parts_of([CONTROL, FIRST])
        assert [player._own(part).rss_limit_mb for part in parts] == [0, limit_mb]
    boxed = replace(Machine.here(), memory_gib=64, memory_limit_kb=500 << 10)
    for machine, limit_mb in ((boxed, 400), (replace(boxed, memory_limit_kb=None), 52_429)):
        made = executor_for([Program(("true",))], seed=1, machine=machine, identity=OpenProof())
        _, part = made._parts_of([CONTROL, FIRST])
        assert made._own(part).rss_limit_mb == limit_mb


RATE = Metric(r"rate: (.*)/s")
NO_RATES = ("nan", "inf", "-3", "0", "1e999", "x", "")
METRICS = {
    "a number": (RATE, "rate: 120.5/s", 120.5),
    "thousands": (RATE, "rate: 1,250/s", 1250.0),
    "a comma for a point": (RATE, "rate: 9,95/s", "the metric is no number: '9,95'"),
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


@pytest.mark.parametrize(("metric", "stdout", "rate"), METRICS.values(), ids=METRICS)
def test_a_metric_is_a_number_above_zero_or_bad_output(metric, stdout, rate):
    found = python("pass", rate=metric).measure(1.0, stdout)
    if isinstance(rate, float):
        assert found == pytest.approx(rate)
    else:
        assert isinstance(found, Fault) and found.status == "bad_output"
        assert rate in found.detail


def test_the_p99_of_a_workload_is_the_worse_one_of_malloc_and_free():
    program = bench_program(WorkloadSpec.from_text("lifo", threads=1).by("p99"))
    said = {"latency": {"malloc": {"p99_ns": 40}, "free": {"p99_ns": 80}}}
    assert program.measure(1.0, json.dumps(said)) == pytest.approx(1 / 80)
    assert program.measure(1.0, "{}") == Fault("bad_output", "hz-bench printed no latencies")


@measured.WAYS
def test_an_arm_that_failed_is_not_run_again_and_the_others_go_on(measure, tmp_path):
    """By a crash, by a refused configuration, or by wrong output."""
    log, refused = tmp_path / "log", replace(SECOND, params=(("knob", -1),))
    program = python(
        logs(log, "if os.environ.get('KNOB_knob') == '1': os.abort()\nprint(os.environ)"),
        check="! grep -q \"KNOB_knob': '2\"",
    )
    block = measure(program, CONTROL, FIRST, SECOND, refused, rounds=3)
    found = [(each.status, len(each.turns)) for each in block.outcomes]
    assert found == [("ok", 3), ("crash", 0), ("bad_output", 0), ("rejected", 0)]
    assert "SIGABRT" in block.outcomes[1].detail
    assert sorted(log.read_text())[:4] == ["-", "-", "-", "1"]


# ---- what surrounds a run ------------------------------------------------------------------------


def test_preparation_and_cleanup_surround_every_run_or_the_runs_of_a_round(tmp_path):
    log = tmp_path / "log"
    program = python(
        f"open({str(log)!r}, 'a').write('run ')",
        prepare=f"printf 'prepare ' >> {log}",
        cleanup=f"printf 'cleanup ' >> {log}",
    )
    by_runs(program, CONTROL, FIRST, rounds=2)
    assert log.read_text().split() == 4 * ["prepare", "run", "cleanup"]
    log.unlink()
    by_turns(program, CONTROL, FIRST, rounds=2)
    assert log.read_text().split() == 2 * [*2 * ["prepare"], *2 * ["run"], *2 * ["cleanup"]]
    with pytest.raises(HztuneError, match=r"--prepare .* ended with exit status 9: no disk"):
        by_runs(python("pass", prepare="echo no disk >&2; exit 9"))


@pytest.mark.parametrize("measure", [by_turns, by_runs])
def test_what_was_prepared_is_cleaned_up_after_a_run_that_is_cut_too(measure, tmp_path):
    made = tmp_path / "made"
    with pytest.raises(OutOfTime), process.limited(lambda: 1.0):
        measure(python("time.sleep(60)", prepare=f"mkdir {made}", cleanup=f"rmdir {made}"), CONTROL)
    assert not made.exists()


def test_what_happens_during_a_preparation_or_a_cleanup_disturbs_no_run(monkeypatch):
    done = []
    passed = Watch.passed
    monkeypatch.setattr(server, "Watch", lambda: done.append("watch") or Watch())
    monkeypatch.setattr(Watch, "passed", lambda self: done.append("stop") or passed(self))
    monkeypatch.setattr(server, "hook", lambda option, *_: done.append(option))
    by_runs(python("pass"))
    assert done == ["--prepare", "watch", "stop", "--cleanup"]


def test_what_keeps_a_program_from_its_start_is_the_reason():
    app, said = Program(("./app",)), "hz-launch: no such file"
    for stderr, reason in (
        (f"busy\n{said}", "no such file"),
        ("Failed to start: Access denied", "Failed to start: Access"),
        ("", "it gave no reason"),
    ):
        with pytest.raises(UsageError, match=f"cannot run ./app: {reason}"):
            report_of(app, b"", stderr, 1)
    assert report_of(app, b"", said, -9)["status"] == "lost"  # it killed what measures it


def test_words_reach_the_program_as_they_are(clock, tmp_path):
    words = ["", "two words", "quote's", 'double"', "dollar $HOME", "star*", "line\nbreak", "\\"]
    code = f"open({str(tmp_path / 'words')!r}, 'w').write(repr(sys.argv[1:]))"
    assert by_runs(Program((*python(code).argv, *words))).control.ok
    assert (tmp_path / "words").read_text() == repr(words)
    program = tmp_path / "pr\udcff"  # no UTF-8
    program.symlink_to(sys.executable)
    words = ["-I", "-S", "-c", "import sys; sys.exit(sys.argv[1] != chr(0xDCFE))", "\udcfe"]
    assert by_runs(Program((str(program), *words))).control.ok


@pytest.mark.parametrize("torn", ['{"results": [{"mean"', ""])
def test_a_time_that_hyperfine_had_no_room_for_is_told_with_what_to_do(torn, tmp_path):
    (tmp_path / "times.json").write_text(torn)
    with pytest.raises(HztuneError, match=r"make room there, or .* TMPDIR"):
        launch._hyperfine_s(tmp_path / "times.json")


# ---- rounds, repetitions, limits -----------------------------------------------------------------


def test_the_next_round_and_the_next_block_of_one_have_the_order_of_this_one_reversed():
    arms, player = [CONTROL, FIRST, SECOND], executor(Program(("/bin/true",)))
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


def disturbed_by(monkeypatch, *causes):
    """Switches the judge on again: it finds these causes, one a run, and then none."""
    found = iter(causes)
    monkeypatch.setattr(disturbance, "causes", lambda *args: next(found, ""))


def test_a_disturbed_run_of_a_block_with_one_round_is_repeated_and_counts_no_more(monkeypatch):
    disturbed_by(monkeypatch, "", "steal")
    player = executor(Program(("/bin/true",)))
    block = player.measure([CONTROL, FIRST], role="search", rounds=1, number=0)
    spoilt, other = sorted(block.outcomes, key=lambda outcome: -outcome.turns[0].position)
    assert [turn.disturbed for turn in spoilt.turns] == ["steal", ""]
    assert [turn.disturbed for turn in other.turns] == ["", ""]
    assert spoilt.ops_per_s == pytest.approx(spoilt.turns[1].rate)
    assert (player.accounting.turns, player.accounting.disturbed) == (4, 1)


def test_a_machine_that_is_always_disturbed_repeats_one_block_and_goes_on(monkeypatch):
    always, calm_again = ["pressure"] * 9, ["steal", "steal", "", "", "", "steal"]
    for causes, runs in ((always, [2, 1, 1, 1, 1]), (calm_again, [2, 1, 1, 1, 2])):
        disturbed_by(monkeypatch, *causes)
        player = executor(Program(("/bin/true",)))
        blocks = [player.measure([CONTROL], role="search", rounds=1, number=n) for n in range(5)]
        assert [len(block.control.turns) for block in blocks] == runs
        assert all(block.control.ok and block.control.ops_per_s > 0.0 for block in blocks)


def test_once_the_usual_time_is_known_a_far_slower_run_is_a_hang(monkeypatch):
    monkeypatch.setattr(whole, "_LEAST_TIMEOUT_S", measured.SOON_S)
    monkeypatch.setattr(whole, "_SLOWEST", 1.0)
    player = executor(python("if 'KNOB_knob' in os.environ: time.sleep(3600)"))
    player.measure([CONTROL], role="aa", rounds=1, number=0)
    block = player.measure([CONTROL, FIRST], role="search", rounds=1, number=1)
    assert [outcome.status for outcome in block.outcomes] == ["ok", "hang"]
    # no --timeout helps
    assert block.outcomes[1].detail == f"it did not end within {measured.SOON_S:.3g} s"


def test_warm_ups_are_run_once_and_not_counted(tmp_path):
    log = tmp_path / "log"
    player = executor(python(logs(log)), warmups=2)
    for pair in range(2):
        player.measure([CONTROL], role="aa", rounds=1, number=pair)
    assert log.read_text() == "-" * 4
    assert player.accounting.turns == 2
    assert player.accounting.warmup_s > 0


@pytest.mark.parametrize("by", ["turns", "runs"])
def test_a_control_that_hangs_before_it_is_measured_is_run_once(by, tmp_path):
    """Each run would take as long: an hour passes before a study has tried them all."""
    log = tmp_path / "log"
    program = python(logs(log, "time.sleep(3600)"), timeout_s=measured.SOON_S)
    player = executor(program, warmups=3)
    if by == "turns":
        player = executor_for([program], seed=1, machine=Machine.here(), identity=OpenProof())
    copies = player.measure([CONTROL, CONTROL], role="aa", rounds=2, number=0)
    assert player.cost(2, 1) == 0.0  # the study ends by this reason, and not for want of time
    block = player.measure([CONTROL, FIRST], role="search", rounds=1, number=1)
    found = [outcome.status for outcome in (*copies.outcomes, *block.outcomes)]
    assert found == ["hang", "hang", "hang", "failed"]
    why = f"it did not end within {measured.SOON_S:.3g} s; --timeout gives a run more"
    assert why in copies.control.detail
    assert block.outcomes[1].detail == "it was not run: the control hangs"
    assert log.read_text() == "-"


def ran_for(seconds):
    """A block as an earlier session measured it: two runs of the control, one after the other."""
    length_ns = round(1e9 * seconds)
    turns = tuple(Turn(number, 0, number * length_ns, length_ns, 1.0) for number in range(2))
    return Block(0, "search", (Outcome(CONTROL, "ok", "", 1.0 / seconds, turns),))


def test_the_expected_cost_follows_what_runs_have_taken_now_or_before():
    player = executor(python("time.sleep(0.2)"))
    assert player.cost(2, 3) == 6.0
    player.measure([CONTROL], role="aa", rounds=2, number=0)
    assert player.cost(2, 3) > 1.2
    hung = Block(0, "search", (Outcome(CONTROL, "hang"),))
    resumed = executor(python("pass"))
    resumed.recall([ran_for(0.1), ran_for(0.1), ran_for(0.3), hung])
    assert resumed.cost(2, 3) == pytest.approx(0.6)
    players = [executor(python("pass")) for _ in range(2)]  # each learns from its own runs
    both = SeveralExecutor([(str(at), lambda sink, at=at: players[at]) for at in range(2)])
    both.recall([joined([ran_for(0.1), ran_for(2.0)], ["a", "b"])])
    assert [player.cost(1, 1) for player in players] == pytest.approx([0.1, 2.0])


# ---- by turns or by runs -------------------------------------------------------------------------


def choose(program, second=CONTROL, *, memory_mb=0, before=()):
    """What is said of a program before its first block, and that block."""
    said = []
    player = ProgramExecutor(
        program, seed=1, identity=OpenProof(), memory_mb=memory_mb, say=said.append
    )
    player.recall(before)
    block = player.measure([CONTROL, second], role="aa", rounds=1, number=0)
    return "\n".join(said), block


WRITES = f"f = open('out', 'w')\n{BUSY}"
TURNS = f"measured by turns of 10 ms, on CPU {measured.PINNED.cpu}"
RUNS = "measured by whole runs, one after the other: "
CHOICES = {
    "is busy with itself": (BUSY, "", TURNS),
    "writes a file": (WRITES, "", f"{RUNS}two copies of it share the file"),
    "fails beside another": (
        f"os.close(os.open('only', os.O_CREAT | os.O_EXCL))\n{BUSY}os.unlink('only')",
        "",
        f"{RUNS}a second copy of it beside the first fails: exit status 1: FileExistsError",
    ),
    "is known to the user": (WRITES, "turns", f"{TURNS}, although two copies of it share the"),
    "is asked by runs": (BUSY, "runs", f"{RUNS}as was asked"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_where_turns_would_lie_runs_are_used_and_the_reason_is_said(name, tmp_path, monkeypatch):
    code, by, told = CHOICES[name]
    monkeypatch.chdir(tmp_path)
    said, block = choose(python(code, by=by))
    assert said.startswith(told)
    assert ("; the time that is told is that of its turns" in said) == ("although" in told)
    assert block.control.ok
    by_turns = [BY_TURNS in outcome.facts for outcome in block.outcomes]
    assert by_turns == [not told.startswith(RUNS)] * 2
    if name == "is asked by runs":
        assert choose(python(code), before=[block])[0] == f"{RUNS}as the study began"


@pytest.mark.parametrize(
    ("code", "why"), [("time.sleep(0.3)", "it waits for"), ("time.sleep(60)", "it fails by itself")]
)
def test_a_contender_that_is_a_command_is_tried_out_as_the_control_is(code, why):
    program = python(f"if 'KNOB_knob' in os.environ: {code}\n{BUSY}", timeout_s=2.0)
    said, block = choose(program, Arm.of(f"{COMMAND}new", {"knob": 1}))
    assert said.startswith(f"{RUNS}{why}") and block.control.ok


def test_if_one_of_two_commands_keeps_several_cpus_busy_both_have_all(monkeypatch):
    seen = lambda self: Finding("", Pace(10.0, 0 if self.control == CONTROL else None))  # noqa: E731
    monkeypatch.setattr(Tryout, "finding", seen)
    assert (
        choose(python(BUSY), Arm(f"{COMMAND}new"))[0] == "measured by turns of 10 ms, on all CPUs"
    )


def test_where_memory_is_too_little_for_all_arms_they_are_run_one_after_the_other():
    said, block = choose(python(f"block = b'x' * (60 << 20)\n{BUSY}"), memory_mb=100)
    assert "4 copies of it take more memory than there is" in said
    assert not any(BY_TURNS in outcome.facts for outcome in block.outcomes)
    assert [outcome.status for outcome in block.outcomes] == ["ok", "ok"]


def test_what_two_copies_cannot_both_hold_is_seen(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server, (tmp_path / "out").open("w"):
        held = {*watch._held(os.getpid())}
        port = watch.port_in_words(server.getsockname()[1])
        assert port in watch.ports_of(os.getpid())
    assert {port, f"the file {tmp_path / 'out'}"} <= {what for what, _ in held}
    with Path(__file__).open():
        assert __file__ not in " ".join(what for what, _ in watch._held(os.getpid()))
    both = watch.Holdings()
    both._of = {0: {("the port 1", "net:[1]")}, 1: {("the port 1", "net:[2]")}}
    assert both.shared() == []  # each network has all ports
    both._of = {0: held, 1: held}
    assert port in both.shared()


# ---- memory at rest: what is kept, what is lazy, what leaks --------------------------------------

PLAN = RestPlan(idle_s=0.05, rounds=4, says="^at rest$")
ROOM = """
import mmap, os, sys
held, page = [], b"x" * 4096
def room(kb):
    block = mmap.mmap(-1, kb << 10, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, kb << 10, 4096):
        block[at:at + 4096] = page
    return block
"""
ROUNDS = """
for number in range({rounds}):
    burst = room(24 << 10)
    held.append(room(1024 * int(os.environ.get("KNOB_knob", 0)) or 4))
    {after}
    print("at rest", flush=True)
    sys.stdin.readline()
print("rate=1250")
"""
LAZY = "burst.madvise(mmap.MADV_FREE); held.append(burst) if not number else 0"


def resting(after="burst.close()", rounds=4, plan=PLAN, **options):
    code = ROOM + ROUNDS.replace("{after}", after).replace("{rounds}", str(rounds))
    return python(code, **{"timeout_s": 30.0, "rest": plan, "seeks_kept": True, **options})


def rested(what, *arms, **options):
    outcomes = by_runs(what, *arms, **options).outcomes
    assert {(outcome.status, outcome.detail) for outcome in outcomes} == {("ok", "")}
    return [(outcome, outcome.rested) for outcome in outcomes if outcome.rested is not None]


def test_what_a_burst_took_is_in_the_peak_and_the_curve_and_is_not_kept(tmp_path):
    with LocalStudy(tmp_path, {"workload": "x"}, Machine.here()) as study:
        ((outcome, found),) = rested(resting(), sink=study)
    (block,) = recording(tmp_path).blocks
    assert block.control.rested == found
    assert len(found.rounds) == PLAN.rounds
    assert found.kept_kb < outcome.rss_peak_kb - (20 << 10)
    assert found.points
    assert all(one.load_ms <= one.rest_ms <= one.end_ms for one in found.rounds)
    assert outcome.ops_per_s == pytest.approx(1.0 / found.kept_kb)


def test_the_time_of_a_run_is_that_of_its_loads_and_never_nothing(monkeypatch):
    ((outcome, found),) = rested(resting(plan=structs.replace(PLAN, idle_s=0.3)))
    loads_ms = sum(one.rest_ms - one.load_ms for one in found.rounds)
    assert outcome.turns[0].counted_ns == pytest.approx(1e6 * loads_ms, abs=1e6)
    assert found.speed == pytest.approx(1e3 / loads_ms, rel=0.01)
    monkeypatch.setattr(watch.MemoryWatch, "_now_ms", lambda watch: 0)
    monkeypatch.setattr(disturbance, "causes", lambda *args: "steal")
    ((outcome, found),) = rested(resting(seeks_kept=False))
    assert found.speed == pytest.approx(1000.0)
    assert [turn.disturbed for turn in outcome.turns] == ["steal"]  # and it is not repeated


def test_pages_of_a_mapped_file_and_those_given_back_lazily_are_not_kept(tmp_path):
    file = tmp_path / "mapped"
    file.write_bytes(b"x" * (64 << 20))
    maps = f"mapped = mmap.mmap(os.open({str(file)!r}, 0), 0, prot=mmap.PROT_READ); mapped[::4096]"
    ((outcome, found),) = rested(resting(f"burst.close(); {maps}"))
    assert outcome.rss_peak_kb > 64 << 10
    assert found.kept_kb < 32 << 10
    ((outcome, found),) = rested(resting(LAZY))
    assert found.rounds[-1].lazy_kb > 20 << 10
    assert found.rounds[-1].kept_kb < outcome.rss_peak_kb - (20 << 10)


def test_a_leak_of_a_mebibyte_a_round_is_its_slope():
    (_, tight), (_, leaky) = rested(resting(), CONTROL, FIRST)
    assert tight.slope_kb == pytest.approx(0, abs=100)
    assert leaky.slope_kb == pytest.approx(1024, abs=100)


def test_speed_can_be_sought_and_memory_at_rest_be_read_beside_it():
    rate = Metric(r"rate=(\d+)", better="higher")
    ((outcome, found),) = rested(resting(rate=rate, seeks_kept=False))
    assert (outcome.ops_per_s, found.speed) == pytest.approx((1250, 1250))


def test_a_failure_says_what_the_program_did(monkeypatch):
    ends, plan = "print('at rest', flush=True); os._exit(3)", structs.replace(PLAN, idle_s=0.4)
    for what, status, detail in (
        (resting("pass", rounds=2), "bad_output", "2 times"),
        (resting(ends, plan=plan), "failed", "exit status 3"),
    ):
        outcome = by_runs(what).control
        assert (outcome.status, detail in outcome.detail) == (status, True), outcome.detail
    monkeypatch.setattr("hztune.measure.watch.tree_memory", lambda pid: (0, 0))
    with pytest.raises(HztuneError, match="the memory of the program may not be read"):
        by_runs(resting())


ANSWERS = """
def answer():
    burst = room(24 << 10)
    held.append(room(1024))
    burst.close()
    return b"rate=%d" % (1000 * len(held))
"""


def test_a_server_is_loaded_and_rests_as_often_as_was_asked(tmp_path):
    asked = {"metric_regex": r"rate=(\d+)", "timeout": 20.0, "idle_s": 0.05, "rounds": 4}
    ((outcome, found),) = rested(measured.serving(tmp_path, ROOM + ANSWERS, **asked))
    assert found.slope_kb == pytest.approx(1024, abs=400)
    assert found.kept_kb < outcome.rss_peak_kb - (20 << 10)
    assert found.speed == pytest.approx(2500)  # the mean of its four loads
