"""The first x86-64 is enough: no instruction of hz and its programs came later (x86-64-v1)."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from .conftest import Built
from .test_platforms import ON_HZ, SHADOW, require_all_held

# The processors of 2003: the emulator ends a program at an instruction that they lack.
FIRST = "qemu64,-pni,-cx16,-ssse3,-sse4.1,-sse4.2,-popcnt,-lahf_lm,-svm,-abm,-sse4a,-movbe,-xsave"
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


def instructions(disassembly: str) -> Counter[str]:
    """How often each occurs."""
    found = (LINE.match(line) for line in disassembly.splitlines())
    return Counter(match[1] for match in found if match is not None)


def disassembled(file: Path) -> str:
    command = ["objdump", "--disassemble", "--no-show-raw-insn", str(file)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_instruction_came_later(name: str, core_build: Path) -> None:
    used = instructions(disassembled(core_build / name))
    assert used["mov"] > 10
    assert {word: times for word, times in used.items() if LATER.fullmatch(word)} == {}


def test_the_scan_finds_what_later_processors_added(tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_hz_runs_on_the_first_processors(oldest: Built) -> None:
    words = oldest.words("tests/fuzz_shadow", "-cpu", FIRST)
    require_all_held(oldest.run(words, **ON_HZ, **SHADOW))


def test_the_emulated_processor_is_one_of_the_first(oldest: Built) -> None:
    source = oldest.folder / "later.c"
    program = oldest.folder / "later"
    source.write_text(
        'int main(void) { long n = 5; __asm__("popcnt %0, %0" : "+r"(n)); return n; }'
    )
    subprocess.run(["gcc", str(source), "-o", str(program)], check=True)
    emulate = [oldest.platform.emulator, "-cpu"]
    assert oldest.run([*emulate, "max", str(program)]).returncode == 2
    assert "Illegal instruction" in oldest.run([*emulate, FIRST, str(program)]).stderr
