"""The end of a report: how to use what was found, how to undo and repeat it, where it holds."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from hztune import export
from hztune.report.markup import Html, join, table, tag
from hztune.report.words import bench_command, hyperfine_command, round_ops
from hztune.result.figures import Figures
from hztune.workload import METRICS

_RUN_S = 1.0
"""Seconds that one run of the hyperfine command takes, about."""


def use(found: Figures) -> Html:
    """How to apply the profile, and how to take it back."""
    title = tag("h2", "Use it, and undo it")
    if not found.profile.makes_a_claim:
        return join(title, tag("p", "There is nothing to apply: nothing was proved."))
    name, place = found.profile.allocator.name, shlex.quote(str(found.place))
    program = shlex.join(_program(found)) or "./program"
    forms = [
        (tag("code", form.name), form.doc)
        for form in export.FORMATS
        if not form.allocators or name in form.allocators
    ]
    return join(
        title,
        tag("p", "For one program:"),
        tag("pre", f"hztune run {place} -- {program}"),
        tag("p", "Permanently, in the format that you need:"),
        tag("pre", f"hztune export {place} --format FORM"),
        table("Forms of export", ("form", "what for"), forms, wide=1),
        tag(
            "p",
            "Each format is a set of variables or one file, and begins with how to undo it. The "
            "program and the system are not changed. For a shell:",
        ),
        tag("pre", _shell_words(found)),
        tag("p", "Is it in effect, and does it hold here?"),
        tag("pre", f"hztune verify {place}"),
    )


def _shell_words(found: Figures) -> str:
    names, place = [*found.profile.environment, "LD_PRELOAD"], shlex.quote(str(found.place))
    return (
        f'eval "$(hztune export {place} --format sh)"   # apply\nunset {" ".join(names)}   # undo'
    )


def repeat(found: Figures) -> Html:
    """The commands that measure it again, from the directory in which it was tuned."""
    commands = list(_hyperfine(found))
    by_hyperfine = (
        tag(
            "p",
            "The result by another instrument, hyperfine (the Debian package; the one on PyPI is "
            "something else). Whole runs scatter more than turns, so a small gain may not show:",
        ),
        tag("pre", "\n\n".join(commands)),
    )
    whole = (
        tag("p", "The whole study, with the same random choices, where it was tuned:"),
        tag("pre", shlex.join(["hztune", "tune", *found.command])),
    )
    return join(
        tag("h2", "Do it again"),
        *(whole if found.command else (tag("p", "The command of the study was not kept."),)),
        *(by_hyperfine if commands else ()),
    )


def _hyperfine(found: Figures) -> Iterator[str]:
    """Yields a command for each workload where whole runs can show a gain, a second or so long."""
    profile = found.profile
    if not profile.makes_a_claim or profile.claim.metric not in (METRICS["throughput"], "wall_s"):
        return
    if "--input" in found.command:
        return
    if words := _program(found):
        escaped = re.sub(r'([\\"$`])', r"\\\1", shlex.join(words))
        yield hyperfine_command(profile, escaped)
    elif profile.workload.kind == "bench":
        for workload, speed in zip(profile.workloads, found.control_speeds, strict=False):
            ops = round_ops(speed * _RUN_S)
            yield hyperfine_command(profile, bench_command(workload, profile.threads, ops))


def _program(found: Figures) -> tuple[str, ...]:
    """The words of the one program that was tuned for; () where they were not kept."""
    words = found.command
    return words[words.index("--") + 1 :] if "--" in words else ()


def machine(found: Figures) -> Html:
    """Where it was measured."""
    rows = [(name, value) for name, value in found.samples.machine.described()]
    inside = found.samples.identity.get("inside", "")
    return join(
        *(tag("p", f"{each}.") for each in inside.split("; ") if each),
        tag("h2", "The machine"),
        table("Where it was measured; elsewhere it is a guess", ("what", "value"), rows),
    )


def foot(found: Figures) -> Html:
    """Which study this is."""
    profile = found.profile
    library = found.samples.identity.get("library", "")[:12] or "-"
    versions = ", ".join(f"{name} {version}" for name, version in profile.versions.items())
    return tag(
        "footer",
        tag("p", f"Study begun {found.samples.created}, profile made {profile.created}."),
        tag(
            "p",
            f"Sampler {profile.search.sampler}, seed {profile.search.seed}, space "
            f"{profile.search.space_sha256[:12]}, library {library}; {versions}.",
        ),
        tag(
            "p",
            "hztune report makes the figures from samples.jsonl.",
        ),
    )
