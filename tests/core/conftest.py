"""What the tests of the core share: the C programs, and processes that run on libhz.so."""

from __future__ import annotations

import os

import pytest
from tests.conftest import finished

ASKED = {name: value for name, value in os.environ.items() if name.startswith("TEST_")}
"""What the soak asks for comes before what a test does."""

DEADLINE_S = 3600 if ASKED else 300


@pytest.fixture(scope="session")
def libhz(core_tests):
    """The shared library under test."""
    return core_tests / "libhz.so"


@pytest.fixture
def preload(libhz, plain_environment, tmp_path):
    """Runs a command on hz, in an empty directory: `preload("ls", "-l", HZ_STRICT="1")`."""

    def run(*words, **variables):
        own = {**plain_environment, "LD_PRELOAD": str(libhz), **variables, **ASKED}
        return finished(words, DEADLINE_S, env=own, cwd=tmp_path)

    return run


@pytest.fixture
def holds(core_tests, preload):
    """Runs a C program as `preload` does, by its name or path; fails with what did not hold."""

    def run(program, *words, **variables):
        done = preload(core_tests / "tests" / program, *words, **variables)
        failed = [line for line in done.stdout.splitlines() if line.startswith(("not ok", "    "))]
        assert done.returncode == 0, "\n".join([*failed, done.stderr[-3000:]])
        return done

    return run
