"""What an allocator is, as NAME.toml beside this file says it: library, variables, knobs.

A *knob* is a parameter of an allocator. Of several entries for one knob, each for a range of
versions, a later one says only what differs from the one before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Literal

from msgspec import field

from hztune.errors import UsageError, did_you_mean
from hztune.files import read_toml
from hztune.params import Param, Scale, Value
from hztune.schema import Schema, judged

AUTO = "auto"
SWITCH = ("false", "true")
Version = tuple[int, ...]
_MOST_BYTES = 256 * 1024
#: The version from the file's own name: libtbbmalloc_proxy.so.2.8 -> "2.8"; "" when it has none.
_FROM_FILE = "files[0].partition('.so')[2].strip('.')"


class KnobRow(Schema, frozen=True, kw_only=True):
    name: str
    doc: str
    default: int | str  # the allocator's own; `auto`: worked out when it starts
    low: int = 0  # least value that the allocator keeps as it is
    high: int = 0
    scale: Scale = "linear"
    unit: str = ""
    words: tuple[str, ...] = ()  # all that is legal; empty: a number is
    versions: str = ""  # "2.0-2.1.2": from 2.0 until before 2.1.2; "3.2" is from 3.2 on; "" is all
    own_name: str = field(default="", name="option")
    read: str = ""  # by what name the library tells its value; "": by that of the option
    symbol: str = ""  # where its value stands in the memory of a process; "": nowhere
    form: Literal["", "I", "?", "q", "Q", "d"] = ""  # the C type behind `symbol`
    per: int = 1  # what the allocator takes as 1: it writes and holds a fraction of that
    suffix: str = ""  # unit that a written number carries
    live: bool = False  # whether it may change while a process runs (core/agent/levers.c)

    @property
    def option(self) -> str:
        return self.own_name or self.name

    @property
    def span(self) -> tuple[Version, Version]:
        since, _, before = self.versions.partition("-")
        return parse_version(since), parse_version(before)

    def holds(self, version: Version) -> bool:
        since, before = self.span
        return since <= version and (not before or version < before)

    @property
    def param(self) -> Param:
        high = len(self.words) - 1 if self.words else self.high
        may_be_auto = self.default == AUTO and not self.words
        return Param(self.name, self.default, self.doc, self.low, high, self.scale, self.unit,
                     self.words, may_be_auto, is_live=self.live)  # fmt: skip

    def text(self, value: Value) -> str:
        """A value as the allocator's parser reads it."""
        if self.per != 1:
            return f"{int(value) / self.per:.2f}"
        return f"{value}{self.suffix}"

    def value(self, text: str) -> Value:
        """The value of such a text; ValueError: it is no number, where one is wanted."""
        if self.words == SWITCH:
            return SWITCH[text[:1] in (*"tTyY1",)]
        if self.words:
            return text
        if self.per != 1:
            return round(self.per * float(text))
        return int(text.removesuffix(self.suffix))


class Table(Schema, frozen=True, kw_only=True):
    name: str
    order: int  # place in lists, and among what is first measured
    check: str = ""  # how a user sees that the settings are in effect, for exports
    package: str = ""  # Debian package that installs it; "": there is none
    libraries: tuple[tuple[str, str], ...] = ()  # sonames, each with its package; the first counts
    file: str = ""  # start of its library's file name, by which linked programs are known
    probe_version: str = _FROM_FILE
    """Python for a probe that gives the version as text; it finds `this`, the process as a ctypes
    library, and `files`, the allocator's files that it has mapped."""
    ask: str = ""
    """Python for a probe that puts into `answer` what it runs with, by parameter, if it can; it
    also finds ROWS, with the name, option, `read` and words of each parameter."""
    sources: tuple[str, ...] = ()  # versions that the knobs were read from, which tests load
    variable: str = ""  # the one that holds all settings: option, `pair`, value, `join`, ...
    pair: str = ""
    join: str = ""
    prefix: str = ""  # else each option has a variable: this, and the option in capitals
    any_case: bool = False  # its variables are read in small letters as well
    others: tuple[str, ...] = ()  # further variables that would change or disturb it
    always: dict[str, str] = field(default_factory=dict)  # variables that every process needs
    without: str = ""  # what a process does that lacks one
    own_auto: frozenset[str] = frozenset()  # knobs whose word `auto` is a setting like any other
    unreadable: frozenset[str] = frozenset()  # knobs that may be unreadable: requested, not proved
    saying: dict[str, str] = field(default_factory=dict)  # variables that make it tell its settings
    strict: str = ""  # what stands before them in `variable`, so that a bad setting ends it
    said: str = ""  # what it then says, with the groups `option` and `value`
    begins: str = ""  # what stands before all that one process says; "": nothing separates them
    chatter: str = ""  # what such a process writes that is no word of the program's
    refusal: str = ""  # written before it ends for its settings; the group `why` tells
    marks: tuple[str, ...] = ()  # texts that every build of it holds, for inside a program
    mark_version: str = ""  # stands around the version in such a file; "": its options tell
    rows: tuple[KnobRow, ...] = ()


@cache
def tables() -> dict[str, Table]:
    read = [_read(path) for path in Path(__file__).parent.glob("*.toml")]
    return {table.name: table for table in sorted(read, key=lambda table: table.order)}


def _read(path: Path) -> Table:
    said = read_toml(path, _MOST_BYTES)
    known: dict[str, dict[str, Any]] = {}
    rows = []
    for each in said.pop("parameter", ()):
        known[each["name"]] = {**known.get(each["name"], {}), **each}
        rows.append(known[each["name"]])
    return judged({**said, "name": path.stem, "rows": rows}, Table)


@cache
def rows_of(allocator: str, version: str) -> tuple[KnobRow, ...]:
    numbers = parse_version(version)
    return tuple(row for row in tables()[allocator].rows if row.holds(numbers))


@cache
def knobs_of(allocator: str, version: str) -> tuple[Param, ...]:
    return tuple(row.param for row in rows_of(allocator, version))


def parse_version(text: str) -> Version:
    """The leading numbers of a version: "5.3.0-1" -> (5, 3, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def knob(allocator: str, knobs: Iterable[Param], name: str) -> Param:
    by_name = {param.name: param for param in knobs}
    if name in by_name:
        return by_name[name]
    raise UsageError(
        f"{allocator} has no parameter {name!r} in the installed version"
        f"{did_you_mean(name, by_name)} "
        f"(hztune params --allocator {allocator} lists them)"
    )
