"""Builds that experiments compare with the shipped one: without counters, and inside a program."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Build = Callable[..., Path]


def told(bench: Path, environment: dict[str, str]) -> dict[str, Any]:
    """What hz-bench says after a short run."""
    done = subprocess.run(
        [bench, "lifo", "--threads", "1", "--ops", "10000", "--json"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    read: dict[str, Any] = json.loads(done.stdout)
    return read


def test_without_counters_only_what_hz_itself_reads_is_counted(
    build_core: Build, core_build: Path, plain_environment: dict[str, str]
) -> None:
    silent = build_core(targets=["hz_shared"], HZ_WERROR="ON", HZ_STATS_COUNTERS="OFF")
    counters = {
        name: told(
            core_build / "bench" / "hz-bench",
            {**plain_environment, "LD_PRELOAD": str(library / "libhz.so")},
        )["hz"]["counters"]
        for name, library in {"shipped": core_build, "silent": silent}.items()
    }
    assert counters["shipped"]["refills"] > 0
    assert counters["silent"].keys() == {"committed_bytes"}
    assert counters["silent"]["committed_bytes"] == counters["shipped"]["committed_bytes"]


def test_a_bench_with_hz_inside_needs_no_library(
    build_core: Build, plain_environment: dict[str, str]
) -> None:
    built = build_core(targets=["hz-bench"], HZ_WERROR="ON", HZ_BENCH_INSIDE="ON")
    bench = built / "bench" / "hz-bench"
    said = told(bench, plain_environment)
    assert Path(said["allocator"]["path"]) == bench
    assert said["hz"]["counters"]["refills"] > 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="shadow stacks are x86-64's")
def test_a_process_that_loads_any_of_the_libraries_may_keep_its_shadow_stack(
    core_build: Path,
) -> None:
    names = ("libhz.so", "libhz-deepbind.so", "libhz-agent.so", "trace/libhz-recorder.so")
    for name in names:
        notes = subprocess.check_output(["readelf", "-n", core_build / name], text=True)
        assert "SHSTK" in notes, name
