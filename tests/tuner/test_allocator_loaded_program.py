"""A program before it is started, and a process that runs: which allocator it has, and settings."""

import os
import struct
from pathlib import Path

import pytest

from hztune import allocator
from hztune.allocator import elf, live, loaded_program
from hztune.errors import UsageError

from .conftest import put

JEMALLOC = ("-Wl,--no-as-needed", "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2")
OWN_MALLOC = "void *malloc(unsigned long n) { (void)n; return 0; }"
SHOWN = ("-rdynamic", "-fno-builtin")
INSIDE = """
const char *const said[] = {"<jemalloc>: bad", "JE_MALLOC_CONF"};
const char *const *je_said(void) { return said; }
"""


# ---- programs ------------------------------------------------------------------------------------


TOLD = [
    ((), "", "None", "", ""),
    (("-static",), "", "is a static program: the loader never runs, so LD_PRELOAD", "", ""),
    (("-static-pie",), "", "is a static program", "", ""),
    (SHOWN, OWN_MALLOC, "defines malloc itself", "", ""),
    (JEMALLOC, "", "None", "linked with jemalloc", "MALLOC_CONF"),
    (("-Wl,--export-dynamic-symbol=je_said",), INSIDE, "None", "jemalloc inside", "JE_MALLOC_CONF"),
]


@pytest.mark.parametrize("told", TOLD)
def test_what_a_program_is_to_an_allocator_is_told(told, compiled):
    flags, source, obstacle, remark, reads = told
    seen = loaded_program.inspect(compiled("program", compiled.idle + source, *flags))
    assert obstacle in str(seen.obstacle)
    assert ("static program" in obstacle) == (seen.loader is None)
    remarks = "".join(seen.remarks)
    assert remark in remarks and bool(remarks) == bool(remark)
    assert reads == "" or f"(it reads {reads})" in remarks


def test_a_program_beside_needs_a_dot(compiled, monkeypatch):
    program = compiled("plain")
    monkeypatch.chdir(program.parent)
    for named in ("./plain", Path("./plain"), program):
        assert loaded_program.inspect(named).program == program
    with pytest.raises(UsageError, match="there is no program 'plain'"):
        loaded_program.inspect("plain")


def test_a_script_is_followed_to_what_is_executed(tmp_path, compiled):
    program = compiled("interpreter")
    script, outer, circle, text = map(tmp_path.joinpath, ("script", "outer", "circle", "text"))
    put(
        tmp_path,
        {"script": f"#!{program} -x # it isn't code\n", "outer": f"#!/usr/bin/env -S {script}\n"},
    )
    put(tmp_path, {"circle": f"#!{circle}\n", "text": "hello"})
    text.chmod(0o755)
    seen = loaded_program.inspect(outer)
    assert (seen.program, seen.scripts) == (program, (outer, script))
    assert "is a script" in seen.remarks[0]
    for path, said in ((circle, "script of scripts"), (text, "neither"), (tmp_path, "no program")):
        with pytest.raises(UsageError, match=said):
            loaded_program.inspect(path)


# ---- files that are not what they say ------------------------------------------------------------


def test_a_program_for_another_processor_is_an_obstacle(compiled):
    program = compiled("other")
    data = bytearray(program.read_bytes())
    data[18:20] = (183).to_bytes(2, "little")
    program.write_bytes(data)
    assert "another processor" in str(loaded_program.inspect(program).obstacle)


def test_broken_headers_are_no_program(compiled, tmp_path):
    whole = compiled("whole").read_bytes()
    cut = tmp_path / "cut"
    for length in range(4, 128, 3):
        cut.write_bytes(whole[:length])
        assert elf.read(cut) is None
    for place in range(16, 64):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        cut.write_bytes(damaged)
        elf.read(cut)


def test_a_file_cut_or_stretched_is_none(compiled, monkeypatch):
    program, rows = compiled("cut"), elf._Content.rows
    large = compiled("large")
    os.truncate(large, 1 << 40)
    assert elf.read(large) is None

    def cutting(data, *words):
        found = rows(data, *words)
        os.truncate(program, 0)
        return found

    monkeypatch.setattr(elf._Content, "rows", cutting)
    assert elf.read(program) is None


@pytest.mark.parametrize(("symbols", "names"), [(1 << 40, 16), (24, 1 << 40)])
def test_no_table_too_large_is_read(symbols, names, tmp_path):
    header = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 64, 0, 64, 56, 0, 64, 2, 0)
    rows = [(3, names, 0), (11, symbols, 24)]
    sections = [struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, 192, size, 0, 0, 0, each)
                for kind, size, each in rows]  # fmt: skip
    hostile = tmp_path / "hostile"
    hostile.write_bytes(b"\x7fELF\2\1\1" + bytes(9) + header + b"".join(sections))
    os.truncate(hostile, 1 << 31)
    assert elf.read(hostile) is None


# ---- processes -----------------------------------------------------------------------------------


LOADED = [
    ("", (), "glibc"),
    ("libtcmalloc_minimal.so.4", (), "tcmalloc"),
    ("libnosuch.so.1:libmimalloc.so.2 libjemalloc.so.2", (), "mimalloc"),
    ("", JEMALLOC, "jemalloc"),
    ("libmimalloc.so.2", JEMALLOC, "mimalloc"),
    ("{deepbind}", (), "glibc"),
    ("{deepbind}:libjemalloc.so.2", (), "jemalloc"),
    ("libmimalloc.so.2:{deepbind}", (), "mimalloc"),
    ("libjemalloc.so.2", SHOWN, ""),
]


@pytest.mark.parametrize(("preload", "flags", "name"), LOADED)
def test_the_allocator_of_a_process_is_the_first_that_defines_malloc_in_the_loaders_order(
    preload, flags, name, core_build, compiled, running, monkeypatch
):
    preload = preload.format(deepbind=core_build / "libhz-deepbind.so")
    source = compiled.idle + (OWN_MALLOC if flags == SHOWN else "")
    program = compiled("idle", source, *flags)
    with running(program, {"LD_PRELOAD": preload}) as pid:
        seen = live.look(pid)
        monkeypatch.setattr(live.ProcessMemory, "loaded", lambda process: None)  # not to be read
        guessed = live.look(pid)
    assert seen.allocator == name and (name or seen.provider == program)
    assert (seen.environment or {})["LD_PRELOAD"] == preload
    are_several = "mimalloc" in preload and "jemalloc" in f"{preload} {flags}"
    assert are_several or guessed.allocator == name


ROUND = """
#include <link.h>
#include <unistd.h>
int main(void) {
    char c;
    _r_debug.r_map->l_next = _r_debug.r_map;
    _exit(write(1, "x", 1) + read(0, &c, 1) != 2);
}
"""


def test_one_that_overwrote_its_variables_is_known(running, tmp_path):
    """Perl writes a long name of its own there."""
    put(tmp_path, {"titled": "#!/usr/bin/perl\n$0 = 'x' x 9999; $| = 1; print 'x'; <STDIN>;\n"})
    variables = {"LD_PRELOAD": "libmimalloc.so.2", "MIMALLOC_DECOMMIT_DELAY": "7"}
    with running(tmp_path / "titled", variables) as pid:
        assert b"MIMALLOC" not in Path(f"/proc/{pid}/environ").read_bytes()
        seen = live.look(pid)
    assert seen.allocator == "mimalloc"
    assert live.undelivered(seen, variables) == ()


def test_a_variable_that_was_changed_is_named(compiled, running):
    tunables = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2:glibc.malloc.tcache_count=9"}
    with running(compiled("idle"), {**tunables, "MALLOC_CONF": "narenas:3"}) as pid:
        seen = live.look(pid)
    asked = {**tunables, "MALLOC_CONF": "narenas:4", "TCMALLOC_RELEASE_RATE": "1.00"}
    assert live.undelivered(seen, asked) == ("MALLOC_CONF", "TCMALLOC_RELEASE_RATE")


def test_a_list_of_the_loader_that_goes_round_ends(compiled, running):
    with running(compiled("round", ROUND), {}) as pid:
        process = live.ProcessMemory.of(pid)
        assert process.loaded() == [process.program]


def test_a_process_that_does_not_exist_is_refused_and_has_no_descendants():
    with pytest.raises(UsageError, match="no process"):
        live.look(2**22 + 1)
    assert live.descendants(2**22 + 1) == []


@pytest.mark.parametrize(("own", "strangers"), [("LD_PRELOAD=", ["glibc"]), ("", [])])
def test_a_child_with_another_allocator_is_a_stranger(own, strangers, compiled, running, tmp_path):
    jemalloc = allocator.get("jemalloc").installed()
    put(tmp_path, {"script": f"#!/bin/sh\n{own} '{compiled('idle')}'; true\n"})
    with running(tmp_path / "script", {"LD_PRELOAD": jemalloc.preload}) as pid:
        assert [each.allocator for each in live.strangers(pid, jemalloc.path)] == strangers
