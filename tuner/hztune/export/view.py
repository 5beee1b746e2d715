"""What the templates of export are filled with: what a file says of itself, and what it sets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hztune import artifacts, params
from hztune import profile as profiles
from hztune.errors import UsageError
from hztune.export.provenance import provenance
from hztune.params import Param, Value
from hztune.profile import Profile

_PRELOADABLE = re.compile(r"[A-Za-z0-9_./+,=-]+")


@dataclass(frozen=True)
class View:
    """A profile as the templates see it."""

    profile: Profile

    def said(self, undo: str) -> list[str]:
        """Lines of comment: what was proved where, how to check it, how to undo it."""
        return provenance(self.profile, undo)

    @cached_property
    def preload(self) -> str:
        """What LD_PRELOAD must name here; empty when the program keeps the C library's allocator.

        Beside any library but libhz.so stands the one that takes RTLD_DEEPBIND out of dlopen.
        """
        if self._is_hz:
            return _own(artifacts.library())
        soname = self.profile.allocator.soname
        return f"{soname}:{_own(artifacts.deepbind())}" if soname else ""

    @property
    def image_preload(self) -> str:
        """The same in a container."""
        if self._is_hz:
            return "/usr/local/lib/libhz.so"
        soname = self.profile.allocator.soname
        return f"{soname}:/usr/local/lib/libhz-deepbind.so" if soname else ""

    @property
    def variables(self) -> dict[str, str]:
        """Every variable that a program needs here."""
        return self._with(self.preload)

    @property
    def image_variables(self) -> dict[str, str]:
        """Every variable that a program needs in a container."""
        return self._with(self.image_preload)

    @property
    def package(self) -> str:
        """The Debian package that brings the library; the C library is in every image."""
        soname = self.profile.allocator.soname
        return self.profile.adapter.package_of(soname) if soname else ""

    @property
    def macros(self) -> str:
        """What hz_config.h says to the compiler."""
        return macros(self.profile.params)

    @property
    def settings(self) -> Mapping[str, str]:
        """The variables of a configuration that stands alone: what the program gives is in it."""
        made = self.profile.allocator
        config = {**made.given, **self.profile.params}
        return self.profile.adapter.settings(config, made.as_installed())

    @property
    def json(self) -> str:
        """The profile itself."""
        return profiles.dumps(self.profile).rstrip("\n")

    @property
    def _is_hz(self) -> bool:
        return self.profile.allocator.name == "hz"

    def _with(self, library: str) -> dict[str, str]:
        return {**self.profile.environment, **({"LD_PRELOAD": library} if library else {})}


def macros(given: Mapping[str, Value]) -> str:
    """What hz_config.h says to the compiler: a whole configuration."""
    config = params.complete(given)
    lines = ["#ifndef HZ_TUNED_CONFIG_H", "#define HZ_TUNED_CONFIG_H", ""]
    lines += [f"#define HZ_CONFIG_SCHEMA {params.schema()}", ""]
    for title, is_changed in (("found by the search", True), ("at their defaults", False)):
        rows = [row for row in params.table() if is_changed == (config[row.name] != row.default)]
        if rows:
            defined = [_define(row, config[row.name]) for row in rows]
            lines += [f"/* ---- {title} ---- */", *defined, ""]
    return "\n".join([*lines, "#endif"])


def _define(row: Param, value: Value) -> str:
    """A macro as hz_config.h spells it: HZ_AUTO, the enumerator of a word, or a number."""
    unit = f" ({row.unit})" if row.unit else ""
    was = "" if value == row.default else f"; default {row.default}"
    spelled = f"{row.env}_{str(value).upper()}" if row.kind == "enum" else str(value)
    spelled = "HZ_AUTO" if value == "auto" and row.may_be_auto else spelled
    return f"/* {row.doc}{unit}{was} */\n#define {row.macro} {spelled}"


def _own(library: Path) -> str:
    """A library of this installation, if LD_PRELOAD can carry its name."""
    path = str(library)
    if not _PRELOADABLE.fullmatch(path):
        raise UsageError(
            f"the library {path!r} lies under a name that LD_PRELOAD cannot carry safely; install "
            "hztune in a directory of letters, digits and _ . / + , = - only"
        )
    return path
