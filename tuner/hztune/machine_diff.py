"""In what this machine is not the one that a profile was proved on.

A profile may be applied anywhere; its claim is about one machine, one library and one kernel. Each
difference is named, so that the claim is not taken for a measurement of this machine.
"""

from __future__ import annotations

from hztune.allocator import Installed
from hztune.errors import HztuneError
from hztune.machine import Machine
from hztune.profile import MachineId, Profile

WORDS = {
    "cpu": "CPU model",
    "cores": "number of CPUs",
    "quota": "CPU quota",
    "kernel": "kernel",
    "libc": "C library",
    "page_size": "page size",
    "thp": "mode of transparent huge pages",
}
"""How sentences name the fields of a machine's identity."""


def from_proved(tuned: Profile) -> tuple[str, ...]:
    """What differs here, one sentence each; nothing where the claim is about this very place."""
    return (*of_machine(tuned.machine, MachineId.of(Machine.here())), *_of_library(tuned))


def facts_of_here() -> dict[str, str]:
    """The identity of this machine as texts, by the names of its fields."""
    here = MachineId.of(Machine.here())
    return {name: _shown(getattr(here, name)) for name in WORDS}


def of_machine(there: MachineId, here: MachineId) -> tuple[str, ...]:
    """What differs between two machines, one sentence each."""
    return tuple(
        _sentence(WORDS[name], getattr(there, name), getattr(here, name))
        for name in WORDS
        if getattr(there, name) != getattr(here, name)
    )


def of_library(tuned: Profile, found: Installed) -> tuple[str, ...]:
    """In what the installed library is not the one of the profile; the version speaks first."""
    there = tuned.allocator
    if found.version != there.version:
        return (_sentence(f"version of {there.name}", there.version, found.version),)
    if there.sha256 and found.sha256 != there.sha256:
        short = 12
        return (
            _sentence(
                f"build of {there.name} {there.version}".rstrip(),
                there.sha256[:short],
                found.sha256[:short],
            ),
        )
    return ()


def _of_library(tuned: Profile) -> tuple[str, ...]:
    """What differs in the library; one that is inside is seen only in a process."""
    if tuned.adapter.is_inside:
        return ()
    try:
        return of_library(tuned, tuned.adapter.installed())
    except HztuneError as error:
        return (str(error),)


def _sentence(what: str, there: object, here: object) -> str:
    return f"the profile was proved with another {what}: {_shown(there)} there, {_shown(here)} here"


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return str(value) or "unknown"
