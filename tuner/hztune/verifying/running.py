"""A running process held against a profile: has it that allocator, with those parameters?"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

from hztune import doctor
from hztune.allocator import Adapter, Installed, WrongConfiguration, inside, live
from hztune.allocator.live import Running, SettingRead
from hztune.blocks import UNCHANGED_PROGRAM
from hztune.errors import UsageError
from hztune.machine import group_limit
from hztune.measure import insides
from hztune.params import Value
from hztune.profile import Profile
from hztune.quota import memory_text


@dataclass(frozen=True, slots=True)
class Reading:
    name: str
    asked: Value  # what the profile says; the default where it says nothing
    found: Value | None  # what the process has, or was asked for; None: it cannot be known
    is_effective: bool  # whether `found` was read from the process itself
    agrees: bool  # whether it is what the profile means

    @property
    def evidence(self) -> str:
        if self.found is None:
            return "unknown"
        return "effective" if self.is_effective else "requested"


@dataclass(frozen=True, slots=True)
class Report:
    pid: int
    program: str  # its file
    provider: str  # the file that gives it malloc
    rows: tuple[Reading, ...]  # the profile's parameters, and what else is not as it means it
    faults: tuple[str, ...]  # why the profile is not in effect, one sentence each; none: it is
    remarks: tuple[str, ...]  # what does not contradict it but should be known

    @property
    def in_effect(self) -> bool:
        """Whether the process runs as the profile says, as far as can be known."""
        return not self.faults


def examine(tuned: Profile, pid: int) -> Report:
    """Holds a process against a profile.

    UsageError: there is no such process, it may not be looked at, it has no malloc, or the
    profile's allocator is not installed here.
    """
    running = live.look(pid)
    adapter = tuned.adapter
    found = _inside(running, adapter) if adapter.is_inside else adapter.installed()
    rows, faults = _compared(tuned, running, adapter, found)
    remarks = _remarks(tuned, running, found)
    return Report(pid, str(running.program), str(running.provider), rows, faults, remarks)


def _inside(running: Running, adapter: Adapter) -> Installed:
    for path in running.process.files:
        with contextlib.suppress(OSError):
            for part in inside.parts_of([running.process.link(path)]):
                if part.name == adapter.name:
                    return replace(part, path=path)
    raise UsageError(
        f"process {running.pid} ({running.program}) has no {adapter.name} in any file that it "
        "has mapped"
    )


def _compared(
    tuned: Profile, running: Running, adapter: Adapter, found: Installed
) -> tuple[tuple[Reading, ...], tuple[str, ...]]:
    if adapter.name == UNCHANGED_PROGRAM:
        return (), ()
    if running.allocator != adapter.name and not adapter.is_inside:
        got = running.allocator or "an allocator that hztune does not know"
        return (), (f"malloc comes from {running.provider} ({got}), not from {adapter.name}",)
    try:
        settings = live.settings(running, adapter, found)
    except WrongConfiguration as error:
        return (), (str(error),)
    rows = _rows(tuned, adapter, found, settings)
    faults = [
        f"{row.name} is {row.found} ({row.evidence}); the profile says {row.asked}"
        if row.found is not None
        else f"{row.name} cannot be read from the process; the profile says {row.asked}"
        for row in rows
        if not row.agrees
    ]
    added = [
        f"{name} is set, and the profile does not set it"
        for name in adapter.disturbing(running.environment or {})
        if name not in tuned.environment
    ]
    return rows, (*faults, *added)


def _rows(
    tuned: Profile, adapter: Adapter, found: Installed, settings: dict[str, SettingRead]
) -> tuple[Reading, ...]:
    """Each parameter of the profile, and those that differ although the profile leaves them.

    What a program gives to an allocator inside is its default, and is not known here.
    """
    config = tuned.params
    rows = []
    for knob in adapter.knobs(found):
        asked = config.get(knob.name, knob.default)
        setting = settings.get(knob.name)
        value = setting.value if setting else None
        agrees = adapter.is_left(knob.name, asked) or value == asked
        strays = value is not None and not agrees and not adapter.is_inside
        if knob.name in config or strays:
            rows.append(
                Reading(knob.name, asked, value, bool(setting and setting.is_effective), agrees)
            )
    return tuple(rows)


def _remarks(tuned: Profile, running: Running, found: Installed) -> tuple[str, ...]:
    others = live.strangers(running.pid, running.provider)
    told = [insides.sentence(found)] if tuned.adapter.is_inside else []
    quota, limit = tuned.objective.quota, group_limit(str(running.pid))
    here = memory_text(limit[0] >> 10) if limit else ""
    there = memory_text(quota.memory_kb) if quota and quota.memory_kb is not None else ""
    if here != there and (quota is not None or here):
        told.append(
            f"its control group may use {here or 'all'} of memory, and the profile was proved with "
            f"{there or 'no limit'}"
        )
    told += doctor.changed_library(tuned, found)
    told += [f"its child {o.pid} ({o.program}) has malloc from {o.provider}" for o in others]
    if running.environment is None:
        told.append("it has overwritten the variables that it was started with")
    return tuple(told)
