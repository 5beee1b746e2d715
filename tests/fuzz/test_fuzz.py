"""The fuzz targets hold on their corpus, and on mutations of it with a fixed seed.

TEST_SEED chooses another, and TEST_MORE=N N times as many mutations (tests/soak sets both).
"""

from __future__ import annotations

import os
import subprocess

import pytest

SANITIZED = {
    "CMAKE_C_FLAGS": "-fsanitize=address,undefined -fno-sanitize-recover=all "
    "-fno-omit-frame-pointer",
    "CMAKE_C_FLAGS_RELEASE": "-O1 -g",
}
MORE = int(os.environ.get("TEST_MORE", "1"))
SEED = os.environ.get("TEST_SEED", "1")
DEADLINE_S = 300 * MORE


@pytest.fixture(scope="module")
def corpus(root):
    """The directory of the inputs, one directory for each target."""
    return root / "tests" / "fuzz" / "corpus"


def replay(program, inputs, mutations, **variables):
    files = sorted(inputs.iterdir())
    plain = {k: v for k, v in os.environ.items() if not k.startswith("HZ_") and k != "LD_PRELOAD"}
    return subprocess.run(
        [program, "--seed", SEED, "--mutate", str(mutations * MORE), *files],
        env={**plain, "ASAN_OPTIONS": "abort_on_error=1:detect_leaks=0", **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


@pytest.fixture(scope="module")
def sanitized(build_core):
    """The fuzz targets, with AddressSanitizer and UndefinedBehaviorSanitizer."""
    targets = ["fuzz_environment", "fuzz_traces"]
    return build_core(targets=targets, HZ_BUILD_TESTS="ON", **SANITIZED) / "fuzz"


@pytest.fixture(scope="module")
def shipped(core_tests):
    """The fuzz targets as hz is shipped."""
    return core_tests / "fuzz"


@pytest.mark.slow
def test_no_environment_does_harm_or_allocates(sanitized, corpus):
    done = replay(sanitized / "fuzz_environment", corpus / "environment", 5_000)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


@pytest.mark.slow
def test_the_c_library_allocates_nothing_for_it_either(shipped, corpus):
    done = replay(shipped / "fuzz_environment", corpus / "environment", 5_000)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


@pytest.mark.slow
def test_no_recording_does_more_harm_than_a_sentence(sanitized, corpus):
    done = replay(sanitized / "fuzz_traces", corpus / "traces", 700)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
