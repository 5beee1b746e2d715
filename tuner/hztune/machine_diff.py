"""In what this machine is not the one that a profile was proved on."""

from __future__ import annotations

from hztune.allocator import Installed
from hztune.errors import HztuneError
from hztune.machine import WORDS, Machine, shown
from hztune.profile import MachineId, Profile

_FIELDS = MachineId.__struct_fields__
_DIGITS = 12


def from_proved(tuned: Profile) -> tuple[str, ...]:
    """One sentence each. A library that is inside a program is seen only in a process."""
    found = of_machine(tuned.machine, MachineId.of(Machine.here()))
    if tuned.adapter.is_inside:
        return found
    try:
        return (*found, *of_library(tuned, tuned.adapter.installed()))
    except HztuneError as error:
        return (*found, str(error))


def of_machine(there: MachineId, here: MachineId) -> tuple[str, ...]:
    pairs = ((name, getattr(there, name), getattr(here, name)) for name in _FIELDS)
    return tuple(_sentence(WORDS[name], old, new) for name, old, new in pairs if old != new)


def of_library(tuned: Profile, found: Installed) -> tuple[str, ...]:
    there = tuned.allocator
    if found.version != there.version:
        return (_sentence(f"version of {there.name}", there.version, found.version),)
    if there.sha256 and found.sha256 != there.sha256:
        what = f"build of {there.name} {there.version}".rstrip()
        return (_sentence(what, there.sha256[:_DIGITS], found.sha256[:_DIGITS]),)
    return ()


def _sentence(what: str, there: object, here: object) -> str:
    return f"the profile was proved with another {what}: {shown(there)} there, {shown(here)} here"
