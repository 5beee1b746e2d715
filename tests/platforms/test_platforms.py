"""hz and its measuring programs on AArch64 and on musl, in a short form.

AArch64 is emulated by qemu-user: a process of this machine, whose threads run in this machine's
order of memory. So these tests show that the code is right for the processor and the sizes of
pages, and nothing about its weaker order (tests/model) or its speed.
"""

from __future__ import annotations

import json
import subprocess

import pytest

from .conftest import Built

SMALL_CACHES = {
    "HZ_SHARDS": "4",
    "HZ_MAGAZINE_CAP": "8",
    "HZ_REFILL_BATCH": "4",
    "HZ_FLUSH_BATCH": "4",
    "HZ_REMOTE_RING_SIZE": "64",
    "HZ_DEPOT_LOCK": "lockfree",
    "HZ_SPAN_CACHE": "0",
    "HZ_DECAY_MS": "0",
    "HZ_MAX_DIRTY_BYTES": "0",
}
SETTINGS = {"the defaults": {}, "small caches": SMALL_CACHES, "full": {"HZ_HARDENING": "full"}}
SHADOW = {"TEST_STEPS": "1500", "TEST_ROUNDS": "2", "HZ_STRICT": "1"}
ON_HZ = {"TEST_ALLOCATOR": "libhz.so"}
LARSON = ("larson", "--threads", "2", "--ops", "5000", "--slots", "100")

# What of these programs the emulator can run (by a part of their sentences). qemu 7.2 keeps memory
# for each thread that was, so that what is resident cannot be judged; and a child of a fork ends
# with a failed assertion of qemu when it starts a thread. Both are so under glibc's malloc, too.
EMULATED = (("forks", "eight churning"), ("threads", "destructors of thread-specific"))
# With musl 1.2.3 the first thread of a fork's child cannot be joined, under any malloc.
ON_MUSL = (("forks", ""), ("threads", "destructors of thread-specific"))


def require_all_held(done: subprocess.CompletedProcess[str]) -> None:
    """At least one check ran, and all held."""
    said = done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode == 0 and "\nok - " in done.stdout, said


@pytest.mark.slow
def test_the_interface_holds(built: Built) -> None:
    # Huge blocks leave the emulator itself without memory under its limit.
    calls = "0" if built.is_emulated else "3000"
    require_all_held(built.run(built.words("tests/api"), **ON_HZ, TEST_CALLS=calls))


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_the_heap_agrees_with_its_shadow(settings: dict[str, str], built: Built) -> None:
    words = built.words("tests/fuzz_shadow")
    require_all_held(built.run(words, **ON_HZ, **SHADOW, **settings))


@pytest.mark.slow
@pytest.mark.parametrize(("program", "which"), EMULATED)
def test_threads_and_forks_hold_where_they_are_emulated(
    program: str, which: str, aarch64: Built
) -> None:
    words = aarch64.words(f"tests/{program}")
    require_all_held(aarch64.run([*words, which], **ON_HZ, TEST_FORKS="5"))


@pytest.mark.slow
@pytest.mark.parametrize(("program", "which"), ON_MUSL)
def test_threads_and_forks_hold_on_musl(program: str, which: str, musl: Built) -> None:
    words = [*musl.words(f"tests/{program}"), which]
    require_all_held(musl.run(words, **ON_HZ, TEST_FORKS="20"))


@pytest.mark.slow
@pytest.mark.parametrize("which", ["mark in its top byte", "a realloc after free", "a global"])
def test_a_wrong_free_ends_the_program(which: str, built: Built) -> None:
    require_all_held(built.run(built.words("tests/offences"), **ON_HZ, TEST_ACT=which))


# --- AArch64 --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("page_bytes", [16384, 65536])
@pytest.mark.parametrize("program", ["fuzz_shadow", "api"])
def test_larger_pages_of_the_kernel_will_do(program: str, page_bytes: int, aarch64: Built) -> None:
    """In one thread: with more, qemu 7.2 crashes at such pages under any malloc."""
    words = aarch64.words(f"tests/{program}", "-p", str(page_bytes))
    alone = {"TEST_THREADS": "1", "TEST_CALLS": "0"}
    require_all_held(aarch64.run(words, **ON_HZ, **SHADOW, **alone))


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["cortex-a53", "max"])
def test_the_first_armv8_will_do_and_the_latest_too(cpu: str, aarch64: Built) -> None:
    """The first has no atomic instructions but exclusive loads and stores."""
    words = aarch64.words("tests/fuzz_shadow", "-cpu", cpu)
    require_all_held(aarch64.run(words, **ON_HZ, **SHADOW, **SMALL_CACHES))


@pytest.mark.slow
def test_hz_finds_a_place_where_addresses_have_39_bits(aarch64: Built) -> None:
    """Here without the limit of addresses; the emulator puts the stack below 2^39."""
    words = aarch64.words("tests/fuzz_shadow")
    require_all_held(aarch64.run(words, is_limited=False, **ON_HZ, **SHADOW))


# --- the measuring programs -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("words", [LARSON, ("large", "--ops", "200")], ids=lambda words: words[0])
def test_hz_bench_measures(words: tuple[str, ...], built: Built) -> None:
    done = built.run([*built.words("bench/hz-bench"), *words])
    result = json.loads(done.stdout)
    assert result["allocator"]["name"] == "hz" and result["ops"] > 0 and result["seconds"] > 0


@pytest.mark.slow
def test_hz_launch_proves_the_allocator(built: Built) -> None:
    program = built.script("bench-on-hz", built.words("bench/hz-bench"))
    launch = built.words("bench/hz-launch", is_on_hz=False)
    done = built.run([*launch, "--", str(program), *LARSON])
    result = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, result["status"]) == (0, "ok"), done.stderr
    assert result["allocator"]["name"] == "hz" and result["rss_peak_kb"] > 0
