"""Profiles, exported and applied; and what there is on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hztune import artifacts, machine_diff, profile
from hztune.errors import NoGainError
from hztune.profile import Profile

if TYPE_CHECKING:
    from hztune.export import Format
    from hztune.machine import Machine
    from hztune.measure.program import Program
    from hztune.params import Param


def export(tuned: Profile, form: str) -> str:
    """A profile as a shell, a container or a compiler reads it; `formats` lists the forms.

    UsageError: there is no such form, or it is not for this allocator. NoGainError: the profile
    claims no gain, or is of the unchanged program: there is nothing to set.
    """
    from hztune.export import render

    text = render(tuned, form)
    named = tuned.allocator.soname or tuned.allocator.name == "hz"
    is_default = not (tuned.params or tuned.makes_a_claim)
    if form != "json" and (is_default or not (named or tuned.environment)):
        raise NoGainError(
            f"there is nothing to export: the profile says {tuned.claim.verdict} and sets nothing, "
            "so start the program as before"
        )
    return text


def environment(tuned: Profile, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment `base` under a profile: without old settings of its allocator, with its own.

    UsageError: the profile's allocator is not installed here.
    """
    adapter = tuned.adapter
    found = tuned.allocator.as_installed() if adapter.is_inside else adapter.installed()
    made = adapter.environment(tuned.params, found)
    kept = {key: value for key, value in base.items() if key not in adapter.variables()}
    others = base.get("LD_PRELOAD")
    if "LD_PRELOAD" in made and others:
        made["LD_PRELOAD"] += f":{others}"
    return {**kept, **made}


def differences(tuned: Profile, *, programs: Sequence[Program] = ()) -> list[str]:
    """What is not here as it was where a profile was proved, a sentence each.

    With `programs` that it is to be used for, their commands are compared, too.
    """
    found = list(machine_diff.from_proved(tuned))
    known = {each.name: each.words_sha256 for each in tuned.workloads}
    for program in programs:
        told = known.get(program.label, "") if tuned.shares else tuned.workload.words_sha256
        if told and profile.hash_of_words(program.argv) != told:
            which = f"the command {program.label}" if tuned.shares else "the command"
            found.append(f"{which} is not the one that the profile was made for")
    return found


def machine() -> Machine:
    """The record of this machine that goes into results."""
    from hztune.machine import Machine

    return Machine.here()


def spaces() -> list[Path]:
    """The search spaces that come with hztune."""
    return sorted(artifacts.search_spaces().glob("*.toml"))


def formats() -> tuple[Format, ...]:
    """The forms that `export` knows."""
    from hztune.export import FORMATS

    return FORMATS


def paths() -> dict[str, tuple[str, Callable[[], Path]]]:
    """The built parts of hz by name: what each is, and what finds it or raises HztuneError."""
    return artifacts.PARTS


def parameters(allocator: str = "hz") -> Sequence[Param]:
    """The parameters of an allocator; UsageError: it does not exist, or is not installed here."""
    from hztune import allocator as adapters
    from hztune import params

    if allocator == "hz":
        return params.table()
    adapter = adapters.get(allocator)
    return adapter.knobs(adapter.installed())
