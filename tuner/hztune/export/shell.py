"""Exports for one machine: plain variables, a shell, a wrapper script, a systemd unit.

Values hold no quote, blank, `$` or `%` (the adapters and `provenance.preload` see to that), so that
quoting here is for the reader and the forms agree; it is done all the same.
"""

from __future__ import annotations

import shlex

from hztune.export.provenance import PRELOAD, hashed, preload, provenance
from hztune.profile import Profile


def env(profile: Profile) -> str:
    """K=V lines without quotes: the form that docker, compose and systemd all read alike."""
    lines = [f"{key}={value}" for key, value in _all(profile).items()]
    comments = [*provenance(profile, "stop giving this file to the program"), *_elsewhere(profile)]
    return hashed(comments) + _text(lines)


def sh(profile: Profile) -> str:
    """Export lines that keep what LD_PRELOAD held, ours first."""
    lines = [f"export {key}={_quoted(value)}" for key, value in profile.environment.items()]
    if preload(profile):
        lines.append(f'export {PRELOAD}="{_kept(preload(profile))}"')
    undo = "unset " + " ".join(_all(profile))
    return hashed([*provenance(profile, undo), *_elsewhere(profile)]) + _text(lines)


def wrapper(profile: Profile) -> str:
    """A script: `./run-tuned PROGRAM ARGS...`; the variables are the program's alone."""
    words = [f"{key}={_quoted(value)}" for key, value in profile.environment.items()]
    if preload(profile):
        words.append(f'{PRELOAD}="{_kept(preload(profile))}"')
    undo = "start the program without this script"
    comments = hashed([*provenance(profile, undo), *_elsewhere(profile)])
    call = " \\\n    ".join(["exec env", *words, '"$@"'])
    return f"#!/bin/sh\n{comments}{call}\n"


def systemd(profile: Profile) -> str:
    """A drop-in with each whole assignment quoted; `%` would be a specifier."""
    undo = "remove this file from UNIT.d, then systemctl daemon-reload and restart the unit"
    lines = [
        f'Environment="{key}={value.replace("%", "%%")}"' for key, value in _all(profile).items()
    ]
    place = ["place:   /etc/systemd/system/UNIT.d/50-hztune.conf, then systemctl daemon-reload"]
    comments = hashed([*provenance(profile, undo), *place, *_elsewhere(profile)])
    return comments + _text(["[Service]", *lines])


def _elsewhere(profile: Profile) -> list[str]:
    """What LD_PRELOAD is good for; nothing where nothing is preloaded."""
    if not preload(profile):
        return []
    lines = [
        "elsewhere: LD_PRELOAD names files of the installation that wrote this; where hztune is in",
        "           another place, export the profile again. Of a missing file, ld.so only warns.",
    ]
    if profile.allocator.name != "hz":
        lines.append("deepbind:  no allocator: by it, plugins opened RTLD_DEEPBIND use this one")
    return lines


def _all(profile: Profile) -> dict[str, str]:
    library = preload(profile)
    return {**profile.environment, **({PRELOAD: library} if library else {})}


def _quoted(value: str) -> str:
    """The value between single quotes, also where a shell could do without."""
    quoted = shlex.quote(value)
    return quoted if quoted.startswith("'") else f"'{quoted}'"


def _kept(library: str) -> str:
    return f"{library}${{{PRELOAD}:+:${PRELOAD}}}"


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
