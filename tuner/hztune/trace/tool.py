"""hz-trace: what it does with a file, its errors as those of hztune."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hztune import artifacts, process
from hztune.errors import HztuneError, UsageError
from hztune.trace import overview

_DEADLINE_S = 24 * 3600.0
_REFUSED = 2
_PREFIXES = ("hz-trace: ", "hz-record: ")


def describe(path: Path) -> dict[str, Any]:
    """Returns what `hz-trace info` says of a trace.

    Raises:
        UsageError: It is none.
        HztuneError: What it says of itself is nothing that hztune writes.
    """
    said, _ = _run("info", path)
    try:
        told: dict[str, Any] = json.loads(said)
        overview.trace_lines(told)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise HztuneError(
            f"{str(path)!r} has notes that hztune does not write; `hztune trace anonymize` makes a "
            "trace without them"
        ) from None
    return told


def cut(path: Path, output: Path, from_s: float | None, to_s: float | None) -> list[str]:
    """Writes a part of a trace; returns what is to be said.

    Raises:
        UsageError: It is no trace, or cannot be written.
        HztuneError: Nothing is left of it.
    """
    words = [] if from_s is None else ["--from", repr(from_s)]
    words += [] if to_s is None else ["--to", repr(to_s)]
    return _run("cut", path, "--output", str(output), *words)[1]


def anonymize(path: Path, output: Path, round_sizes: int | None) -> list[str]:
    """Writes a trace without names; with `round_sizes` (bytes), without exact sizes.

    Raises:
        UsageError: It is no trace, or cannot be written.
    """
    words = [] if round_sizes is None else ["--round-sizes", str(round_sizes)]
    return _run("anonymize", path, "--output", str(output), *words)[1]


def convert(path: Path, output: Path, form: str) -> list[str]:
    """Writes a trace, an interrupted recording or plain text as `form`: trace or text.

    Raises:
        UsageError: It is none of them, or is not what it seems to be.
        HztuneError: It cannot be written.
    """
    return _run("convert", path, "--output", str(output), "--to", form)[1]


def _run(verb: str, path: Path, *words: str) -> tuple[str, list[str]]:
    """Runs hz-trace; returns what it wrote, and what is to be said about it."""
    done = process.run(
        [str(artifacts.trace_tool()), verb, str(path), *words],
        deadline_s=_DEADLINE_S,
        output_limit=64 << 20,
    )
    said = [_bare(line) for line in done.stderr.splitlines()]
    if not done.ok:
        reason = said[-1] if said and done.code > 0 else f"hz-trace {done.describe()}"
        raise UsageError(reason) if done.code == _REFUSED else HztuneError(reason)
    return done.stdout, said


def _bare(line: str) -> str:
    return next((line.removeprefix(p) for p in _PREFIXES if line.startswith(p)), line)
