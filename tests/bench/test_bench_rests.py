"""Rounds of work and rest: every workload frees everything, says so, waits, and begins again."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from .conftest import DEADLINE_S
from .test_bench_workloads import NAMES, words

REST = "hz-bench: at rest\n"


@pytest.mark.parametrize("name", NAMES)
def test_a_workload_works_and_rests_as_often_as_was_asked(programs, name):
    once = programs.result(*words(name, 2))
    done = programs.bench(*words(name, 2), "--rests", 3)
    assert done.returncode == 0, done.stderr
    *rests, told = done.stdout.splitlines(keepends=True)
    assert rests == [REST] * 3
    assert json.loads(told)["ops"] == 3 * once["ops"]


def test_it_rests_until_it_gets_a_line_and_its_threads_live_on(programs):
    words = [str(programs.bench_path), "larson", "--threads", "3", "--ops", "3000", "--rests", "2"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        for _ in range(2):
            assert process.stdout.readline() == REST
            assert len(list(Path("/proc", str(process.pid), "task").iterdir())) == 1 + 3
            process.stdin.write("\n")
            process.stdin.flush()
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
