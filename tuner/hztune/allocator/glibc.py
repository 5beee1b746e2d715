"""glibc's own malloc: tunables in GLIBC_TUNABLES, shown by the loader's --list-tunables.

Setting one of four thresholds ends the adapting of the others (no_dyn_threshold in malloc.c): those
that are left stay at 128 KiB. For top_pad and mmap_max that is told; of mmap_threshold and
trim_threshold hztune sets both, or none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from hztune.allocator import loaded_program, probe
from hztune.allocator.base import Adapter, Config, Installed, WrongConfiguration
from hztune.allocator.tables import AUTO, KnobRow, parse_version
from hztune.errors import UsageError
from hztune.files import sha256_of
from hztune.params import Param, Value

_LISTED = re.compile(r"^(?P<name>[\w.]+): (?P<value>0x[0-9a-f]+|-?\d+) \(min:", re.M)
_OLDEST = (2, 33)
#: What adapts itself as large blocks are freed; when one is set, the other stays at 128 KiB.
_ADAPTING = ("mmap_threshold", "trim_threshold")


class Glibc(Adapter):
    """The malloc of the C library that every program has, with nothing preloaded."""

    def installed(self) -> Installed:
        """The C library that a process of this system maps."""
        answer = probe.ask(
            "this.gnu_get_libc_version.restype = ctypes.c_char_p\n"
            "files = [file for file in mapped() if '/libc.so.6' in file or '/libc-2.' in file]\n"
            "say({'files': files, 'version': this.gnu_get_libc_version().decode()})",
            {},
        )
        if not answer["files"] or parse_version(answer["version"]) < _OLDEST:
            raise UsageError(
                f"glibc {answer['version']} does not list its tunables; "
                f"{'.'.join(map(str, _OLDEST))} or newer does"
            )
        path, package = Path(answer["files"][0]), self.table.package
        return Installed(self.name, answer["version"], "", path, sha256_of(path), package)

    def check(self, config: Config, installed: Installed) -> None:
        """Refuses, beside what is out of range, half of the two thresholds that adapt together."""
        super().check(config, installed)
        given = [name for name in _ADAPTING if config.get(name, AUTO) != AUTO]
        if len(given) == 1:
            (missing,) = set(_ADAPTING) - set(given)
            raise UsageError(
                f"glibc: {given[0]} is set without {missing}; glibc stops adapting both once one "
                "is set, so set both mmap_threshold and trim_threshold, or none"
            )

    def requests(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        """What GLIBC_TUNABLES says, and the older variables where it says nothing."""
        older = {
            f"glibc.malloc.{name.removeprefix('MALLOC_').rstrip('_').lower()}": environment[name]
            for name in self.table.others
            if environment.get(name)
        }
        return {**older, **{name: text for name, text in self._said(environment) if text}}

    def _said(self, environment: Mapping[str, str]) -> list[tuple[str, str]]:
        """Name and text of each tunable in GLIBC_TUNABLES."""
        entries = environment.get(self.variable, "").split(self.table.join)
        return [(name, text) for name, _, text in (each.partition("=") for each in entries)]

    def value_of(self, row: KnobRow, text: str) -> Value:
        return text if row.words else int(text, 0)

    def read_back(
        self, environment: Mapping[str, str], installed: Installed, program: Path | None = None
    ) -> dict[str, Value]:
        """What the target's own loader parsed, where that is not "unset".

        The ranges of the knobs are malloc's own, so what was parsed within them is in effect.
        """
        loader = loaded_program.loader_of(program)
        done = probe.run_loader(loader, "--list-tunables", environment=environment)
        rows = {row.option: row.param for row in self.rows(installed)}
        listed = {said["name"]: int(said["value"], 0) for said in _LISTED.finditer(done.stdout)}
        if not done.ok or not rows.keys() <= listed.keys():
            raise WrongConfiguration(
                f"{loader} does not list the tunables of glibc {installed.version}; "
                f"it {done.describe()}"
            )
        named = dict(self._said(environment))
        return {
            param.name: _value(param, listed[option], option in named)
            for option, param in rows.items()
        }


def _value(param: Param, number: int, named: bool) -> Value:
    """A listed number as a value; 0 also stands for one that was not set, or refused."""
    if number == 0 and (not named or param.low > 0):
        return param.default
    return str(number) if param.kind == "enum" else number
