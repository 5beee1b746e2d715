"""What an allocator is to hztune: its table, and what is done with it, up to a setting's proof.

NAME.toml beside this file says its library, variables and knobs. Of several entries for one knob,
each for a range of versions, a later one says only what differs from the one before it.

Glossary: a *knob* is a parameter of an allocator; a *configuration* maps knobs to values, and what
it leaves out stays at the allocator's own default; the *environment* is how a configuration reaches
a process; a *read-back* is what a process says it runs with. A foreign allocator answers a bad
setting with silence more often than not, so that nothing here is believed before it was read back.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from msgspec import field

from hztune.errors import HztuneError, UsageError, did_you_mean
from hztune.files import read_toml
from hztune.params import Param, Scale, Value, judge
from hztune.schema import Schema, judged

Config = Mapping[str, Value]
Environment = dict[str, str]
#: Reads a symbol of the allocator in a running process: name and size to bytes, None: no such.
Memory = Callable[[str, int], bytes | None]

#: What an emitted value may hold: no character of it means anything to a shell, systemd or YAML.
ALPHABET = re.compile(r"[A-Za-z0-9_.:,|=/+-]*")
_PRELOAD = "LD_PRELOAD"
_LOOK = "look for a wrapper or a start script that changes the environment"

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
    read = [read_table(path) for path in Path(__file__).parent.glob("*.toml")]
    return {table.name: table for table in sorted(read, key=lambda table: table.order)}


def read_table(path: Path) -> Table:
    said = read_toml(path, _MOST_BYTES)
    known: dict[str, dict[str, Any]] = {}
    rows = []
    for each in said.pop("parameter", ()):
        rows.append(known.get(each.get("name", ""), {}) | each)
        known[each.get("name", "")] = rows[-1]
    try:
        return judged({**said, "name": path.stem, "rows": rows}, Table)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


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


# ---- an allocator --------------------------------------------------------------------------------


class WrongConfiguration(HztuneError):
    """A process runs with other settings than the ones that were asked."""


@dataclass(frozen=True, slots=True)
class Installed:
    """An allocator as it was found on this machine; a field that means nothing here is empty."""

    name: str
    version: str  # as the library itself reports it ("5.3.0"); "": it has no way to say
    preload: str  # what LD_PRELOAD names, a soname or a path; "": nothing is preloaded
    path: Path  # the file that a process maps
    sha256: str
    package: str  # Debian package that holds it
    given: tuple[tuple[str, Value], ...] = ()
    """What the program itself gives to an allocator inside."""


class Adapter:
    """One allocator: what its table says, and in subclasses what cannot be a table.

    The base starts no process. tests/tuner/test_allocator.py holds what every allocator must keep.

    Attributes:
        name: "jemalloc"; of one that is inside a program "inside:_rjem_jemalloc".
        family: The allocator that it is a build of, by which its table and its space are found.
        prefix: What stands before the names of its functions in this build, in small letters.
        is_inside: Whether it stands in the program, or in a library of it: nothing is installed.
        confirms: Whether a process says on stderr, when it starts, what it runs with.
    """

    def __init__(self, table: Table, prefix: str | None = None) -> None:
        """Makes the adapter of a table; with a prefix, even "", it is inside a program."""
        self.table = table
        self.family = table.name
        self.prefix = prefix or ""
        self.is_inside = prefix is not None
        self.name = f"inside:{prefix}{table.name}" if self.is_inside else table.name
        self.variable = self.prefix.upper() + table.variable
        self.confirms = bool(table.said)

    def installed(self) -> Installed:
        return Installed(self.name, "", "", Path(), "", "")

    def rows(self, installed: Installed) -> tuple[KnobRow, ...]:
        return rows_of(self.family, installed.version)

    def knobs(self, installed: Installed) -> tuple[Param, ...]:
        """The knobs of that version; the default is what the program gives, where it does."""
        own, given = knobs_of(self.family, installed.version), dict(installed.given)
        if not given:
            return own
        return tuple(
            replace(each, default=given[each.name], may_be_auto=False)
            if each.name in given
            else each
            for each in own
        )

    def variables(self) -> tuple[str, ...]:
        """Every variable that may be set for any version, and each that could spoil it.

        A process that is meant to run without this allocator must have them all unset.
        """
        table = self.table
        own = [self.variable] if table.variable else map(self._variable_of, table.rows)
        preload = (_PRELOAD,) if table.file and not self.is_inside else ()
        return tuple(dict.fromkeys((*preload, *own, *table.others, *table.always)))

    def settings(self, config: Config, installed: Installed) -> Environment:
        """The variables for a checked configuration; LD_PRELOAD is not among them."""
        given = [
            (row, row.text(config[row.name]))
            for row in self.rows(installed)
            if row.name in config and not self.is_left(row.name, config[row.name])
        ]
        always = self.table.always
        if not self.table.variable:
            return always | {self._variable_of(row): text for row, text in given}
        pairs = self.table.join.join(row.option + self.table.pair + text for row, text in given)
        return always | ({self.variable: pairs} if pairs else {})

    def requested(self, environment: Mapping[str, str], installed: Installed) -> dict[str, Value]:
        """What variables ask for by their text alone; else WrongConfiguration."""
        said = self.requests(environment)
        try:
            return {
                row.name: self.value_of(row, said[row.option])
                for row in self.rows(installed)
                if row.option in said
            }
        except ValueError as error:
            raise WrongConfiguration(f"{self.name} is given what is no number: {error}") from None

    def requests(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        """What variables say to the library, its own name of an option to a text."""
        table = self.table
        for name, text in table.always.items():
            if text not in environment.get(name, "").split(":"):
                raise WrongConfiguration(f"without {name}={text} {table.without}")
        if table.variable:
            pairs = environment.get(self.variable, "").split(table.join)
            split = (pair.rpartition(table.pair) for pair in pairs if pair)
            return {option: text for option, _, text in split}
        if table.any_case:
            environment = {name.upper(): text for name, text in environment.items()}
        own = {row.option: self._variable_of(row) for row in table.rows}
        return {option: environment[name] for option, name in own.items() if name in environment}

    def value_of(self, row: KnobRow, text: str) -> Value:
        return row.value(text)

    def read_back(
        self, environment: Mapping[str, str], installed: Installed, program: Path | None = None
    ) -> dict[str, Value]:
        """The settings that are in effect in a process under `environment`, as far as it tells.

        `program` is the target, where the answer depends on its own loader and C library.
        WrongConfiguration: the allocator refused the environment, or took no part.
        """
        return {}

    def package_of(self, soname: str) -> str:
        """The Debian package that brings the library of that name; "" when none does."""
        found = (package for known, package in self.table.libraries if soname.startswith(known))
        return next(found, self.table.package)

    def effective(self, memory: Memory) -> dict[str, Value]:
        """The settings that stand in the memory of a running process, where they do."""
        found: dict[str, Value] = {}
        for row in self.table.rows:
            if row.symbol and row.name not in found:
                held = memory(row.symbol, struct.calcsize(f"={row.form}"))
                if held is None and not found:
                    return found
                if held is not None:
                    (value,) = struct.unpack(f"={row.form}", held)
                    is_switch = row.form == "?"
                    found[row.name] = SWITCH[value] if is_switch else round(row.per * value)
        return found

    def check(self, config: Config, installed: Installed) -> None:
        """Refuses an unknown knob, a value out of range, a combination that would not be kept."""
        knobs = self.knobs(installed)
        for name, value in config.items():
            try:
                judge(knob(self.name, knobs, name), value)
            except UsageError as error:
                raise UsageError(f"{self.name}: {error}") from None

    def environment(
        self, config: Config, installed: Installed, *, preload: bool = True
    ) -> Environment:
        """The variables that set it, none for a knob that is left out or `auto`; UsageError."""
        self.check(config, installed)
        environment = self.settings(config, installed)
        if preload and installed.preload:
            environment[_PRELOAD] = ":".join(self.preloads(installed))
        for name, value in environment.items():
            if not ALPHABET.fullmatch(value):
                raise UsageError(
                    f"{name}={value!r} holds a character outside A-Z a-z 0-9 _ . : , | = / + - "
                    "and could not be exported safely; install the library under a plain path"
                )
        return environment

    def preloads(self, installed: Installed) -> tuple[str, ...]:
        """What LD_PRELOAD names: the allocator's library, then what it needs beside it."""
        return (installed.preload,) if installed.preload else ()

    def saying(self) -> Environment:
        """The variables under which it says what it runs with, and nothing else changes."""
        return {self.prefix.upper() + name: text for name, text in self.table.saying.items()}

    def confirm_environment(self, environment: Mapping[str, str]) -> Environment:
        """`environment`, changed so that a bad setting ends and a good one is said on stderr.

        It is for measuring, never for deployment. Where an allocator can do neither, it stays.
        """
        said = self.saying()
        if self.variable in said:  # what stands first holds for the rest
            pairs = (self.table.strict, said[self.variable], environment.get(self.variable))
            said[self.variable] = self.table.join.join(filter(None, pairs))
        return {**environment, **said}

    def confirmed(self, stderr: str) -> dict[str, Value] | None:
        """What a process under `confirm_environment` said it runs with; None: nothing.

        WrongConfiguration: several processes spoke, and do not agree.
        """
        if not self.table.said:
            return None
        rows = {row.option: row for row in self.table.rows}
        said = re.compile(self.table.said, re.M)
        agreed: dict[str, Value] = {}
        for told in stderr.split(self.table.begins) if self.table.begins else stderr.splitlines():
            pairs = [(each["option"], each["value"]) for each in said.finditer(told)]
            for option, text in dict(pairs).items():
                if option not in rows:
                    continue
                name, value = rows[option].name, rows[option].value(text)
                if agreed.setdefault(name, value) != value:
                    raise WrongConfiguration(
                        f"one process runs {self.name} with {name}={agreed[name]}, another with "
                        f"{value}; {_LOOK}"
                    )
        spoke = bool(self.table.begins) and self.table.begins in stderr
        return agreed if agreed or spoke else None

    def verify(self, config: Config, confirmed: Mapping[str, Value]) -> None:
        """Compares what was asked with what was confirmed; `auto` agrees with everything.

        WrongConfiguration: something differs, or a readable knob was not among the answers.
        """
        for name, asked in config.items():
            got = confirmed.get(name)
            if self.is_left(name, asked) or (got is None and name in self.table.unreadable):
                continue
            if got != asked:
                answer = "did not say" if got is None else f"runs with {got}"
                raise WrongConfiguration(
                    f"{self.name} was asked for {name}={asked} but {answer}; {_LOOK}"
                )

    def is_left_by(self, environment: Mapping[str, str], installed: Installed) -> bool:
        """Whether variables say nothing to it, or no more than its defaults."""
        usual = {each.name: each.default for each in self.knobs(installed)}
        others = {name.upper() for name in self.disturbing(environment)} & set(self.table.others)
        try:
            asked = self.requested(environment, installed)
            is_known = len(self.requests(environment)) == len(asked)
        except WrongConfiguration:
            return False
        return is_known and not others and all(usual[name] == asked[name] for name in asked)

    def is_left(self, name: str, value: Value) -> bool:
        return value == AUTO and name not in self.table.own_auto

    def disturbing(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """The variables in `environment` that would change this allocator unasked."""
        if self.table.any_case:
            return tuple(sorted(e for e in environment if e.upper().startswith(self.table.prefix)))
        return tuple(sorted(set(self.variables()).intersection(environment) - {_PRELOAD}))

    def _variable_of(self, row: KnobRow) -> str:
        return self.table.prefix + row.option.upper()
