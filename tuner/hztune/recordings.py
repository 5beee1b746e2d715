"""Traces: recorded by hz-record, read and changed by hz-trace; this starts both.

What cannot be recorded is refused with the reason before anything starts.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import UndefinedError

from hztune import artifacts, process
from hztune.allocator import elf, inside, loaded_program
from hztune.arguments import option_words, printable
from hztune.errors import HztuneError, UsageError
from hztune.templates import rendered

_DEADLINE_S = 24 * 3600.0
_REFUSED = 2
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_ENDINGS = {
    "cut": "the recorder was ended before the program",
    "too slow": "the disk was too slow for what was recorded",
    "no room": "no room was left on the disk",
}
_MISSING = {
    "unknown": "calls about blocks that are older than the recording are left out",
    "overlapping": "frees were not seen",
    "lost": "calls of signal handlers were not logged",
}


def recorder_command(
    output: str | Path,
    words: Sequence[str] = (),
    *,
    pid: int | None = None,
    seconds: float | None = None,
    each: bool = False,
) -> list[str]:
    """The command that records a program; it starts the program and is to be run by you.

    Args:
        output: The trace that it will write.
        words: The program and its arguments; empty with `pid`.
        pid: A process that was started with a recorder that sleeps.
        seconds: After which the recording ends; None: with the program.
        each: Every program that is started gets a trace, not only the busiest.

    Raises:
        UsageError: There is no such program, nothing can be preloaded into it, or an allocator is
            inside that it calls by other names, so that its calls could not be seen.
        HztuneError: hz-record was not built.
    """
    output = Path(output)
    options = option_words(output=output, **{"for": seconds}, each=each, pid=pid)
    command = [str(artifacts.record()), *options]
    if pid is not None:
        return command
    found = loaded_program.inspect(words[0])
    if obstacle := found.obstacle:
        raise UsageError(f"it cannot be recorded: {obstacle}")
    for path in (found.program, *loaded_program.libraries(found.program)):
        _require_seen_through(path)
    try:
        if output.exists() and any(map(output.samefile, (found.program, *found.scripts))):
            raise UsageError(f"cannot write {str(output)!r}: it is the program that is recorded")
    except OSError as error:
        raise UsageError(f"cannot write {str(output)!r}: {error.strerror}") from error
    return [*command, "--library", str(artifacts.recorder()), "--", *words]


def _require_seen_through(path: Path) -> None:
    with contextlib.suppress(OSError):
        file = elf.read(path)
        for part in inside.parts_of([path]) if file and "malloc" not in file.defines else ():
            raise UsageError(
                f"it cannot be recorded: {path} has {part.name.partition(':')[2]} inside and calls "
                "it by names of its own, so that a recording would lack most of what the program "
                "allocates; build it with the system's malloc"
            )


def trace_info(path: str | Path) -> dict[str, Any]:
    """What is in a trace, as `hztune trace info --json` prints it.

    UsageError: it is none. HztuneError: what it says of itself is nothing that hztune writes.
    """
    said, _ = _run("info", path)
    try:
        told: dict[str, Any] = json.loads(said)
        trace_text(told)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, UndefinedError):
        raise HztuneError(
            f"{str(path)!r} has notes that hztune does not write; `hztune trace anonymize` makes a "
            "trace without them"
        ) from None
    return told


def changed_trace(verb: str, path: str | Path, output: str | Path, **options: object) -> list[str]:
    """Writes another form of a trace; returns what is to be said.

    Args:
        verb: `cut`: a part of it, `from` and `to` so many seconds; blocks that live where the part
            begins are allocated there. `anonymize`: it without the names of its program and
            threads; with `round_sizes`, sizes become multiples of so many bytes, a power of two.
            `convert`: plain text, or a trace, as `to` says.
        path: The trace.
        output: The one that is written.
        options: None: left out.

    Raises:
        UsageError: It is no trace, or cannot be written.
        HztuneError: Nothing is left of it.
    """
    return _run(verb, path, *option_words(output=output, **options))[1]


def _run(verb: str, path: str | Path, *words: str) -> tuple[str, list[str]]:
    """Runs hz-trace; returns what it wrote, and what is to be said about it."""
    command = [str(artifacts.trace_tool()), verb, str(path), *words]
    done = process.run(command, deadline_s=_DEADLINE_S, output_limit=64 << 20)
    said = [
        line.removeprefix("hz-trace: ").removeprefix("hz-record: ")
        for line in done.stderr.splitlines()
    ]
    if not done.ok:
        reason = said[-1] if said and done.code > 0 else f"hz-trace {done.describe()}"
        raise UsageError(reason) if done.code == _REFUSED else HztuneError(reason)
    return done.stdout, said


# ---- what is in a trace, for people --------------------------------------------------------------


def trace_text(told: Mapping[str, Any]) -> list[str]:
    """What `trace_info` tells, for people, a line each."""
    words = {"amount": _amount, "at_most": at_most, "counted": _counted}
    words["one_line"] = lambda text: printable(" ".join(text.split()))
    facts = {"told": told, "endings": _ENDINGS, "missing": _MISSING}
    return rendered(Path(__file__).with_name("trace.txt"), **words, **facts)


def at_most(sizes: Sequence[Sequence[int]], share: float) -> int:
    """Bytes that such a share of the allocations asks for at most: a power of two less one.

    `sizes` are (most bytes, allocations of at most so many and more than half), in order.
    """
    seen, given = 0, sum(count for _, count in sizes)
    for most, count in sizes:
        seen += count
        if seen >= share * given:
            return most
    return 0


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def _amount(count: float) -> str:
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.{min(1, unit)}f} {_UNITS[unit]}"
