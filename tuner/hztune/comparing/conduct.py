"""A comparison from beginning to end: from words to rows, what is kept, and when it is stopped.

A results directory holds `samples.jsonl`, with every turn as soon as it has been measured, and
`comparison.json`, with every row that is complete. A comparison that was stopped goes on with the
rows of the record and the blocks of the log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from hztune import files
from hztune.arguments import counts, listed, seconds_of
from hztune.blocks import Block
from hztune.comparing.comparison import Comparison, dumps, load, started
from hztune.comparing.contenders import (
    ComparedRow,
    Contender,
    FileIdentity,
    ProgramSpec,
    parse,
    refuse_glibc,
    require,
)
from hztune.comparing.gate import Gate
from hztune.comparing.match import (
    LEAST_BUDGET_S,
    LEAST_PAIRS,
    Effort,
    MakeExecutor,
    play,
)
from hztune.errors import StoppedByUser, UsageError
from hztune.interrupt import interruptible
from hztune.machine import Machine
from hztune.measure import Executor, Remembered, WorkloadSink
from hztune.measure.executors import Say, executor_for, say_nothing
from hztune.measure.program import OPEN, Measure, Program, Programs, asked_programs
from hztune.progress import Reporter
from hztune.store import Sink, kept_command
from hztune.store.log import SAMPLES, LocalStudy, is_there
from hztune.study.bench import Budget
from hztune.workload import WorkloadSpec, specs_named

RECORD = "comparison.json"  # in a results directory

Keep = Callable[[Comparison], None]  # takes the record whenever a row has been added to it


def specs_of(workloads: str, threads: str, params: Sequence[str] = ()) -> tuple[WorkloadSpec, ...]:
    """The rows that a command line means: each workload with each count of threads.

    `workloads`: "larson,remote@main". `threads`: "2,8,32"; "" for as many as each takes by itself.
    `params`: "KEY=VALUE" for the workloads that have such a parameter; one has it at least.
    UsageError: one of them does not exist, or cannot run here.
    """
    each: list[int | None] = [*counts(threads, "--threads")] if threads else [None]
    by_count = [specs_named(listed(workloads), params, count) for count in each]
    specs = tuple(dict.fromkeys(spec for row in zip(*by_count, strict=True) for spec in row))
    for spec in specs:
        spec.check()
    return specs


def executors(
    contenders: Sequence[Contender],
    machine: Machine,
    seed: int,
    programs: Mapping[ProgramSpec, Program] | None = None,
    sink: Sink | None = None,
    say: Say = say_nothing,
    blocks: Sequence[Block] = (),
) -> MakeExecutor:
    """Makes the executor of a row; `blocks` are those that an earlier session left in the sink."""
    inside = [each.inside for each in contenders if each.inside is not None]
    words = tuple((each.arm.allocator, each.words) for each in contenders if each.words)

    def make(spec: ComparedRow) -> Executor:
        own = [replace(each, workload="") for each in blocks if each.workload == spec.label]
        if own:
            say(f"{spec.label}: pairs of the earlier session that count: {len(own)}")
        if isinstance(spec, ProgramSpec):
            program = replace((programs or {})[spec], commands=words)
            identity = FileIdentity(contenders, program.argv[0], inside, seen=program.call is None)
        else:
            program, identity = None, FileIdentity(contenders)
        executor = executor_for(
            [program or spec],  # type: ignore[list-item]
            WorkloadSink(sink or Sink(), spec.label),
            seed=seed,
            machine=machine,
            processes=len(contenders),
            identity=identity,
            say=lambda words: say(f"{spec.label}: {words}"),
        )
        return Remembered(executor, own)

    return make


def compare(
    contenders: Sequence[str],
    workload: str | None = None,
    *,
    program: Programs | None = None,
    measure: Measure | None = None,
    maximize: bool = False,
    threads: int | str = "",
    params: Sequence[str] = (),
    pairs: int | None = None,
    budget: str | float = "60s",
    seed: int = 1,
    no_worse: str = "",
    no_more_memory: str = "",
    out: str | Path | None = None,
    resume: bool = False,
    command: Sequence[str] = (),
    reporter: Reporter | None = None,
) -> Comparison:
    """Measures contenders side by side, in fresh processes.

        hztune.compare(["none", "jemalloc", "found/profile.json"], program=["./program"])
        hztune.compare(["./old", "./new"], program=["{}", "input"], no_worse="2%").ruling

    Args:
        contenders: As of `hztune compare`: "none", "jemalloc", "hz:thp=on", a profile, a library
            as "NAME=/path/to/lib.so"; commands where the words of `program` begin with "{}".
        workload: Built-in workloads, "larson" or "larson,remote@main".
        program: A program of yours: its words, or what `program` returns, or several of these.
        measure: A function of yours, see `tune`.
        maximize: Whether it returns a figure of which more is better.
        threads: Of the workload, or several counts, "2,8"; "": as many as there are CPUs.
        params: "KEY=VALUE", parameters of the workload.
        pairs: Blocks of fresh processes; None: 6, or where something is tested as time allows.
        budget: Time for all of it: "90s", "5m", or seconds.
        seed: Of every random choice.
        no_worse: What the second of two may lose of its speed, "2%"; `ruling` has the answer.
        no_more_memory: What it may take more of memory.
        out: A directory for every sample, and the record; None: none.
        resume: Whether to go on with the comparison in `out`.
        command: The words that asked for it, to be kept in `out`; () keeps none.
        reporter: Is told how it goes; None: nothing is shown.

    Returns:
        `.standings` with ratios and intervals, `.ruling`, and `.blocks`; where Ctrl-C ended it
        (`stopped`), also of the row that it cut.

    Raises:
        UsageError: Something is not legal; nothing was measured.
    """
    reporter = reporter or Reporter()
    asked = asked_programs(program, measure, maximize=maximize)
    if bool(asked) == bool(workload):
        raise UsageError("give a workload, a program or measure: one of them")
    sides = parse(contenders, are_commands=_are_open(asked))
    rows = asked or specs_of(workload or "", str(threads), params)
    if resume and out is None:
        raise UsageError("--resume needs the directory to go on with: give it with --out DIR")
    gate = Gate(no_worse, no_more_memory, len(rows)) if no_worse or no_more_memory else None
    plan = Effort(pairs, seconds_of(budget), gate)
    _refuse(sides, asked, len(rows), plan)
    for line in require(asked, sides):
        reporter.say(line)
    choices = {
        "seed": seed,
        "budget_s": plan.budget_s,
        **({} if pairs is None else {"pairs": pairs}),
    }
    record = started(sides, Machine.here(), choices, gate)
    return _go_on(record, rows, plan, None if out is None else Path(out), resume, command, reporter)


def _are_open(programs: Sequence[Program]) -> bool:
    """Whether the contenders are commands."""
    opens = {program.is_open for program in programs}
    if len(opens) > 1:
        raise UsageError(
            f"{OPEN} must begin every --command or none: contenders are commands, or they are "
            "allocators, profiles and libraries"
        )
    return opens == {True}


def _go_on(
    record: Comparison,
    rows: Sequence[WorkloadSpec | Program],
    plan: Effort,
    out: Path | None,
    resume: bool,
    command: Sequence[str],
    reporter: Reporter,
) -> Comparison:
    programs = {ProgramSpec.of(row): row for row in rows if isinstance(row, Program)}
    specs = [ProgramSpec.of(row) if isinstance(row, Program) else row for row in rows]
    machine, seed = Machine.here(), int(record.asked["seed"])
    blocks: Sequence[Block] = ()
    with ExitStack() as opened:
        study = opened.enter_context(_study(out, record, specs, machine, resume)) if out else None
        if study is not None:
            kept_command.write(study.folder / RECORD, command)
            blocks = study.replay()
            if resume and (study.folder / RECORD).exists():
                there = load(study.folder / RECORD).rows
                record = replace(record, rows=tuple(row for row in there if not row.is_cut))
        make = executors(record.contenders, machine, seed, programs, study, reporter.say, blocks)
        left = specs[len(record.rows) :]
        if resume:
            reporter.say(f"{len(record.rows)} of {len(specs)} rows are there")
            part_s = max(LEAST_BUDGET_S, plan.budget_s * len(left) / len(specs))
            plan = replace(plan, budget_s=part_s)

        def keep(so_far: Comparison) -> None:
            if out is not None:
                files.write_whole(out / RECORD, dumps(so_far))

        return carry_out(record, left, plan, make, reporter, keep)


def _refuse(
    sides: Sequence[Contender], programs: Sequence[Program], rows: int, plan: Effort
) -> None:
    if len(sides) < 2 or not rows:
        raise UsageError(
            f"{len(sides)} contenders on {rows} rows: give two contenders at least, and one "
            "workload or program at least"
        )
    if plan.gate is not None and len(sides) != 2:
        raise UsageError(
            f"{plan.gate.options} tests one contender against another, and there are {len(sides)}; "
            "give the base and the new one, in this order"
        )
    refuse_glibc(programs, sides)
    for program in programs:
        if program.rest is None:
            continue
        least_s = LEAST_PAIRS * len(sides) * program.rest.rounds * program.rest.idle_s
        if least_s > plan.budget_s / rows:
            raise UsageError(
                f"the budget is too small: {program.label} has {program.rest.text}, which takes "
                f"{least_s:g} s in {LEAST_PAIRS} runs of each contender without the loads, and a "
                f"row has {plan.budget_s / rows:g} s; give a larger --budget, fewer --rounds or "
                "less --idle-s"
            )


def _study(
    out: Path, record: Comparison, specs: Sequence[ComparedRow], machine: Machine, resume: bool
) -> LocalStudy:
    """Begins the samples of a comparison, or opens those of this very one again."""
    if resume and not is_there(out):
        raise UsageError(f"there is no comparison to resume in {str(out)!r} (it has no {SAMPLES})")
    files.make_folder(out)
    if not resume and is_there(out):
        raise UsageError(
            f"{str(out)!r} holds samples already; go on with them (--resume), or choose another "
            "--out"
        )
    # versions, files and words of which none shall be readable
    sums = {"contenders": [each.identity for each in record.contenders], "rows": specs}
    identity = {
        "contenders": ", ".join(each.name for each in record.contenders),
        "rows": ", ".join(spec.label for spec in specs),
        **{name: f"{value:g}" for name, value in record.asked.items()},
        **({"gate": record.gate.options} if record.gate else {}),
        **{
            f"sum of the {name}": hashlib.sha256(repr(those).encode()).hexdigest()[:16]
            for name, those in sums.items()
        },
    }
    return LocalStudy(out, identity, machine, resume=resume)


def carry_out(
    record: Comparison,
    specs: Sequence[ComparedRow],
    plan: Effort,
    make_executor: MakeExecutor,
    reporter: Reporter,
    keep: Keep = lambda record: None,
) -> Comparison:
    """Measures rows and records them, also one that Ctrl-C cuts; the rest are then `missing`."""
    budget, there = Budget(plan.clock, plan.budget_s), len(record.rows)
    with interruptible() as asked, budget.running():
        rows = play(specs, record.contenders, plan, make_executor, reporter, asked.is_set)
        try:
            for row in rows:
                record = replace(record, rows=(*record.rows, row))
                keep(record)
        except (KeyboardInterrupt, StoppedByUser):
            left = specs[len(record.rows) - there :]
            record = replace(record, missing=tuple(spec.label for spec in left))
    return record
