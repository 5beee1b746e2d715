"""One session of a comparison: from words to rows, and what is kept when the user stops it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hztune import workload
from hztune.compare.comparison import Comparison
from hztune.compare.contenders import Contender
from hztune.compare.match import Effort, Finish, MakeExecutor, play
from hztune.compare.preload import FileIdentity
from hztune.errors import UsageError
from hztune.interrupt import interruptible
from hztune.machine import Machine
from hztune.measure import Executor
from hztune.measure.workloads import workload_executor
from hztune.progress import Reporter
from hztune.workload import WorkloadSpec

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
    counts = [_count(each) for each in threads.split(",")] if threads else [None]
    names = workloads.split(",")
    for text in params:
        if not any(workload.takes(name, text) for name in names):
            workload.WorkloadSpec.from_text(names[0], [text])  # says what it has instead
    return tuple(
        WorkloadSpec.from_text(name, [text for text in params if workload.takes(name, text)], count)
        for name in names
        for count in counts
    )


def executors(contenders: Sequence[Contender], machine: Machine, seed: int) -> MakeExecutor:
    """Returns what makes an executor for each row; what is proved of a contender is proved once."""
    proof = FileIdentity(contenders)

    def make(spec: WorkloadSpec) -> Executor:
        return workload_executor(
            spec, seed=seed, machine=machine, processes=len(contenders), proof=proof
        )

    return make


def carry_out(
    record: Comparison,
    specs: Sequence[WorkloadSpec],
    plan: Effort,
    make_executor: MakeExecutor,
    reporter: Reporter,
    keep: Keep = lambda record: None,
    finish: Finish = lambda row: row,
) -> tuple[Comparison, bool]:
    """Measures rows and adds them to the record.

    Returns:
        The record, and whether the user stopped it; then the rows so far are in it.
    """
    with interruptible() as asked:
        rows = play(
            specs, record.contenders, plan, make_executor, reporter, finish, stop=asked.is_set
        )
        try:
            for row in rows:
                record = replace(record, rows=(*record.rows, row))
                keep(record)
        except KeyboardInterrupt:
            return record, True
    return record, False


def _count(text: str) -> int:
    """Returns a number of threads."""
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise UsageError(f"--threads {text!r}: legal are whole numbers with commas between: 2,8,32")
    return int(text)
