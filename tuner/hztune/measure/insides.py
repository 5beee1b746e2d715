"""Which allocators are inside a program: those of its file, and of what it loads while it runs.

The second are seen in a run of the unchanged program, in which each of them is asked to speak: so
their versions are known, too, and what the program itself gives them. The run is a warm-up, too.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hztune.allocator import (
    Adapter,
    Installed,
    WrongConfiguration,
    elf,
    inside,
    loaded_program,
)
from hztune.allocator.live import ProcessMemory
from hztune.measure.identity import AllocatorIdentity
from hztune.measure.launch import Run, Unit
from hztune.measure.program import Program
from hztune.measure.server import LOAD_SPAN_S, run_once
from hztune.measure.watch import visiting

_FIRST_S = 0.001
_GROWTH = 1.1
_LAST_S = 0.1
_USUAL = ("inside:jemalloc", "inside:_rjem_jemalloc", "inside:je_jemalloc", "inside:mimalloc")
"""What is asked to speak before it is known what is there."""

_VERSION = re.compile(r"^(?:mimalloc: )?v(\d+\.\d+\.\d+)[ ,]", re.M)


def of_file(program: Program) -> tuple[Installed, ...]:
    """What is in the file that is executed and in its libraries; it is not run."""
    return inside.parts_of(_files(program))


def of_run(program: Program, most_s: float = math.inf) -> tuple[Installed, ...]:
    """What answers inside a program, run for `most_s` at most: allocators speak at the start."""
    asked = [*_USUAL, *(part.name for part in of_file(program))]
    if program.service is None:
        program = replace(program, timeout_s=min(program.timeout_s, most_s))
    files, run = _look(program, asked)
    parts = inside.parts_of([*_files(program), *files])
    several = sum(_adapter(part).family == "jemalloc" for part in parts) > 1
    heard = []
    for part in parts:
        is_told = part.name in asked and not (several and _adapter(part).family == "jemalloc")
        heard.append(_heard(part, run if is_told else _look(program, [part.name])[1]))
    return tuple(part for part in heard if part is not None)


def sentence(part: Installed) -> str:
    """What a part is and what it serves, in a sentence without a semicolon."""
    adapter, file = _adapter(part), _file_of(part)
    what = f"{adapter.family} {part.version}".rstrip() + f" inside {part.path.name}"
    variable = f", which reads {adapter.variables()[0]}" if adapter.family == "jemalloc" else ""
    is_static = file.interpreter is None and not file.needed
    serves = (
        "it serves the whole program"
        if is_static or "malloc" in file.defines
        else "it serves what calls it by names of its own, and a preloaded allocator all the rest"
    )
    given = " ".join(f"{name}={value}" for name, value in part.given)
    kept = f", and the program gives it {given}" if given else ""
    return f"{part.name} is {what}{variable}: {serves}{kept}"


def provider_of(program: Program, parts: Sequence[Installed]) -> Installed | None:
    """The one of `parts` that the program is linked with and has its malloc from."""
    found = [part for part in parts if "malloc" in _file_of(part).defines]
    linked = {path.resolve() for path in _files(program)} if found else set()
    return next((part for part in found if part.path.resolve() in linked), None)


def whose_malloc(provider: Installed) -> str:
    """Why glibc, for which nothing is preloaded, does not serve a program."""
    return f"the program's malloc is that of {provider.path.name}"


def _file_of(part: Installed) -> elf.Elf:
    file = elf.read(part.path)
    assert file is not None, "it was found in a file of this form"
    return file


def _files(program: Program) -> tuple[Path, ...]:
    file = loaded_program.inspect(program.argv[0]).program
    return (file, *loaded_program.libraries(file))


def _look(program: Program, names: Sequence[str]) -> tuple[list[Path], Run]:
    base = AllocatorIdentity().base
    said: dict[str, str] = {}
    for adapter in filter(None, map(inside.adapter_of, names)):
        said |= adapter.saying()
    program = replace(program, span_s=LOAD_SPAN_S)
    with mapped_files() as files:
        run = run_once(Unit(program, base, said, lambda running: None, program.timeout_s))
    return list(files), run


@contextmanager
def mapped_files() -> Iterator[dict[Path, None]]:
    """Collects what the processes below this one have mapped, as long as the block lasts."""
    files: dict[Path, None] = {}

    def visit(pid: int) -> None:
        files.update(dict.fromkeys(ProcessMemory.of(pid).files))

    with visiting(os.getpid(), visit, _FIRST_S, _GROWTH, _LAST_S):
        yield files


def _heard(part: Installed, run: Run) -> Installed | None:
    adapter = _adapter(part)
    try:
        said = adapter.confirmed(run.stderr) if adapter.confirms else {}
    except WrongConfiguration:  # several processes that are given different things
        return part
    if said is None:
        return part if run.fault else None
    version = _VERSION.search(run.stderr) if adapter.family == "mimalloc" else None
    heard = replace(part, version=version[1]) if version else part
    given = (  # what is not at the allocator's own default before anything was set
        (knob.name, said[knob.name])
        for knob in adapter.knobs(heard)
        if knob.name in said and said[knob.name] != knob.default
    )
    return replace(heard, given=tuple(given))


def _adapter(part: Installed) -> Adapter:
    found = inside.adapter_of(part.name)
    assert found is not None, "parts have such names"
    return found
