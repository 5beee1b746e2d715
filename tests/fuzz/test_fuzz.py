"""The fuzz targets hold on their corpus, and on mutations of it with a fixed seed.

TEST_SEED chooses another, and TEST_MORE=N N times as many mutations (tests/soak sets both).
"""

from __future__ import annotations

import os

import pytest
from tests.conftest import finished

SANITIZED = {
    "CMAKE_C_FLAGS": "-fsanitize=address,undefined -fno-sanitize-recover=all "
    "-fno-omit-frame-pointer",
}
SHIPPED = {"HZ_WERROR": "ON"}
MORE = int(os.environ.get("TEST_MORE", "1"))
SEED = os.environ.get("TEST_SEED", "1")

# What holds: of which target, how it is built, and under how many mutations.
HOLDS = {
    "no environment does harm or allocates": ("environment", SANITIZED, 5_000),
    "the C library allocates nothing for it either": ("environment", SHIPPED, 5_000),
    "no recording does more harm than a sentence": ("traces", SANITIZED, 700),
}


@pytest.mark.slow
@pytest.mark.parametrize(("target", "defines", "mutations"), HOLDS.values(), ids=HOLDS)
def test_whatever_is_read(target, defines, mutations, build_core, plain_environment, root):
    name = f"fuzz_{target}"
    made = build_core(targets=[name], HZ_BUILD_TESTS="ON", **defines)
    inputs = sorted((root / "tests/fuzz/corpus" / target).iterdir())
    done = finished(
        [made / "fuzz" / name, "--seed", SEED, "--mutate", mutations * MORE, *inputs],
        300 * MORE,
        env={**plain_environment, "ASAN_OPTIONS": "abort_on_error=1:detect_leaks=0"},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
