"""Trace files as workloads: `trace:FILE`, known again by name and content and never by path.

hz-bench owns the format: it opens a file, verifies all of it and says what it holds.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hztune import artifacts, process
from hztune.errors import UsageError
from hztune.files import sha256_of
from hztune.schema import as_word

PREFIX = "trace:"  # stands before the file where a workload is named

_WITH_DIGEST = re.compile(r"(?P<path>.+)@(?P<digest>[0-9a-f]{12})")
_DEADLINE_S = 120.0
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace that was opened and is whole."""

    path: Path
    digest: str  # the beginning of its SHA-256
    threads: int
    calls: int  # of the allocator in one round
    timed: bool  # whether it has times, so that a pace can be kept

    @property
    def name(self) -> str:
        return as_word(PREFIX + self.path.name)


def is_trace(text: str) -> bool:
    return text.startswith(PREFIX)


def find(text: str) -> TraceFile:
    """The trace of "trace:FILE", or "trace:FILE@DIGEST" as results have it; else UsageError."""
    words = text.removeprefix(PREFIX)
    if not words:
        raise UsageError(f"{PREFIX} names no file; write trace:FILE, the file of `hztune record`")
    path, digest = Path(words), ""
    match = _WITH_DIGEST.fullmatch(words)
    if match and not path.exists():
        path, digest = Path(match["path"]), match["digest"]
    if digest and not path.exists():
        raise UsageError(
            f"the trace {path.name} (SHA-256 {digest}...) is not here: run this in the folder that "
            "has it; for `hztune verify`, name it with --trace FILE"
        )
    if not path.is_file():
        what = "is no trace: it is no file" if path.exists() else "is not there"
        raise UsageError(f"{str(path)!r} {what}; name the file of `hztune record`")
    about = path.stat()
    found = _opened(path.resolve(), about.st_size, about.st_mtime_ns)
    if digest not in ("", found.digest):
        raise UsageError(
            f"{str(path)!r} is another trace than the one that is asked for: its SHA-256 begins "
            f"with {found.digest}, and {digest} is asked for"
        )
    return found


@cache
def _opened(path: Path, size: int, mtime_ns: int) -> TraceFile:
    """Lets hz-bench open a file; what was found holds for as long as the file is not written."""
    command = [str(artifacts.bench()), PREFIX + str(path), "--list"]
    done = process.run(command, deadline_s=_DEADLINE_S)
    if not done.ok:
        words = done.stderr.strip().splitlines() or ["it gave no reason"]
        raise UsageError(words[-1].removeprefix("hz-bench: "))
    (row,) = json.loads(done.stdout)["workloads"]
    digest = sha256_of(path)[:_DIGITS]
    return TraceFile(path, digest, row["threads"], row["calls"], row["timed"])
