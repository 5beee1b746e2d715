"""Workloads are what hz-bench says they are; anything else is refused in one sentence."""

from __future__ import annotations

import os

import pytest

from hztune.errors import UsageError
from hztune.workload import WorkloadSpec, find, goal_of


def test_a_specification_has_a_command_that_hz_bench_runs():
    spec = WorkloadSpec.from_text("remote@main", ["remote=90", "ws=100"], threads=2)
    assert spec.label == "remote@main remote=90 ws=100 T=2"
    assert spec.command(seed=7)[1:] == [
        "remote@main", "--remote", "90", "--ws", "100", "--threads", "2", "--seed", "7",
    ]  # fmt: skip
    spec.check()


def test_a_workload_measured_by_its_p99_is_timed_at_every_call_in_whole_runs():
    spec = WorkloadSpec.from_text("lifo", threads=1).by("p99")
    assert spec.label == "lifo T=1 by p99"
    assert "--latency" in spec.command(seed=1)
    assert not spec.steady
    assert spec.by("throughput").command(seed=1) == WorkloadSpec.from_text(
        "lifo", threads=1
    ).command(seed=1)
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
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_in_words(what):
    arguments, words = REFUSED[what]
    with pytest.raises(UsageError) as refusal:
        WorkloadSpec.from_text(*arguments)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_parameters_that_do_not_go_together_are_refused_by_hz_bench_itself():
    spec = WorkloadSpec.from_text("remote", ["min_size=4096", "max_size=16"])
    with pytest.raises(UsageError, match="size"):
        spec.check()
