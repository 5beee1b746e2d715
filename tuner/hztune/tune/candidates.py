"""Which allocators a study chooses from: those that were named, or all that are installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hztune import allocator, space
from hztune.allocator import Installed
from hztune.errors import HztuneError, UsageError
from hztune.params import Value
from hztune.space import Choice, Space

ANY = "any"
UNCHANGED = "none"


@dataclass(frozen=True, slots=True)
class Candidates:
    """The allocators of a study.

    Attributes:
        installed: Each as it was found, in the order in which they are first measured.
        missing: Those that might have been among them, each with how to get it.
        space: What may be proposed.
    """

    installed: tuple[Installed, ...]
    missing: tuple[str, ...]
    space: Space

    def find(self, name: str) -> Installed:
        """What is installed of one of them, or of the unchanged program."""
        if name == UNCHANGED:
            return allocator.get(UNCHANGED).installed()
        return next(each for each in self.installed if each.name == name)

    @property
    def identity(self) -> dict[str, str]:
        """What makes two studies choose between the same ones, for their samples."""
        return {
            "allocator": self.label,
            "library": " ".join(each.sha256 for each in self.installed),
        }

    @property
    def label(self) -> str:
        """Names and versions, in words."""
        return ", ".join(f"{each.name} {each.version}".rstrip() for each in self.installed)


def candidates(wanted: str, searched: str, threads: int) -> Candidates:
    """Finds the allocators of a study.

    Args:
        wanted: One name, several with commas between them, or `any`.
        searched: Name or path of the search space of one allocator; "" for their own.
        threads: Threads of the target, by which ranges are narrowed.

    Raises:
        UsageError: One that was named does not exist, is not installed or has no parameters; or
            the space is not for it.
    """
    if wanted != ANY and "," not in wanted:
        return _alone(wanted, searched, threads)
    if searched:
        raise UsageError("--space is for one allocator; give its name with --allocator, too")
    if wanted == ANY:
        states = allocator.states()
        installed = tuple(each for each in states.values() if isinstance(each, Installed))
        missing = tuple(
            _how_to_get(name, state)
            for name, state in states.items()
            if isinstance(state, HztuneError)
        )
    else:
        names = dict.fromkeys(name.strip() for name in wanted.split(","))
        installed, missing = tuple(allocator.get(name).installed() for name in names), ()
    chosen = tuple(each for each in installed if each.name != UNCHANGED)
    parts = [_space_of(each, "", threads) for each in chosen]
    return Candidates(chosen, missing, Choice.of(parts))


def _alone(name: str, searched: str, threads: int) -> Candidates:
    """One allocator, which is compared with itself as it comes."""
    installed = allocator.get(name).installed()
    if not allocator.get(name).knobs(installed):
        raise UsageError(f"{name} has no parameters, so there is nothing to tune")
    found = _space_of(installed, searched, threads)
    if found.allocator != name:
        raise UsageError(
            f"the search space {searched!r} is for {found.allocator}, and the allocator is "
            f"{name}; give --allocator {found.allocator} or another --space"
        )
    return Candidates((installed,), (), found)


def _space_of(installed: Installed, searched: str, threads: int) -> Space:
    """The search space of an allocator; one without parameters has a single point."""
    adapter = allocator.get(installed.name)
    knobs = adapter.knobs(installed)
    if not knobs:
        return Space(installed.name, (), (), (), ())

    def check(config: Mapping[str, Value]) -> None:
        adapter.check(config, installed)

    facts = space.machine_facts(threads)
    return space.load(searched or installed.name, knobs, check=check, facts=facts)


def _how_to_get(name: str, state: HztuneError) -> str:
    """One that is missing, in a few words; one that is there and broken, with its reason."""
    if not isinstance(state, UsageError):
        return f"{name} ({state})"
    package = allocator.get(name).package
    return f"{name} (apt-get install {package})" if package else f"{name} (no Debian package)"
