"""What hztune does, one function each: the command line calls these, and so may your Python.

    from hztune import api

    result = api.tune(api.request("larson", threads=32, budget="60s"))
    print(result.profile.claim.ratio, result.profile.config)
    api.report(result.folder)

A study, a comparison and a verification measure: they take seconds to hours and start processes.
Every error is an `HztuneError` whose text is one sentence: a `UsageError` where something that was
asked for does not exist or is not legal. Modules are imported when a function needs them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hztune.arguments import judged
from hztune.errors import HztuneError, UsageError
from hztune.progress import Quiet, parse_duration

if TYPE_CHECKING:
    from hztune.allocator import Installed
    from hztune.compare.comparison import Comparison
    from hztune.compare.contenders import Contender
    from hztune.doctor import Check
    from hztune.export import Format
    from hztune.machine import Machine
    from hztune.measure.program import Program
    from hztune.params import Param
    from hztune.profile import Profile
    from hztune.progress import Reporter
    from hztune.result import Result
    from hztune.store.study import StudyAddress
    from hztune.tune import TuneRequest
    from hztune.verify.claim import Verification
    from hztune.verify.running import Report
    from hztune.workload import Goal, Workload, WorkloadSpec

# ---- tune ----------------------------------------------------------------------------------------


@judged
def program(argv: Sequence[str] = (), **options: Any) -> Program:
    """A program of yours that can be tuned, compared or verified on.

    Args:
        argv: Its words; () where `server` is given.
        options: As those of the command line: metric_regex, metric_cmd, lower_is_better, prepare,
            cleanup, check, warmup, timeout, server, load, ready, ready_port, idle_s, by.

    Raises:
        UsageError: The options exclude each other.
    """
    from hztune.measure.program import described

    return described(tuple(argv), **options)


@judged
def request(
    workload: str | None = None,
    *,
    program: Program | Sequence[Program] | None = None,
    threads: int | None = None,
    params: Sequence[str] = (),
    objective: Goal = "throughput",
    allocator: str | None = None,
    budget: str | float = "3m",
    **others: Any,
) -> TuneRequest:
    """What to tune, for `tune`; it is judged there.

    Args:
        workload: Built-in workloads, "larson" or "larson,remote@main"; None: `program` is given.
        program: A program of yours, from `program`, or several, from `named_programs`.
        threads: Threads of the workload; None: as many as there are CPUs.
        params: "KEY=VALUE", parameters of the workload.
        objective: "throughput" or "p99", of a workload.
        allocator: A name, several with commas, or "any"; None: "any" for a program, else "hz".
        budget: Time for all of it: "90s", "5m", or seconds.
        others: Further fields of TuneRequest: out, resume, trials, seed, space, max_rss, max_loss,
            pareto, panel, prior.

    Raises:
        UsageError: A workload or a parameter does not exist, or `budget` is no time.
    """
    from hztune.tune import TuneRequest
    from hztune.workload import workloads_named

    budget_s = parse_duration(budget) if isinstance(budget, str) else budget
    if isinstance(others.get("out"), str):
        others["out"] = Path(others["out"])
    made = judged(TuneRequest)
    if program is not None:
        one, *more = program if isinstance(program, Sequence) else (program,)
        return made(
            program=one,
            more=tuple(more),
            allocator=allocator or "any",
            budget_s=budget_s,
            **others,
        )
    if workload is None:
        raise UsageError("give a workload or a program; one of them is needed")
    if "beside" in others:
        raise UsageError("beside is no argument; name several workloads with commas between them")
    first, *beside = (spec.by(objective) for spec in workloads_named(workload, params, threads))
    return made(
        workload=first,
        beside=tuple(beside),
        allocator=allocator or "hz",
        budget_s=budget_s,
        **others,
    )


@judged
def tune(asked: TuneRequest, *, reporter: Reporter | None = None) -> Result:
    """Searches the best configuration, proves it on fresh data and writes the results directory.

    Ctrl-C (or SIGTERM) ends it with the best so far, whose verdict is "interrupted".

    Raises:
        UsageError: The request is not legal; nothing was written.
        HztuneError: The measuring failed; what was measured is kept, and `resume` goes on with it.
    """
    from hztune.tune import tune

    return tune(asked, reporter or Quiet())


@judged
def plan(asked: TuneRequest) -> list[str]:
    """What `tune` would do, in lines for a reader; nothing is measured or written.

    Raises:
        UsageError: The request is not legal.
    """
    from hztune.tune import plan

    return plan(asked)


@judged
def summary(result: Result) -> dict[str, Any]:
    """A result as one flat object for machines, as `hztune tune --json` prints it."""
    from hztune.result.summary import summary_json

    return summary_json(result)


@judged
def summary_lines(result: Result) -> list[str]:
    """A result for people, as `hztune tune` prints it."""
    from hztune.result.summary import summary_lines

    return summary_lines(result)


@judged
def report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Writes the study in a results directory as one HTML page, and returns the page's path.

    Args:
        folder: The results directory.
        out: The page; None: report.html in `folder`.

    Raises:
        UsageError: There is no finished study in `folder`.
        HztuneError: Its samples are damaged, or the file system refused.
    """
    from hztune import report

    return report.write(Path(folder), None if out is None else Path(out))


@judged
def samples(folder: str | Path) -> Iterator[bytes]:
    """Yields every measurement of a study as a line of JSON, also while it runs.

    Raises:
        UsageError: There is no study in `folder`.
        HztuneError: What is stored is damaged.
    """
    from hztune.store.local import samples

    yield from samples(Path(folder))


# ---- studies that several workers share ----------------------------------------------------------


@judged
def place(url: str, study: str) -> StudyAddress:
    """Where a shared study is: the URL of its storage, and its name there."""
    from hztune.store.study import StudyAddress

    return StudyAddress(url, study)


@judged
def tune_shared(
    where: StudyAddress,
    asked: TuneRequest | None = None,
    *,
    out: Path | None = None,
    reporter: Reporter | None = None,
) -> Result:
    """Begins a shared study, or goes on with it, and measures until it has ended.

    Args:
        where: The study.
        asked: What to tune; None: what the study that exists was begun with.
        out: The results directory; None: named after the study.
        reporter: Is told how it goes; None: nothing is shown.

    Raises:
        UsageError: The request is not legal, or the study is another one; nothing was measured.
        HztuneError: The storage or the measuring failed; every complete block is kept.
    """
    from hztune.tune import shared_session

    return shared_session.begin(where, asked, out, reporter or Quiet())


@judged
def join(
    where: StudyAddress,
    *,
    budget_s: float | None = None,
    out: Path | None = None,
    reporter: Reporter | None = None,
) -> Result | None:
    """Takes part in a shared study until it has ended, or for `budget_s` seconds (then None).

    Raises:
        UsageError: There is no such study, or something that must be the same differs here.
        HztuneError: The storage or the measuring failed; every complete block is kept.
    """
    from hztune.tune import shared_session

    return shared_session.join(where, reporter or Quiet(), budget_s=budget_s, out=out)


@judged
def forget(where: StudyAddress, host: str) -> int:
    """Frees what workers of a host that is gone for good hold; returns how many workers.

    Raises:
        UsageError: There is no such study, or no such host in it.
    """
    from hztune.tune import shared_session

    return shared_session.forget(where, host)


@judged
def optuna_storage(study: str | Path | StudyAddress, folder: Path | None = None) -> Path:
    """Writes the search of a study as an Optuna storage, also while it runs; returns its path.

    Args:
        study: A results directory, or a shared study.
        folder: Of a shared study: where to write; None: the results directory named after it.

    Raises:
        UsageError: There is no such study.
    """
    from hztune import report
    from hztune.tune.shared_session import directory

    if isinstance(study, str | Path):
        return report.write_storage(Path(study))
    return report.write_shared_storage(study, folder or directory(study))


# ---- profiles ------------------------------------------------------------------------------------


@judged
def load_profile(path: str | Path) -> Profile:
    """The profile in a file; every field of it was judged.

    Raises:
        UsageError: It is no profile, or not a legal one.
    """
    from hztune import profile

    return profile.load(Path(path))


@judged
def profile_json(tuned: Profile) -> str:
    """A profile as its file holds it."""
    from hztune import profile

    return profile.dumps(tuned)


@judged
def profile_lines(tuned: Profile) -> list[str]:
    """What a profile claims, where it was measured, and how to check it."""
    from hztune.export.provenance import provenance

    return provenance(tuned, undo="")[:-1]


@judged
def export(tuned: Profile, form: str) -> str:
    """A profile as a shell, a container or a compiler reads it; `formats` lists the forms.

    Raises:
        UsageError: There is no such form, or it is not for this allocator.
    """
    from hztune import export

    return export.render(tuned, form)


@judged
def environment(tuned: Profile, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment `base` under a profile: without old settings of its allocator, with its own.

    Raises:
        UsageError: The profile's allocator is not installed here.
    """
    adapter = tuned.adapter
    found = tuned.allocator.as_installed() if adapter.is_inside else adapter.installed()
    made = adapter.environment(tuned.config, found)
    kept = {key: value for key, value in base.items() if key not in adapter.variables()}
    others = base.get("LD_PRELOAD")
    if "LD_PRELOAD" in made and others:
        made["LD_PRELOAD"] += f":{others}"
    return {**kept, **made}


@judged
def differences(tuned: Profile, *, programs: Sequence[Program] = ()) -> list[str]:
    """What is not here as it was where a profile was proved, a sentence each.

    Args:
        tuned: The profile.
        programs: Those that it is to be used for, if their commands are to be compared, too.
    """
    from hztune import machine_diff
    from hztune.profile import hash_of_words

    found = list(machine_diff.from_proved(tuned))
    known = {each.name: each.words_sha256 for each in tuned.workloads}
    for program in programs:
        told = known.get(program.label, "") if tuned.shares else tuned.workload.words_sha256
        if told and hash_of_words(program.argv) != told:
            which = f"the command {program.label}" if tuned.shares else "the command"
            found.append(f"{which} is not the one that the profile was made for")
    return found


@judged
def verify(
    tuned: Profile,
    *,
    programs: Sequence[Program] = (),
    budget_s: float = 30.0,
    seed: int = 1,
    reporter: Reporter | None = None,
) -> Verification:
    """Measures a profile's claim again, on fresh pairs, here and now.

    Args:
        tuned: The profile.
        programs: Those that it was made for; empty: it was made for workloads.
        budget_s: Seconds for it.
        seed: Of every random choice.
        reporter: Is told how it goes; None: nothing is shown.

    Raises:
        UsageError: It makes no claim, or is not for this program or workload.
        HztuneError: The control does not run.
    """
    from hztune.verify import claim

    return claim.verify(tuned, programs, budget_s, seed, reporter or Quiet())


@judged
def examine(tuned: Profile, pid: int) -> Report:
    """Holds a running process against a profile: has it that allocator, with those parameters?

    Raises:
        UsageError: There is no such process, or it may not be looked at.
    """
    from hztune.verify.running import examine

    return examine(tuned, pid)


# ---- compare -------------------------------------------------------------------------------------


@judged
def contenders(texts: Sequence[str], *, are_commands: bool = False) -> tuple[Contender, ...]:
    """What to compare; the first is the control. As `hztune compare --help` explains them.

    Args:
        texts: "default", "jemalloc", ...; of commands "./new", or NAME='./new --fast'.
        are_commands: Whether they are commands, for programs whose words begin with {}.

    Raises:
        UsageError: One of them does not exist, or is not legal.
    """
    from hztune.compare import contenders

    return contenders.commands(texts) if are_commands else contenders.parse(texts)


@judged
def named_programs(texts: Sequence[str], **options: Any) -> tuple[Program, ...]:
    """Several programs of yours, each with a name of its own.

    Args:
        texts: NAME='./program its arguments'.
        options: As of `program`; they hold for each.

    Raises:
        UsageError: One is not so written, or two have one name.
    """
    from hztune.measure.program import named

    return named(tuple(texts), **options)


@judged
def rows(workloads: str, threads: str = "", params: Sequence[str] = ()) -> tuple[WorkloadSpec, ...]:
    """The rows of a comparison: every workload with every number of threads.

    Args:
        workloads: "larson,remote@main".
        threads: "2,8,32"; "": as many as there are CPUs.
        params: "KEY=VALUE", for the workloads that have such a parameter.

    Raises:
        UsageError: One of them does not exist, or cannot run here.
    """
    from hztune.compare.session import specs_of

    specs = specs_of(workloads, threads, params)
    for spec in specs:
        spec.check()
    return specs


@judged
def compare(
    sides: Sequence[Contender],
    specs: Sequence[WorkloadSpec | Program],
    *,
    pairs: int | None = None,
    budget_s: float = 60.0,
    seed: int = 1,
    no_worse: str | None = None,
    out: Path | None = None,
    reporter: Reporter | None = None,
) -> tuple[Comparison, bool]:
    """Measures contenders side by side.

    Args:
        sides: From `contenders`.
        specs: From `rows`, or programs from `program`.
        pairs: Blocks of fresh processes for each row; None: 6, or with `no_worse` as many as there
            is time for.
        budget_s: Seconds for all rows together.
        seed: Of every random choice.
        no_worse: What the second of two may lose of its speed, "2%"; None: nothing is tested.
            The answer is `ruling` of what is returned.
        out: A directory for every sample, as soon as it exists, and the record; None: none.
        reporter: Is told how it goes; None: nothing is shown.

    Returns:
        The rows, and whether Ctrl-C ended it before the last one.

    Raises:
        UsageError: Something is not legal; nothing was measured.
    """
    from hztune.compare import session

    told = reporter or Quiet()
    return session.compare(sides, specs, pairs, budget_s, seed, no_worse, out, told)


@judged
def ruling(found: Comparison) -> str:
    """What a comparison with `no_worse` says: "no worse", "worse" or "not enough data"."""
    from hztune.compare.gate import whole

    return whole(found.rulings)


@judged
def comparison_text(found: Comparison, *, markdown: bool = False, counters: bool = False) -> str:
    """A comparison for people, or as a table for a Markdown document."""
    from hztune.compare import table

    rows, rulings = found.standings, found.rulings
    if markdown:
        return table.markdown(rows, rulings)
    return table.plain(rows, rulings, counters=counters)


@judged
def comparison_json(found: Comparison) -> str:
    """A comparison with every sample and estimate."""
    from hztune.compare import comparison

    return comparison.dumps(found)


@judged
def write_comparison(found: Comparison, path: Path, form: Literal["csv", "junit"]) -> None:
    """Writes a comparison for other programs.

    Args:
        found: The comparison.
        path: The file.
        form: "csv": a line for each row and contender; "junit": the rulings of one with `no_worse`
            as JUnit XML, a test case for each row.

    Raises:
        HztuneError: The file system refused.
    """
    from hztune.compare import exchange

    exchange.write(found, path, form)


def draw(found: Comparison, path: Path) -> None:
    """Writes the ratios of a comparison as an SVG file."""
    from hztune.compare import plot

    plot.write(found.standings, Path(path))


# ---- what there is -------------------------------------------------------------------------------


def doctor() -> tuple[Check, ...]:
    """What disturbs measurements on this machine, and what mends it."""
    from hztune import doctor

    return doctor.examine()


def machine() -> Machine:
    """The record of this machine that goes into results."""
    from hztune.machine import Machine

    return Machine.here()


def workloads() -> list[Workload]:
    """The built-in workloads with their settings and parameters."""
    from hztune import workload

    return list(workload.listing())


def allocators() -> dict[str, Installed | HztuneError]:
    """Every allocator that hztune knows: what is installed here, or what to do about it."""
    from hztune import allocator

    return dict(allocator.states())


def allocator_names() -> tuple[str, ...]:
    """The name of every allocator that hztune knows, installed or not."""
    from hztune import allocator

    return allocator.names()


def spaces() -> list[Path]:
    """The search spaces that come with hztune."""
    from hztune import artifacts

    return sorted(artifacts.search_spaces().glob("*.toml"))


def formats() -> tuple[Format, ...]:
    """The forms that `export` knows."""
    from hztune import export

    return tuple(export.FORMATS)


@judged
def find_format(name: str) -> Format:
    """A form of `formats` by its name.

    Raises:
        UsageError: There is none.
    """
    from hztune import export

    return export.find(name)


@judged
def parameters(allocator: str = "hz") -> Sequence[Param]:
    """The parameters of an allocator that is installed here.

    Raises:
        UsageError: There is no such allocator, or it is not installed.
    """
    from hztune import allocator as adapters
    from hztune import params

    if allocator == "hz":
        return params.table()
    adapter = adapters.get(allocator)
    return adapter.knobs(adapter.installed())


def paths() -> dict[str, Callable[[], Path]]:
    """The built parts of hz by name; each is looked for when it is called.

    Calling one raises an HztuneError where it was not built.
    """
    from hztune import artifacts

    return {
        "lib": artifacts.library,
        "static-lib": artifacts.static_library,
        "deepbind": artifacts.deepbind,
        "include": artifacts.include_dir,
        "cmake": artifacts.cmake_dir,
        "bench": artifacts.bench,
        "launch": artifacts.launch,
        "turns": artifacts.turns,
        "spaces": artifacts.search_spaces,
    }
