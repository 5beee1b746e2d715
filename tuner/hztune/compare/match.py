"""Measuring a comparison: row by row, all contenders of a row in one block of fresh processes.

A row is one workload with one number of threads. Every block of it starts fresh processes, so that
blocks are the independent pairs that an interval needs; turns inside a block make each of them
precise. The time for a row decides how many turns a block has, never how the results look.

Where the time does not hold LEAST_PAIRS, that is said as soon as it is known, which is after the
first run; then the row has the pairs that it holds.

Under a gate the time decides how many pairs are planned, too, and a row ends at the first look that
has an answer; see `gate`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf

from hztune.blocks import Arm, Block, Outcome
from hztune.compare.contenders import Contender
from hztune.compare.gate import (
    Gate,
    Horizon,
    Ruling,
    failures_of,
    how_often,
    is_gate_look,
    is_settled_by_failure,
)
from hztune.compare.targets import ComparedRow
from hztune.errors import OutOfTime, UsageError
from hztune.measure import Executor
from hztune.measure.live_share import LiveShare
from hztune.progress import Reporter, duration
from hztune.study.bench import Budget, Clock, Stop, SystemClock
from hztune.study.calibration import HEADROOM

LEAST_PAIRS = 4
"""Fewest blocks of a row: with less, an interval says next to nothing."""

OVERTIME_S = 5.0
"""Seconds by which LEAST_PAIRS, and what asks for live bytes, may overdraw the budget."""

ASKED_PART = 1.0 / 8.0
"""Of the time of a row, what is kept for one more run of each contender."""

USUAL_PAIRS = 6
MOST_PAIRS = 100
LEAST_BUDGET_S = 1.0
MOST_BUDGET_S = 7 * 86400.0

_LEAST_ROUNDS = 4
_MOST_ROUNDS = 100
_FREE_START = 0.05
_HOPELESS_BLOCKS = 2

PLANNED_PAIRS = 30
"""Pairs that a gate aims at: with more, Student's t narrows no interval worth speaking of."""

MakeExecutor = Callable[[ComparedRow], Executor]
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
        pairs: Blocks of each row, if there is time; None: as many as usual, or under a gate as many
            as there is time for.
        budget_s: Seconds for all rows together; each gets the same part.
        gate: What the second contender may lose; None: nothing is tested.
        clock: Of the budget.
    """

    pairs: int | None
    budget_s: float
    gate: Gate | None = None
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        """Refuses what cannot be measured.

        Raises:
            UsageError: In words.
        """
        if self.pairs is not None and not LEAST_PAIRS <= self.pairs <= MOST_PAIRS:
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
        spec: The workload and its threads, or the program.
        blocks: All its blocks; their outcomes stand in the order of the contenders.
        created: When it ended, UTC, "2026-01-31T12:00:00Z".
        counts: Instructions of each contender; () when they were not counted.
        horizon: The plan of a gate; None: there was none.
        live: How much of its allocator's memory each contender had; () when none was asked.
        enough_s: The least whole budget that would do, where this one does not hold LEAST_PAIRS;
            infinite: it does not hold one run. 0: it does.
        left_s: What it left of its part of the budget, seconds.
    """

    spec: ComparedRow
    blocks: tuple[Block, ...]
    created: str
    counts: tuple[Count, ...] = ()
    horizon: Horizon | None = None
    live: tuple[LiveShare, ...] = ()
    enough_s: float = 0.0
    left_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Unfinished:
    """One row that was asked for, and that has too few pairs.

    Attributes:
        label: The row.
        pairs: How many of it are kept.
        enough_s: The budget that would do, where this one was too small; 0: a later session goes on
            with it.
    """

    label: str
    pairs: int
    enough_s: float = 0.0

    @property
    def words(self) -> str:
        """The pairs in words."""
        return "1 pair" if self.pairs == 1 else f"{self.pairs} pairs"


@dataclass(frozen=True, slots=True)
class Failing:
    """A contender that failed in some blocks of a row.

    Attributes:
        name: Of the contender.
        failures: An outcome for each block in which it did.
        pairs: Blocks of the row.
    """

    name: str
    failures: tuple[Outcome, ...]
    pairs: int

    @property
    def words(self) -> str:
        """How often it failed, and how at first."""
        return f"{self.name} failed{how_often(self.failures, self.pairs)}"


Finish = Callable[[Measured], Measured]
"""Adds to a row what turns do not show, and takes away what will not be asked for."""


class RowCut(KeyboardInterrupt):
    """The user has cut a row short that has pairs enough to count.

    Attributes:
        blocks: What was measured.
    """

    def __init__(self, blocks: tuple[Block, ...]) -> None:
        """Takes what was measured."""
        super().__init__()
        self.blocks = blocks


def play(
    specs: Sequence[ComparedRow],
    contenders: Sequence[Contender],
    plan: Effort,
    make_executor: MakeExecutor,
    reporter: Reporter,
    finish: Finish = lambda row: row,
    stop: Stop = lambda: False,
) -> Iterator[Measured]:
    """Measures the rows one after the other, and yields each when it is there.

    Raises:
        KeyboardInterrupt: The user wants an end. A row without a gate that has LEAST_PAIRS by then
            was yielded before.
    """
    budget = Budget(plan.clock, plan.budget_s)
    for number, spec in enumerate(specs):
        reporter.say(f"[{number + 1}/{len(specs)}] {spec.label}")
        executor, part_s = make_executor(spec), budget.left() / (len(specs) - number)
        try:
            found = _measured(executor, spec, contenders, plan, part_s, reporter, stop)
        except RowCut as cut:
            yield finish(Measured(spec, cut.blocks, now()))
            raise
        for each in _failing(contenders, found.blocks):
            reporter.say(f"    {each.words}")
        if remark := executor.accounting.remark:
            reporter.say(f"    {remark}")
        enough_s = math.ceil(found.enough_s) * len(specs) if math.isfinite(found.enough_s) else inf
        yield finish(replace(found, enough_s=enough_s))


def _measured(
    executor: Executor,
    spec: ComparedRow,
    contenders: Sequence[Contender],
    plan: Effort,
    part_s: float,
    reporter: Reporter,
    stop: Stop,
) -> Measured:
    """Measures one row in its part of the budget; `enough_s` is of a row, too."""
    arms = [each.arm for each in contenders]
    blocks: tuple[Block, ...] = ()
    horizon, enough_s = None, inf
    with Budget(plan.clock, part_s).running(), suppress(OutOfTime):
        executor.prepare(arms[0])
        enough_s = _enough_s(executor, len(arms), 0)
        if HEADROOM * (part_s + OVERTIME_S) < enough_s:
            reporter.say(
                f"    the budget is too small: {LEAST_PAIRS} pairs take about "
                f"{duration(enough_s)}, and {duration(max(0.0, part_s))} are left for the row; "
                "what there is time for is measured, and claims nothing"
            )
        if plan.gate is not None:
            race = GatedRow(executor, arms, plan.gate, spec.label, reporter, stop)
            blocks, horizon = race.measure(plan.pairs, part_s)
        else:
            pairs_s = (1.0 - ASKED_PART) * part_s
            blocks = row(executor, contenders, plan.pairs or USUAL_PAIRS, pairs_s, stop)
        enough_s = _enough_s(executor, len(arms), len(blocks))
    is_whole = len(blocks) >= LEAST_PAIRS or _is_hopeless(blocks) or is_settled_by_failure(blocks)
    return Measured(
        spec,
        blocks,
        now(),
        horizon=horizon,
        enough_s=0.0 if is_whole else enough_s,
        left_s=part_s - executor.accounting.wall_s,
    )


def _enough_s(executor: Executor, arms: int, pairs: int) -> float:
    """Seconds that a row needs that has so many pairs by now, with headroom."""
    least = 1 if _starts_are_free(executor, arms) else _LEAST_ROUNDS
    missing_s = max(0, LEAST_PAIRS - pairs) * executor.cost(arms, least)
    return HEADROOM * (executor.accounting.wall_s + missing_s)


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
        budget_s: Seconds for them; for LEAST_PAIRS they may be OVERTIME_S more.
        stop: Whether to measure no further block.

    Raises:
        RowCut: `stop` was true before a block, or an interrupt came; LEAST_PAIRS are there.
        KeyboardInterrupt: The same, and they are not.
    """
    blocks: list[Block] = []
    try:
        for block in _row(executor, contenders, pairs, budget_s, stop):
            blocks.append(block)
    except OutOfTime:
        pass
    except KeyboardInterrupt:
        if len(blocks) < LEAST_PAIRS:
            raise
        raise RowCut(tuple(blocks)) from None
    return tuple(blocks)


def _row(
    executor: Executor, contenders: Sequence[Contender], pairs: int, budget_s: float, stop: Stop
) -> Iterator[Block]:
    """Yields the blocks of a row."""
    arms = [each.arm for each in contenders]
    blocks: list[Block] = []
    while len(blocks) < pairs and not _is_hopeless(blocks):
        if stop():
            raise KeyboardInterrupt
        left_s = budget_s - executor.accounting.wall_s
        rounds = rounds_in(executor, len(arms), left_s / (pairs - len(blocks)))
        if not blocks and _starts_are_free(executor, len(arms)):
            rounds = 1  # it is not known yet how long a program runs
        if executor.cost(len(arms), rounds) > left_s + _overtime_s(len(blocks)):
            return
        blocks.append(executor.measure(arms, role="explore", rounds=rounds, number=len(blocks)))
        yield blocks[-1]


def _overtime_s(pairs: int) -> float:
    """Seconds by which the next of so many pairs may overdraw the budget."""
    return OVERTIME_S if pairs < LEAST_PAIRS else 0.0


@dataclass
class GatedRow:
    """One row under a gate.

    Attributes:
        executor: What measures; fresh, so that its accounts are the row's.
        arms: The base and the new one.
        gate: What may be lost.
        label: The row.
        reporter: Is told what each look shows.
        stop: Whether the user wants an end.
    """

    executor: Executor
    arms: Sequence[Arm]
    gate: Gate
    label: str
    reporter: Reporter
    stop: Stop = lambda: False

    def measure(self, pairs: int | None, budget_s: float) -> tuple[tuple[Block, ...], Horizon]:
        """Measures until a look has an answer, all planned pairs are there, or time is up.

        Args:
            pairs: Pairs to plan; None: as many as there is time for.
            budget_s: Seconds; for LEAST_PAIRS they may be OVERTIME_S more.

        Raises:
            KeyboardInterrupt: `stop` was true before a block.
        """
        is_tried = _starts_are_free(self.executor, len(self.arms))
        tried = [self._block(0, 1)] if is_tried and not self._is_late(budget_s, 1, 0) else []
        left_s = budget_s - self.executor.accounting.wall_s
        rounds, planned = self._plan(pairs, left_s, len(tried))
        # A first run among measurements of many would scatter more than they do: then it only
        # showed how long runs take, or that a contender does not run.
        blocks = tried if rounds == 1 or not all(o.ok for b in tried for o in b.outcomes) else []
        first = 2 * (len(tried) - len(blocks))
        while True:
            is_last = self._is_late(budget_s, rounds, len(blocks))
            if self._answers(blocks, Horizon(planned)):
                return tuple(blocks), Horizon(planned)
            if len(blocks) >= planned or is_last:
                return tuple(blocks), Horizon(planned, is_last=len(blocks) < planned)
            try:
                blocks.append(self._block(first + len(blocks), rounds))
            except OutOfTime:
                return tuple(blocks), Horizon(planned, is_last=True)

    def _plan(self, pairs: int | None, left_s: float, there: int) -> tuple[int, int]:
        """Rounds of each block, and pairs: by the clock alone."""
        arms = len(self.arms)
        rounds = rounds_in(self.executor, arms, left_s / (pairs or PLANNED_PAIRS))
        if pairs is not None:
            return rounds, pairs
        each_s = self.executor.cost(arms, rounds)
        more = int(left_s / each_s) if each_s > 0.0 else 0  # what never runs takes no time
        return rounds, max(LEAST_PAIRS, min(MOST_PAIRS, more + (there if rounds == 1 else 0)))

    def _is_late(self, budget_s: float, rounds: int, pairs: int) -> bool:
        left_s = budget_s - self.executor.accounting.wall_s + _overtime_s(pairs)
        return self.executor.cost(len(self.arms), rounds) > left_s

    def _answers(self, blocks: Sequence[Block], horizon: Horizon) -> bool:
        """Whether there is nothing more to learn: a contender failed, or a look has an answer."""
        if not all(outcome.ok for block in blocks for outcome in block.outcomes):
            return is_settled_by_failure(blocks)
        if not is_gate_look(len(blocks), horizon.planned):
            return False
        found = self.gate.rule(self.label, blocks, horizon)
        self._tell(found)
        return found.answer != "not enough data"

    def _tell(self, found: Ruling) -> None:
        if found.speed is not None:
            ratio, low, high = found.speed.ratio
            of = f"{found.pairs} of {found.planned} pairs"
            self.reporter.say(f"    {of}: {ratio:.3f} [{low:.3f}, {high:.3f}]: {found.answer}")

    def _block(self, number: int, rounds: int) -> Block:
        if self.stop():
            raise KeyboardInterrupt
        return self.executor.measure(self.arms, role="explore", rounds=rounds, number=number)


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


def _failing(
    contenders: Sequence[Contender], blocks: Sequence[Block], least: int = 1
) -> list[Failing]:
    """Returns the contenders that failed in `least` blocks or more."""
    failed = [
        Failing(contender.name, tuple(failures_of(blocks, index)), len(blocks))
        for index, contender in enumerate(contenders)
    ]
    return [each for each in failed if len(each.failures) >= least]


def failing(contenders: Sequence[Contender], row: Measured) -> list[Failing]:
    """Returns the contenders that failed in at least half of a row's pairs.

    A ratio comes only from pairs in which both sides ended well: from few of them it says little.
    """
    return _failing(contenders, row.blocks, max(1, (len(row.blocks) + 1) // 2))
