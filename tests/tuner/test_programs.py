"""The real programs of experiments/programs: each says the same on hz, and is a study."""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path

import pytest

from hztune import process
from hztune.allocator import loaded_program

EXPERIMENT = Path(__file__).parents[2] / "experiments" / "programs"


sys.path.insert(0, str(EXPERIMENT))
CASES = importlib.import_module("cases")
RUN = importlib.import_module("run")
EVERY = (*CASES.CASES, *CASES.COMPARED)
PROGRAMS = list({case.command: case for case in reversed(EVERY) if case.command}.values())
OPTIONAL = (
    *("lua", "ruby", "node", "z3", "clang", "memcached", "nginx", "postgres"),
    *(case.name for case in CASES.COMPARED),
)  # fmt: skip
"""Cases whose programs README's test command does not install: tested where they are."""

CLOCK = re.compile(r"^[A-Z]+ *=.*$", re.M)
"""What barnes prints of the time."""


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """What the commands need, built once."""
    folder = tmp_path_factory.mktemp("programs")
    CASES.build(folder, PROGRAMS, functions=1, pigeons=6)
    return folder


def require(case):
    """Sees to it that a case's programs are installed, or skips where they need not be."""
    lacking = CASES.missing(case)
    if lacking and case.name in OPTIONAL:
        pytest.skip("; ".join(lacking))
    assert lacking == []


@pytest.mark.parametrize("case", PROGRAMS, ids=[case.name for case in PROGRAMS])
def test_a_program_says_the_same_on_hz(case, work, core_build):
    require(case)
    said = []
    for variables in ({}, {"LD_PRELOAD": str(core_build / "libhz.so"), "HZ_STRICT": "1"}):
        own = {**os.environ, **dict(case.variables), **variables}
        done = process.run(case.words(work, case.short), env=own, deadline_s=60)
        assert done.ok, done.describe()
        said.append(CLOCK.sub("", done.stdout))
    assert said[0] == said[1]
    assert said[0].strip() or case.name in ("gcc", "clang", "espresso")


@pytest.mark.parametrize("case", CASES.CASES, ids=[case.name for case in CASES.CASES])
def test_hztune_takes_the_options_of_a_case(case, work, hztune_here):
    require(case)
    _, _, _, *line = RUN.study(case, work, "20s", case.allocator, Path("out"))
    at = line.index("--json")
    done = hztune_here(*line[:at], "--dry-run", *line[at + 1 :])
    assert (done.returncode, done.stderr) == (0, "")


def test_redis_is_said_to_bring_its_own_allocator():
    (said,) = loaded_program.inspect("redis-server").remarks
    assert "is linked with jemalloc: unchanged, it runs on that, not on glibc" in said
