"""Traces: how a program is recorded, and what can be done with what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def recorder_command(
    output: str | Path,
    words: Sequence[str] = (),
    *,
    pid: int | None = None,
    seconds: float | None = None,
    touch_bytes: int | None = None,
    each: bool = False,
) -> list[str]:
    """The command that records a program; it starts the program and is to be run by you.

    Args:
        output: The trace that it will write.
        words: The program and its arguments; empty with `pid`.
        pid: A process that was started with a recorder that sleeps.
        seconds: After which the recording ends; None: with the program.
        touch_bytes: Of blocks of that size and more, how much is resident is noted; None: of none.
        each: Every program that is started gets a trace, not only the busiest.

    Raises:
        UsageError: The program cannot be recorded.
    """
    from hztune.trace import recording

    return recording.recorder_command(
        Path(output), words, pid=pid, seconds=seconds, touch_bytes=touch_bytes, each=each
    )


def trace_info(path: str | Path) -> dict[str, Any]:
    """What is in a trace, as `hztune trace info --json` prints it.

    Raises:
        UsageError: It is none.
    """
    from hztune.trace import tool

    return tool.describe(Path(path))


def trace_text(told: Mapping[str, Any]) -> list[str]:
    """What `trace_info` tells, a line each."""
    from hztune.trace import overview

    return overview.trace_lines(told)


def cut_trace(
    path: str | Path, output: str | Path, *, from_s: float | None = None, to_s: float | None = None
) -> list[str]:
    """Writes a part of a trace; returns what is to be said.

    Blocks that live where the part begins are allocated there.

    Args:
        path: The trace.
        output: The one that is written.
        from_s: Seconds at which the part begins; None: with the trace.
        to_s: At which it ends; None: with the trace.

    Raises:
        UsageError: It is no trace, or cannot be written.
    """
    from hztune.trace import tool

    return tool.cut(Path(path), Path(output), from_s, to_s)


def anonymize_trace(
    path: str | Path, output: str | Path, *, round_sizes: int | None = None
) -> list[str]:
    """Writes a trace without the names of its program and threads.

    Args:
        path: The trace.
        output: The one that is written.
        round_sizes: Sizes become multiples of so many bytes, a power of two; None: they stay.

    Raises:
        UsageError: It is no trace, or cannot be written.
    """
    from hztune.trace import tool

    return tool.anonymize(Path(path), Path(output), round_sizes)


def convert_trace(path: str | Path, output: str | Path, *, form: str = "trace") -> list[str]:
    """Writes a trace as plain text, or makes one; returns what is to be said.

    Raises:
        UsageError: It is no recording of a form that is known, or there is no such form.
    """
    from hztune.trace import tool

    return tool.convert(Path(path), Path(output), form)
