"""A turn is judged by what disturbed it from outside, never by how fast it was."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hztune.measure import disturbance
from hztune.measure.disturbance import Watch, causes, throttle_counts, throttled
from hztune.store import Evidence

from .conftest import put

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


@pytest.mark.parametrize("name", CAUSES)
def test_what_disturbs_a_turn_from_outside_is_named(name):
    evidence, threads, length_ns, cause = CAUSES[name]
    assert causes(evidence, length_ns, threads, cores=2) == cause


GROUPS = {
    "version 2": ("0::/box/inner\n", "", "throttled_usec 700"),
    "version 1": ("3:cpu,cpuacct:/box/inner\n", "cpu", "throttled_time 700999"),
}


@pytest.mark.parametrize("version", GROUPS)
def test_throttling_is_read_from_the_group_and_those_above_it(version, tmp_path):
    line, controller, time = GROUPS[version]
    group = f"sys/fs/cgroup/{controller}"
    files = {
        "proc/self/cgroup": line,
        f"{group}/box/inner/cpu.stat": f"nr_periods 9\nnr_throttled 2\n{time}\n",
        f"{group}/box/cpu.stat": f"nr_periods 9\nnr_throttled 3\n{time}\n",
        f"{group}/cpu.stat": "usage_usec 5\n",  # the root counts none
    }
    counts = throttle_counts(put(tmp_path, files))
    assert throttled(counts) == (5, 1400)
    put(tmp_path, {f"{group}/box/inner/cpu.stat": "nr_throttled 3\nthrottled_usec 1000\n"})
    assert throttled(counts) == (6, 1700)


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
    watch = Watch()
    assert watch.passed()["others_us"] == expected
