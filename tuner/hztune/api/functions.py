"""What `hztune.api` adds to the rooms below it: studies, profiles, and what there is here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hztune import artifacts, doctor, profile
from hztune.arguments import seconds_of
from hztune.errors import NoGainError, UsageError
from hztune.profile import Profile
from hztune.progress import Reporter

if TYPE_CHECKING:
    from hztune.export import Format
    from hztune.machine import Machine
    from hztune.measure.program import Measure, Program, Programs
    from hztune.params import Param
    from hztune.result import Result
    from hztune.tuning.request import TuneRequest
    from hztune.workload import Goal


def request(
    workload: str | None = None,
    *,
    program: Programs | None = None,
    measure: Measure | None = None,
    maximize: bool = False,
    threads: int | None = None,
    params: Sequence[str] = (),
    objective: Goal = "throughput",
    allocator: str | None = None,
    budget: str | float = "3m",
    idle_s: float = 0.0,
    rounds: int | None = None,
    cpus: float | None = None,
    memory: str = "",
    out: str | Path | None = None,
    **fields: Any,
) -> TuneRequest:
    """What to tune, for `tune`; it is judged there. `help(hztune.tune)` explains the arguments.

    Args:
        fields: Those of a `TuneRequest` that are taken as they are.

    Raises:
        UsageError: A workload or a parameter does not exist, or `budget` is no time.
    """
    from hztune.measure.program import asked_programs
    from hztune.quota import Quota
    from hztune.tuning.request import TuneRequest, resting_plan, resting_program
    from hztune.workload import workloads_named

    whole: dict[str, Any] = {
        **fields,
        "budget_s": seconds_of(budget),
        "out": None if out is None else Path(out),
    }
    asked = asked_programs(program, measure, maximize=maximize)
    if not asked:
        if not workload:
            raise UsageError(
                "--workload is missing; `hztune list workloads` prints them (or give a program of "
                "your own after --, several with --command, or a --server)"
            )
        rest, quota = resting_plan(idle_s, rounds, objective, fields), Quota.of(cpus, memory)
        specs = workloads_named(workload, params, threads)
        specs = tuple(spec.resting(rest) for spec in specs) if rest else specs
        specs = tuple(spec.within(quota) for spec in specs) if quota else specs
        first, *beside = (spec.by(objective) for spec in specs)
        return TuneRequest(first, beside=tuple(beside), allocator=allocator or "hz", **whole)
    of_workloads = dict(workload=workload, threads=threads, param=params, idle_s=idle_s,
                        rounds=rounds, cpus=cpus, memory=memory)  # fmt: skip
    if stray := [name for name, value in of_workloads.items() if value]:
        raise UsageError(
            f"{stray[0]} is of workloads, and not for a program of your own: what belongs to that "
            "stands beside it"
        )
    if objective == "p99":
        raise UsageError(
            "--objective p99 is for workloads; a program of yours is judged by its time, or by "
            "what --metric-regex or --metric-cmd finds"
        )
    one, *more = (resting_program(each, objective, fields) for each in asked)
    return TuneRequest(program=one, more=tuple(more), allocator=allocator or "any", **whole)


def tune(asked: TuneRequest, *, reporter: Reporter | None = None) -> Result:
    """Searches the best configuration, proves it on fresh data and writes the results directory.

    Ctrl-C (or SIGTERM) ends it with the best so far, whose verdict is "interrupted".
    Where the budget is too small, the verdict is "not_enough_data".

    Raises:
        UsageError: The request is not legal, and nothing was written.
        HztuneError: The measuring failed; what was measured is kept, and `resume` goes on with it.
    """
    from hztune.tuning.request import understand

    task = understand(asked)  # a mistake is told before the second that the next import takes
    from hztune.tuning.session import tune

    return tune(task, reporter or Reporter())


def plan(asked: TuneRequest) -> list[str]:
    """What `tune` would do; nothing is measured or written. UsageError: it is not legal."""
    from hztune.tuning.request import understand

    task = understand(asked, look=False)
    from hztune.tuning.session import plan

    return plan(task)


# ---- profiles ------------------------------------------------------------------------------------


def export(tuned: Profile, form: str) -> str:
    """A profile as a shell, a container or a compiler reads it; `formats` lists the forms.

    UsageError: there is no such form, or it is not for this allocator. NoGainError: the verdict
    is no_gain, or the profile is of the unchanged program: there is nothing to set.
    """
    from hztune.export import render

    text = render(tuned, form)
    named = tuned.allocator.soname or tuned.allocator.name == "hz"
    if form != "json" and (tuned.claim.verdict == "no_gain" or not (named or tuned.environment)):
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
    """What is not here as it was where the profile was proved, with the commands of `programs`."""
    found = list(doctor.changed_since_proof(tuned))
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
