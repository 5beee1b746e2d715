"""What an allocator is to hztune: from finding its library to proving that a setting took effect.

Glossary: a *knob* is a parameter of an allocator (`params.Param`); a *configuration* maps knobs to
values, and what it leaves out stays at the allocator's own default; the *environment* is how a
configuration reaches a process; a *read-back* is what a process says it runs with. A foreign
allocator answers a bad setting with silence more often than not, so that nothing here is believed
before it was read back.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hztune.allocator.knobs import AUTO, knob
from hztune.errors import HztuneError, UsageError
from hztune.params import Param, Value, judge

Config = Mapping[str, Value]
Environment = dict[str, str]
#: Reads a symbol of the allocator in a running process: name and size to bytes, None: no such.
Memory = Callable[[str, int], bytes | None]

#: What an emitted value may hold: no character of it means anything to a shell, systemd or YAML.
ALPHABET = re.compile(r"[A-Za-z0-9_.:,|=/+-]*")


class WrongConfiguration(HztuneError):
    """A process runs with other settings than the ones that were asked."""


@dataclass(frozen=True, slots=True)
class Installed:
    """An allocator as it was found on this machine.

    Attributes:
        name: Name of the adapter.
        version: Version that the library itself reports ("5.3.0"); "" when it has no way to say.
        preload: What LD_PRELOAD names, a soname or a path; "" when nothing is preloaded.
        path: The file that a process maps; the empty path when nothing is preloaded.
        sha256: Of that file, in hexadecimal; "" when there is none.
        package: Debian package that holds it; "" when it is part of hztune or of no package.
        given: What the program itself gives to an allocator inside, knob to value.
    """

    name: str
    version: str
    preload: str
    path: Path
    sha256: str
    package: str
    given: tuple[tuple[str, Value], ...] = ()


class Adapter(ABC):
    """One allocator; tests/tuner/test_allocator.py holds what every implementation must keep."""

    name: str
    #: Debian package that installs it; "" when there is none.
    package: ClassVar[str] = ""
    #: How a user sees that the settings are in effect, for the comments of exports; "": no way.
    check_advice: ClassVar[str] = ""
    #: Whether a process says on stderr, when it starts, what it runs with (see `confirmed`).
    confirms: bool = False
    #: What such a process writes to stderr that is no word of the program's.
    chatter: ClassVar[re.Pattern[str] | None] = None
    #: What a process writes to stderr before it ends because it refuses its settings.
    refusal: ClassVar[re.Pattern[str] | None] = None
    #: Knobs that have a word `auto` of their own: there it is a setting like any other.
    own_auto: frozenset[str] = frozenset()
    #: Whether it stands in the program, or in a library of the program: nothing is installed.
    is_inside: ClassVar[bool] = False
    #: What stands before the names of its functions in this build, in small letters.
    prefix: str = ""

    @property
    def family(self) -> str:
        """Name of the allocator that it is a build of; mostly its own name."""
        return self.name

    @abstractmethod
    def installed(self) -> Installed:
        """Returns what is installed here.

        Raises:
            UsageError: It is not; the message names the package to install.
        """

    @abstractmethod
    def knobs(self, installed: Installed) -> tuple[Param, ...]:
        """Returns the knobs of that version, each with type, range, unit, default and doc."""

    @abstractmethod
    def variables(self) -> tuple[str, ...]:
        """Returns every variable that may be set for any version, and each that could spoil it.

        A process that is meant to run without this allocator must have them all unset.
        """

    @abstractmethod
    def settings(self, config: Config, installed: Installed) -> Environment:
        """Returns the variables for a checked configuration; LD_PRELOAD is not among them."""

    @abstractmethod
    def read_back(
        self, environment: Mapping[str, str], installed: Installed, program: Path | None = None
    ) -> dict[str, Value]:
        """Starts a process under `environment` and returns the settings that are in effect there.

        Args:
            environment: As `environment()` made it, or as it was found in a running process.
            installed: The allocator it is meant for.
            program: The target, where the answer depends on it (its own loader and C library).

        Returns:
            Knob to value, for the knobs that the allocator lets one read.

        Raises:
            WrongConfiguration: The allocator refused the environment, or took no part.
        """

    @abstractmethod
    def requested(self, environment: Mapping[str, str], installed: Installed) -> dict[str, Value]:
        """Returns what variables ask for by their text alone: nothing is started.

        Raises:
            WrongConfiguration: They ask for what is no number, where one is wanted.
        """

    def library_stems(self) -> tuple[str, ...]:
        """Returns what stands before `.so` in every name of its library; nothing without one."""
        return ()

    def package_of(self, soname: str) -> str:
        """Returns the Debian package that brings the library of that name; "" when none does."""
        return self.package

    def effective(self, memory: Memory) -> dict[str, Value]:
        """Returns the settings that stand in the memory of a running process, where they do."""
        return {}

    def check(self, config: Config, installed: Installed) -> None:
        """Refuses an unknown knob, a value out of range, a combination that would not be kept.

        Raises:
            UsageError: In one sentence: what was got, and what is legal.
        """
        knobs = self.knobs(installed)
        for name, value in config.items():
            try:
                judge(knob(self.name, knobs, name), value)
            except UsageError as error:
                raise UsageError(f"{self.name}: {error}") from None

    def environment(
        self, config: Config, installed: Installed, *, preload: bool = True
    ) -> Environment:
        """Returns the variables that give a process this allocator and this configuration.

        Args:
            config: Knob to value; knobs that are left out, or `auto`, are not mentioned at all.
            installed: The version to write for.
            preload: False for a program that is linked with the allocator already.

        Raises:
            UsageError: The configuration is not legal, or could not be written safely.
        """
        self.check(config, installed)
        environment = self.settings(config, installed)
        if preload and installed.preload:
            environment["LD_PRELOAD"] = ":".join(self.preloads(installed))
        return _written_plainly(environment)

    def preloads(self, installed: Installed) -> tuple[str, ...]:
        """Returns what LD_PRELOAD names: the allocator's library, then what it needs beside it."""
        return (installed.preload,) if installed.preload else ()

    def confirm_environment(self, environment: Mapping[str, str]) -> Environment:
        """Returns `environment`, changed so that a bad setting ends and a good one is said.

        It is for measuring, never for deployment; what is said comes on stderr (`confirmed`).
        Where an allocator can do neither, nothing is changed.
        """
        return dict(environment)

    def confirmed(self, stderr: str) -> dict[str, Value] | None:
        """Returns what a process under `confirm_environment` said it runs with, None: nothing.

        Raises:
            WrongConfiguration: Several processes spoke, and do not agree.
        """
        return None

    def verify(self, config: Config, confirmed: Mapping[str, Value]) -> None:
        """Compares what was asked with what was confirmed; `auto` agrees with everything.

        Raises:
            WrongConfiguration: Something differs, or a readable knob was not among the answers.
        """
        for name, asked in config.items():
            got = confirmed.get(name)
            if self.is_left(name, asked) or (got is None and name in self.unreadable()):
                continue
            if got != asked:
                answer = "did not say" if got is None else f"runs with {got}"
                raise WrongConfiguration(
                    f"{self.name} was asked for {name}={asked} but {answer}; "
                    "look for a wrapper or a start script that changes the environment"
                )

    def is_left(self, name: str, value: Value) -> bool:
        """Whether `value` leaves the knob to the allocator, so that nothing is set."""
        return value == AUTO and name not in self.own_auto

    def unreadable(self) -> frozenset[str]:
        """Returns the knobs that may have no way to be read: requested then, not proved."""
        return frozenset()

    def disturbing(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Returns the variables in `environment` that would change this allocator unasked."""
        return tuple(sorted(set(self.variables()).intersection(environment) - {"LD_PRELOAD"}))

    def missing(self) -> UsageError:
        """Returns the error for an allocator that is not installed."""
        remedy = (
            f"install it with: apt-get install {self.package}"
            if self.package
            else "it has no Debian package: build it and put its library where the loader looks"
        )
        return UsageError(f"{self.name} is not installed on this machine; {remedy}")


def _written_plainly(environment: Environment) -> Environment:
    """Returns `environment` if every value keeps to ALPHABET, so that any export can write it."""
    for name, value in environment.items():
        if not ALPHABET.fullmatch(value):
            raise UsageError(
                f"{name}={value!r} holds a character outside A-Z a-z 0-9 _ . : , | = / + - "
                "and could not be exported safely; install the library under a plain path"
            )
    return environment
