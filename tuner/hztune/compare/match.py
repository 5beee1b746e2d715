"""Measuring a comparison: row by row, all contenders of a row in one block of fresh processes.

A row is one workload with one number of threads. Every block of it starts fresh processes, so that
blocks are the independent pairs that an interval needs; turns inside a block make each of them
precise. The time for a row decides how many turns a block has, never how the results look.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hztune.blocks import Block
from hztune.compare.contenders import Contender
from hztune.errors import UsageError
from hztune.measure import Executor
from hztune.progress import Reporter
from hztune.workload import WorkloadSpec

LEAST_PAIRS = 4
"""Fewest blocks of a row: with less, an interval says next to nothing."""

USUAL_PAIRS = 6
MOST_PAIRS = 100
LEAST_BUDGET_S = 1.0
MOST_BUDGET_S = 7 * 86400.0

_LEAST_ROUNDS = 4
_MOST_ROUNDS = 100
_FREE_START = 0.05
_HOPELESS_BLOCKS = 2

MakeExecutor = Callable[[WorkloadSpec], Executor]
"""Makes what measures one row."""


@dataclass(frozen=True, slots=True)
class Count:
    """Two runs, of which the second does more work.

    Attributes:
        operations: Of each run, as the workload counted them.
        instructions: Of each run, from its start to its end.
    """

    operations: tuple[int, int]
    instructions: tuple[int, int]

    @property
    def each(self) -> float:
        """Instructions of one operation."""
        less, more = self.instructions
        return (more - less) / (self.operations[1] - self.operations[0])


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    Attributes:
        pairs: Blocks of each row, if there is time.
        budget_s: Seconds for all rows together; each gets the same part.
    """

    pairs: int
    budget_s: float

    def __post_init__(self) -> None:
        """Refuses what cannot be measured.

        Raises:
            UsageError: In words.
        """
        if not LEAST_PAIRS <= self.pairs <= MOST_PAIRS:
            raise UsageError(
                f"{self.pairs} pairs: legal is a whole number from {LEAST_PAIRS} to {MOST_PAIRS}"
            )
        if not LEAST_BUDGET_S <= self.budget_s <= MOST_BUDGET_S:
            raise UsageError(
                f"a budget of {self.budget_s:g} s: legal is from {LEAST_BUDGET_S:g} s to 7 days"
            )


@dataclass(frozen=True, slots=True)
class Measured:
    """One row that has been measured.

    Attributes:
        spec: The workload and its threads.
        blocks: All its blocks; their outcomes stand in the order of the contenders.
        created: When it ended, UTC, "2026-01-31T12:00:00Z".
        counts: Instructions of each contender; () when they were not counted.
    """

    spec: WorkloadSpec
    blocks: tuple[Block, ...]
    created: str
    counts: tuple[Count, ...] = ()


Finish = Callable[[Measured], Measured]
"""Adds to a row what turns do not show, and takes away what will not be asked for."""

Stop = Callable[[], bool]
"""Whether the user wants the measuring to end."""


def play(
    specs: Sequence[WorkloadSpec],
    contenders: Sequence[Contender],
    plan: Effort,
    make_executor: MakeExecutor,
    reporter: Reporter,
    finish: Finish = lambda row: row,
    stop: Stop = lambda: False,
) -> Iterator[Measured]:
    """Measures the rows one after the other, and yields each when it is there.

    Raises:
        KeyboardInterrupt: `stop` was true before a block.
    """
    for number, spec in enumerate(specs, start=1):
        reporter.say(f"[{number}/{len(specs)}] {spec.label}")
        blocks = row(make_executor(spec), contenders, plan.pairs, plan.budget_s / len(specs), stop)
        for failure in _failures(contenders, blocks):
            reporter.say(f"    {failure}")
        yield finish(Measured(spec, blocks, now()))


def row(
    executor: Executor,
    contenders: Sequence[Contender],
    pairs: int,
    budget_s: float,
    stop: Stop = lambda: False,
) -> tuple[Block, ...]:
    """Measures one row.

    Args:
        executor: What measures; fresh, so that its accounts are the row's.
        contenders: What to compare; the first one is the control.
        pairs: Blocks to measure if there is time.
        budget_s: Seconds for them; LEAST_PAIRS are measured even where that takes longer.
        stop: Whether to measure no further block.

    Raises:
        KeyboardInterrupt: `stop` was true before a block.
    """
    arms = [each.arm for each in contenders]
    blocks: list[Block] = []
    while len(blocks) < pairs and not _is_hopeless(blocks):
        if stop():
            raise KeyboardInterrupt
        left_s = budget_s - executor.accounting.wall_s
        rounds = rounds_in(executor, len(arms), left_s / (pairs - len(blocks)))
        if not blocks and _starts_are_free(executor, len(arms)):
            rounds = 1  # it is not known yet how long a program runs
        if len(blocks) >= LEAST_PAIRS and executor.cost(len(arms), rounds) > left_s:
            break
        blocks.append(executor.measure(arms, role="explore", rounds=rounds, number=len(blocks)))
    return tuple(blocks)


def rounds_in(executor: Executor, arms: int, seconds: float) -> int:
    """Returns how many rounds a block of that many seconds has, a least number in any case."""
    start_s, each_s = _costs(executor, arms)
    least = 1 if _starts_are_free(executor, arms) else _LEAST_ROUNDS
    return max(least, min(_MOST_ROUNDS, int((seconds - start_s) / each_s)))


def _costs(executor: Executor, arms: int) -> tuple[float, float]:
    """Returns the seconds that the start of a block takes, and each of its rounds."""
    one_s, many_s = executor.cost(arms, 1), executor.cost(arms, 11)
    each_s = max(1e-6, (many_s - one_s) / 10.0)
    return one_s - each_s, each_s


def _starts_are_free(executor: Executor, arms: int) -> bool:
    """Whether a fresh block costs no more than another round: a program starts anew for each."""
    start_s, each_s = _costs(executor, arms)
    return start_s < _FREE_START * each_s


def now() -> str:
    """Returns the time as it stands in results, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _is_hopeless(blocks: Sequence[Block]) -> bool:
    """Whether the control has not run once: then nothing can be compared."""
    return len(blocks) >= _HOPELESS_BLOCKS and not any(block.control.ok for block in blocks)


def _failures(contenders: Sequence[Contender], blocks: Sequence[Block]) -> list[str]:
    """Returns one line for each contender that failed, with how often and how at last."""
    lines = []
    for index, contender in enumerate(contenders):
        failed = [b.outcomes[index] for b in blocks if not b.outcomes[index].ok]
        if failed:
            last = failed[-1]
            told = f"{last.status}: {last.detail}" if last.detail else last.status
            lines.append(f"{contender.name} failed in {len(failed)} of {len(blocks)} ({told})")
    return lines
