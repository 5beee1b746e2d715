"""A turn is judged by what disturbed it from outside, never by how fast it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from hztune.measure.disturbance import Judge, Throttling, Watch
from hztune.samples import Evidence

TURN_NS = 18_000_000
QUIET = Evidence(cpu_ns=2 * TURN_NS, involuntary=2, pressure_us=900)


def causes(evidence: Evidence, threads: int = 2) -> str:
    """The judgement of one turn after ten quiet ones on two CPUs."""
    judge = Judge(threads=threads, cores=2)
    for _ in range(10):
        assert judge.causes(QUIET, TURN_NS) == ""
    return judge.causes(evidence, TURN_NS)


def test_a_quiet_turn_is_not_disturbed() -> None:
    assert causes(QUIET) == ""


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        (Evidence(steal_ticks=1), "steal"),
        (Evidence(suspended_ns=10**9), "suspend"),
        (Evidence(pressure_us=16_000), "pressure"),
        (Evidence(involuntary=60), "switches"),
        (Evidence(throttled_us=2_000), "throttled"),
        (Evidence(steal_ticks=2, suspended_ns=10**9), "suspend,steal"),
    ],
)
def test_a_disturbance_is_named(evidence: Evidence, cause: str) -> None:
    assert causes(evidence) == cause


def test_a_tick_of_steal_is_nothing_in_a_turn_of_seconds() -> None:
    assert Judge(threads=2, cores=2).causes(Evidence(steal_ticks=1), 3_000_000_000) == ""


def test_a_quota_that_hardly_bites_is_nothing_in_a_run_of_seconds() -> None:
    assert Judge(threads=2, cores=2).causes(Evidence(throttled_us=9_000), 3_000_000_000) == ""


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


def test_switches_that_are_usual_here_are_no_disturbance() -> None:
    judge = Judge(threads=32, cores=2)
    for number in range(20):
        assert judge.causes(Evidence(involuntary=50 + number), TURN_NS) == ""


def test_the_first_turns_are_not_compared_with_nothing() -> None:
    assert Judge(threads=32, cores=2).causes(Evidence(involuntary=500), TURN_NS) == ""
