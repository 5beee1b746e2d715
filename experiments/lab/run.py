"""Measuring an experiment: row by row, each kept when it is there, so that it can be resumed.

Rows collect in a file beside results.json and replace it together, when the last one is there: what
is published never mixes two builds or two machines. A row keeps of the counters only what the
experiment asks for, so that results stay small enough to be committed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hztune import allocator, files
from hztune.arguments import split_named
from hztune.blocks import Arm, Block
from hztune.comparing import comparison as comparisons
from hztune.comparing import conduct, contenders
from hztune.comparing.comparison import Comparison
from hztune.comparing.contenders import (
    ComparedRow,
    Contender,
    FileIdentity,
    ProgramSpec,
    configured,
    distinct,
)
from hztune.comparing.contenders import require as require_programs
from hztune.comparing.match import Effort, MakeExecutor, Measured
from hztune.errors import HztuneError, UsageError
from hztune.machine import Machine
from hztune.measure.program import Program
from hztune.progress import Reporter
from hztune.workload import WorkloadSpec
from lab import builds
from lab.definition import Experiment, Side
from lab.instructions import count

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

    record: Comparison
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
    executors: Executors = conduct.executors,
    programs: Mapping[str, Program] | None = None,
) -> Ran:
    """Measures an experiment and writes its results."""
    require(experiment)
    contenders = distinct([*contenders_of(experiment, reporter), *extra])
    machine = Machine.here()
    record = comparisons.started(contenders, machine)
    unfinished = experiment.folder / UNFINISHED
    rows = _rows(experiment, programs or {})
    if resume:
        kept = _resumed(experiment.folder, record, reporter).rows
        record = replace(record, rows=tuple(row for row in kept if _is_of(row, experiment, rows)))
    there = {row.spec.label for row in record.rows}
    specs = [spec for label, spec in rows.items() if label not in there]
    if not specs:
        is_whole = len(record.rows) == len(experiment.rows)
        path = experiment.folder / RESULTS if is_whole else unfinished
        return Ran(record, len(experiment.rows), path, False)
    for spec in specs:
        if isinstance(spec, WorkloadSpec):
            spec.check()
    left = [each for label, each in (programs or {}).items() if label not in there]
    for line in require_programs(left, contenders):
        reporter.say(line)
    whole_s = experiment.file.budget_s if budget_s is None else budget_s
    done = {row.spec.label: row for row in record.rows}

    def finished(so_far: Comparison) -> Comparison:
        """The record with each row finished, once."""
        for row in (each for each in so_far.rows if each.spec.label not in done):
            done[row.spec.label] = _finished(experiment, contenders, row)
        return replace(so_far, rows=tuple(done[row.spec.label] for row in so_far.rows))

    record = conduct.carry_out(
        record,
        specs,
        Effort(experiment.file.pairs, max(1.0, whole_s * len(specs) / len(experiment.rows))),
        executors(contenders, machine, experiment.file.seed),
        reporter,
        lambda so_far: files.write_whole(unfinished, comparisons.dumps(finished(so_far))),
    )
    record = finished(record)
    if record.stopped or len(record.rows) < len(experiment.rows):
        return Ran(record, len(experiment.rows), unfinished, record.stopped)
    results = unfinished.replace(experiment.folder / RESULTS)
    return Ran(record, len(experiment.rows), results, False)


def further(texts: Sequence[str]) -> tuple[Contender, ...]:
    """Contenders from "NAME=/path/to/lib.so"."""
    for text in texts:
        if "/" not in (split_named(text) or ("", ""))[1]:
            raise UsageError(f"{text!r} is no library; legal is NAME=/path/to/library.so")
    return contenders.parse(texts)


def require(experiment: Experiment) -> None:
    """Makes sure that what an experiment needs beside allocators is here."""
    for side in experiment.sides:
        if side.profile and not side.profile.exists():
            raise UsageError(
                f"the arm {side.name!r} needs {str(side.profile)!r}: the README beside it says "
                "how to make that profile"
            )
    needed = {
        "valgrind": experiment.file.instructions,
        "cmake": any(s.build for s in experiment.sides),
    }
    for program, is_needed in needed.items():
        if is_needed and shutil.which(program) is None:
            raise UsageError(
                f"{experiment.name} needs {program}, which is not installed; "
                f"install it with: apt-get install {program}"
            )


def contenders_of(experiment: Experiment, reporter: Reporter) -> tuple[Contender, ...]:
    """Returns the contenders that are here; tells of each that may be absent and is."""
    found = [_contender(side, reporter) for side in experiment.sides]
    here = tuple(each for each in found if each is not None)
    if len(here) < 2:
        raise UsageError(
            f"none of the allocators that {experiment.name} compares is installed; "
            "`hztune list allocators` says how to install them"
        )
    return here


def _rows(experiment: Experiment, programs: Mapping[str, Program]) -> dict[str, ComparedRow]:
    """Returns the rows that can be measured, by label: all but programs that are not given."""
    rows: dict[str, ComparedRow] = {}
    for row in experiment.rows:
        if isinstance(row, WorkloadSpec):
            rows[row.label] = row
        elif row.label in programs:
            rows[row.label] = ProgramSpec.of(programs[row.label])
    return rows


def _is_of(row: Measured, experiment: Experiment, rows: Mapping[str, ComparedRow]) -> bool:
    """Whether a row that was measured is one of the experiment, its program still the same."""
    label, is_program = row.spec.label, isinstance(row.spec, ProgramSpec)
    is_same = not is_program or rows.get(label, row.spec) == row.spec
    return is_same and not row.is_cut and label in {each.label for each in experiment.rows}


def _contender(side: Side, reporter: Reporter) -> Contender | None:
    """Returns the contender of an arm; None: it may be absent, and is."""
    if side.if_installed:
        try:
            allocator.get(side.arm.allocator).installed()
        except HztuneError as error:
            reporter.say(f"left out: {error}")
            return None
    if side.build:
        reporter.say(f"building hz: {side.build}")
        return builds.contender(side.name, side.build, side.arm.config)
    return configured(side.name, side.arm.allocator, side.arm.config)


def _finished(experiment: Experiment, contenders: Sequence[Contender], row: Measured) -> Measured:
    """The row without counters that no value asks for; with instructions, if these are counted."""
    spec, more = row.spec, {}
    asked = {name for value in experiment.file.value for name in (value.count, value.per)}
    if experiment.file.instructions and isinstance(spec, WorkloadSpec) and spec.threads == 1:
        proof = FileIdentity(contenders)
        more = {each.arm: count(spec, each.arm, proof) for each in contenders}
    return replace(row, blocks=tuple(_slim(block, asked, more) for block in row.blocks))


def _slim(block: Block, asked: set[str], more: Mapping[Arm, Mapping[str, int]]) -> Block:
    outcomes = []
    for each in block.outcomes:
        every = {**each.facts, **each.counters}
        kept = {name: value for name, value in every.items() if name in asked}
        counters = {**kept, **more.get(each.arm, {})}
        outcomes.append(replace(each, counters=counters, facts={}))
    return replace(block, outcomes=tuple(outcomes))


def _resumed(folder: Path, fresh: Comparison, reporter: Reporter) -> Comparison:
    """Returns the rows to go on with: unfinished ones, else complete ones of the same."""
    path = folder / UNFINISHED
    if path.exists():
        found = comparisons.load(path)
        if changed := _changed(found, fresh):
            raise UsageError(
                f"{str(path)!r} is of other contenders or another machine "
                f"({', '.join(changed)} changed); run it without --resume"
            )
        return found
    results = folder / RESULTS
    if results.exists() and not _changed(comparisons.load(results), fresh):
        reporter.say("its results are of these contenders: only rows that they lack are measured")
        return comparisons.load(results)
    return fresh


def _changed(found: Comparison, fresh: Comparison) -> list[str]:
    """Returns in what a record is not one of the same contenders on the same machine."""
    there, here = ({each.identity for each in one.contenders} for one in (found, fresh))
    names = [str(each[0]) for each in sorted(there ^ here, key=str)]
    return [*dict.fromkeys(names), *(["the machine"] if found.machine != fresh.machine else [])]
