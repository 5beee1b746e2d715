"""Measuring a comparison: row by row, all contenders of a row in one block of fresh processes.

A row is one workload with one number of threads, or one program. Every block of it starts fresh
processes, so that blocks are the independent pairs that an interval needs; turns inside a block
make each of them precise. The time for a row decides how many turns a block has, never how the
results look.

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
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from msgspec import Struct

from hztune.blocks import Block
from hztune.compare.contenders import ComparedRow, Contender, amount_of
from hztune.compare.gate import (
    MOST_PAIRS,
    Gate,
    Horizon,
    Ruling,
    failures_of,
    how_often,
    is_settled_by_failure,
)
from hztune.compare.standings import Standings, standings
from hztune.errors import OutOfTime, UsageError
from hztune.measure import Executor
from hztune.progress import Reporter, duration
from hztune.schema import TIME_FORMAT
from hztune.stats.intervals import planned_looks
from hztune.study.bench import LEAST_ROUNDS, Budget, Clock, Stop, SystemClock
from hztune.study.calibration import HEADROOM

LEAST_PAIRS = 4  # with fewer blocks, the interval of a row says next to nothing

OVERTIME_S = 5.0  # seconds by which LEAST_PAIRS may overdraw the budget

USUAL_PAIRS = 6
PLANNED_PAIRS = 30  # of a gate: with more, Student's t narrows no interval worth speaking of

LEAST_BUDGET_S = 1.0
MOST_BUDGET_S = 7 * 86400.0

_MOST_ROUNDS = 100
_FREE_START = 0.05
_HOPELESS_BLOCKS = 2

MakeExecutor = Callable[[ComparedRow], Executor]  # makes what measures one row


class Count(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Operations and instructions of two runs, of which the second does more work."""

    operations: tuple[int, int]
    instructions: tuple[int, int]

    def __post_init__(self) -> None:
        if self.operations[0] >= self.operations[1]:
            raise ValueError("the second run that counts instructions must be the longer")

    @property
    def each(self) -> float:
        """Instructions of one operation."""
        less, more = self.instructions
        return (more - less) / (self.operations[1] - self.operations[0])


@dataclass(frozen=True, slots=True)
class Effort:
    pairs: int | None  # blocks of each row, if there is time; None: as usual, or as time allows
    budget_s: float  # for all rows together; each gets the same part
    gate: Gate | None = None  # what the second contender may lose; None: nothing is tested
    clock: Clock = field(default_factory=SystemClock)  # of the budget

    def __post_init__(self) -> None:
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
    spec: ComparedRow  # the workload and its threads, or the program
    blocks: tuple[Block, ...]  # all of it; their outcomes stand in the order of the contenders
    created: str  # when it ended, UTC, "2026-01-31T12:00:00Z"
    counts: tuple[Count, ...] = ()  # instructions of each contender; () when not counted
    horizon: Horizon | None = None  # the plan of a gate; None: there was none
    # the least whole budget that would do, where this one does not hold LEAST_PAIRS; infinite: it
    # does not hold one run; 0: it does
    enough_s: float = 0.0
    is_cut: bool = False  # whether the user's stop ended it: a later session goes on with it

    def standings(self, names: Sequence[str]) -> Standings:
        return standings(
            self.spec.label,
            names,
            self.blocks,
            [each.each for each in self.counts],
            amount=amount_of(self.spec),
            horizon=self.horizon,
        )


class Unfinished(NamedTuple):
    """One row that was asked for, and that has too few pairs."""

    label: str
    pairs: int  # how many of it are kept
    enough_s: float = 0.0  # the budget that would do; 0: a later session goes on with it

    @property
    def words(self) -> str:
        return "1 pair" if self.pairs == 1 else f"{self.pairs} pairs"

    @property
    def ruling(self) -> Ruling:
        why = f"it was interrupted after {self.words}" if self.pairs else "it was not measured"
        if self.enough_s:
            why = "there was no time for it"
        return Ruling(self.label, "not enough data", why, None, None, self.pairs, 0)


Finish = Callable[[Measured], Measured]
"""Adds to a row what turns do not show, and takes away what will not be asked for."""


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

    KeyboardInterrupt: the user wants an end. A row without a gate that has LEAST_PAIRS by then was
    yielded before.
    """
    budget = Budget(plan.clock, plan.budget_s)
    for number, spec in enumerate(specs):
        reporter.say(f"[{number + 1}/{len(specs)}] {spec.label}")
        executor, part_s = make_executor(spec), budget.left() / (len(specs) - number)
        run = RowRun(executor, spec, contenders, plan, part_s, reporter, stop)
        try:
            with Budget(plan.clock, part_s).running(), suppress(OutOfTime):
                run.measure()
        except KeyboardInterrupt:
            if plan.gate is None and len(run.blocks) >= LEAST_PAIRS:
                yield finish(Measured(spec, tuple(run.blocks), _now(), is_cut=True))
            raise
        for words in (*failing(contenders, run.blocks).values(), executor.accounting.remark):
            if words:
                reporter.say(f"    {words}")
        is_known = math.isfinite(run.enough_s)
        enough_s = math.ceil(run.enough_s) * len(specs) if is_known else inf
        blocks = tuple(run.blocks)
        yield finish(Measured(spec, blocks, _now(), horizon=run.horizon, enough_s=enough_s))


@dataclass
class RowRun:
    """One row while it is measured."""

    executor: Executor  # fresh, so that its accounts are the row's
    spec: ComparedRow
    contenders: Sequence[Contender]  # the first one is the control
    plan: Effort
    part_s: float  # seconds for the row; for LEAST_PAIRS they may be OVERTIME_S more
    reporter: Reporter
    stop: Stop = lambda: False
    blocks: list[Block] = field(default_factory=list)
    horizon: Horizon | None = None  # the plan of the gate
    enough_s: float = inf  # what LEAST_PAIRS need, with headroom; 0: they are there, or never will

    def measure(self) -> None:
        """Measures until all pairs are there, a look of the gate has an answer, or time is up.

        KeyboardInterrupt: `stop` was true. OutOfTime: not even the control could be prepared.
        """
        self.executor.prepare(self.contenders[0].arm)
        enough_s = self.enough_s = self._needed_s()
        if HEADROOM * (self.part_s + OVERTIME_S) < enough_s:
            self.reporter.say(
                f"    the budget is too small: {LEAST_PAIRS} pairs take about {duration(enough_s)},"
                f" and {duration(max(0.0, self.part_s))} are left for the row; "
                "what there is time for is measured, and claims nothing"
            )
        with suppress(OutOfTime):
            if self.plan.gate is not None:
                self._race(self.plan.gate, self.plan.pairs)
            else:
                self._fill(self.plan.pairs or USUAL_PAIRS)
        is_whole = len(self.blocks) >= LEAST_PAIRS or is_settled_by_failure(self.blocks)
        self.enough_s = 0.0 if is_whole or self._is_hopeless() else self._needed_s()

    def _fill(self, pairs: int) -> None:
        """Measures so many pairs, each of as many rounds as there is time for."""
        while len(self.blocks) < pairs and not self._is_hopeless():
            rounds = self.rounds_in(self._left_s() / (pairs - len(self.blocks)))
            if not self.blocks and self._least_rounds() == 1:
                rounds = 1  # it is not known yet how long a program runs
            if not self._block(len(self.blocks), rounds):
                return

    def _race(self, gate: Gate, pairs: int | None) -> None:
        """Measures until a look has an answer; pairs None: as many as there is time for."""
        if self._least_rounds() == 1:
            self._block(0, 1)
        tried = len(self.blocks)
        rounds = self.rounds_in(self._left_s() / (pairs or PLANNED_PAIRS))
        if pairs is None:
            each_s = self._cost(rounds)
            more = int(self._left_s() / each_s) if each_s > 0.0 else 0  # what never runs takes none
            there = tried if rounds == 1 else 0
            pairs = max(LEAST_PAIRS, min(MOST_PAIRS, more + there))
        # A first run among measurements of many would scatter more than they do: then it only
        # showed how long runs take, or that a contender does not run.
        if rounds > 1 and all(o.ok for block in self.blocks for o in block.outcomes):
            self.blocks.clear()
        first = 2 * (tried - len(self.blocks))
        self.horizon = Horizon(pairs)
        while not self._is_answered(gate, Horizon(pairs)):
            self.horizon = Horizon(pairs, is_last=len(self.blocks) < pairs)
            if len(self.blocks) >= pairs or not self._block(first + len(self.blocks), rounds):
                return
        self.horizon = Horizon(pairs)

    def _is_answered(self, gate: Gate, horizon: Horizon) -> bool:
        """Whether there is nothing more to learn: a contender failed, or a look has an answer."""
        if not all(outcome.ok for block in self.blocks for outcome in block.outcomes):
            return is_settled_by_failure(self.blocks)
        if len(self.blocks) not in planned_looks(horizon.planned):
            return False
        found = gate.rule(self.spec.label, self.blocks, horizon)
        if found.speed is not None:
            ratio, low, high = found.speed.ratio
            of = f"{found.pairs} of {found.planned} pairs"
            self.reporter.say(f"    {of}: {ratio:.3f} [{low:.3f}, {high:.3f}]: {found.answer}")
        return found.answer != "not enough data"

    def _block(self, number: int, rounds: int) -> bool:
        """Measures a block; false: there is no time, which the first pairs may overdraw."""
        overtime_s = OVERTIME_S if len(self.blocks) < LEAST_PAIRS else 0.0
        if self._cost(rounds) > self._left_s() + overtime_s:
            return False
        if self.stop():
            raise KeyboardInterrupt
        arms = [each.arm for each in self.contenders]
        found = self.executor.measure(arms, role="explore", rounds=rounds, number=number)
        self.blocks.append(found)
        return True

    def _is_hopeless(self) -> bool:
        return len(self.blocks) >= _HOPELESS_BLOCKS and not any(b.control.ok for b in self.blocks)

    def _needed_s(self) -> float:
        missing_s = max(0, LEAST_PAIRS - len(self.blocks)) * self._cost(self._least_rounds())
        return HEADROOM * (self.executor.accounting.wall_s + missing_s)

    def _left_s(self) -> float:
        return self.part_s - self.executor.accounting.wall_s

    def _cost(self, rounds: int) -> float:
        return self.executor.cost(len(self.contenders), rounds)

    def _costs(self) -> tuple[float, float]:
        """Seconds that the start of a block takes, and each of its rounds."""
        each_s = max(1e-6, (self._cost(11) - self._cost(1)) / 10.0)
        return self._cost(1) - each_s, each_s

    def _least_rounds(self) -> int:
        """1 where a fresh block costs no more than another round, as a program that starts anew."""
        start_s, each_s = self._costs()
        return 1 if start_s < _FREE_START * each_s else LEAST_ROUNDS

    def rounds_in(self, seconds: float) -> int:
        """Rounds that a block of that many seconds has, a least number in any case."""
        start_s, each_s = self._costs()
        most = min(_MOST_ROUNDS, int((seconds - start_s) / each_s))
        return max(self._least_rounds(), most)


def _now() -> str:
    return time.strftime(TIME_FORMAT, time.gmtime())


def failing(
    contenders: Sequence[Contender], blocks: Sequence[Block], share: float = 0.0
) -> dict[str, str]:
    """How often a contender failed and how at first, by its name.

    Named where at least `share` of the pairs of a row failed, and one: a ratio comes only from
    pairs in which both sides ended well, and says little where half of them are missing.
    """
    failed = {each.name: failures_of(blocks, n) for n, each in enumerate(contenders)}
    return {
        name: f"{name} failed{how_often(failures, len(blocks))}"
        for name, failures in failed.items()
        if failures and len(failures) >= share * len(blocks)
    }
