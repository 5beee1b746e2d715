"""hz and its measuring programs on AArch64 and on musl, in a short form.

AArch64 is emulated by qemu-user: a process of this machine, whose threads run in this machine's
order of memory. So these tests show that the code is right for the processor and the sizes of
pages, and nothing about its weaker order (tests/model) or its speed.

A platform is skipped, with the reason, where its compiler or the emulator is missing: then it was
not tested. README.md names the packages.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
from collections import Counter
from typing import NamedTuple

import pytest
from tests.conftest import QUICK, finished
from tests.core.conftest import variables_of

# The emulator keeps a record of each page that a process maps, and hz looks for a place of 8 GiB or
# more when it starts: half a second, and hundreds of megabytes that every fork copies. Under this
# limit the look is refused at once.
EMULATED_BYTES = 7 << 30
TARGETS = (
    "hz_shared", "hz_deepbind", "hz-bench", "hz-launch", "api", "fuzz_shadow", "forks",
    "offences", "threads",
)  # fmt: skip


class Platform(NamedTuple):
    """What programs for another machine, or another C library, need."""

    name: str
    needs: tuple[str, ...]  # programs that must be installed
    packages: str  # Debian's packages that have them
    defines: dict[str, str]  # for CMake
    emulator: str = ""  # "" where this machine runs what is built
    variables: tuple[tuple[str, str], ...] = ()  # for the emulator


AARCH64 = Platform(
    "AArch64 with glibc",
    ("aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++", "qemu-aarch64"),
    "g++-aarch64-linux-gnu qemu-user",
    {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_C_COMPILER": "aarch64-linux-gnu-gcc",
        "CMAKE_CXX_COMPILER": "aarch64-linux-gnu-g++",
    },
    "qemu-aarch64",
    (("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu"),),
)
MUSL = Platform("x86-64 with musl", ("musl-gcc",), "musl-tools", {"CMAKE_C_COMPILER": "musl-gcc"})


class Built:
    """hz and its tests, built for a platform."""

    def __init__(self, platform, build, folder):
        self.platform = platform
        self.build = build
        self.folder = folder

    @property
    def is_emulated(self):
        return self.platform.emulator != ""

    def words(self, program, *options, is_on_hz=True):
        """The words that start a program of the build; `options` are for the emulator.

        On musl the tests are linked to libhz.so: what they start may be glibc's, and cannot be
        preloaded with it.
        """
        first = [self.platform.emulator, *options, "-E"] if self.is_emulated else ["env"]
        is_preloaded = is_on_hz and (self.is_emulated or not program.startswith("tests/"))
        value = self.build / "libhz.so" if is_preloaded else ""
        return [*first, f"LD_PRELOAD={value}", str(self.build / program)]

    def run(self, words, *, is_limited=True, **variables):
        """Runs them in an empty environment of hz's variables; see EMULATED_BYTES."""
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("HZ_", "LD_PRELOAD"))}
        limit = EMULATED_BYTES if self.is_emulated and is_limited else resource.RLIM_INFINITY
        own = {**plain, **dict(self.platform.variables), **variables}
        return finished(["prlimit", f"--as={limit}", *words], env=own, cwd=self.folder)

    def holds(self, test, *words, options=(), **how):
        """Runs a test on hz, of which at least one check must run, and all hold."""
        command = [*self.words(f"tests/{test}", *options), *words]
        done = self.run(command, TEST_ALLOCATOR="libhz.so", **how)
        said = done.stdout[-3000:] + done.stderr[-3000:]
        assert done.returncode == 0 and "\nok - " in done.stdout, said


def _built(platform, build_core, folders):
    missing = [name for name in platform.needs if shutil.which(name) is None]
    if missing:
        pytest.skip(
            f"{platform.name} was not tested: there is no {', '.join(missing)} "
            f"(apt-get install {platform.packages})"
        )
    defines = {"HZ_BUILD_TESTS": "ON", "CMAKE_C_FLAGS": "-O1", **platform.defines}
    build = build_core(targets=TARGETS, **QUICK, **defines)
    return Built(platform, build, folders.mktemp("platform"))


@pytest.fixture(scope="session")
def aarch64(build_core, tmp_path_factory):
    return _built(AARCH64, build_core, tmp_path_factory)


@pytest.fixture(scope="session")
def musl(build_core, tmp_path_factory):
    return _built(MUSL, build_core, tmp_path_factory)


@pytest.fixture(params=["aarch64", "musl"])
def built(request):
    """Each platform in turn."""
    return request.getfixturevalue(request.param)


# --- what holds on each ---------------------------------------------------------------------------

SMALL_CACHES = variables_of("TIGHT SHARDS=4 DEPOT_LOCK=lockfree MAX_DIRTY_BYTES=0")
SETTINGS = {"the defaults": {}, "small caches": SMALL_CACHES, "full": {"HZ_HARDENING": "full"}}
SHADOW = {"TEST_STEPS": "1500", "TEST_ROUNDS": "2", "HZ_STRICT": "1"}
LARSON = ("larson", "--threads", "2", "--ops", "5000", "--slots", "100")

# What of these programs the emulator can run (by a part of their sentences). qemu 7.2 keeps memory
# for each thread that was, so that what is resident cannot be judged; and a child of a fork ends
# with a failed assertion of qemu when it starts a thread. Both are so under glibc's malloc, too.
# With musl 1.2.3 the first thread of a fork's child cannot be joined, under any malloc.
THREADED = (
    ("aarch64", "forks", "eight churning"),
    ("aarch64", "threads", "destructors of thread-specific"),
    ("musl", "forks", ""),
    ("musl", "threads", "destructors of thread-specific"),
)


@pytest.mark.slow
def test_the_interface_holds(built):
    # Huge blocks leave the emulator itself without memory under its limit.
    built.holds("api", TEST_CALLS="0" if built.is_emulated else "3000")


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_the_heap_agrees_with_its_shadow(settings, built):
    built.holds("fuzz_shadow", **SHADOW, **settings)


@pytest.mark.slow
@pytest.mark.parametrize(("built", "program", "which"), THREADED, indirect=["built"])
def test_threads_and_forks_hold(program, which, built):
    built.holds(program, which, TEST_FORKS="5" if built.is_emulated else "20")


@pytest.mark.slow
@pytest.mark.parametrize("which", ["mark in its top byte", "a realloc after free", "a global"])
def test_a_wrong_free_ends_the_program(which, built):
    built.holds("offences", TEST_ACT=which)


# --- AArch64 --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("page_bytes", [16384, 65536])
@pytest.mark.parametrize("program", ["fuzz_shadow", "api"])
def test_larger_pages_of_the_kernel_will_do(program, page_bytes, aarch64):
    """In one thread: with more, qemu 7.2 crashes at such pages under any malloc."""
    pages = ["-p", str(page_bytes)]
    aarch64.holds(program, options=pages, **SHADOW, TEST_THREADS="1", TEST_CALLS="0")


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["cortex-a53", "max"])
def test_the_first_armv8_will_do_and_the_latest_too(cpu, aarch64):
    """The first has no atomic instructions but exclusive loads and stores."""
    aarch64.holds("fuzz_shadow", options=["-cpu", cpu], **SHADOW, **SMALL_CACHES)


@pytest.mark.slow
def test_hz_finds_a_place_where_addresses_have_39_bits(aarch64):
    """Here without the limit of addresses; the emulator puts the stack below 2^39."""
    aarch64.holds("fuzz_shadow", is_limited=False, **SHADOW)


# --- the measuring programs -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("words", [LARSON, ("large", "--ops", "200")], ids=lambda words: words[0])
def test_hz_bench_measures(words, built):
    result = json.loads(built.run([*built.words("bench/hz-bench"), *words]).stdout)
    assert result["allocator"]["name"] == "hz" and result["ops"] > 0 and result["seconds"] > 0


@pytest.mark.slow
def test_hz_launch_proves_the_allocator(built):
    program = built.folder / "bench-on-hz"  # what exec cannot start by itself is emulated so
    program.write_text(f'#!/bin/sh\nexec {" ".join(built.words("bench/hz-bench"))} "$@"\n')
    program.chmod(0o755)
    launch = built.words("bench/hz-launch", is_on_hz=False)
    done = built.run([*launch, "--", str(program), *LARSON])
    result = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, result["status"]) == (0, "ok"), done.stderr
    assert result["allocator"]["name"] == "hz" and result["rss_peak_kb"] > 0


# ---- the first x86-64 ----------------------------------------------------------------------------


PROGRAMS = ("libhz.so", "libhz-deepbind.so", "libhz-agent.so", "bench/hz-bench", "bench/hz-launch",
            "bench/hz-turns", "bench/hz-alternate")  # fmt: skip

# What x86-64-v2, -v3 and -v4 add. Not `tzcnt`: old processors ignore the prefix that makes it one.
LATER = re.compile(
    r"v(?!err\b|erw\b)[a-z]\w*|k(and|or|xor|mov|not|shift|unpck|test|ortest)\w*|popcnt\w?|lzcnt\w?"
    r"|cmpxchg16b|[ls]ahf|crc32\w*|movbe\w?|andn|bextr|bls(i|r|msk)|bzhi|mulx|pdep|pext|rorx"
    r"|s(ar|hl|hr)x|adcx|adox|x(get|set)bv|xsave\w*|xrstor\w*|rdrand|rdseed"
    r"|addsubp[sd]|h(add|sub)p[sd]|lddqu|movddup|movs[hl]dup|fisttp\w*|monitor|mwait"
    r"|pabs[bwd]|psign[bwd]|pshufb|pmulhrsw|pmaddubsw|palignr|ph(add|sub)(w|d|sw)"
    r"|blendv?p[sd]|dpp[sd]|(extract|insert)ps|movntdqa|mpsadbw|packusdw|pblend(vb|w)|pcmpeqq"
    r"|p(extr|insr)[bdq]|phminposuw|p(max|min)(sb|sd|ud|uw)|pmov[sz]x\w+|pmul(dq|ld)|ptest"
    r"|round[ps][sd]|pcmp[ei]str[im]|pcmpgtq|aes\w+|pclmul\w*|sha(1|256)\w+"
)
LINE = re.compile(r"^ +[0-9a-f]+:\t(?:(?:lock|rep|repz|repnz|bnd|notrack|data16|cs) )*(\S+)")


def instructions(disassembly):
    """How often each occurs."""
    found = (LINE.match(line) for line in disassembly.splitlines())
    return Counter(match[1] for match in found if match is not None)


def disassembled(file):
    command = ["objdump", "--disassemble", "--no-show-raw-insn", str(file)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_instruction_came_later(name, core_build):
    used = instructions(disassembled(core_build / name))
    assert used["mov"] > 10
    assert {word: times for word, times in used.items() if LATER.fullmatch(word)} == {}


def test_the_scan_finds_what_later_processors_added(tmp_path):
    source = tmp_path / "later.c"
    source.write_text(
        "#include <string.h>\n"
        "int bits(unsigned long x) { return __builtin_popcountl(x); }\n"
        "void add(float *a, const float *b) { for (int i = 0; i < 64; i++) a[i] += b[i]; }\n"
    )
    object_file = tmp_path / "later.o"
    command = ["gcc", "-O3", "-march=x86-64-v3", "-c", str(source), "-o", str(object_file)]
    subprocess.run(command, check=True)
    used = instructions(disassembled(object_file))
    later = {word for word in used if LATER.fullmatch(word)}
    assert "popcnt" in later and any(word.startswith("vadd") for word in later)
    assert "mov" not in later
