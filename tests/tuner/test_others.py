"""The words of other users: nothing of theirs is executed, followed, waited for or obeyed."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from hztune import api, cli
from hztune.allocator import live, loaded_program
from hztune.cli.options import print_lines
from hztune.verifying.running import examine

OTHER = 12345
AS_OTHER = {"user": OTHER, "group": OTHER, "extra_groups": []}
TRAP = """
#include <fcntl.h>
#include <stddef.h>
#include <unistd.h>
static char held[1 << 20];
static size_t used;
void *malloc(size_t size) { return held + (used += (size + 15) & ~15ul) - size; }
void free(void *block) { (void)block; }
__attribute__((constructor)) static void start(void) {
    if (getuid() != 12345) close(creat(MARKER, 0600));
}
"""


@pytest.fixture
def public():
    """A folder of the other user's."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    folder = Path(tempfile.mkdtemp())
    os.chown(folder, OTHER, OTHER)
    yield folder
    shutil.rmtree(folder)


def placed(public, program):
    """A file where the other user can use it."""
    return Path(shutil.copy(program, public))


def test_a_library_of_an_inspected_process_is_not_loaded(public, running, compiled, make_profile):
    marker = public / "loaded"
    trap = compiled("libhz.so", TRAP, f'-DMARKER="{marker}"', "-shared", "-fPIC", "-fno-builtin")
    program = placed(public, compiled("idle"))
    variables = {"LD_PRELOAD": str(placed(public, trap)), "HZ_SPAN_CACHE": "7"}
    with running(program, variables, **AS_OTHER) as pid:
        found = api.diagnose(pid)
        assert not examine(make_profile(), pid).in_effect
    assert not marker.exists()
    assert (found.provider, found.allocator) == (str(public / "libhz.so"), "hz")
    assert ("span_cache", 7, False) in [(s.name, s.value, s.is_effective) for s in found.settings]


def test_the_loader_of_an_inspected_process_is_not_executed(public, running, compiled):
    own, marker = loaded_program.loader_of(None), public / "loaded"
    loader = Path(shutil.copy(own, public / "ld.so"))
    program = compiled("idle", compiled.idle, f"-Wl,--dynamic-linker={loader}")
    variables = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=3"}
    with running(placed(public, program), variables, **AS_OTHER) as pid:
        loader.unlink()
        loader.write_text(f"#!/bin/sh\ntouch {marker}\n")
        loader.chmod(0o755)
        settings = api.diagnose(pid).settings
    assert not marker.exists()
    assert ("arena_max", 3, False) in [(s.name, s.value, s.is_effective) for s in settings]


def test_what_took_the_name_of_a_mapped_file_is_not_opened(public, running, compiled):
    """A FIFO would be waited for; the file that the process executes is still read."""
    own = compiled.idle + "void *malloc(unsigned long n) { (void)n; return 0; }"
    program = placed(public, compiled("own", own, "-rdynamic", "-fno-builtin"))
    with running(program, {}, **AS_OTHER) as pid:
        program.unlink()
        os.mkfifo(program)
        os.mkfifo(f"{program} (deleted)")
        assert live.look(pid).provider == Path(f"{program} (deleted)")


def test_a_mapped_file_that_only_its_name_leads_to_is_the_same_or_none(
    compiled, running, monkeypatch
):
    """Without root's rights, the kernel's links to mapped files may not be followed."""
    library = compiled("libjemalloc.so.2", "int x;", "-shared")
    stat = Path.stat

    def refused(path, **options):
        if "map_files" in path.parts:
            raise PermissionError
        return stat(path, **options)

    with running(compiled("idle"), {"LD_PRELOAD": str(library)}) as pid:
        process = live.look(pid).process
        assert os.geteuid() != 0 or "map_files" in process.link(library).parts
        monkeypatch.setattr(Path, "stat", refused)
        assert process.link(library) == library
        os.replace(compiled("new.so", "int y;", "-shared"), library)
        with pytest.raises(FileNotFoundError):
            process.link(library)
        assert live.look(pid).allocator == "jemalloc"


def test_a_line_that_is_printed_steers_no_terminal(capsys):
    print_lines(["a\x1b[2Jb\u202ec\nd", "e"])
    assert capsys.readouterr().out == "a?[2Jb?c?d\ne\n"


def test_the_doctor_obeys_no_path_of_a_process(compiled, running, capsys):
    own = compiled.idle + "void *malloc(unsigned long n) { (void)n; return 0; }"
    program = compiled("own\x1b[2J", own, "-rdynamic", "-fno-builtin")
    with running(program, {}) as pid:
        assert cli.status_of(["doctor", "--pid", str(pid)]) == 0
    told = capsys.readouterr().out
    assert "own?[2J (unknown to hztune)" in told
    assert "\x1b" not in told
