"""What the tests of recording share: the recorder, the programs that are recorded, their traces."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import finished

TARGETS = (
    "hz_recorder", "hz-record", "hz-trace", "hz_shared", "trace_stress", "trace_pairs",
    "trace_program", "trace_operators",
)  # fmt: skip


class _Started(subprocess.Popen[str]):
    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, value, traceback)


class Recorder:
    """The programs of one build."""

    def __init__(self, build: Path, folder: Path) -> None:
        self.build = build
        self.folder = folder
        self.library = build / "trace" / "libhz-recorder.so"

    def program(self, name: str) -> Path:
        """A program of tests/trace."""
        return self.build / "tests_trace" / f"trace_{name}"

    def words(self, output: str, *words: object) -> list[str]:
        """The command that records; `words` are further options, `--` and a program."""
        command = [self.build / "trace" / "hz-record", "--library", self.library]
        return [str(each) for each in (*command, "--output", output, *words)]

    def record(self, output: str, *words: object, status: int = 0, **variables: str) -> Finished:
        """Runs it to its end, which must have that status."""
        return self.run(*self.words(output, *words), status=status, **variables)

    def mode(self, mode: str, *options: object, status: int = 0) -> Finished:
        """Records one mode of the test program to MODE.trace."""
        program = self.program("program")
        return self.record(f"{mode}.trace", *options, "--", program, mode, status=status)

    def trace(self, *words: object, status: int = 0) -> Finished:
        """Runs hz-trace, to an end of that status."""
        return self.run(self.build / "trace" / "hz-trace", *words, status=status)

    def run(self, *words: object, status: int | None = 0, **variables: str) -> Finished:
        """Runs any program in the folder of the test."""
        done = finished(words, cwd=self.folder, env={**os.environ, **variables})
        assert status in (None, done.returncode), done.stderr
        return done

    def start(self, *words: object, **variables: str) -> subprocess.Popen[str]:
        """Starts a program in the folder of the test; a test ends it, or its failure does."""
        return _Started(
            [str(word) for word in words],
            cwd=self.folder,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def info(self, path: str | Path) -> dict[str, Any]:
        """What is in a trace."""
        return json.loads(self.trace("info", path).stdout)

    def lines(self, path: str | Path) -> list[list[str]]:
        """A trace as plain text, a list of words a line, without thread and time."""
        self.trace("convert", path, "--output", "lines.txt", "--to", "text")
        text = (self.folder / "lines.txt").read_text()
        return [line.split()[2:] for line in text.splitlines() if not line.startswith("#")]


Finished = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def recorder_build(as_it_stands) -> Path:
    return as_it_stands(*TARGETS)


@pytest.fixture
def recorder(recorder_build, tmp_path) -> Recorder:
    return Recorder(recorder_build, tmp_path)
