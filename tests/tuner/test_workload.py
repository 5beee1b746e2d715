"""Workloads are what hz-bench says they are; anything else is refused in one sentence."""

import os
from random import Random

import pytest
from tests.bench import traces

from hztune import api, workload
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.measure.executors import executor_for
from hztune.measure.turns import TurnExecutor
from hztune.measure.whole import RunExecutor
from hztune.profile import WorkloadId
from hztune.workload import WorkloadSpec, find, goal_of, workloads_named


def test_a_specification_has_a_command_that_hz_bench_runs():
    spec = WorkloadSpec.from_text("remote@main", ["remote=90", "ws=100"], threads=2)
    assert spec.label == "remote@main remote=90 ws=100 T=2"
    words = "remote@main --remote 90 --ws 100 --threads 2 --seed 7"
    assert spec.command(seed=7)[1:] == words.split()
    spec.check()


def test_a_workload_measured_by_its_p99_is_timed_at_every_call_in_whole_runs():
    plain = WorkloadSpec.from_text("lifo", threads=1)
    spec = plain.by("p99")
    assert spec.label == "lifo T=1 by p99"
    assert "--latency" in spec.command(seed=1)
    assert not spec.steady
    assert spec.by("throughput").command(seed=1) == plain.command(seed=1)
    assert [goal_of(name) for name in ("ops_per_s", "p99_ns")] == ["throughput", "p99"]
    spec.check()


def test_what_is_left_out_is_found_and_the_last_of_two_values_counts():
    spec = WorkloadSpec.from_text("larson")
    assert spec.threads == max(find("larson").min_threads, len(os.sched_getaffinity(0)))
    assert WorkloadSpec.from_text("remote", ["ws=100", "ws=200"]).params == (("ws", 200),)
    with pytest.raises(UsageError, match="legal: ops_per_s p99_ns"):
        goal_of("wall_s")


REFUSED = {
    "an unknown workload": (("larsson",), "no workload 'larsson'; did you mean larson"),
    "an unknown setting": (("remote@mian",), "no setting of remote 'mian'; did you mean main"),
    "an empty setting": (("remote@",), "no setting of remote ''"),
    "an unknown parameter": (("remote", ["shards=2"]), "no parameter of remote 'shards'"),
    "a parameter without value": (("remote", ["ws"]), "-p 'ws': legal is KEY=VALUE"),
    "a value out of range": (("remote", ["remote=101"]), "a whole number from 0 to 100"),
    "a word that is none": (("remote", ["fan=some"]), "one of: next all"),
    "no threads": (("larson", [], 0), "--threads 0: larson takes from 1 to 4096"),
    "a trace alone": (("trace",), "write trace:FILE"),
    "a trace without a file": (("trace:",), "trace: names no file"),
}


@pytest.mark.parametrize(("arguments", "words"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_in_words(arguments, words):
    with pytest.raises(UsageError) as refusal:
        WorkloadSpec.from_text(*arguments)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_parameters_that_do_not_go_together_are_refused_by_hz_bench_itself():
    spec = WorkloadSpec.from_text("remote", ["min_size=4096", "max_size=16"])
    with pytest.raises(UsageError, match="size"):
        spec.check()


# ---- a trace as a workload -----------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    """A trace of two threads and 800 calls, in a folder of its own."""
    folder = tmp_path / "recorded"
    folder.mkdir()
    return traces.write(folder / "redis.hzt", traces.conveyor(400))


def spec_of(path, *params):
    return WorkloadSpec.from_text(f"trace:{path}", params)


def test_it_is_called_by_name_and_content_and_never_by_path(path):
    spec = spec_of(path)
    assert spec.name == "trace:redis.hzt" and len(spec.setting) == 12
    assert spec.label == f"trace:redis.hzt@{spec.setting} T=2"
    assert str(path.parent) not in spec.label
    words = f"trace:{path} --threads 2 --seed 3"
    assert spec.command(seed=3)[1:] == words.split()
    spec.check()


def test_the_same_content_elsewhere_is_the_same_workload(path, tmp_path):
    copy = tmp_path / "redis.hzt"
    copy.write_bytes(path.read_bytes())
    assert spec_of(copy) == spec_of(path)
    traces.write(copy, traces.conveyor(401))
    assert spec_of(copy) != spec_of(path)


def test_what_results_call_it_finds_it_in_the_present_folder(path, monkeypatch):
    spec = spec_of(path)
    text = f"{spec.name}@{spec.setting}"
    with pytest.raises(UsageError, match="is not here: run this in the folder that has it"):
        WorkloadSpec.from_text(text)
    monkeypatch.chdir(path.parent)
    assert WorkloadSpec.from_text(text) == spec
    with pytest.raises(UsageError, match="is another trace than the one that is asked for"):
        WorkloadSpec.from_text(f"{spec.name}@0123456789ab")


def test_its_threads_are_those_of_the_recording(path):
    with pytest.raises(UsageError, match="has 2 threads, and each is replayed by one"):
        WorkloadSpec.from_text(f"trace:{path}", threads=3)
    assert WorkloadSpec.from_text(f"trace:{path}", threads=2).threads == 2
    trace, other = workloads_named(f"trace:{path},larson", ["slots=50"], None)
    assert (trace.threads, other.params) == (2, (("slots", 50),))


def test_what_cannot_be_replayed_is_refused_with_the_words_of_hz_bench(path):
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(UsageError, match=r"is cut: .* record again"):
        spec_of(path)
    path.write_bytes(b"something else" * 100)
    with pytest.raises(UsageError, match="is not a trace: record one with `hztune record`"):
        spec_of(path)
    with pytest.raises(UsageError, match="is not there; name the file"):
        spec_of(path.with_name("nowhere"))


def test_a_pace_is_for_latencies_of_a_trace_with_times(path):
    with pytest.raises(UsageError, match="was recorded without times"):
        spec_of(path, "pace=100")
    traces.write(path, traces.conveyor(50), flags=traces.HAS_TIME)
    paced = spec_of(path, "pace=100")
    assert not paced.steady and paced.span(1.0) == ["--ops", "100"]
    with pytest.raises(UsageError, match="tune with --objective p99"):
        paced.check()
    paced.by("p99").check()


# ---- measured ------------------------------------------------------------------------------------


def test_a_long_trace_has_turns_of_whole_rounds_and_a_very_long_one_runs(tmp_path, monkeypatch):
    """What hz-turns and hz-bench make of that is shown in tests/bench."""
    path = traces.write(tmp_path / "long.hzt", [traces.churn(300_000)])

    def executor():
        return executor_for([spec_of(path)], seed=1, machine=Machine.here(), processes=2)

    turns = executor()
    assert isinstance(turns, TurnExecutor) and turns.tempo.round_ms > 0.0
    assert "--whole" in turns._command([], 1, Random(1))
    monkeypatch.setattr(workload, "_MOST_CALLS_IN_TURNS", 250_000)
    assert isinstance(executor(), RunExecutor)


# ---- requests and profiles -----------------------------------------------------------------------


def test_a_claim_is_verified_on_the_same_trace_or_not_at_all(make_profile, path, tmp_path):
    spec = spec_of(path)
    tuned = make_profile(workload=WorkloadId("bench", spec.name, spec.setting, {}), threads=2)
    with pytest.raises(UsageError, match=r"trace redis.hzt \(SHA-256 .* --trace FILE"):
        api.verify(tuned, budget=0.6)
    other = traces.write(tmp_path / "other.hzt", [traces.churn(1000)])
    with pytest.raises(UsageError, match=r"--trace other.hzt: .* was made for trace:redis.hzt@"):
        api.verify(tuned, budget=0.6, traces=[other])
    moved = path.rename(tmp_path / "moved.hzt")
    assert api.verify(tuned, budget=0.6, traces=[moved]).answer == "cannot tell"
