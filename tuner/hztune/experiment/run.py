"""Measuring an experiment: row by row, each kept when it is there, so that it can be resumed.

Rows collect in a file beside results.json and replace it together, when the last one is there: what
is published never mixes two builds or two machines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hztune import allocator, files
from hztune.compare import record as records
from hztune.compare import session
from hztune.compare.contenders import Contender, configured, distinct
from hztune.compare.match import MakeExecutor, Plan
from hztune.compare.record import Record
from hztune.errors import HztuneError, UsageError
from hztune.experiment.definition import Experiment, Side
from hztune.machine import Machine
from hztune.progress import Reporter

RESULTS = "results.json"
UNFINISHED = "results.unfinished.json"

Executors = Callable[[Sequence[Contender], Machine, int], MakeExecutor]
"""Makes what measures: from contenders, machine and seed."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run of an experiment leaves.

    Attributes:
        record: All rows so far.
        rows: How many there are when it is complete.
        path: The file that holds them.
        stopped: Whether the user ended it before its end.
    """

    record: Record
    rows: int
    path: Path
    stopped: bool


def run(
    experiment: Experiment,
    reporter: Reporter,
    *,
    extra: Sequence[Contender] = (),
    budget_s: float | None = None,
    resume: bool = False,
    executors: Executors = session.executors,
) -> Ran:
    """Measures an experiment and writes its results.

    Args:
        experiment: What to measure.
        reporter: Who is told.
        extra: More contenders, behind those of the experiment.
        budget_s: Seconds for all rows; None: what the experiment says.
        resume: Whether rows of a run that was stopped are kept.
        executors: What measures.

    Raises:
        UsageError: A contender is not here, or what is to be resumed is of something else.
        HztuneError: The measuring itself failed, or a file cannot be written.
    """
    contenders = distinct([*contenders_of(experiment, reporter), *extra])
    machine = Machine.here()
    record = records.started(contenders, machine)
    unfinished = experiment.folder / UNFINISHED
    if resume:
        record = _resumed(unfinished, record)
    there = {row.spec.label for row in record.rows}
    specs = [spec for spec in experiment.rows if spec.label not in there]
    for spec in specs:
        spec.check()
    record, stopped = session.carry_out(
        record,
        specs,
        _plan(experiment, len(specs), budget_s),
        executors(contenders, machine, experiment.seed),
        reporter,
        lambda so_far: files.write_whole(unfinished, records.dumps(so_far)),
    )
    if stopped:
        return Ran(record, len(experiment.rows), unfinished, stopped)
    return Ran(record, len(experiment.rows), _publish(unfinished), stopped)


def contenders_of(experiment: Experiment, reporter: Reporter) -> tuple[Contender, ...]:
    """Returns the contenders that are here; who may be absent and is, is told.

    Raises:
        UsageError: One that may not be absent is not installed, or refuses its parameters; or
            nobody is left beside the control.
    """
    found = [_contender(side, reporter) for side in experiment.sides]
    here = tuple(each for each in found if each is not None)
    if len(here) < 2:
        raise UsageError(
            f"none of the allocators that {experiment.name} compares is installed; "
            "`hztune list allocators` says how to install them"
        )
    return here


def _contender(side: Side, reporter: Reporter) -> Contender | None:
    """Returns the contender of an arm; None: it may be absent, and is."""
    if side.if_installed:
        try:
            allocator.get(side.arm.allocator).installed()
        except HztuneError as error:
            reporter.say(f"left out: {error}")
            return None
    return configured(side.name, side.arm.allocator, side.arm.config)


def _resumed(path: Path, fresh: Record) -> Record:
    """Returns the unfinished record, if it is one of the same contenders on the same machine."""
    if not path.exists():
        raise UsageError(f"there is no {str(path)!r} to resume; run it without --resume")
    found, wrong = records.load(path)
    if wrong:
        raise UsageError(f"{str(path)!r} is damaged ({wrong[0]}); run it without --resume")
    there, here = ({each.identity for each in one.contenders} for one in (found, fresh))
    if there != here or found.machine != fresh.machine:
        changed = sorted(str(each[0]) for each in there ^ here) or ["the machine"]
        raise UsageError(
            f"{str(path)!r} is of other contenders or another machine "
            f"({', '.join(dict.fromkeys(changed))} changed); run it without --resume"
        )
    return found


def _plan(experiment: Experiment, rows: int, budget_s: float | None) -> Plan:
    """Returns the plan for the rows that are left: each gets its part of the whole budget."""
    whole_s = experiment.budget_s if budget_s is None else budget_s
    return Plan(experiment.pairs, max(1.0, whole_s * rows / len(experiment.rows)))


def _publish(unfinished: Path) -> Path:
    """Makes a complete record the results."""
    results = unfinished.with_name(RESULTS)
    try:
        os.replace(unfinished, results)
    except OSError as error:
        raise HztuneError(f"cannot write {str(results)!r}: {error.strerror}") from None
    return results
