"""A turn is judged by what disturbed it from outside, never by how fast it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hztune.measure import disturbance
from hztune.measure.disturbance import DisturbanceRule, Throttling, Watch
from hztune.store import Evidence

TURN_NS = 18_000_000
QUIET = Evidence(cpu_ns=2 * TURN_NS, involuntary=2, pressure_us=900)


def causes(evidence: Evidence, threads: int = 2) -> str:
    """The judgement of one turn on two CPUs."""
    return DisturbanceRule(threads=threads, cores=2).causes(evidence, TURN_NS)


def test_a_quiet_turn_is_not_disturbed() -> None:
    assert causes(QUIET) == ""


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        (Evidence(steal_ticks=1), "steal"),
        (Evidence(suspended_ns=10**9), "suspend"),
        (Evidence(pressure_us=16_000), "pressure"),
        (Evidence(throttled_us=2_000), "throttled"),
        (Evidence(steal_ticks=2, suspended_ns=10**9), "suspend,steal"),
    ],
)
def test_a_disturbance_is_named(evidence: Evidence, cause: str) -> None:
    assert causes(evidence) == cause


def test_a_tick_of_steal_is_nothing_in_a_turn_of_seconds() -> None:
    assert DisturbanceRule(threads=2, cores=2).causes(Evidence(steal_ticks=1), 3_000_000_000) == ""


def test_a_quota_that_hardly_bites_is_nothing_in_a_run_of_seconds() -> None:
    assert (
        DisturbanceRule(threads=2, cores=2).causes(Evidence(throttled_us=9_000), 3_000_000_000)
        == ""
    )


GROUPS = {
    "version 2": ("0::/box/inner\n", "", "throttled_usec 700"),
    "version 1": ("3:cpu,cpuacct:/box/inner\n", "cpu", "throttled_time 700999"),
}


@pytest.mark.parametrize("version", GROUPS)
def test_throttling_is_read_from_the_group_and_those_above_it(version: str, tmp_path: Path) -> None:
    line, controller, time = GROUPS[version]
    own = tmp_path / "sys/fs/cgroup" / controller / "box/inner"
    own.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(line)
    (own / "cpu.stat").write_text(f"nr_periods 9\nnr_throttled 2\n{time}\n")
    (own.parent / "cpu.stat").write_text(f"nr_periods 9\nnr_throttled 3\n{time}\n")
    (own.parents[1] / "cpu.stat").write_text("usage_usec 5\n")  # the root counts none
    throttling = Throttling(tmp_path)
    assert (throttling.count(), throttling.us()) == (5, 1400)
    (own / "cpu.stat").write_text("nr_throttled 3\nthrottled_usec 1000\n")
    assert throttling.us() == 1700


def test_where_nothing_is_throttled_nothing_is_seen(tmp_path: Path) -> None:
    assert Throttling(tmp_path).us() == 0


def test_a_run_of_a_program_says_for_how_long_it_was_throttled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = iter([5_000, 12_000])
    monkeypatch.setattr(Throttling, "us", lambda self: next(told))
    watch = Watch()
    watch.stop()
    assert watch.seen(cpu_ns=1, rss_kb=2).throttled_us == 7_000


def test_pressure_that_the_workload_makes_itself_is_no_disturbance() -> None:
    assert causes(Evidence(pressure_us=18_000, involuntary=2), threads=32) == ""


SECOND_NS = 1_000_000_000
WAITING = 400_000
"""Microseconds of a second in which a process waited for a CPU."""

CROWDED = {
    "its own threads wait": (Evidence(pressure_us=WAITING, others_us=60_000), ""),
    "another process has the CPUs": (Evidence(pressure_us=WAITING, others_us=150_000), "pressure"),
    "another process works where there is room": (Evidence(others_us=900_000), ""),
}


@pytest.mark.parametrize("name", CROWDED)
def test_a_program_that_may_use_all_cpus_is_pressed_by_others_only(name: str) -> None:
    evidence, cause = CROWDED[name]
    assert DisturbanceRule(threads=3, cores=2).causes(evidence, SECOND_NS) == cause


def test_a_few_ticks_of_others_are_nothing_in_a_short_run() -> None:
    evidence = Evidence(pressure_us=90_000, others_us=45_000)
    assert DisturbanceRule(threads=3, cores=2).causes(evidence, 100_000_000) == ""


COUNTED = {
    "it was others": ("cpu 10 0 0 0", "cpu 30 2 10 900", 0.0, 320_000),
    "it was the program": ("cpu 10 0 0 0", "cpu 40 0 2 900", 0.3, 20_000),
    "nothing is counted": ("", "", 0.0, 0),
}


@pytest.mark.parametrize("name", COUNTED)
def test_the_time_of_others_is_what_the_machine_was_busy_without_us(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after, own_s, expected = COUNTED[name]
    lines = iter([before, after])
    times = iter([0.0, 0.0, 0.0, own_s])  # of this process, and of its children
    monkeypatch.setattr(
        disturbance, "_cpu_ticks", lambda: [int(word) for word in next(lines).split()[1:]]
    )
    monkeypatch.setattr(
        disturbance.resource,
        "getrusage",
        lambda who: SimpleNamespace(ru_utime=next(times), ru_stime=0.0),
    )
    watch = Watch()
    watch.stop()
    assert watch.seen(cpu_ns=1, rss_kb=2).others_us == expected


def test_threads_of_the_allocator_that_take_cpus_from_the_workload_are_no_disturbance() -> None:
    own = Evidence(cpu_ns=2 * TURN_NS, pressure_us=16_000)
    assert causes(own) == ""
    assert causes(replace(own, cpu_ns=TURN_NS)) == "pressure"
