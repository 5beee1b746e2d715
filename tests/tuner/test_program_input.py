"""What a program reads on stdin: every run the same file from its start, or nothing."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hztune.errors import UsageError
from hztune.measure.alternate import AlternateExecutor
from hztune.measure.program import described
from hztune.measure.program_input import STDIN, Input, input_of
from hztune.measure.whole import RunExecutor, WholeExecutor

from .test_measure_runs import CONTROL, OpenProof

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A file of six bytes."""
    path = tmp_path / "text"
    path.write_text("input\n")
    return path


@pytest.mark.parametrize("kind", [RunExecutor, AlternateExecutor])
def test_every_run_reads_the_file_from_its_start_whatever_becomes_of_its_name(
    kind: type[WholeExecutor], text: Path
) -> None:
    program = described(("/bin/sh", "-c", "test $(wc -c) -eq 6"), input=str(text), warmup=0)
    text.unlink()
    text.write_text("another one\n")
    executor = kind(program, seed=1, identity=OpenProof())
    block = executor.measure([CONTROL, CONTROL], role="search", rounds=2, number=0)
    assert [(each.status, each.detail) for each in block.outcomes] == [("ok", "")] * 2


@pytest.fixture
def stdin() -> Iterator[Callable[[int], None]]:
    """Lets a descriptor be this process's stdin until the test ends."""
    before = os.dup(0)
    yield lambda fd: os.dup2(fd, 0) and None
    os.dup2(before, 0)
    os.close(before)


def pipe(data: bytes = b"", *, ends: bool = False) -> int:
    reading, writing = os.pipe()
    os.write(writing, data)
    if ends:
        os.close(writing)
    return reading


def test_a_file_that_stdin_is_redirected_from_is_read_and_a_pipe_with_data_refused(
    stdin: Callable[[int], None], text: Path
) -> None:
    for fd in (os.open("/dev/null", os.O_RDONLY), pipe(), pipe(ends=True)):
        stdin(fd)
        assert input_of(STDIN) is None
    stdin(os.open(text, os.O_RDONLY))
    found = input_of(STDIN)
    assert isinstance(found, Input) and (found.name, found.size) == (str(text), 6)
    for data, ends in ((b"data", False), (b"data", True)):
        stdin(pipe(data, ends=ends))
        with pytest.raises(UsageError, match=r"stdin is a pipe with data, .* --input FILE"):
            input_of(STDIN)


def test_a_pipe_that_is_filled_a_moment_later_is_refused(stdin: Callable[[int], None]) -> None:
    reading, writing = os.pipe()
    stdin(reading)
    timer = threading.Timer(0.1, os.write, (writing, b"data"))
    timer.start()
    with pytest.raises(UsageError, match="stdin is a pipe with data"):
        input_of(STDIN)
    timer.join()


def test_a_device_that_gives_data_is_refused(stdin: Callable[[int], None]) -> None:
    stdin(os.open("/dev/urandom", os.O_RDONLY))
    with pytest.raises(UsageError, match="stdin is a device"):
        input_of(STDIN)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"input": "/absent"}, "--input '/absent' cannot be read: No such file"),
        ({"input": "/"}, "is not a regular file"),
        ({"input": "/dev/zero"}, "is not a regular file"),
        ({"input": __file__, "rests": "^rest$"}, "told on stdin to go on"),
        ({"input": __file__, "server": "s {port}", "load": "l {port}"}, "is for a program"),
    ],
)
def test_what_cannot_be_given_to_every_run_is_refused(options: dict[str, str], said: str) -> None:
    words = () if "server" in options else ("true",)
    with pytest.raises(UsageError, match=said):
        described(words, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("command", [("compare", "none", "hz"), ("tune",), ("suggest",)])
def test_a_command_that_runs_programs_refuses_a_pipe_with_data(
    hztune_here: Run, stdin: Callable[[int], None], command: tuple[str, ...]
) -> None:
    stdin(pipe(b"data"))
    done = hztune_here(*command, "--", "sort")
    assert done.returncode == 2
    assert "stdin is a pipe with data" in done.stderr
