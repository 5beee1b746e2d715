"""What a program is, and what a running one has: told before anything is measured."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from hztune import allocator, params
from hztune.allocator import elf, live, loaded_program
from hztune.allocator.live import ProcessMemory
from hztune.errors import UsageError

Compile = Any  # the Compiler of conftest.py
Running = Callable[[Path, Mapping[str, str]], AbstractContextManager[int]]


# ---- programs -----------------------------------------------------------------------------------


def test_a_plain_program_has_no_obstacle(compiled: Compile) -> None:
    seen = loaded_program.inspect(compiled("plain"))
    assert seen.obstacle() is None
    assert seen.remarks() == ()
    assert seen.loader is not None


def test_a_program_in_the_directory_where_one_is_needs_no_path_beside_its_dot(
    compiled: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = compiled("plain")
    monkeypatch.chdir(program.parent)
    for named in ("./plain", Path("./plain"), program):
        assert loaded_program.inspect(named).program == program
    with pytest.raises(UsageError, match="there is no program 'plain'"):
        loaded_program.inspect("plain")


def test_a_static_program_is_an_obstacle(compiled: Compile) -> None:
    seen = loaded_program.inspect(compiled("static", compiled.idle, "-static"))
    assert seen.is_static
    assert "LD_PRELOAD" in str(seen.obstacle())


def test_a_static_pie_is_an_obstacle_too(compiled: Compile) -> None:
    assert loaded_program.inspect(compiled("pie", compiled.idle, "-static-pie")).is_static


def test_a_program_that_defines_malloc_itself_is_an_obstacle(compiled: Compile) -> None:
    own = compiled.idle + "void *malloc(unsigned long n) { (void)n; return 0; }"
    seen = loaded_program.inspect(compiled("own", own, "-rdynamic", "-fno-builtin"))
    assert "defines malloc itself" in str(seen.obstacle())


def test_a_program_linked_with_an_allocator_is_said_to_run_on_it(compiled: Compile) -> None:
    library = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"
    link = ("-Wl,--no-as-needed", library)
    seen = loaded_program.inspect(compiled("linked", compiled.idle, *link))
    assert seen.linked == "jemalloc"
    assert seen.variable == "MALLOC_CONF"
    assert "linked with jemalloc" in seen.remarks()[0]
    assert seen.obstacle() is None


def test_the_prefix_of_a_jemalloc_inside_is_read_from_the_file(compiled: Compile) -> None:
    inside = compiled.idle + (
        'const char *const said[] = {"<jemalloc>: bad", "JE_MALLOC_CONF"};\n'
        "const char *const *je_said(void) { return said; }"
    )
    seen = loaded_program.inspect(compiled("inside", inside, "-Wl,--export-dynamic-symbol=je_said"))
    assert seen.inside == "jemalloc"
    assert seen.variable == "JE_MALLOC_CONF"
    assert "JE_MALLOC_CONF" in seen.remarks()[0]


def test_a_script_is_followed_to_what_is_executed(tmp_path: Path, compiled: Compile) -> None:
    program = compiled("interpreter")
    script = tmp_path / "script"
    script.write_text(f"#!{program} -x\n")
    outer = tmp_path / "outer"
    outer.write_text(f"#!/usr/bin/env -S {script}\n")
    for path in (script, outer):
        path.chmod(0o755)
    seen = loaded_program.inspect(outer)
    assert seen.program == program
    assert seen.scripts == (outer, script)
    assert "is a script" in seen.remarks()[0]


def test_a_circle_of_scripts_ends_in_words(tmp_path: Path) -> None:
    script = tmp_path / "circle"
    script.write_text(f"#!{script}\n")
    script.chmod(0o755)
    with pytest.raises(UsageError, match="script of scripts"):
        loaded_program.inspect(script)


def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("hello")
    text.chmod(0o755)
    with pytest.raises(UsageError, match="neither"):
        loaded_program.inspect(text)
    with pytest.raises(UsageError, match="no program"):
        loaded_program.inspect(tmp_path / "absent")


def test_a_program_for_another_processor_is_an_obstacle(compiled: Compile) -> None:
    program = compiled("other")
    data = bytearray(program.read_bytes())
    data[18:20] = (183).to_bytes(2, "little")
    program.write_bytes(data)
    assert "another processor" in str(loaded_program.inspect(program).obstacle())


def test_broken_headers_are_no_program(compiled: Compile, tmp_path: Path) -> None:
    whole = compiled("whole").read_bytes()
    for length in range(4, 128, 3):
        cut = tmp_path / "cut"
        cut.write_bytes(whole[:length])
        assert elf.read(cut) is None
    for place in range(16, 64):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        cut.write_bytes(damaged)
        elf.read(cut)


def test_a_file_that_its_owner_cuts_while_it_is_read_is_no_program(
    compiled: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, segments = compiled("cut"), elf._Content.segments

    def cutting(data: Any) -> Any:
        found = segments(data)
        os.truncate(program, 0)
        return found

    monkeypatch.setattr(elf._Content, "segments", cutting)
    assert elf.read(program) is None


@pytest.mark.parametrize(("symbols", "names"), [(1 << 40, 16), (24, 1 << 40)])
def test_a_table_that_is_too_large_for_a_program_is_not_read(
    symbols: int, names: int, tmp_path: Path
) -> None:
    header = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 64, 0, 64, 56, 0, 64, 2, 0)
    rows = [(3, names, 0), (11, symbols, 24)]
    sections = [struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, 192, size, 0, 0, 0, each)
                for kind, size, each in rows]  # fmt: skip
    hostile = tmp_path / "hostile"
    hostile.write_bytes(b"\x7fELF\2\1\1" + bytes(9) + header + b"".join(sections))
    os.truncate(hostile, 1 << 31)
    assert elf.read(hostile) is None


def test_a_file_that_is_too_large_for_a_program_is_none(compiled: Compile) -> None:
    program = compiled("large")
    os.truncate(program, 1 << 40)
    assert elf.read(program) is None


def test_the_loader_of_a_static_program_cannot_be_asked(compiled: Compile) -> None:
    with pytest.raises(UsageError, match="static program"):
        loaded_program.loader_of(compiled("alone", compiled.idle, "-static"))


# ---- processes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preload", "name"),
    [
        ("", "glibc"),
        ("libjemalloc.so.2", "jemalloc"),
        ("libmimalloc.so.2", "mimalloc"),
        ("libtcmalloc_minimal.so.4", "tcmalloc"),
        ("libnosuch.so.1:libmimalloc.so.2 libjemalloc.so.2", "mimalloc"),
    ],
)
def test_the_allocator_of_a_running_process_is_the_first_that_defines_malloc(
    preload: str, name: str, compiled: Compile, running: Running
) -> None:
    with running(compiled("idle"), {"LD_PRELOAD": preload}) as pid:
        seen = live.look(pid)
    assert seen.allocator == name
    assert seen.environment.get("LD_PRELOAD") == preload


def test_a_linked_allocator_gives_way_to_a_preloaded_one(
    compiled: Compile, running: Running
) -> None:
    library = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"
    program = compiled("linked", compiled.idle, "-Wl,--no-as-needed", library)
    with running(program, {}) as pid:
        assert live.look(pid).allocator == "jemalloc"
    with running(program, {"LD_PRELOAD": "libmimalloc.so.2"}) as pid:
        assert live.look(pid).allocator == "mimalloc"


def test_a_program_with_malloc_of_its_own_is_its_own_provider(
    compiled: Compile, running: Running
) -> None:
    own = compiled.idle + "void *malloc(unsigned long n) { (void)n; return 0; }"
    program = compiled("own", own, "-rdynamic", "-fno-builtin")
    with running(program, {"LD_PRELOAD": "libjemalloc.so.2"}) as pid:
        seen = live.look(pid)
    assert seen.provider == program
    assert seen.allocator == ""


TITLED = """
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
extern char **environ;
int main(void) {
    char *kept[1000] = {0}, *first = environ[0], c;
    size_t length = 0, count = 0;
    for (; environ[count]; count++) {
        kept[count] = strdup(environ[count]);
        length += strlen(environ[count]) + 1;
    }
    memset(first, 0, length);
    environ = kept;
    return write(1, "x", 1) + read(0, &c, 1) != 2;
}
"""


def test_a_process_that_overwrote_its_variables_is_still_known(
    compiled: Compile, running: Running
) -> None:
    variables = {"LD_PRELOAD": "libmimalloc.so.2", "MIMALLOC_DECOMMIT_DELAY": "7"}
    with running(compiled("titled", TITLED), variables) as pid:
        assert b"MIMALLOC" not in Path(f"/proc/{pid}/environ").read_bytes()
        seen = live.look(pid)
    assert seen.allocator == "mimalloc"
    assert live.undelivered(seen, variables) == ()


def test_several_tunables_are_whole_although_the_loader_cuts_them(
    compiled: Compile, running: Running
) -> None:
    variables = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2:glibc.malloc.tcache_count=9", "Z": "1"}
    with running(compiled("idle"), variables) as pid:
        assert live.undelivered(live.look(pid), variables) == ()


def test_a_list_of_the_loader_that_goes_round_ends(compiled: Compile, running: Running) -> None:
    source = """
    #include <link.h>
    #include <unistd.h>
    int main(void) {
        char c;
        _r_debug.r_map->l_next = _r_debug.r_map;
        _exit(write(1, "x", 1) + read(0, &c, 1) != 2);
    }
    """
    with running(compiled("round", source), {}) as pid:
        process = ProcessMemory.of(pid)
        assert process.loaded() == [process.program]


@pytest.mark.parametrize("preload", ["", "libmimalloc.so.2", "libnosuch.so.1:libjemalloc.so.2"])
def test_the_order_that_is_worked_out_is_that_of_the_loader(
    preload: str, compiled: Compile, running: Running
) -> None:
    with running(compiled("idle"), {"LD_PRELOAD": preload}) as pid:
        process = live.look(pid).process
        loaded = process.loaded()
        worked_out = live.search_order(process, preload)
    assert loaded is not None
    assert [path for path in worked_out if path in loaded] == loaded


@pytest.mark.parametrize(
    ("preload", "name"),
    [("{0}", "glibc"), ("{0}:libjemalloc.so.2", "jemalloc"), ("libmimalloc.so.2:{0}", "mimalloc")],
)
def test_the_library_that_changes_dlopen_is_no_allocator_and_hides_none(
    preload: str, name: str, core_build: Path, compiled: Compile, running: Running
) -> None:
    variables = {"LD_PRELOAD": preload.format(core_build / "libhz-deepbind.so")}
    with running(compiled("idle"), variables) as pid:
        seen = live.look(pid)
        assert any(path.name == "libhz-deepbind.so" for path in seen.process.files)
    assert seen.allocator == name


def test_a_process_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="no process"):
        live.look(2**22 + 1)


@pytest.mark.parametrize("gone", [FileNotFoundError, ProcessLookupError])
def test_a_process_that_ends_while_it_is_looked_at_has_no_descendants(
    gone: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(where: object) -> None:
        raise gone(where)

    for call in ("listdir", "scandir"):
        monkeypatch.setattr(os, call, end)
    assert live.descendants(os.getpid()) == []


@pytest.mark.parametrize("name", ["glibc", "jemalloc", "mimalloc", "tcmalloc", "hz"])
def test_settings_of_a_running_process_are_those_it_was_given(
    name: str, compiled: Compile, running: Running
) -> None:
    adapter = allocator.get(name)
    installed = adapter.installed()
    knob = next(p for p in adapter.knobs(installed) if p.kind == "int" and p.default != p.high)
    config = {knob.name: knob.high}
    with running(compiled("idle"), adapter.environment(config, installed)) as pid:
        seen = live.look(pid)
        settings = live.settings(seen, adapter, installed)
    assert seen.provider.samefile(installed.path)
    assert settings[knob.name].value == knob.high


def test_what_stands_in_the_memory_of_tcmalloc_is_read_from_there(
    compiled: Compile, running: Running
) -> None:
    adapter = allocator.get("tcmalloc")
    installed = adapter.installed()
    config = {"max_total_thread_cache_bytes": 1 << 24, "release_rate_percent": 250}
    with running(compiled("idle"), adapter.environment(config, installed)) as pid:
        settings = live.settings(live.look(pid), adapter, installed)
    assert settings["max_total_thread_cache_bytes"] == live.SettingRead(1 << 24, is_effective=True)
    assert settings["release_rate_percent"] == live.SettingRead(250, is_effective=True)
    assert "transfer_num_obj" not in settings


def test_a_variable_that_a_wrapper_changed_is_named(compiled: Compile, running: Running) -> None:
    with running(compiled("idle"), {"MALLOC_CONF": "narenas:3", "GLIBC_TUNABLES": ""}) as pid:
        seen = live.look(pid)
    asked = {"MALLOC_CONF": "narenas:4", "GLIBC_TUNABLES": "", "TCMALLOC_RELEASE_RATE": "1.00"}
    assert live.undelivered(seen, asked) == ("MALLOC_CONF", "TCMALLOC_RELEASE_RATE")


def test_a_child_with_another_allocator_is_a_stranger(compiled: Compile) -> None:
    program = compiled("idle")
    jemalloc = allocator.get("jemalloc").installed()
    script = f"LD_PRELOAD= '{program}'; '{program}'; true"
    child = subprocess.Popen(
        ["/bin/sh", "-c", script],
        env={**os.environ, "LD_PRELOAD": jemalloc.preload},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    allocators = []
    for _ in range(2):
        assert child.stdout.read(1) == b"x"
        allocators.append([each.allocator for each in live.strangers(child.pid, jemalloc.path)])
        child.stdin.write(b"\n")
        child.stdin.flush()
    child.communicate(timeout=30)
    assert allocators == [["glibc"], []]


def test_the_configuration_of_hz_in_memory_is_one_number_a_row() -> None:
    adapter = allocator.get("hz")
    rows = params.table()
    held = b"".join(struct.pack("=q", _number(row)) for row in rows)
    found = adapter.effective(lambda symbol, size: held if symbol == "hz_cfg" else None)
    assert len(held) == 8 * len(rows)
    assert found == params.defaults()


def test_of_an_hz_with_another_table_nothing_is_believed() -> None:
    adapter = allocator.get("hz")
    numbers = [_number(row) for row in params.table()]
    for index, row in enumerate(params.table()):
        other = [*numbers[:index], row.high + 1, *numbers[index + 1 :]]
        held = struct.pack(f"={len(other)}q", *other)
        assert adapter.effective(lambda symbol, size, held=held: held) == {}, row.name


def _number(row: params.Param) -> int:
    """The number by which C holds the default of a row; -1 stands for auto."""
    if row.kind == "enum":
        return row.choices.index(str(row.default))
    return -1 if row.default == "auto" else int(row.default)
