"""The programs that the experiments measure: cases.toml says how each is started, and its needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import inputs
from msgspec import field

from hztune.files import read_toml
from hztune.measure.program import Program, described
from hztune.schema import Schema, judged

HERE = Path(__file__).resolve().parent
SUITE = "mimalloc-bench"
"""Whose programs no distribution has: one builds them and puts them on the PATH."""

_IS_ROOT = os.geteuid() == 0
_HELD = {
    "here": str(HERE),
    "python": sys.executable,
    "own": "chown postgres" if _IS_ROOT else "true",
    "as_postgres": "chroot --userspec=postgres / " if _IS_ROOT else "",
}


class Case(Schema, frozen=True, kw_only=True):
    """A program, or a server and its load."""

    name: str
    """In the results."""
    options: tuple[str, ...] = ()
    """Of hztune, beside the allocator and the budget."""
    command: tuple[str, ...] = ()
    """The program; empty: a workload or a server is in the options."""
    size: int | str = 0
    """How much it does where its speed matters."""
    short: int | str = 0
    """How much it does where only its output matters."""
    allocator: str = "any"
    """Whose parameters are sought; "any" chooses among all."""
    needs: dict[str, str] = field(default_factory=dict)
    """Programs that must be installed, each with its Debian package, or SUITE."""
    variables: dict[str, str] = field(default_factory=dict)
    """Set for hztune and so for the program."""
    build: tuple[str, ...] = ()
    """The command that makes the program; empty: it is installed."""

    def words(self, work: Path, size: int | str) -> list[str]:
        """The program's command."""
        return _put(self.command, work, size)

    def told(self, work: Path, size: int | str) -> list[str]:
        """The options."""
        return _put(self.options, work, size)

    def builds(self, work: Path) -> list[str]:
        """The command that makes the program; empty: none."""
        return _put(self.build, work, self.size)

    def program(self, work: Path, size: int | str) -> Program:
        """What hztune measures."""
        if self.command:
            return described(tuple(self.words(work, size)), name=self.name)
        told = self.told(work, size)
        options = {told[at].removeprefix("--"): told[at + 1] for at in range(0, len(told), 2)}
        return described(name=self.name, **options)

    @property
    def is_program(self) -> bool:
        """Whether it is a program or a server, and not one of hztune's own workloads."""
        return bool(self.command) or "--server" in self.options


def _put(words: Iterable[str], work: Path, size: int | str) -> list[str]:
    found = [*words]
    for name, value in {**_HELD, "work": str(work), "size": str(size)}.items():
        found = [word.replace(f"{{{name}}}", value) for word in found]
    return found


class _File(Schema, frozen=True):
    cases: tuple[Case, ...]
    compared: tuple[Case, ...]


_TABLE = judged(read_toml(HERE / "cases.toml", 1 << 16), _File)
CASES, COMPARED = _TABLE.cases, _TABLE.compared
BY_NAME = {case.name: case for case in (*CASES, *COMPARED)}


class CaseError(Exception):
    """A case that could not be measured; the message says why."""


def build(
    work: Path,
    cases: Iterable[Case],
    functions: int = inputs.FUNCTIONS,
    pigeons: int = inputs.PIGEONS,
) -> None:
    """Makes what the commands of cases need in `work`, but programs without a compiler."""
    inputs.write(work, functions, pigeons)
    lines = {case.build: case for case in cases if case.build and not missing(case)}
    for case in lines.values():
        done = subprocess.run(case.builds(work), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CaseError(f"{case.name} cannot be built: {done.stderr[:400]}")


def missing(case: Case) -> list[str]:
    """What is not installed of what a case needs, in words."""
    return [
        f"{program} is not installed ({_source(package)})"
        for program, package in case.needs.items()
        if shutil.which(program) is None
    ]


def _source(package: str) -> str:
    if package == SUITE:
        return f"{SUITE} has it: build it and put it on the PATH"
    return f"Debian's package: {package}"


@contextmanager
def environment(case: Case) -> Iterator[None]:
    """Sets the variables of a case."""
    before = dict(os.environ)
    os.environ.update(case.variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
