"""A comparison from beginning to end: from words to rows, what is kept, and when it is stopped.

A results directory holds `study.db`, with every turn as soon as it has been measured, and
`comparison.json`, with every row that is complete. When the session ends, `samples.jsonl` is there,
too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from hztune import files
from hztune.arguments import counts, listed
from hztune.compare.comparison import Comparison, dumps, started
from hztune.compare.contenders import Contender, commands_of
from hztune.compare.gate import Gate
from hztune.compare.live_rows import ask_row
from hztune.compare.match import MOST_PAIRS, Effort, Finish, MakeExecutor, Measured, play
from hztune.compare.preload import FileIdentity
from hztune.compare.targets import ComparedRow, ProgramSpec, require
from hztune.errors import UsageError
from hztune.interrupt import interruptible
from hztune.machine import Machine
from hztune.measure import Executor
from hztune.measure.executors import program_executor, program_identity, workload_executor
from hztune.measure.live_share import LiveShare
from hztune.measure.program import Program
from hztune.measure.several import WorkloadSink
from hztune.measure.turns_or_runs import Say, say_nothing
from hztune.progress import Reporter
from hztune.store import Nowhere, Plan, Sink
from hztune.store.local import LocalStudy, is_there
from hztune.workload import WorkloadSpec, specs_named

RECORD = "comparison.json"
"""The name of the record in a results directory."""

Ask = Callable[[Measured], tuple[LiveShare, ...]]
"""Asks the contenders of a row, which has been measured, for their live bytes."""

Keep = Callable[[Comparison], None]
"""Takes the record whenever a row has been added to it."""


def specs_of(workloads: str, threads: str, params: Sequence[str] = ()) -> tuple[WorkloadSpec, ...]:
    """Returns the rows that a command line means: every workload with every number of threads.

    Args:
        workloads: "larson,remote@main".
        threads: "2,8,32"; "" for as many as each workload takes by itself.
        params: "KEY=VALUE" for the workloads that have such a parameter; one has it at least.

    Raises:
        UsageError: One of them does not exist, or cannot run here.
    """
    each: list[int | None] = [*counts(threads, "--threads")] if threads else [None]
    by_count = [specs_named(listed(workloads), params, count) for count in each]
    return tuple(spec for row in zip(*by_count, strict=True) for spec in row)


def executors(
    contenders: Sequence[Contender],
    machine: Machine,
    seed: int,
    programs: Mapping[ProgramSpec, Program] | None = None,
    sink: Sink | None = None,
    say: Say = say_nothing,
) -> MakeExecutor:
    """Returns what makes an executor for each row; what is proved of a contender is proved once.

    Args:
        contenders: What is compared.
        machine: Where.
        seed: Of every random choice.
        programs: What is run for the rows that are programs.
        sink: Where every turn goes as soon as it exists; None: nowhere.
        say: Tells the user how programs are measured, and why.
    """
    proof = FileIdentity(contenders)
    commands = commands_of(contenders)
    inside = [each.inside for each in contenders if each.inside is not None]
    rows = 0

    def make(spec: ComparedRow) -> Executor:
        nonlocal rows
        kept = RowSink(sink or Nowhere(), rows, spec.label)
        rows += 1
        if isinstance(spec, ProgramSpec):
            program = replace((programs or {})[spec], commands=commands)
            own = FileIdentity(contenders, program_identity(program, inside))
            return program_executor(
                program,
                kept,
                seed=seed,
                machine=machine,
                identity=own,
                say=lambda words: say(f"{spec.label}: {words}"),
            )
        return workload_executor(
            spec, kept, seed=seed, machine=machine, processes=len(contenders), identity=proof
        )

    return make


class RowSink(WorkloadSink):
    """A sink that says which row its blocks are of; in it, every row has numbers of its own."""

    def __init__(self, sink: Sink, row: int, label: str) -> None:
        """Takes where everything goes, and the number and the name of the row."""
        super().__init__(sink, label)
        self._first = 2 * MOST_PAIRS * row

    def begin(self, plan: Plan) -> None:
        """Adds the row to what is noted."""
        super().begin(replace(plan, number=self._first + plan.number))


def compare(
    sides: Sequence[Contender],
    rows: Sequence[WorkloadSpec | Program],
    pairs: int | None,
    budget_s: float,
    seed: int,
    no_worse: str | None,
    out: Path | None,
    reporter: Reporter,
) -> tuple[Comparison, bool]:
    """Measures contenders side by side; see `api.compare`."""
    gate = Gate.of(no_worse, len(rows)) if no_worse is not None else None
    if gate is not None and len(sides) != 2:
        raise UsageError(
            f"--no-worse tests one contender against another, and there are {len(sides)}; "
            "give the base and the new one, in this order"
        )
    plan, machine = Effort(pairs, budget_s, gate), Machine.here()
    for line in require([row for row in rows if isinstance(row, Program)], sides):
        reporter.say(line)
    asked = {"seed": seed, "budget_s": budget_s, **({} if pairs is None else {"pairs": pairs})}
    record = started(sides, machine, asked, gate)
    programs = {ProgramSpec.of(row): row for row in rows if isinstance(row, Program)}
    specs = [ProgramSpec.of(row) if isinstance(row, Program) else row for row in rows]
    with ExitStack() as opened:
        sink = opened.enter_context(_study(out, record, specs, machine)) if out else None
        make = executors(record.contenders, machine, seed, programs, sink, reporter.say)

        def keep(so_far: Comparison) -> None:
            if out is not None:
                files.write_whole(out / RECORD, dumps(so_far))

        def ask(row: Measured) -> tuple[LiveShare, ...]:
            reporter.say("    one more run of each, which is asked for its live bytes")
            return ask_row(row, record.contenders, programs, budget_s / len(specs), seed)

        return carry_out(record, specs, plan, make, reporter, keep, ask=None if gate else ask)


def _study(
    out: Path, record: Comparison, specs: Sequence[ComparedRow], machine: Machine
) -> LocalStudy:
    """Begins the samples of a comparison."""
    files.make_folder(out)
    if is_there(out):
        raise UsageError(f"{str(out)!r} holds samples already; choose another --out")
    identity = {
        "contenders": ", ".join(each.name for each in record.contenders),
        "rows": ", ".join(spec.label for spec in specs),
        **{name: f"{value:g}" for name, value in record.asked},
    }
    return LocalStudy(out, identity, machine)


def carry_out(
    record: Comparison,
    specs: Sequence[ComparedRow],
    plan: Effort,
    make_executor: MakeExecutor,
    reporter: Reporter,
    keep: Keep = lambda record: None,
    finish: Finish = lambda row: row,
    ask: Ask | None = None,
) -> tuple[Comparison, bool]:
    """Measures rows and adds them to the record; a row is kept before it is asked anything more.

    Returns:
        The record, and whether the user stopped it; then the rows so far are in it.
    """
    with interruptible() as asked:
        rows = play(
            specs, record.contenders, plan, make_executor, reporter, finish, stop=asked.is_set
        )
        try:
            for row in rows:
                before = record.rows
                record = replace(record, rows=(*before, row))
                keep(record)
                if ask is not None and not asked.is_set():
                    record = replace(record, rows=(*before, replace(row, live=ask(row))))
                    keep(record)
        except KeyboardInterrupt:
            return record, True
    return record, False
