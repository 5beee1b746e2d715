"""Builds that experiments compare with the shipped one: without counters, and inside a program."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Build = Callable[..., Path]


@pytest.mark.slow
def test_a_bench_with_hz_inside_and_without_counters_needs_no_library_and_counts_nothing_else(
    build_core: Build, plain_environment: dict[str, str]
) -> None:
    options = {"HZ_BENCH_INSIDE": "ON", "HZ_STATS_COUNTERS": "OFF"}
    bench = build_core(targets=["hz-bench"], HZ_WERROR="ON", **options) / "bench" / "hz-bench"
    done = subprocess.run(
        [bench, "lifo", "--threads", "1", "--ops", "10000"],
        env=plain_environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=60,
    )
    said = json.loads(done.stdout)
    assert Path(said["allocator"]["path"]) == bench
    assert said["hz"]["counters"].keys() == {"committed_bytes"}
    assert said["hz"]["counters"]["committed_bytes"] > 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="shadow stacks are x86-64's")
def test_a_process_that_loads_any_of_the_libraries_may_keep_its_shadow_stack(
    core_build: Path,
) -> None:
    names = ("libhz.so", "libhz-deepbind.so", "libhz-agent.so", "trace/libhz-recorder.so")
    for name in names:
        notes = subprocess.check_output(["readelf", "-n", core_build / name], text=True)
        assert "SHSTK" in notes, name
