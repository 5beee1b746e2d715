"""A turn is judged by what disturbed it from outside, never by how fast it was."""

from __future__ import annotations

import pytest

from hztune.measure.disturbance import Judge
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
        (Evidence(steal_ticks=2, suspended_ns=10**9), "suspend,steal"),
    ],
)
def test_a_disturbance_is_named(evidence: Evidence, cause: str) -> None:
    assert causes(evidence) == cause


def test_a_tick_of_steal_is_nothing_in_a_turn_of_seconds() -> None:
    assert Judge(threads=2, cores=2).causes(Evidence(steal_ticks=1), 3_000_000_000) == ""


def test_pressure_that_the_workload_makes_itself_is_no_disturbance() -> None:
    assert causes(Evidence(pressure_us=18_000, involuntary=2), threads=32) == ""


def test_switches_that_are_usual_here_are_no_disturbance() -> None:
    judge = Judge(threads=32, cores=2)
    for number in range(20):
        assert judge.causes(Evidence(involuntary=50 + number), TURN_NS) == ""


def test_the_first_turns_are_not_compared_with_nothing() -> None:
    assert Judge(threads=32, cores=2).causes(Evidence(involuntary=500), TURN_NS) == ""
