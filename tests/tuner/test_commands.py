"""Commands as they are typed: what is kept of one, what it reads on stdin, what shells complete."""

import json
import os
import sys
import threading
from pathlib import Path

import pytest
from tests.bench import traces
from tests.conftest import finished

from hztune import api
from hztune.errors import HztuneError, UsageError
from hztune.files import STDIN, Input, input_of
from hztune.measure.program import described
from hztune.profile import PROFILE
from hztune.recordings import trace_text
from hztune.store import kept_command

from .conftest import put
from .measured import CONTROL, FIRST, WAYS

WORDS = ["--allocator", "hz,glibc", "--metric-regex", "-x (.*)", "--lower-is-better"]
WORDS += ["--no-panel", "--cpus", "1.5", "--", "sh", "-c", "web 'a b'"]


@pytest.fixture
def asked(monkeypatch):
    """What reaches the study, which is not carried out."""
    seen = []

    def tune(request, **_):
        seen.append(request)
        raise HztuneError("not carried out")

    monkeypatch.setattr(api, "tune", tune)
    return seen


@pytest.fixture
def stdin():
    """Lets a descriptor be this process's stdin until the test ends."""
    before = os.dup(0)
    yield lambda fd: os.dup2(fd, 0) and None
    os.dup2(before, 0)
    os.close(before)


def test_a_command_is_kept_as_it_was_given_but_for_where_and_how_it_is_told(asked, hztune_here):
    hztune_here("tune", "--out", "here", "-q", *WORDS)
    assert sorted(asked[0].command) == sorted(WORDS)
    assert asked[0].command[-4:] == tuple(WORDS[-4:])
    hztune_here("tune", "--private", *asked[0].command)
    assert asked[1].command == ()
    assert asked[1].program and asked[0].program
    assert asked[1].program.metric == asked[0].program.metric


def test_a_file_on_stdin_is_named_in_the_command(asked, hztune_here, stdin, tmp_path):
    (tmp_path / "big").write_text("x")
    stdin(os.open(tmp_path / "big", os.O_RDONLY))
    hztune_here("tune", "--", "sort")
    assert asked[0].command == ("--input", str(tmp_path / "big"), "--", "sort")


def test_a_study_goes_on_by_its_directory_alone(asked, hztune_here, tmp_path):
    (tmp_path / "there").mkdir()
    done = hztune_here("--resume", "--out", "there")
    assert (done.returncode, asked) == (2, [])
    assert "'there' does not hold its command" in done.stderr
    kept_command.write(tmp_path / "there" / "profile.json", WORDS)
    assert (tmp_path / "there" / "profile.args").stat().st_mode & 0o777 == 0o600
    hztune_here("--resume", "--out", "there", "--budget", "40s")
    (request,) = asked
    assert request.program is not None and request.program.argv == ("sh", "-c", "web 'a b'")
    assert (request.budget_s, request.resume, request.out) == (40.0, True, Path("there"))
    assert (request.allocator, request.panel) == ("hz,glibc", False)


# ---- names that mean something else from one moment to the next ----------------------------------


def test_no_command_is_read_from_a_folder_that_takes_the_place_of_ones_own(tmp_path, monkeypatch):
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        kept_command.write(folder / PROFILE, [folder.name])
    (other / "profile.args").chmod(0o666)
    with pytest.raises(UsageError, match=r"profile\.args"):
        kept_command.read(other / PROFILE)
    opened = kept_command._opened_folder

    def exchanged(path):
        handle = opened(path)
        own.rename(tmp_path / "aside")
        other.rename(own)
        return handle

    monkeypatch.setattr(kept_command, "_opened_folder", exchanged)
    assert kept_command.read(own / PROFILE) == ("own",)


# ---- record and trace ----------------------------------------------------------------------------


def test_a_program_is_recorded_whose_output_and_status_are_its_own(hztune, hztune_here, tmp_path):
    words = [sys.executable, "-I", "-S", "-c", "print('its own'); raise SystemExit(5)"]
    done = hztune("record", "-o", "own.trace", "--", *words)
    assert (done.returncode, done.stdout) == (5, "its own\n")
    told = json.loads(hztune_here("trace", "info", "own.trace", "--json").stdout)
    assert told["calls"] > 50 and told["threads"] == 1
    assert told["notes"]["program"] == words
    lines = hztune_here("trace", "info", "own.trace").stdout.splitlines()
    assert lines == trace_text(told)
    assert lines[0].startswith(f"program   {sys.executable} -I")


@pytest.mark.parametrize("notes", ["[1]", '{"program": 5}', "{", '{"a":' * 9000, "\udcff"])
def test_notes_that_hztune_does_not_write_get_a_sentence(notes, hztune_here, tmp_path):
    path = traces.write(tmp_path / "odd.trace", [traces.churn(400)], notes=notes)
    done = hztune_here("trace", "info", path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "has notes that hztune does not write" in done.stderr
    assert hztune_here("trace", "anonymize", path, "-o", "a.trace").returncode == 0
    assert hztune_here("trace", "info", "a.trace").returncode == 0


def test_the_names_of_a_program_do_not_steer_the_terminal(hztune_here, tmp_path):
    notes = json.dumps({"program": ["a\x1b[2Jb\n", "c"]})
    path = traces.write(tmp_path / "odd.trace", [traces.churn(400)], notes=notes)
    assert hztune_here("trace", "info", path).stdout.splitlines()[0] == "program   a?[2Jb c"


# ---- stdin ---------------------------------------------------------------------------------------


@WAYS
def test_every_run_reads_the_file_from_its_start_whatever_becomes_of_its_name(measure, tmp_path):
    text = tmp_path / "text"
    text.write_text("input\n")
    program = described(("/bin/sh", "-c", "test $(wc -c) -eq 6"), input=str(text), warmup=0)
    text.unlink()
    text.write_text("another one\n")
    assert [each.detail for each in measure(program, CONTROL, FIRST, rounds=2).outcomes] == ["", ""]


def pipe(data=b"", *, ends=False):
    reading, writing = os.pipe()
    os.write(writing, data)
    if ends:
        os.close(writing)
    return reading


def test_a_file_that_stdin_is_redirected_from_is_read_and_what_one_run_would_eat_is_refused(
    stdin, tmp_path
):
    for fd in (os.open("/dev/null", os.O_RDONLY), pipe(), pipe(ends=True)):
        stdin(fd)
        assert input_of(STDIN) is None
    (tmp_path / "text").write_text("input\n")
    stdin(os.open(tmp_path / "text", os.O_RDONLY))
    found = input_of(STDIN)
    assert isinstance(found, Input) and (found.name, found.size) == (str(tmp_path / "text"), 6)
    data = r"stdin is a pipe with data, .* --input FILE"
    late, writing = os.pipe()
    device = os.open("/dev/urandom", os.O_RDONLY)
    for fd in (pipe(b"data"), pipe(b"data", ends=True), late, device):
        said = "stdin is a device" if fd == device else data
        stdin(fd)
        timer = threading.Timer(0.1, os.write, (writing, b"data"))
        timer.start()
        with pytest.raises(UsageError, match=said):
            input_of(STDIN)
        timer.join()


@pytest.mark.parametrize("command", [("compare", "none", "hz"), ("tune",), ("suggest",)])
def test_a_command_that_runs_programs_refuses_a_pipe_with_data(hztune_here, stdin, command):
    stdin(pipe(b"data"))
    done = hztune_here(*command, "--", "sort")
    assert done.returncode == 2
    assert "stdin is a pipe with data" in done.stderr


# ---- completion ----------------------------------------------------------------------------------


# What stands on the command line up to the cursor, and some of what bash then offers.
COMPLETED = {
    "a command": ("hztune ", {"tune", "doctor"}),
    "an option behind others": ("hztune -w larson --thr", {"--threads"}),
    "a choice": ("hztune tune --objective ", {"throughput", "p99"}),
    "a further workload": ("hztune -w larson,rem", {"larson,remote"}),
    "a contender": ("hztune compare none jem", {"jemalloc", "FILES"}),
    "an allocator whose parameters are shown": ("hztune params --allocator mim", {"mimalloc"}),
    "a form of a profile": ("hztune export x --format sys", {"systemd"}),
    "a program under a profile": ("hztune run profile.json -- ", {"FILES"}),
}

ASK = """
source "$1"; shift
compopt() { COMPREPLY+=(FILES); }
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_hztune hztune
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(("line", "offered"), COMPLETED.values(), ids=COMPLETED.keys())
def test_bash_completes(line, offered, root, core_build, tmp_path):
    put(tmp_path, {"hztune": f'#!/bin/sh\nexec "{sys.executable}" -m hztune "$@"\n'})
    script = root / "tuner/share/bash-completion/completions/hztune"
    path = f"{tmp_path}:{os.environ['PATH']}"
    own = {**os.environ, "PATH": path, "HZTUNE_CORE": str(core_build)}
    done = finished(["bash", "-c", ASK, "bash", script, *line.split(" ")], env=own)
    assert offered <= set(done.stdout.split()), done.stderr
