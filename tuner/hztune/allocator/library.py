"""What the foreign allocators share: a library that is found by its soname, and a table of knobs.

The library is found as the target will find it, by preloading the soname into a probe and looking
which file was mapped: what the loader does with a name is decided by the loader alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from hztune import artifacts
from hztune.allocator import probe
from hztune.allocator.base import Adapter, Config, Installed, WrongConfiguration
from hztune.allocator.knobs import KnobRow, rows_of
from hztune.files import sha256_of
from hztune.params import Param, Value

_SUFFIX = ".so"


class Library(Adapter):
    """A foreign allocator in a shared library that is preloaded by its soname."""

    #: Sonames that it has been shipped under, each with its Debian package; the first found counts.
    sonames: ClassVar[tuple[tuple[str, str], ...]]
    #: Rows for all versions; empty for an allocator that is only ever measured as it is.
    table: ClassVar[tuple[KnobRow, ...]] = ()
    #: What lets a process say what it runs with, and changes nothing else.
    saying: ClassVar[Mapping[str, str]] = MappingProxyType({})
    #: Python for the probe: an expression that gives the version as text. It finds `this`, the
    #: probe's process as a ctypes library, and `files`, the allocator's files that it has mapped.
    version_code: ClassVar[str]

    def installed(self) -> Installed:
        """Returns the library that the loader finds under the first soname that it knows."""
        for soname, package in self.sonames:
            code = (
                f"files = [file for file in mapped() if {_stem(soname)!r} in file]\n"
                f"say({{'files': files, 'version': {self.version_code} if files else ''}})"
            )
            answer = probe.ask(code, {"LD_PRELOAD": soname})
            if answer["files"]:
                path = Path(answer["files"][0])
                digest = sha256_of(path)
                return Installed(self.name, answer["version"], soname, path, digest, package)
        raise self.missing()

    def library_stems(self) -> tuple[str, ...]:
        """Returns the stems of the sonames that it is looked for under."""
        return tuple(soname.partition(_SUFFIX)[0] for soname, _ in self.sonames)

    def package_of(self, soname: str) -> str:
        """Returns the package of the soname that `soname` is, or is a longer form of."""
        found = (package for known, package in self.sonames if soname.startswith(known))
        return next(found, self.package)

    def preloads(self, installed: Installed) -> tuple[str, ...]:
        """Returns the soname, and the library without which RTLD_DEEPBIND would end the program."""
        return (installed.preload, str(artifacts.deepbind()))

    def rows(self, installed: Installed) -> tuple[KnobRow, ...]:
        """Returns the rows of the table that describe the installed version."""
        return rows_of(self.table, installed.version)

    def knobs(self, installed: Installed) -> tuple[Param, ...]:
        """Returns the knobs of the installed version."""
        return tuple(row.param for row in self.rows(installed))

    def given(self, config: Config, installed: Installed) -> list[tuple[KnobRow, Value]]:
        """Returns the rows that `config` gives a value, with it, in the order of the table."""
        return [
            (row, config[row.param.name])
            for row in self.rows(installed)
            if row.param.name in config and not self.is_left(row.param.name, config[row.param.name])
        ]

    @abstractmethod
    def requests(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        """Returns what variables say to the library, its own name of an option to a text."""

    def requested(self, environment: Mapping[str, str], installed: Installed) -> dict[str, Value]:
        """Returns what variables ask for, each value as `value_of` reads it."""
        said = self.requests(environment)
        try:
            return {
                row.param.name: self.value_of(row, said[row.option])
                for row in self.rows(installed)
                if row.option in said
            }
        except ValueError as error:
            raise WrongConfiguration(f"{self.name} is given what is no number: {error}") from None

    def value_of(self, row: KnobRow, text: str) -> Value:
        """Returns the value that a text means to the library, as it is written by `settings`."""
        return text if row.param.kind == "enum" else int(text)

    def ask(self, code: str, environment: Mapping[str, str], installed: Installed) -> Any:
        """Returns what Python code leaves in `answer`, in a probe that has the library.

        Raises:
            WrongConfiguration: The probe was started with it, but runs without it.
        """
        answer = probe.ask(
            f"{code}\nsay({{'files': mapped(), 'answer': answer}})",
            {"LD_PRELOAD": installed.preload, **environment},
        )
        if str(installed.path) not in answer["files"]:
            raise WrongConfiguration(
                f"{installed.preload} was preloaded, but {installed.path} is not in the process"
            )
        return answer["answer"]


def agreed(pairs: list[tuple[str, Value]], allocator: str) -> dict[str, Value] | None:
    """Returns what several processes said, as one configuration; None when nothing was said.

    Raises:
        WrongConfiguration: They do not agree.
    """
    values: dict[str, Value] = {}
    for name, value in pairs:
        if values.setdefault(name, value) != value:
            raise WrongConfiguration(
                f"one process runs {allocator} with {name}={values[name]}, another with {value}; "
                "look for a wrapper or a start script that changes the environment"
            )
    return values or None


def _stem(soname: str) -> str:
    """Returns the part of a soname that the file's name has too, whatever its version."""
    return "/" + soname[: soname.index(_SUFFIX) + len(_SUFFIX)]
