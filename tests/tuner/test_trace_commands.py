"""`hztune record` and `hztune trace` as a user types them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.bench import traces

from hztune.recordings import trace_text

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def trace_of_ls(hztune_once: Run, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("trace") / "ls.trace"
    done = hztune_once("record", "-o", path, "--", "ls", "/")
    assert done.returncode == 0, done.stderr
    assert "bin" in done.stdout.split(), "the program's output is its own"
    return path.read_bytes()


@pytest.fixture
def recorded(trace_of_ls: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "ls.trace"
    path.write_bytes(trace_of_ls)
    return path


def test_a_program_is_recorded_and_told_of(recorded: Path, hztune_here: Run) -> None:
    told = json.loads(hztune_here("trace", "info", recorded, "--json").stdout)
    assert told["calls"] > 50 and told["threads"] == 1
    assert told["notes"]["program"] == ["ls", "/"]
    lines = hztune_here("trace", "info", recorded).stdout.splitlines()
    assert lines == trace_text(told)
    assert lines[0] == "program   ls /"


def test_the_exit_status_is_the_programs(hztune: Run) -> None:
    done = hztune("record", "-o", "sh.trace", "--", "sh", "-c", "exit 5")
    assert done.returncode == 5


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["record", "-o", "x", "--", "/nonexistent/program"], "there is no program"),
        (["record", "-o", "x"], "want either a program after -- or --pid N"),
        (["record", "-o", "x", "--pid", "1", "--", "ls"], "want either a program"),
        (["record", "-o", "x", "--for", "soon", "--", "ls"], "--for 'soon': legal is"),
        (["trace"], "Missing command (see `hztune trace --help`)"),
        (["trace", "info", "nothing"], "cannot read nothing: No such file"),
        (["trace", "convert", "ls.trace", "-o", "x", "--to", "foo"], "--to foo: want trace"),
        (["trace", "cut", "ls.trace", "-o", "x", "--from", "2", "--to", "1"], "later than --from"),
        (["trace", "cut", "ls.trace", "-o", "x", "--from", "100"], "--from 100: ls.trace lasts 0."),
        (["trace", "anonymize", "ls.trace", "-o", "x", "--round-sizes", "3"], "a power of two"),
    ],
)
def test_what_cannot_be_done_gets_one_sentence(
    words: list[str], reason: str, recorded: Path, hztune_here: Run, tmp_path: Path
) -> None:
    done = hztune_here(*words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert reason in done.stderr
    assert os.listdir(tmp_path) == [recorded.name]


@pytest.mark.parametrize(
    ("source", "flag", "reason"),
    [
        ("", "-static", "is a static program"),
        ('const char a[] = "mimalloc: ", b[] = "eager_commit";', "-g0", "has mimalloc inside"),
        ("void *malloc(unsigned long n) { return (void *)n; }", "-g0", "defines malloc itself"),
    ],
)
def test_a_program_that_cannot_be_seen_through_is_refused(
    source: str, flag: str, reason: str, hztune_here: Run, tmp_path: Path
) -> None:
    (tmp_path / "own.c").write_text(f"{source}\nint main(void) {{ return 0; }}")
    subprocess.run(["gcc", "-w", "-rdynamic", flag, "-o", "own", "own.c"], cwd=tmp_path, check=True)
    done = hztune_here("record", "-o", "x", "--", "./own")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "it cannot be recorded" in done.stderr and reason in done.stderr


CHURN = """
#include <stdlib.h>
int main(void)
{
    static void *blocks[512];
    for (unsigned i = 0, at = 1; i < 1000000; i++) {
        at = at * 1103515245u + 12345u;
        free(blocks[at >> 23]);
        blocks[at >> 23] = malloc(16 + (at >> 8) % 400);
    }
    return 0;
}
"""


def test_a_program_is_recorded_and_replayed(hztune: Run, tmp_path: Path) -> None:
    (tmp_path / "churn.c").write_text(CHURN)
    subprocess.run(["gcc", "-O1", "-o", "churn", "churn.c"], cwd=tmp_path, check=True)
    assert hztune("record", "-o", "churn.trace", "--", "./churn").returncode == 0
    done = hztune("compare", "glibc", "hz", "--workload", "trace:churn.trace", "--pairs", "4",
                  "--budget", "2s", "-q")  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("notes", ["", "[1]", '{"program": 5}', "{", '{"a":' * 9000, "\udcff"])
def test_notes_that_hztune_does_not_write_get_a_sentence(
    notes: str, hztune_here: Run, tmp_path: Path
) -> None:
    path = traces.write(tmp_path / "odd.trace", [traces.churn(400)], notes=notes)
    done = hztune_here("trace", "info", path)
    if notes == "":
        assert done.returncode == 0, done.stderr
        return
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "has notes that hztune does not write" in done.stderr
    assert hztune_here("trace", "anonymize", path, "-o", "a.trace").returncode == 0
    assert hztune_here("trace", "info", "a.trace").returncode == 0


def test_the_names_of_a_program_do_not_steer_the_terminal(hztune_here: Run, tmp_path: Path) -> None:
    notes = json.dumps({"program": ["a\x1b[2Jb\n", "c"]})
    path = traces.write(tmp_path / "odd.trace", [traces.churn(400)], notes=notes)
    assert hztune_here("trace", "info", path).stdout.splitlines()[0] == "program   a?[2Jb c"


def test_a_trace_does_not_take_the_place_of_its_program(hztune_here: Run, tmp_path: Path) -> None:
    shutil.copy("/bin/true", tmp_path / "true")
    done = hztune_here("record", "-o", "./true", "--", str(tmp_path / "true"))
    assert done.returncode == 2 and "it is the program that is recorded" in done.stderr
    assert (tmp_path / "true").read_bytes() == Path("/bin/true").read_bytes()


def test_a_pipe_is_no_trace_and_is_not_waited_for(hztune_here: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = hztune_here("trace", "convert", "pipe", "-o", "x")
    assert (done.returncode, "it is not a regular file" in done.stderr) == (2, True)


def test_a_damaged_trace_is_refused(recorded: Path, hztune_here: Run, tmp_path: Path) -> None:
    (tmp_path / "cut.trace").write_bytes(recorded.read_bytes()[:-100])
    done = hztune_here("trace", "info", "cut.trace")
    assert done.returncode == 2 and "cut.trace is cut: it should have " in done.stderr
