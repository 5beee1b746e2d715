"""What a comparison compares, and on what: contenders, their proof, and programs as rows."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from msgspec import Struct

from hztune import allocator, params, profile
from hztune.allocator import Installed, loaded_program
from hztune.allocator.base import knob
from hztune.allocator.live import Running
from hztune.arguments import command_words, require_name, split_configured, split_named
from hztune.artifacts import preloadable
from hztune.blocks import COMMAND, UNCHANGED_PROGRAM, Arm
from hztune.errors import UsageError
from hztune.files import sha256_of
from hztune.measure import insides
from hztune.measure.identity import AllocatorIdentity, Fault, confirmation_fault
from hztune.measure.program import CALLED, OPEN, Program
from hztune.params import Value
from hztune.profile import hash_of_words
from hztune.workload import WorkloadSpec

BUILD = "build:"  # begins the allocator of an arm that is another build of hz

Amount = Literal["ops_per_s", "seconds", "higher", "lower"]
"""Operations a second, seconds of a run, or the user's metric, of which more or less is better."""


@dataclass(frozen=True, slots=True)
class Contender:
    name: str  # in the results; unlike every other one's
    # what is measured; the allocator of a library in a file is "file:NAME", of another build of hz
    # "build:KIND", of a command "command:NAME"
    arm: Arm
    version: str = ""  # of its library; "" when it has no way to say
    sha256: str = ""  # of its library; "" when there is none
    file: Path | None = None  # the library that stands for it; None: its adapter finds it
    variables: tuple[tuple[str, str], ...] = ()  # beside the library, where there is a `file`
    is_program: bool = False  # whether `file` is no library, but a hz-bench with one inside
    words: tuple[str, ...] = ()  # of a command that is a contender; () for an allocator
    inside: Installed | None = None  # an allocator that the program brings, by its profile

    @property
    def identity(self) -> tuple[str | Arm, ...]:
        """What makes it the same contender in another session."""
        return (self.name, self.arm, self.version, self.sha256)


def parse(texts: Sequence[str], *, are_commands: bool = False) -> tuple[Contender, ...]:
    """The contenders of a command line; one that is named twice gets a number.

    `texts`: `default`, an allocator's name, the same with parameters ("hz:shards=4,thp=on"), a path
    to a profile, or NAME=/path/to/library.so. With `are_commands`, run where a program's words
    begin with {}: "./new --fast", or NAME='./new --fast', so that results show the name alone.
    UsageError: one does not exist here, or is not legal.
    """
    if isinstance(texts, str):
        raise UsageError(f"the contenders {texts!r} are one text; give several: ('none', 'hz')")
    names = [named[0] for named in map(split_named, texts) if named is not None]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two contenders are called {twice!r}; each needs a name of its own")
    if not are_commands:
        return distinct([_contender(text) for text in texts])
    found = distinct([_command(text) for text in texts])
    return tuple(replace(each, arm=Arm(COMMAND + each.name)) for each in found)


def distinct(contenders: Sequence[Contender]) -> tuple[Contender, ...]:
    seen: dict[str, int] = {}
    named = []
    for each in contenders:
        count = seen[each.name] = seen.get(each.name, 0) + 1
        named.append(each if count == 1 else replace(each, name=f"{each.name}#{count}"))
    return tuple(named)


def configured(name: str, allocator_name: str, config: Mapping[str, Value]) -> Contender:
    """An installed allocator under a configuration; UsageError: it is not, or refuses that."""
    adapter = allocator.get(allocator_name)
    installed = adapter.installed()
    adapter.check(config, installed)
    return Contender(name, Arm.of(allocator_name, config), installed.version, installed.sha256)


def from_file(name: str, path: Path) -> Contender:
    """A library that no adapter knows, preloaded as it is; UsageError: it cannot be."""
    if not path.is_file():
        raise UsageError(f"{name}={path}: there is no such file; give NAME=/path/to/library.so")
    preloadable(path.resolve())
    return Contender(name, Arm(f"file:{name}"), "", sha256_of(path), path.resolve())


def _command(text: str) -> Contender:
    """The command that one word of a command line means; its arm is not yet its own."""
    if shutil.which(text.partition(" ")[0]) is None:
        require_name(text, "a contender")
    named = split_named(text)
    name, command = named or (text, text)
    words = command_words(command, f"the contender {name}=" if named else "the contender")
    path = shutil.which(words[0])
    if path is None:
        raise UsageError(
            f"there is no program {words[0]!r}; where the program after -- (or of --server, "
            f"--command) is {OPEN}, each contender is a command that takes its place"
        )
    return Contender(name, Arm(COMMAND), sha256=sha256_of(Path(path)), words=words)


def _contender(text: str) -> Contender:
    library = split_named(text)
    if library is not None and "/" in library[1]:
        return from_file(library[0], Path(library[1]))
    is_known = text in ("default", *allocator.names()) or text.endswith(".json")
    if not is_known and shutil.which(text) is not None:
        raise UsageError(
            f"{text!r} is a program, not an allocator, a profile or a library: to measure it, put "
            f"-- before it; to measure two programs side by side, write: A B -- {OPEN} ARGS"
        )
    if text.endswith(".json") or "/" in text.partition("=")[0]:
        return _of_profile(Path(text))
    if (told := split_configured(text)) is None:
        require_name(text, "a contender")
        return configured(text, "hz" if text == "default" else text, {})
    name, given = told
    adapter = allocator.get(name)
    knobs = adapter.knobs(adapter.installed())
    config = {key: params.parse(knob(name, knobs, key), one) for key, one in given.items()}
    return configured(text, name, config)


def _of_profile(path: Path) -> Contender:
    if not path.exists():
        require_name(str(path), "a contender")
    tuned = profile.load(path)
    name = path.stem if path.stem != "profile" else path.resolve().parent.name
    if tuned.adapter.is_inside:
        found = tuned.allocator.as_installed()
        return Contender(name, tuned.arm, found.version, found.sha256, inside=found)
    return configured(name, tuned.allocator.name, tuned.params)


# ---- how they are proved -------------------------------------------------------------------------


class FileIdentity(AllocatorIdentity):
    """Proves arms whose library is a file, too; a command runs as it is."""

    def __init__(
        self,
        contenders: Sequence[Contender],
        command: str = "",
        inside: Sequence[Installed] = (),
        *,
        seen: bool = True,
    ) -> None:
        super().__init__(command, inside, seen=seen)
        self._files = {each.arm: (each.file, each) for each in contenders if each.file is not None}

    def prepare(self, arm: Arm) -> dict[str, str] | Fault:
        if arm in self._files:
            file, side = self._files[arm]
            preload = {} if side.is_program else {"LD_PRELOAD": str(file)}
            return {**dict(side.variables), **preload}
        is_command = arm.allocator.startswith(COMMAND)
        return super().prepare(Arm(UNCHANGED_PROGRAM) if is_command else arm)

    def program(self, arm: Arm) -> Path | None:
        file, side = self._files.get(arm, (None, None))
        return file if side and side.is_program else super().program(arm)

    def inspect(self, arm: Arm, running: Running) -> Fault | None:
        known = arm not in self._files and not arm.allocator.startswith(COMMAND)
        return super().inspect(arm, running) if known else None

    def judge(self, arm: Arm, library: str, stderr: str) -> Fault | None:
        if arm.allocator.startswith(COMMAND):
            return None
        if arm not in self._files:
            return super().judge(arm, library, stderr)
        asked = os.path.realpath(self._files[arm][0])
        if os.path.realpath(library) != asked:
            why = f"malloc comes from {library or 'nowhere'}, not {asked}"
            return Fault("wrong_allocator", why)
        if not arm.allocator.startswith(BUILD):
            return None  # a build of hz confirms its parameters as the shipped one does
        return confirmation_fault(allocator.get("hz"), arm, stderr)


# ---- on what -------------------------------------------------------------------------------------


class ProgramSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A program as a record knows it; its words may hold secrets, so that only hashes are kept."""

    label: str
    amount: Amount  # what is measured of it
    words_sha256: str  # of its command
    around_sha256: str  # of commands around it, its metric, rests, container, and load of a server
    sha256: str  # of the file that is run; "" where each contender brings its own

    @classmethod
    def of(cls, program: Program) -> ProgramSpec:
        around = [program.prepare, program.cleanup, program.check, program.metric]
        around += [repr(each) for each in (program.rest, program.quota) if each is not None]
        around += [f"{program.input.size} bytes on stdin"] if program.input else []
        served = asdict(program.service) if program.service else None
        found = shutil.which(program.argv[0])
        return cls(
            program.label,
            program.better if program.rate else "seconds",
            hash_of_words(program.argv),
            hashlib.sha256(json.dumps([around, served]).encode()).hexdigest(),
            sha256_of(Path(found)) if found else "",
        )


ComparedRow = WorkloadSpec | ProgramSpec  # what a row is of


def amount_of(row: ComparedRow) -> Amount:
    return row.amount if isinstance(row, ProgramSpec) else "ops_per_s"


def require(programs: Sequence[Program], contenders: Sequence[Contender]) -> tuple[str, ...]:
    """Returns remarks; UsageError: two have one name, or one is missing or takes no allocator."""
    labels = [program.label for program in programs]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise UsageError(f"two programs are called {twice!r}; give each a name with --command")
    needed = any(
        each.arm.allocator != UNCHANGED_PROGRAM and each.inside is None for each in contenders
    )
    remarks: list[str] = []
    for program in programs:
        if program.is_open:
            for contender in contenders:
                loaded_program.inspect(contender.words[0])
            continue
        if program.call is not None:
            remarks.append(CALLED)
            continue
        found = loaded_program.inspect(program.argv[0])
        if needed and (obstacle := found.obstacle) is not None:
            raise UsageError(obstacle)
        remarks += found.remarks
    return tuple(dict.fromkeys(remarks))


def refuse_glibc(programs: Sequence[Program], contenders: Sequence[Contender]) -> None:
    """Refuses glibc under a program that is linked with another malloc."""
    asked = [each.name for each in contenders if each.arm.allocator == "glibc"]
    for program in programs if asked else ():
        if program.call is None and (why := glibc_obstacle(program)) is not None:
            raise UsageError(
                f"{asked[0]} cannot be measured under {program.label}: {why}; leave it out, or "
                f"preload the C library: GLIBC={allocator.get('glibc').installed().path}"
            )


def glibc_obstacle(program: Program) -> str | None:
    """Why glibc cannot be measured under a program; None: it can."""
    provider = insides.provider_of(program, insides.of_file(program))
    if provider is None:
        return None
    return f"{insides.whose_malloc(provider)}, and nothing is preloaded for glibc"
