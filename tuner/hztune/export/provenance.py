"""What every exported file says of itself, and what it preloads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hztune import allocator, artifacts
from hztune.errors import UsageError
from hztune.profile import LIMIT_ROOM, Objective, Profile
from hztune.quota import cpus_text
from hztune.rests import MEMORIES

PRELOAD = "LD_PRELOAD"
_PRELOADABLE = re.compile(r"[A-Za-z0-9_./+,=-]+")

_CONF = "MALLOC_CONF"
_CONTROLS = {"none": "the unchanged program"}


def provenance(profile: Profile, undo: str) -> list[str]:
    """Lines of comment: what was proved where, how to check it, how to undo it.

    Args:
        profile: where it all stands.
        undo: how this form is taken back, in a few words.
    """
    machine, limits = profile.machine, profile.objective.limits
    threads = f", {profile.threads} thread{'s' * (profile.threads > 1)}" if profile.threads else ""
    quota = f", quota of {machine.quota:g}" if machine.quota is not None else ""
    lines = [
        f"{_library(profile)} tuned by hztune for {_label(profile)}{threads}",
        f"result:  {claim(profile)}",
        *[f"limit:   {name} {value}" for name, value in limits.items()],
        *_suggested_limit(profile),
        *_circumstances(profile.objective),
        *[f"warning: {each.text}" for each in profile.cautions],
        f"machine: {machine.cpu}, {cpus_text(machine.cores)}{quota}, Linux {machine.kernel}, "
        f"{machine.libc}, pages of {machine.page_size}, THP {machine.thp or 'unknown'}",
        f"made:    {profile.created}, seed {profile.search.seed}, {_versions(profile)}",
    ]
    if profile.found_on is not None:
        lines.append(f"found on {profile.found_on.label}, proved on its program itself")
    if profile.allocator.name != "none":
        lines.append("verify:  hztune verify PROFILE --pid PID, on the running program")
    if how := allocator.get(profile.adapter.family).table.check:
        how = how.replace(_CONF, _prefixed(profile))
        lines.append(f"check:   without hztune, {how}")
    return [*lines, f"undo:    {undo}"]


def _circumstances(objective: Objective) -> Iterator[str]:
    """Where it was measured, if that is not the whole machine, and when its memory was read."""
    if objective.quota is not None:
        yield f"within:  a container with {objective.quota.text}"
    if objective.rest is not None:
        yield f"at rest: memory was read after {objective.rest.text}"


def _suggested_limit(profile: Profile) -> Iterator[str]:
    """The memory limit under which to deploy it, if one is known."""
    if mib := profile.suggested_limit_kb // 1024:
        yield f"suggest: a memory limit of {mib} MiB, {LIMIT_ROOM:g} times the largest peak"


def claim(profile: Profile) -> str:
    """The result in one sentence, with its interval."""
    result = profile.claim
    if result.ratio is None:
        return f"{result.verdict}: nothing was proved"
    interval = f"95 % interval {result.ci_low:.3f} to {result.ci_high:.3f}, {result.pairs} pairs"
    control = _CONTROLS.get(profile.objective.control, "the default")
    better = "faster" if result.metric == "wall_s" else f"better in {result.metric}"
    words = {
        "improved": f"{100 * (result.ratio - 1):.1f} % {better} than {control}",
        "within_limit": f"keeps {_limits(profile)}, which {control} does not, "
        f"at {result.ratio:.3f} times its {result.metric}",
        "less_memory": f"{result.metric} {result.ratio:.3f} times that of {control}",
        "no_gain": f"no gain in {result.metric} over {control} was proved",
        "infeasible": "no configuration meets the limits",
        "not_enough_data": f"not enough data; so far {result.metric} {result.ratio:.3f} times that "
        f"of {control}",
        "interrupted": f"interrupted; so far {result.metric} {result.ratio:.3f} times that of "
        f"{control}",
    }
    if result.verdict == "no_gain":
        return words["no_gain"]
    told = [f"{words[result.verdict]} ({interval})"]
    claimed = (result.memory,) if result.memory is not None else ()
    others = (each for each in profile.memory if each.of not in [one.of for one in claimed])
    for memory in (*claimed, *others):
        ends = f"95 % interval {memory.ci_low:.3f} to {memory.ci_high:.3f}"
        told.append(f"{memory.ratio:.3f} times the {MEMORIES[memory.of]} of {control} ({ends})")
    if result.verdict == "less_memory":
        told.insert(0, told.pop(1))
    return ", ".join(told)


def _limits(profile: Profile) -> str:
    """The memory limits by their names."""
    names = [name for name in profile.objective.limits if name in ("max_rss", "max_kept")]
    return " and ".join(names) or "max_rss"


def hashed(lines: list[str]) -> str:
    """Lines as comments that begin with a hash."""
    return "".join(f"# {line}\n" for line in lines)


def slashed(lines: list[str]) -> str:
    """Lines as one C comment."""
    return "/*\n" + "".join(f" * {line}".rstrip() + "\n" for line in lines) + " */\n"


def preload(profile: Profile) -> str:
    """What LD_PRELOAD must name here; empty when the program keeps the C library's allocator.

    Beside any library but libhz.so stands the one that takes RTLD_DEEPBIND out of dlopen.

    Raises:
        UsageError: hz's library lies under a name that LD_PRELOAD cannot carry.
    """
    if profile.allocator.name == "hz":
        return _own(artifacts.library())
    soname = profile.allocator.soname
    return f"{soname}:{_own(artifacts.deepbind())}" if soname else ""


def _own(library: Path) -> str:
    """A library of this installation, if LD_PRELOAD can carry its name."""
    path = str(library)
    if not _PRELOADABLE.fullmatch(path):
        raise UsageError(
            f"the library {path!r} lies under a name that LD_PRELOAD cannot carry safely; install "
            "hztune in a directory of letters, digits and _ . / + , = - only"
        )
    return path


def _prefixed(profile: Profile) -> str:
    """The variable that a jemalloc reads."""
    return profile.adapter.prefix.upper() + _CONF


def _library(profile: Profile) -> str:
    name, version = profile.allocator.name, profile.allocator.version
    if profile.adapter.is_inside:
        return f"{profile.adapter.family} {version}".rstrip() + " inside the program,"
    return "the program's own allocator" if name == "none" else f"{name} {version}".rstrip()


def _label(profile: Profile) -> str:
    return " and ".join(workload.label for workload in profile.workloads)


def _versions(profile: Profile) -> str:
    return ", ".join(f"{name} {version}" for name, version in profile.versions.items())
