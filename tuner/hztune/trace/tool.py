"""hz-trace: what it does with a file, its errors as those of hztune."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hztune import artifacts, process
from hztune.errors import HztuneError, UsageError
from hztune.trace.overview import trace_text

_DEADLINE_S = 24 * 3600.0
_REFUSED = 2


def trace_info(path: str | Path) -> dict[str, Any]:
    """What is in a trace, as `hztune trace info --json` prints it.

    Raises:
        UsageError: It is none.
        HztuneError: What it says of itself is nothing that hztune writes.
    """
    said, _ = _run("info", path)
    try:
        told: dict[str, Any] = json.loads(said)
        trace_text(told)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise HztuneError(
            f"{str(path)!r} has notes that hztune does not write; `hztune trace anonymize` makes a "
            "trace without them"
        ) from None
    return told


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
        HztuneError: Nothing is left of it.
    """
    words = [] if from_s is None else ["--from", repr(from_s)]
    words += [] if to_s is None else ["--to", repr(to_s)]
    return _run("cut", path, "--output", str(output), *words)[1]


def anonymize_trace(
    path: str | Path, output: str | Path, *, round_sizes: int | None = None
) -> list[str]:
    """Writes a trace without the names of its program and threads; returns what is to be said.

    With `round_sizes`, sizes become multiples of so many bytes, a power of two.

    Raises:
        UsageError: It is no trace, or cannot be written.
    """
    words = [] if round_sizes is None else ["--round-sizes", str(round_sizes)]
    return _run("anonymize", path, "--output", str(output), *words)[1]


def convert_trace(path: str | Path, output: str | Path, *, form: str = "trace") -> list[str]:
    """Writes a trace as plain text, or makes one; returns what is to be said.

    Raises:
        UsageError: It is no recording of a form that is known, or there is no such form.
        HztuneError: It cannot be written.
    """
    return _run("convert", path, "--output", str(output), "--to", form)[1]


def _run(verb: str, path: str | Path, *words: str) -> tuple[str, list[str]]:
    """Runs hz-trace; returns what it wrote, and what is to be said about it."""
    done = process.run(
        [str(artifacts.trace_tool()), verb, str(path), *words],
        deadline_s=_DEADLINE_S,
        output_limit=64 << 20,
    )
    prefixes = ("hz-trace: ", "hz-record: ")
    said = [
        next((line.removeprefix(each) for each in prefixes if line.startswith(each)), line)
        for line in done.stderr.splitlines()
    ]
    if not done.ok:
        reason = said[-1] if said and done.code > 0 else f"hz-trace {done.describe()}"
        raise UsageError(reason) if done.code == _REFUSED else HztuneError(reason)
    return done.stdout, said
