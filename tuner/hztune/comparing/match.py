"""Measuring a comparison: row by row, all contenders of a row in one block of fresh processes.

A row is one workload with one number of threads, or one program. Every block of it starts fresh
processes, so that blocks are the independent pairs that an interval needs; turns inside a block
make each of them precise. The time for a row decides how many turns a block has, never how the
results look. Under a gate the time decides how many pairs are planned, too, and a row ends at the
first look that has an answer; see `gate`. Where there is no time for LEAST_PAIRS, that is said
after the first run; then the row has the pairs for which there is time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from operator import attrgetter

from hztune.arguments import within
from hztune.blocks import Arm, Block
from hztune.comparing.contenders import ComparedRow, Contender, amount_of
from hztune.comparing.gate import (
    GATE_ANSWERS,
    MOST_PAIRS,
    Gate,
    Horizon,
    Standings,
    failures_of,
    how_often,
    is_settled_by_failure,
    standings,
)
from hztune.errors import OutOfTime, StoppedByUser
from hztune.measure import Executor
from hztune.progress import Reporter, duration
from hztune.schema import TIME_FORMAT
from hztune.stats.intervals import planned_looks
from hztune.study.bench import (
    LEAST_ROUNDS,
    Budget,
    Clock,
    Inquiry,
    Stop,
    Wanted,
    Workbench,
    system_clock,
)
from hztune.study.calibration import HEADROOM
from hztune.study.ledger import Ledger

LEAST_PAIRS = 4  # with fewer blocks, the interval of a row says next to nothing

OVERTIME_S = 5.0  # seconds by which LEAST_PAIRS may overdraw the budget

USUAL_PAIRS = 6
PLANNED_PAIRS = 30  # of a gate: with more, Student's t narrows no interval worth speaking of

LEAST_BUDGET_S = 1.0
MOST_BUDGET_S = 7 * 86400.0

_HOPELESS_BLOCKS = 2

MakeExecutor = Callable[[ComparedRow], Executor]  # makes what measures one row


@dataclass(frozen=True, slots=True)
class Effort:
    pairs: int | None  # blocks of each row, if there is time; None: as usual, or as time allows
    budget_s: float  # for all rows together; each gets the same part
    gate: Gate | None = None  # what the second contender may lose; None: nothing is tested
    clock: Clock = system_clock  # of the budget

    def __post_init__(self) -> None:
        if self.pairs is not None:
            within("--pairs", self.pairs, LEAST_PAIRS, MOST_PAIRS)
        within("--budget", self.budget_s, LEAST_BUDGET_S, MOST_BUDGET_S)


@dataclass(frozen=True, slots=True)
class Measured:
    spec: ComparedRow  # the workload and its threads, or the program
    blocks: tuple[Block, ...]  # all of it; their outcomes stand in the order of the contenders
    created: str  # when it ended, UTC, "2026-01-31T12:00:00Z"
    horizon: Horizon | None = None  # the plan of a gate; None: there was none
    # the least whole budget that would do, where this one does not hold LEAST_PAIRS; infinite: it
    # does not hold one run; 0: it does
    enough_s: float = 0.0
    is_cut: bool = False  # whether the user's stop ended it: a later session goes on with it

    @property
    def words(self) -> str:
        return f"{len(self.blocks)} pair{'s' * (len(self.blocks) != 1)} of {self.spec.label}"

    def standings(self, names: Sequence[str]) -> Standings:
        return standings(
            self.spec.label, names, self.blocks, amount=amount_of(self.spec), horizon=self.horizon
        )


def play(
    specs: Sequence[ComparedRow],
    contenders: Sequence[Contender],
    plan: Effort,
    make_executor: MakeExecutor,
    reporter: Reporter,
    stop: Stop = lambda: False,
) -> Iterator[Measured]:
    """Yields each row; raises KeyboardInterrupt or StoppedByUser after the row that a stop cut."""
    budget = Budget(plan.clock, plan.budget_s)
    for number, spec in enumerate(specs):
        reporter.say(f"[{number + 1}/{len(specs)}] {spec.label}")
        executor, part_s = make_executor(spec), budget.left() / (len(specs) - number)
        # what was measured, also by a session before this one
        part = Budget(partial(attrgetter("accounting.wall_s"), executor), part_s)
        bench = Workbench(executor, Ledger(), part, reporter, stop)
        run = RowRun(bench, spec.label, tuple(each.arm for each in contenders), plan)
        try:
            with Budget(plan.clock, part_s).running(), suppress(OutOfTime):
                run.measure()
        except (KeyboardInterrupt, StoppedByUser):
            if run.blocks:
                blocks = tuple(run.blocks)
                yield Measured(spec, blocks, _now(), run.horizon, is_cut=True)
            raise
        for words in failing(contenders, run.blocks).values():
            reporter.say(f"    {words}")
        is_known = math.isfinite(run.enough_s)
        enough_s = math.ceil(run.enough_s) * len(specs) if is_known else inf
        blocks = tuple(run.blocks)
        yield Measured(spec, blocks, _now(), horizon=run.horizon, enough_s=enough_s)


@dataclass(eq=False)
class RowRun(Inquiry):
    """One row while it is measured; see `bench.Inquiry`."""

    bench: Workbench  # its own, whose budget is the row's; LEAST_PAIRS may overdraw it
    label: str
    arms: tuple[Arm, ...]  # the first one is the control
    plan: Effort
    horizon: Horizon | None = None  # the plan of the gate
    enough_s: float = inf  # what LEAST_PAIRS need, with headroom; 0: they are there, or never will

    def __post_init__(self) -> None:
        self._rounds, self._tried = 0, 0

    @property
    def blocks(self) -> list[Block]:
        """Those that count: without a gate's trial run, if its blocks have several rounds."""
        return self.bench.ledger.blocks[self._tried :]

    def measure(self) -> None:
        """Measures until nothing is wanted; OutOfTime: not even the control could be prepared."""
        bench = self.bench
        bench.executor.prepare(*self.arms)
        enough_s = self.enough_s = self._needed_s()
        part_s = bench.budget.total_s
        if HEADROOM * (part_s + OVERTIME_S) < enough_s:
            bench.reporter.say(
                f"    the budget is too small: {LEAST_PAIRS} pairs take about {duration(enough_s)},"
                f" and {duration(max(0.0, part_s))} are left for the row; "
                "what there is time for is measured, and claims nothing"
            )
        is_late = bool(bench.unanswered([self], part_s))
        if self.horizon is not None:
            self.horizon = Horizon(self.horizon.planned, is_late)
        is_whole = len(self.blocks) >= LEAST_PAIRS or is_settled_by_failure(self.blocks)
        self.enough_s = 0.0 if is_whole or self._is_hopeless() else self._needed_s()

    def wanted(self) -> Wanted | None:
        if self._is_hopeless():
            return None
        rounds, gate = 1, self.plan.gate  # how long a program runs is not known at first
        if self.bench.ledger.blocks or not self.bench.is_whole:
            rounds = self._races(gate) if gate else self._fills(self.plan.pairs or USUAL_PAIRS)
        overtime_s = OVERTIME_S if len(self.blocks) < LEAST_PAIRS else 0.0
        return Wanted(self.arms, "explore", rounds, overtime_s=overtime_s) if rounds else None

    def _fills(self, pairs: int) -> int:
        """Rounds of the next pair; 0: all are there."""
        if len(self.blocks) >= pairs:
            return 0
        part_s = self.bench.budget.left() / (pairs - len(self.blocks))
        return self.bench.most_rounds(len(self.arms), part_s)

    def _races(self, gate: Gate) -> int:
        """The same under a gate; 0 also where a look has an answer."""
        if self.horizon is None:
            self.horizon = Horizon(self._plan())
        if len(self.blocks) >= self.horizon.planned or self._is_answered(gate, self.horizon):
            return 0
        return self._rounds

    def _plan(self) -> int:
        """Decides how many pairs there will be, and how many rounds each has."""
        left_s, pairs, arms = self.bench.budget.left(), self.plan.pairs, len(self.arms)
        self._rounds = rounds = self.bench.most_rounds(arms, left_s / (pairs or PLANNED_PAIRS))
        tried = len(self.blocks)
        # A first run among measurements of many would scatter more than they do: then it only
        # showed how long runs take, or that a contender does not run.
        if rounds > 1 and all(o.ok for block in self.blocks for o in block.outcomes):
            self._tried = tried
        if pairs is not None:
            return pairs
        each_s = self.bench.executor.cost(arms, rounds)
        more = int(left_s / each_s) if each_s > 0.0 else 0  # what never runs takes none
        return max(LEAST_PAIRS, min(MOST_PAIRS, more + (tried if rounds == 1 else 0)))

    def _is_answered(self, gate: Gate, horizon: Horizon) -> bool:
        if not all(outcome.ok for block in self.blocks for outcome in block.outcomes):
            return is_settled_by_failure(self.blocks)
        if len(self.blocks) not in planned_looks(horizon.planned):
            return False
        found = gate.rule(self.label, self.blocks, horizon)
        for each in found.parts:
            if each.interval is not None:
                ratio, low, high = each.interval.ratio
                of = f"{found.pairs} of {found.planned} pairs: {each.of}"
                self.bench.reporter.say(
                    f"    {of} {ratio:.3f} [{low:.3f}, {high:.3f}]: {GATE_ANSWERS[each.answer]}"
                )
        return found.answer != "not enough data"

    def _is_hopeless(self) -> bool:
        return len(self.blocks) >= _HOPELESS_BLOCKS and not any(b.control.ok for b in self.blocks)

    def _needed_s(self) -> float:
        missing = max(0, LEAST_PAIRS - len(self.blocks))
        rounds = 1 if self.bench.is_whole else LEAST_ROUNDS
        missing_s = missing * self.bench.executor.cost(len(self.arms), rounds)
        return HEADROOM * (self.bench.budget.elapsed() + missing_s)


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
