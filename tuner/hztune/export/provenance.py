"""What every exported file says of itself: what was proved where, how to check and to undo it."""

from __future__ import annotations

from hztune import allocator
from hztune.profile import LIMIT_ROOM, Profile
from hztune.quota import cpus_text
from hztune.rests import MEMORIES


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
