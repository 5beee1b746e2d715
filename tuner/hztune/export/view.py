"""What the templates of export are filled with: what a file says of itself, and what it sets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hztune import allocator, artifacts, params
from hztune import profile as profiles
from hztune.errors import UsageError
from hztune.params import Param, Value
from hztune.profile import LIMIT_ROOM, Profile
from hztune.quota import cpus_text
from hztune.rests import MEMORIES

_PRELOADABLE = re.compile(r"[A-Za-z0-9_./+,=-]+")


@dataclass(frozen=True)
class View:
    """A profile as the templates see it."""

    profile: Profile

    def said(self, undo: str) -> list[str]:
        """Lines of comment: what was proved where, how to check it, how to undo it."""
        return provenance(self.profile, undo)

    @cached_property
    def preload(self) -> str:
        """What LD_PRELOAD must name here; empty when the program keeps the C library's allocator.

        Beside any library but libhz.so stands the one that takes RTLD_DEEPBIND out of dlopen.
        """
        if self._is_hz:
            return _own(artifacts.library())
        soname = self.profile.allocator.soname
        return f"{soname}:{_own(artifacts.deepbind())}" if soname else ""

    @property
    def image_preload(self) -> str:
        """The same in a container."""
        if self._is_hz:
            return "/usr/local/lib/libhz.so"
        soname = self.profile.allocator.soname
        return f"{soname}:/usr/local/lib/libhz-deepbind.so" if soname else ""

    @property
    def variables(self) -> dict[str, str]:
        """Every variable that a program needs here."""
        return self._with(self.preload)

    @property
    def image_variables(self) -> dict[str, str]:
        """Every variable that a program needs in a container."""
        return self._with(self.image_preload)

    @property
    def package(self) -> str:
        """The Debian package that brings the library; the C library is in every image."""
        soname = self.profile.allocator.soname
        return self.profile.adapter.package_of(soname) if soname else ""

    @property
    def macros(self) -> str:
        """What hz_config.h says to the compiler."""
        return macros(self.profile.params)

    @property
    def settings(self) -> Mapping[str, str]:
        """The variables of a configuration that stands alone: what the program gives is in it."""
        made = self.profile.allocator
        config = {**made.given, **self.profile.params}
        return self.profile.adapter.settings(config, made.as_installed())

    @property
    def json(self) -> str:
        """The profile itself."""
        return profiles.dumps(self.profile).rstrip("\n")

    @property
    def _is_hz(self) -> bool:
        return self.profile.allocator.name == "hz"

    def _with(self, library: str) -> dict[str, str]:
        return {**self.profile.environment, **({"LD_PRELOAD": library} if library else {})}


def provenance(profile: Profile, undo: str) -> list[str]:
    """Lines of comment: what was proved where, how to check it, and `undo`, how to take it back."""
    machine, objective = profile.machine, profile.objective
    threads = f", {profile.threads} thread{'s' * (profile.threads > 1)}" if profile.threads else ""
    quota = f", quota of {machine.quota:g}" if machine.quota is not None else ""
    labels = " and ".join(workload.label for workload in profile.workloads)
    versions = ", ".join(f"{name} {version}" for name, version in profile.versions.items())
    lines = [
        f"{_library(profile)} tuned by hztune for {labels}{threads}",
        f"result:  {claim(profile)}",
        *[f"limit:   {name} {value}" for name, value in objective.limits.items()],
    ]
    if mib := profile.suggested_limit_kb // 1024:
        lines.append(f"suggest: a memory limit of {mib} MiB, {LIMIT_ROOM:g} times the largest peak")
    if objective.quota is not None:
        lines.append(f"within:  a container with {objective.quota.text}")
    if objective.rest is not None:
        lines.append(f"at rest: memory was read after {objective.rest.text}")
    lines += [
        *[f"warning: {each.text}" for each in profile.cautions],
        f"machine: {machine.cpu}, {cpus_text(machine.cores)}{quota}, Linux {machine.kernel}, "
        f"{machine.libc}, pages of {machine.page_size}, THP {machine.thp or 'unknown'}",
        f"made:    {profile.created}, seed {profile.search.seed}, {versions}",
    ]
    if profile.found_on is not None:
        lines.append(f"found on {profile.found_on.label}, proved on its program itself")
    if profile.allocator.name != "none":
        lines.append("verify:  hztune verify PROFILE --pid PID, on the running program")
    if how := allocator.get(profile.adapter.family).table.check:
        how = how.replace("MALLOC_CONF", f"{profile.adapter.prefix.upper()}MALLOC_CONF")
        lines.append(f"check:   without hztune, {how}")
    return [*lines, f"undo:    {undo}"]


def claim(profile: Profile) -> str:
    """The result in one sentence, with its interval."""
    result, objective = profile.claim, profile.objective
    if result.ratio is None:
        return f"{result.verdict}: nothing was proved"
    control = "the unchanged program" if objective.control == "none" else "the default"
    if result.verdict == "no_gain":
        return f"no gain in {result.metric} over {control} was proved"
    limits = [name for name in objective.limits if name in ("max_rss", "max_kept")]
    times = f"{result.ratio:.3f} times"
    better = "faster" if result.metric == "wall_s" else f"better in {result.metric}"
    words = {
        "improved": f"{100 * (result.ratio - 1):.1f} % {better} than {control}",
        "within_limit": f"keeps {' and '.join(limits) or 'max_rss'}, which {control} does not, "
        f"at {times} its {result.metric}",
        "less_memory": f"{result.metric} {times} that of {control}",
        "infeasible": "no configuration meets the limits",
        "not_enough_data": f"not enough data; so far {result.metric} {times} that of {control}",
        "interrupted": f"interrupted; so far {result.metric} {times} that of {control}",
    }
    told = [
        f"{words[result.verdict]} (95 % interval {result.ci_low:.3f} to {result.ci_high:.3f}, "
        f"{result.pairs} pairs)"
    ]
    claimed = (result.memory,) if result.memory is not None else ()
    others = (each for each in profile.memory if each.of not in [one.of for one in claimed])
    for memory in (*claimed, *others):
        ends = f"95 % interval {memory.ci_low:.3f} to {memory.ci_high:.3f}"
        told.append(f"{memory.ratio:.3f} times the {MEMORIES[memory.of]} of {control} ({ends})")
    if result.verdict == "less_memory":
        told.insert(0, told.pop(1))
    return ", ".join(told)


def _library(profile: Profile) -> str:
    name, version = profile.allocator.name, profile.allocator.version
    if profile.adapter.is_inside:
        return f"{profile.adapter.family} {version}".rstrip() + " inside the program,"
    return "the program's own allocator" if name == "none" else f"{name} {version}".rstrip()


def macros(given: Mapping[str, Value]) -> str:
    """What hz_config.h says to the compiler: a whole configuration."""
    config = params.complete(given)
    lines = ["#ifndef HZ_TUNED_CONFIG_H", "#define HZ_TUNED_CONFIG_H", ""]
    lines += [f"#define HZ_CONFIG_SCHEMA {params.schema()}", ""]
    for title, is_changed in (("found by the search", True), ("at their defaults", False)):
        rows = [row for row in params.table() if is_changed == (config[row.name] != row.default)]
        if rows:
            defined = [_define(row, config[row.name]) for row in rows]
            lines += [f"/* ---- {title} ---- */", *defined, ""]
    return "\n".join([*lines, "#endif"])


def _define(row: Param, value: Value) -> str:
    """A macro as hz_config.h spells it: HZ_AUTO, the enumerator of a word, or a number."""
    unit = f" ({row.unit})" if row.unit else ""
    was = "" if value == row.default else f"; default {row.default}"
    spelled = f"{row.env}_{str(value).upper()}" if row.kind == "enum" else str(value)
    spelled = "HZ_AUTO" if value == "auto" and row.may_be_auto else spelled
    return f"/* {row.doc}{unit}{was} */\n#define {row.macro} {spelled}"


def _own(library: Path) -> str:
    """A library of this installation, if LD_PRELOAD can carry its name."""
    path = str(library)
    if not _PRELOADABLE.fullmatch(path):
        raise UsageError(
            f"the library {path!r} lies under a name that LD_PRELOAD cannot carry safely; install "
            "hztune in a directory of letters, digits and _ . / + , = - only"
        )
    return path
