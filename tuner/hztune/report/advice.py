"""The end of a report: how to use what was found, how to undo and repeat it, where it holds."""

from __future__ import annotations

from collections.abc import Iterator

from hztune import export
from hztune.report import words
from hztune.report.markup import Html, join, table, tag
from hztune.result.figures import Figures
from hztune.workload import METRICS

_RUN_S = 1.0
"""Seconds that one run of the hyperfine command takes, about."""


def use(found: Figures) -> Html:
    """How to apply the profile, and how to take it back."""
    title = tag("h2", "Use it, and undo it")
    if not found.profile.makes_a_claim:
        return join(title, tag("p", "There is nothing to apply: nothing was proved."))
    name = found.profile.allocator.name
    forms = [
        (tag("code", form.name), form.doc)
        for form in export.FORMATS
        if not form.allocators or name in form.allocators
    ]
    return join(
        title,
        tag("p", "In the results directory, for one program:"),
        tag("pre", "hztune run profile.json -- ./program"),
        tag("p", "Permanently, in the format that you need:"),
        tag("pre", "hztune export profile.json --format FORM"),
        table("Forms of export", ("form", "what for"), forms, wide=1),
        tag(
            "p",
            "Each format is a set of variables or one file, and begins with how to undo it. The "
            "program and the system are not changed. For a shell:",
        ),
        tag("pre", _shell_words(found)),
        tag("p", "Is it in effect, and does it hold here?"),
        tag("pre", "hztune verify profile.json"),
    )


def _shell_words(found: Figures) -> str:
    names = [*found.profile.environment, "LD_PRELOAD"]
    return (
        'eval "$(hztune export profile.json --format sh)"   # apply\n'
        f"unset {' '.join(names)}   # undo"
    )


def repeat(found: Figures) -> Html:
    """The commands that measure it again."""
    profile = found.profile
    program = "" if profile.workload.kind == "bench" else " The program's words are not recorded."
    return join(
        tag("h2", "Do it again"),
        tag("p", f"The whole study, with the same random choices:{program}"),
        tag("pre", words.tune_command_line(profile, found.samples.identity.get("objectives", ""))),
        "" if profile.objective.metric == METRICS["p99"] else _by_hyperfine(found),
    )


def _by_hyperfine(found: Figures) -> Html:
    return join(
        tag(
            "p",
            "The result by another instrument, hyperfine (the Debian package; the one on PyPI is "
            "something else). Whole runs scatter more than turns, so a small gain may not show:",
        ),
        tag("pre", "\n\n".join(_hyperfine(found))),
    )


def _hyperfine(found: Figures) -> Iterator[str]:
    """Yields a command for each workload, with runs of a second or so."""
    for workload, speed in zip(found.profile.workloads, found.control_speeds, strict=False):
        yield words.hyperfine_command(found.profile, workload, words.round_ops(speed * _RUN_S))


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
    versions = ", ".join(f"{name} {version}" for name, version in profile.versions)
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
            "hztune report makes the figures from study.db; samples.jsonl holds the same.",
        ),
    )
