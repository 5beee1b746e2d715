"""What a comparison compares: the defaults, a profile, an allocator, or a library in a file."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hztune import allocator, params, profile
from hztune.allocator import Installed
from hztune.allocator.tables import knob
from hztune.arguments import command_words, contender_text, require_name, split_named
from hztune.artifacts import preloadable
from hztune.blocks import Arm
from hztune.errors import UsageError
from hztune.files import sha256_of
from hztune.measure.program import OPEN
from hztune.params import Value

DEFAULT = "default"
"""hz with its defaults."""

BUILD = "build:"
"""What the allocator of an arm begins with when it is another build of hz."""

COMMAND = "command:"
"""What it begins with when it is a command of the user's, run as it is."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One side of a comparison.

    Attributes:
        name: How it is called in the results; unlike every other one's.
        arm: What is measured. For a library in a file its allocator is "file:NAME", for another
            build of hz "build:KIND", for a command "command:NAME".
        version: Of its library; "" when it has no way to say.
        sha256: Of its library; "" when there is none.
        file: The library that stands for it; None: the one that its adapter finds.
        variables: What its processes get beside the library; only where there is a `file`.
        is_program: Whether `file` is no library, but a hz-bench with the allocator inside.
        words: Of a command that is a contender; () for an allocator.
        inside: An allocator that the program brings, as a profile for it says; else None.
    """

    name: str
    arm: Arm
    version: str = ""
    sha256: str = ""
    file: Path | None = None
    variables: tuple[tuple[str, str], ...] = ()
    is_program: bool = False
    words: tuple[str, ...] = ()
    inside: Installed | None = None

    @property
    def identity(self) -> tuple[str | Arm, ...]:
        """What makes it the same contender in another session."""
        return (self.name, self.arm, self.version, self.sha256)


def is_build(arm: Arm) -> bool:
    """Whether an arm is a build of hz, which confirms its parameters as the shipped one does."""
    return arm.allocator.startswith(BUILD)


def parse(texts: Sequence[str]) -> tuple[Contender, ...]:
    """Returns the contenders of a command line; one that is named twice gets a number.

    Args:
        texts: `default`, an allocator's name, the same with parameters ("hz:shards=4,thp=on"),
            a path to a profile, or NAME=/path/to/library.so.

    Raises:
        UsageError: One of them does not exist here, or is not legal.
    """
    _refuse_one_name(texts)
    return distinct([_contender(text) for text in texts])


def commands(texts: Sequence[str]) -> tuple[Contender, ...]:
    """Returns contenders that are commands, run where a program's words begin with {}.

    Args:
        texts: "./new --fast", or NAME='./new --fast', so that results show the name alone.

    Raises:
        UsageError: One of them is no command, or its program does not exist.
    """
    _refuse_one_name(texts)
    named = distinct([_command(text) for text in texts])
    return tuple(replace(each, arm=Arm(COMMAND + each.name)) for each in named)


def commands_of(
    contenders: Sequence[Contender],
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Returns the words of those that are commands, by the allocator of their arms."""
    return tuple((each.arm.allocator, each.words) for each in contenders if each.words)


def distinct(contenders: Sequence[Contender]) -> tuple[Contender, ...]:
    """Returns the contenders, each with a name of its own."""
    seen: dict[str, int] = {}
    named = []
    for each in contenders:
        seen[each.name] = seen.get(each.name, 0) + 1
        count = seen[each.name]
        named.append(each if count == 1 else replace(each, name=f"{each.name}#{count}"))
    return tuple(named)


def configured(name: str, allocator_name: str, config: Mapping[str, Value]) -> Contender:
    """Returns an installed allocator under a configuration.

    Raises:
        UsageError: It is not installed, or refuses the configuration.
    """
    adapter = allocator.get(allocator_name)
    installed = adapter.installed()
    adapter.check(config, installed)
    arm = Arm.of(allocator_name, config)
    return Contender(name, arm, installed.version, installed.sha256)


def from_file(name: str, path: Path) -> Contender:
    """Returns a library that no adapter knows, preloaded as it is.

    Raises:
        UsageError: There is no such file, or it cannot be preloaded.
    """
    if not path.is_file():
        raise UsageError(f"{name}={path}: there is no such file; give NAME=/path/to/library.so")
    preloadable(path.resolve())
    return Contender(name, Arm(f"file:{name}"), "", sha256_of(path), path.resolve())


def files(texts: Sequence[str]) -> tuple[Contender, ...]:
    """Returns the contenders given as NAME=/path/to/library.so, and nothing else.

    Raises:
        UsageError: One is of another form, or its file does not exist.
    """
    for text in texts:
        if contender_text(text).kind != "library":
            raise UsageError(f"{text!r} is no library; legal is NAME=/path/to/library.so")
    return tuple(_contender(text) for text in texts)


def _command(text: str) -> Contender:
    """Returns the command that one word of a command line means; its arm is not yet its own."""
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
    """Returns the contender that one word of a command line means."""
    if text == DEFAULT:
        return configured(DEFAULT, "hz", {})
    told = contender_text(text)
    if told.kind == "library":
        return from_file(told.name, Path(told.file))
    if told.kind == "settings":
        return configured(text, told.name, _config(told.name, dict(told.params)))
    _refuse_program(text)
    if not Path(text).exists():
        require_name(text, "a contender")
    return _of_profile(Path(text)) if told.kind == "profile" else configured(text, text, {})


def _refuse_one_name(texts: Sequence[str]) -> None:
    """Sees to it that no two contenders are given one name; those without one get a number.

    Raises:
        UsageError: Two are.
    """
    names = [named[0] for named in map(split_named, texts) if named is not None]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two contenders are called {twice!r}; each needs a name of its own")


def _refuse_program(text: str) -> None:
    """Sees to it that a program does not stand where contenders do.

    Raises:
        UsageError: It does; the text says where it belongs.
    """
    if text in allocator.names() or text.endswith(".json") or shutil.which(text) is None:
        return
    raise UsageError(
        f"{text!r} is a program, not an allocator, a profile or a library: to measure it, put -- "
        f"before it; to measure two programs side by side, write: A B -- {OPEN} ARGS"
    )


def _config(name: str, given: Mapping[str, Value]) -> dict[str, Value]:
    """Returns the parameters of an allocator from their texts."""
    adapter = allocator.get(name)
    knobs = adapter.knobs(adapter.installed())
    return {key: params.parse(knob(name, knobs, key), str(text)) for key, text in given.items()}


def _of_profile(path: Path) -> Contender:
    """Returns what a profile describes, called like its file or like its results directory."""
    tuned = profile.load(path)
    told = path.stem if path.stem != "profile" else path.resolve().parent.name
    if tuned.adapter.is_inside:
        found = tuned.allocator.as_installed()
        return Contender(told, tuned.arm, found.version, found.sha256, inside=found)
    return configured(told, tuned.allocator.name, tuned.params)
