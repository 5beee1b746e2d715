"""What a program reads on stdin: every run the same file from its start, or nothing."""

from __future__ import annotations

import os
import threading

import pytest

from hztune.errors import UsageError
from hztune.measure.program import described
from hztune.measure.program_input import STDIN, Input, input_of

from .measured import CONTROL, FIRST, WAYS


@WAYS
def test_every_run_reads_the_file_from_its_start_whatever_becomes_of_its_name(measure, tmp_path):
    text = tmp_path / "text"
    text.write_text("input\n")
    program = described(("/bin/sh", "-c", "test $(wc -c) -eq 6"), input=str(text), warmup=0)
    text.unlink()
    text.write_text("another one\n")
    assert [each.detail for each in measure(program, CONTROL, FIRST, rounds=2).outcomes] == ["", ""]


@pytest.fixture
def stdin():
    """Lets a descriptor be this process's stdin until the test ends."""
    before = os.dup(0)
    yield lambda fd: os.dup2(fd, 0) and None
    os.dup2(before, 0)
    os.close(before)


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
    for fd, said in (
        (pipe(b"data"), data),
        (pipe(b"data", ends=True), data),
        (late, data),
        (os.open("/dev/urandom", os.O_RDONLY), "stdin is a device"),
    ):
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
