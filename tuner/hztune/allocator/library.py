"""What of an allocator cannot be said in its table: how it is found, and asked what it runs with.

A foreign library is found as the target will find it, by preloading its soname into a probe and
looking which file was mapped: what the loader does with a name is decided by the loader alone.
jemalloc compares names and values by prefix (`m:auto` is taken for metadata_thp) and clips several
values in silence: whole names are written, and values read back. hz's own knobs are the core's
table, and the core decides what is legal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from hztune import artifacts, params
from hztune.allocator import loaded_program, probe
from hztune.allocator.base import (
    AUTO,
    Adapter,
    Config,
    Environment,
    Installed,
    KnobRow,
    WrongConfiguration,
    tables,
)
from hztune.errors import UsageError
from hztune.files import sha256_of
from hztune.params import Param, Value

_LISTED = re.compile(r"^(?P<name>[\w.]+): (?P<value>0x[0-9a-f]+|-?\d+) \(min:", re.M)
#: What adapts itself as large blocks are freed; when one is set, the other stays at 128 KiB.
_ADAPTING = ("mmap_threshold", "trim_threshold")


class Library(Adapter):
    """One of which the table says all."""

    def installed(self) -> Installed:
        if self.is_inside:
            raise UsageError(
                f"{self.name} is no library of this machine: it stands in a program; let `hztune "
                "--allocator inside -- ./program` find settings for it, and name the profile"
            )
        for soname, package in self.table.libraries:
            stem = f"/{soname.partition('.so')[0]}.so"
            code = (
                f"files = [file for file in mapped() if {stem!r} in file]\n"
                f"version = {self.table.probe_version.strip()} if files else ''\n"
                "say({'files': files, 'version': version})"
            )
            answer = probe.ask(code, {"LD_PRELOAD": soname})
            if answer["files"]:
                path, version = Path(answer["files"][0]), answer["version"]
                return Installed(self.name, version, soname, path, sha256_of(path), package)
        package = self.table.package
        remedy = (
            f"install it with: apt-get install {package}"
            if package
            else "it has no Debian package: build it and put its library where the loader looks"
        )
        raise UsageError(f"{self.name} is not installed on this machine; {remedy}")

    def preloads(self, installed: Installed) -> tuple[str, ...]:
        """The soname, and the library without which RTLD_DEEPBIND would end the program."""
        return (installed.preload, str(artifacts.deepbind()))

    def read_back(
        self, environment: Mapping[str, str], installed: Installed, program: Path | None = None
    ) -> dict[str, Value]:
        """What a process tells, or code of the table finds there; it must have the library."""
        if self.is_inside:
            return self.requested(environment, installed)
        with_it = {"LD_PRELOAD": ":".join(self.preloads(installed)), **environment}
        strict = self.confirm_environment(with_it)
        if self.table.ask or not self.confirms:
            rows = [(row.name, row.option, row.read, row.words) for row in self.rows(installed)]
            answer: dict[str, Value | None]
            files, answer = probe.ask(
                f"ROWS, answer = {rows!r}, {{}}\n{self.table.ask}\nsay([mapped(), answer])", strict
            )
            if str(installed.path) not in files:
                raise WrongConfiguration(
                    f"{installed.preload} was preloaded, but {installed.path} is not in the process"
                )
            return {name: value for name, value in answer.items() if value is not None}
        done = probe.run_true(strict)
        said = self.confirmed(done.stderr)
        if said is None:
            raise WrongConfiguration(
                f"{self.name} did not say what it runs with; the process {done.describe()}"
            )
        return said


class Hz(Library):
    def installed(self) -> Installed:
        path = artifacts.library()
        preload = artifacts.preloadable(path)
        said = self._said(probe.run_true({"LD_PRELOAD": preload, "HZ_CONFIRM": "1"}).stderr)
        if said is None:
            raise WrongConfiguration(
                f"{path} does not say HZ_CONFIRM when it is preloaded; rebuild or reinstall hztune"
            )
        return Installed(self.name, str(said["version"]), preload, path, sha256_of(path), "")

    def rows(self, installed: Installed) -> tuple[KnobRow, ...]:
        return _hz_rows()

    def knobs(self, installed: Installed) -> tuple[Param, ...]:
        return params.table()

    def check(self, config: Config, installed: Installed) -> None:
        params.check(config)
        super().check(config, installed)

    def variables(self) -> tuple[str, ...]:
        return ("LD_PRELOAD", *(param.env for param in params.table()), *self.table.others)

    def settings(self, config: Config, installed: Installed) -> Environment:
        return params.environment(config)

    def requests(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        return {r.name: environment[r.env] for r in params.table() if r.env in environment}

    def value_of(self, row: KnobRow, text: str) -> Value:
        return row.value(text) if text.lstrip("-").isdecimal() else text

    def preloads(self, installed: Installed) -> tuple[str, ...]:
        return (installed.preload,)

    def confirmed(self, stderr: str) -> dict[str, Value] | None:
        """The configuration that the process wrote; `auto` is a number there."""
        said = self._said(stderr)
        return None if said is None else said["config"]

    def verify(self, config: Config, confirmed: Mapping[str, Value]) -> None:
        """Compares every row, the defaults too: nothing may have been added on the way."""
        super().verify(params.complete(config), confirmed)

    def _said(self, stderr: str) -> dict[str, Any] | None:
        """What the first process confirmed, if all that did so agree."""
        said: list[dict[str, Any]] = []
        for line in re.findall(self.table.said, stderr, re.M):
            with suppress(ValueError):  # of very many processes, one may be cut
                said.append(json.loads(line))
        for other in said[1:]:
            if other["config"] != said[0]["config"]:
                raise WrongConfiguration(
                    f"process {other['pid']} runs hz with another configuration than process "
                    f"{said[0]['pid']}; look for a wrapper or start script that changes variables"
                )
        return said[0] if said else None


@cache
def _hz_rows() -> tuple[KnobRow, ...]:
    table = params.table()
    return tuple(KnobRow(name=p.name, doc=p.doc, default=0, words=p.choices) for p in table)


class Glibc(Adapter):
    """The malloc of the C library: tunables in GLIBC_TUNABLES, shown by the loader.

    Setting one of four thresholds ends the adapting of the others (no_dyn_threshold in malloc.c):
    those that are left stay at 128 KiB. For top_pad and mmap_max that is told; of mmap_threshold
    and trim_threshold hztune sets both, or none.
    """

    def installed(self) -> Installed:
        answer = probe.ask(
            "this.gnu_get_libc_version.restype = ctypes.c_char_p\n"
            "files = [file for file in mapped() if '/libc.so.6' in file]\n"
            "say({'files': files, 'version': this.gnu_get_libc_version().decode()})",
            {},
        )
        path, package = Path(answer["files"][0]), self.table.package
        return Installed(self.name, answer["version"], "", path, sha256_of(path), package)

    def check(self, config: Config, installed: Installed) -> None:
        super().check(config, installed)
        given = [name for name in _ADAPTING if config.get(name, AUTO) != AUTO]
        if len(given) == 1:
            (missing,) = set(_ADAPTING) - set(given)
            raise UsageError(
                f"glibc: {given[0]} is set without {missing}; glibc stops adapting both once one "
                "is set, so set both mmap_threshold and trim_threshold, or none"
            )

    def requests(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        older = {
            f"glibc.malloc.{name.removeprefix('MALLOC_').rstrip('_').lower()}": environment[name]
            for name in self.table.others
            if environment.get(name)
        }
        said = super().requests(environment)
        return {**older, **{name: text for name, text in said.items() if text}}

    def value_of(self, row: KnobRow, text: str) -> Value:
        return text if row.words else int(text, 0)

    def read_back(
        self, environment: Mapping[str, str], installed: Installed, program: Path | None = None
    ) -> dict[str, Value]:
        """What the target's own loader parsed, where that is not "unset".

        The ranges of the knobs are malloc's own, so what was parsed within them is in effect.
        """
        loader = loaded_program.loader_of(program)
        done = probe.run_probe(environment, str(loader), "--list-tunables")
        rows = {row.option: row.param for row in self.rows(installed)}
        listed = {said["name"]: int(said["value"], 0) for said in _LISTED.finditer(done.stdout)}
        if not done.ok or not rows.keys() <= listed.keys():
            raise WrongConfiguration(
                f"{loader} does not list the tunables of glibc {installed.version}; "
                f"it {done.describe()}"
            )
        named, found = super().requests(environment), dict[str, Value]()
        for option, param in rows.items():
            number = listed[option]
            # 0 also stands for one that was not set, or refused
            is_unset = number == 0 and (option not in named or param.low > 0)
            value = str(number) if param.kind == "enum" else number
            found[param.name] = param.default if is_unset else value
        return found


def library_of(name: str, prefix: str | None = None) -> Adapter:
    """The adapter of an allocator by its table, or with a prefix of a build inside a program."""
    kinds: dict[str, type[Adapter]] = {"none": Adapter, "glibc": Glibc, "hz": Hz}
    return kinds.get(name, Library)(tables()[name], prefix)
