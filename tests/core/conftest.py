"""What the tests of the core share: the C programs, and processes that run on libhz.so."""

from __future__ import annotations

import os

import pytest
from tests.conftest import finished

ASKED = {name: value for name, value in os.environ.items() if name.startswith("TEST_")}
"""What the soak asks for comes before what a test does."""

SHORT = {
    # the smallest of everything: each of these alone would be refused beside the others' defaults
    "TIGHT": "MAGAZINE_CAP=8 REFILL_BATCH=8 FLUSH_BATCH=4 MAGAZINE_BYTES=4096 REMOTE_RING_SIZE=64 "
    "DEPOT_SLOTS=1 SPAN_CACHE=0 DECAY_MS=0",
    "WIDE": "MAGAZINE_GROWTH=full MAGAZINE_CAP=1024",
    "WORTH_IT": "MAGAZINE_GROWTH=batch MAGAZINE_CAP=1024 GROWTH_RENT=65536",
}
DEADLINE_S = 3600 if ASKED else 300


def variables_of(settings):
    """Of `SHARDS=4 TEST_NODES=3`, where a word of SHORT stands for its settings."""
    for short, long in SHORT.items():
        settings = settings.replace(short, long)
    read = dict(each.split("=") for each in settings.split())
    return {k if k.startswith("TEST_") else f"HZ_{k}": v for k, v in read.items()}


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
