"""Profiles, exported, applied, measured again; and what there is on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from hztune import artifacts, machine_diff, profile
from hztune.errors import HztuneError, NoGainError
from hztune.profile import Profile
from hztune.progress import Reporter

if TYPE_CHECKING:
    from hztune.export import Format
    from hztune.machine import Machine
    from hztune.measure.program import Program
    from hztune.params import Param
    from hztune.verifying.claim import Verification
    from hztune.verifying.history import Kept, Recheck


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


def verify(
    tuned: Profile,
    *,
    programs: Sequence[Program] = (),
    budget_s: float = 30.0,
    seed: int = 1,
    reporter: Reporter | None = None,
    keep: bool = True,
    traces: Sequence[str | Path] = (),
) -> Verification:
    """Measures a profile's claim again, on fresh pairs, here and now.

    Args:
        tuned: The profile.
        programs: Those that it was made for; empty: it was made for workloads.
        budget_s: Seconds for it.
        seed: Of every random choice.
        reporter: Is told how it goes; None: nothing is shown.
        keep: Whether the answer goes into the history of this user. Where it cannot be written,
            the reporter is told so.
        traces: Where the traces stand that it was made for; without one it is looked for by name in
            the present folder.

    Raises:
        UsageError: It makes no claim, or is not for this program or workload.
        HztuneError: The control does not run.
    """
    from hztune.verifying import claim
    from hztune.verifying import history as checks

    told = reporter or Reporter()
    finding = claim.verify(tuned, programs, budget_s, seed, told, [Path(each) for each in traces])
    if keep:
        try:
            checks.append(checks.rechecked(tuned, programs, finding))
        except HztuneError as error:
            told.say(f"warning: this check is not in the history: {error}")
    return finding


def profiles_in(folder: str | Path) -> list[Kept]:
    """The profiles of a folder, and of results directories in it, each with its command.

    UsageError: it cannot be read, or there is none.
    """
    from hztune.verifying import history as checks

    return checks.profiles_in(Path(folder))


def due(tuned: Profile, *, programs: Sequence[Program] = ()) -> str:
    """Why a profile should be measured again, in one sentence; empty: it need not.

    It should when its term has passed since it was made or last held, when it did not hold, and
    when the machine, the kernel, a library or a program is not what it was.
    """
    from hztune.verifying import history as checks

    own = checks.read(tuned)
    here = checks.surroundings(tuned, programs)
    return checks.due(tuned, own[-1] if own else None, here, datetime.now(timezone.utc))


def history(tuned: Profile | None = None) -> list[Recheck]:
    """What verifications of this user found, the oldest first: of one profile, or of all.

    HztuneError: there is a history, and it may not be read.
    """
    from hztune.verifying import history as checks

    return checks.read_whole(tuned)[0]


def changes(before: Recheck, after: Recheck) -> tuple[str, ...]:
    """What was not the same in two checks: the machine, the kernel, a library, a program."""
    from hztune.verifying import history as checks

    return checks.changes(before, after.here)


# ---- what there is -------------------------------------------------------------------------------


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


def parameters(allocator: str = "hz") -> Sequence[Param]:
    """The parameters of an allocator; UsageError: it does not exist, or is not installed here."""
    from hztune import allocator as adapters
    from hztune import params

    if allocator == "hz":
        return params.table()
    adapter = adapters.get(allocator)
    return adapter.knobs(adapter.installed())


def paths() -> dict[str, tuple[str, Callable[[], Path]]]:
    """The built parts of hz by name: what each is, and what finds it or raises HztuneError."""
    return artifacts.PARTS
