"""Studies: ask, tune, tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hztune.arguments import parse_duration
from hztune.errors import UsageError
from hztune.progress import Quiet

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hztune.measure.program import Program, ProgramOptions
    from hztune.progress import Reporter
    from hztune.result import Result
    from hztune.tuning.request import RequestOptions, TuneRequest
    from hztune.workload import Goal


def program(argv: Sequence[str] = (), **options: Unpack[ProgramOptions]) -> Program:
    """A program of yours that can be tuned, compared or verified on.

    `argv`: its words; () where `server` is given. `options`: as those of the command line;
    `ProgramOptions` explains each. UsageError: they exclude each other.
    """
    from hztune.measure.program import described

    if isinstance(argv, str):
        raise UsageError(f"the program {argv!r} is one text; give its words: ('ls', '-l')")
    return described(tuple(argv), **options)


def request(
    workload: str | None = None,
    *,
    program: Program | Sequence[Program] | None = None,
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
    **others: Unpack[RequestOptions],
) -> TuneRequest:
    """What to tune, for `tune`; it is judged there.

    Args:
        workload: Built-in workloads, "larson" or "larson,remote@main"; None: `program` is given.
        program: A program of yours, from `program`, or several, from `named_programs`.
        threads: Threads of the workload; None: as many as there are CPUs.
        params: "KEY=VALUE", parameters of the workload.
        objective: "throughput", "p99" (of a workload), or "kept": memory at rest.
        allocator: A name, several with commas, or "any"; None: "any" for a program, else "hz".
        budget: Time for all of it: "90s", "5m", or seconds.
        idle_s: Of a workload: seconds of rest until its memory is read; 0: 2 where it is needed.
        rounds: Of a workload: loads, each with such a rest behind it.
        cpus: Of a workload: CPUs of the container in which it is measured; None: all.
        memory: Of a workload: memory of that container, "512M"; "": all.
        out: The results directory; None: a new one under hztune-results/.
        others: Further fields of `TuneRequest`, which explains them.

    Raises:
        UsageError: A workload or a parameter does not exist, or `budget` is no time.
    """
    from hztune.quota import Quota
    from hztune.tuning.request import TuneRequest, resting_plan, resting_program
    from hztune.workload import workloads_named

    budget_s = parse_duration(budget, "--budget") if isinstance(budget, str) else budget
    whole: dict[str, Any] = {
        **others,
        "budget_s": budget_s,
        "out": None if out is None else Path(out),
    }
    if not program:
        if not workload:
            raise UsageError(
                "--workload is missing; `hztune list workloads` prints them (or give a program of "
                "your own after --, several with --command, or a --server)"
            )
        rest, quota = resting_plan(idle_s, rounds, objective, others), Quota.of(cpus, memory)
        specs = workloads_named(workload, params, threads)
        specs = tuple(spec.resting(rest) for spec in specs) if rest else specs
        specs = tuple(spec.within(quota) for spec in specs) if quota else specs
        first, *beside = (spec.by(objective) for spec in specs)
        return TuneRequest(first, beside=tuple(beside), allocator=allocator or "hz", **whole)
    of_workloads = dict(workload=workload, threads=threads, param=params, idle_s=idle_s,
                        rounds=rounds, cpus=cpus, memory=memory)  # fmt: skip
    if given := [name for name, value in of_workloads.items() if value]:
        raise UsageError(
            f"{given[0]} is of workloads, and not for a program of your own: what belongs to that "
            "stands beside it"
        )
    if objective == "p99":
        raise UsageError(
            "--objective p99 is for workloads; a program of yours is judged by its time, or by "
            "what --metric-regex or --metric-cmd finds"
        )
    asked = program if isinstance(program, Sequence) else (program,)
    one, *more = (resting_program(each, objective, others) for each in asked)
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

    return tune(task, reporter or Quiet())


def plan(asked: TuneRequest) -> list[str]:
    """What `tune` would do, in lines for a reader; nothing is measured or written.

    UsageError: the request is not legal.
    """
    from hztune.tuning.request import understand

    task = understand(asked, look=False)
    from hztune.tuning.session import plan

    return plan(task)


def samples(folder: str | Path) -> Iterator[bytes]:
    """Yields every measurement of a study as a line of JSON, also while it runs.

    UsageError: there is no study in `folder`. HztuneError: what is stored is damaged.
    """
    from hztune.store.log import recording

    yield from recording(Path(folder)).lines


def sample_columns(
    folder: str | Path, kind: Literal["turn", "outcome", "block"] = "turn"
) -> dict[str, list[Any]]:
    """The measurements of a study as columns of equal length, also while it runs.

        pandas.DataFrame(api.sample_columns(folder))
        numpy.array(api.sample_columns(folder)["ops"])

    What is named within a sample has a column of its own, "params.thp"; where a sample has no such
    value, it is None.

    Args:
        folder: The results directory.
        kind: "turn": what was measured of one process at one time; "outcome": of one process, with
            its memory and counters; "block": which processes were measured together.

    Raises:
        UsageError: There is no study in `folder`.
        HztuneError: What is stored is damaged.
    """
    from hztune.store.log import recording
    from hztune.store.rows import columns

    return columns(recording(Path(folder)).lines, kind)
