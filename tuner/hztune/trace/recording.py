"""How a program is recorded: by hz-record, behind which it runs as it is.

What cannot be recorded is refused with the reason before anything starts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from hztune import artifacts
from hztune.allocator import elf, inside, loaded_program
from hztune.allocator.loaded_program import LoadedProgram
from hztune.errors import UsageError


def require_recordable(words: Sequence[str]) -> LoadedProgram:
    """Returns what a program is; every call of it to its allocator can be seen.

    Raises:
        UsageError: It cannot: there is no such program, nothing can be preloaded into it, or an
            allocator is inside that it calls by other names.
    """
    found = loaded_program.inspect(words[0])
    obstacle = found.obstacle()
    if obstacle is not None:
        raise UsageError(f"it cannot be recorded: {obstacle}")
    for name, path in _hidden((found.program, *loaded_program.libraries(found.program))):
        raise UsageError(
            f"it cannot be recorded: {path} has {name} inside and calls it by names of its own, so "
            "that a recording would lack most of what the program allocates; build it with the "
            "system's malloc"
        )
    return found


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
        HztuneError: hz-record was not built.
    """
    output = Path(output)
    command = [str(artifacts.record()), "--output", str(output)]
    if seconds is not None:
        command += ["--for", f"{seconds:g}"]
    if touch_bytes is not None:
        command += ["--touch", str(touch_bytes)]
    if each:
        command.append("--each")
    if pid is not None:
        return [*command, "--pid", str(pid)]
    found = require_recordable(words)
    try:
        if output.exists() and any(map(output.samefile, (found.program, *found.scripts))):
            raise UsageError(f"cannot write {str(output)!r}: it is the program that is recorded")
    except OSError as error:
        raise UsageError(f"cannot write {str(output)!r}: {error.strerror}") from error
    return [*command, "--library", str(artifacts.recorder()), "--", *words]


def _hidden(files: Iterable[Path]) -> list[tuple[str, Path]]:
    """Returns the allocators in these files that are not called as malloc, and where they stand."""
    found = []
    for path in files:
        with contextlib.suppress(OSError):
            file = elf.read(path)
            if file is not None and "malloc" not in file.defines:
                found += [(part.name.partition(":")[2], path) for part in inside.parts_in(path)]
    return found
