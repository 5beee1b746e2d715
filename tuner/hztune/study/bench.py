"""The workbench: where every phase of a study has its blocks measured, entered and reported."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple, Protocol, TypeVar

from hztune import machine, process
from hztune.blocks import Arm, Block, ProofPlan, Role, Turn
from hztune.errors import HztuneError, OutOfTime, StoppedByUser
from hztune.measure import Executor
from hztune.progress import Reporter, StudyStatus
from hztune.stats.intervals import FIRST_LOOK, LEAST_PLANNED
from hztune.stats.noise import Noise
from hztune.study.ledger import Ledger

LATE_S = 7.0  # seconds after the end of a budget at which whatever still runs is ended


PANEL_SHARE = 0.08  # part of a budget that is reserved for the panel

PANEL_LEAST_S = 5.0  # below, there is hardly time for three pairs on each of two workloads

PROGRAM_SHARE = 0.35  # part of a budget that is kept for the program on whose trace is searched

Clock = Callable[[], float]  # seconds since any fixed moment; never goes back


def system_clock() -> float:
    return time.monotonic() - machine.waited_s()


@dataclass
class Budget:
    clock: Clock  # where the time comes from
    total_s: float  # all of it that the phases share
    spent_s: float = 0.0  # what earlier sessions of the same study used of it
    reserved_s: float = 0.0  # what stands beside `total_s` for the panel, until it is released
    kept_s: float = 0.0  # what stands beside both for the proof on the program
    part: float = 1.0  # what the phases would have of a larger budget, as a part of it

    @classmethod
    def divided(cls, clock: Clock, seconds: float, *, panel: bool, program: bool) -> Budget:
        panel_s, program_s = PANEL_SHARE * seconds * panel, PROGRAM_SHARE * seconds * program
        part = 1.0 - (panel_s + program_s) / seconds
        panel_s = panel_s if panel_s >= PANEL_LEAST_S else 0.0
        return cls(clock, seconds - panel_s - program_s, 0.0, panel_s, program_s, part)

    def __post_init__(self) -> None:
        self._started = self.clock()
        self._waited_before_s = machine.waited_s()

    def running(self) -> AbstractContextManager[None]:
        """Ends whatever runs LATE_S after the budget, and the block, with OutOfTime."""
        return process.limited(lambda: self.total_s + self.beside_s + LATE_S - self.elapsed())

    @property
    def waited_s(self) -> float:
        """Seconds that its thread has waited for another study since the budget began."""
        return machine.waited_s() - self._waited_before_s

    @property
    def beside_s(self) -> float:
        return self.reserved_s + self.kept_s

    def elapsed(self) -> float:
        """Seconds used so far, those of earlier sessions included."""
        return self.spent_s + self.clock() - self._started

    def release(self) -> None:
        self.total_s, self.reserved_s = self.total_s + self.reserved_s, 0.0

    def left(self, share: float = 1.0) -> float:
        """Seconds left until `share` of the budget is used; below 0 when it is overdrawn."""
        return self.total_s * share - self.elapsed()

    def allows(self, seconds: float, share: float = 1.0) -> bool:
        return seconds <= self.left(share)


Stop = Callable[[], bool]


LEAST_ROUNDS = 4
"""Rounds of a process that was expensive to start: they show what its turns scatter."""

MOST_ROUNDS = 200
WARMUP_SHARE = 0.28
"""Most of the measuring time that may be warm-up; rounds are added until it holds."""

SHORT_S = 0.05  # a whole program that takes less is run several times for one measurement

_MOST_REPEATS = 10
_MOST_VOID = 3
_FREE_START = 0.05
_LEAST_START_S = 1e-3


Note = Callable[[ProofPlan | None], None]  # told of the proof that the next block belongs to


class Wanted(NamedTuple):
    """A block that would tell more."""

    arms: Sequence[Arm]  # the control first
    role: Role
    rounds: int
    executor: Executor | None = None  # None: that of the study
    plan: ProofPlan | None = None
    overtime_s: float = 0.0  # by which it may end late


class Inquiry(Protocol):
    """What fresh blocks are to answer."""

    def wanted(self) -> Wanted | None:
        """The next block; None: everything is answered, or more would be in vain."""

    def tell(self) -> None:
        """Tells the user what is known when a block has been entered."""
        return None


Asked = TypeVar("Asked", bound=Inquiry)


@dataclass
class Workbench:
    executor: Executor  # what measures
    ledger: Ledger  # where every block is entered
    budget: Budget  # the time that is left
    reporter: Reporter  # what is told
    stop: Stop = field(default=lambda: False)  # whether the user wants an end
    note: Note = field(default=lambda plan: None)  # keeps the plan of a proof with its blocks

    def __post_init__(self) -> None:
        self.floor, self._least_pairs = 0.0, FIRST_LOOK
        self._number = -1
        machine.waiting.tell = lambda: self.reporter.warn(
            "another hztune measures here, too (lslocks shows it): the two take turns; waiting is "
            "no part of a budget"
        )

    @property
    def least_pairs(self) -> int:
        """Fresh pairs without which nothing is claimed; where a limit is to be kept, fewer do."""
        is_few = self._least_pairs == FIRST_LOOK and self.ledger.default_breaks_limit
        return LEAST_PLANNED if is_few else self._least_pairs

    def calibrated(self, floor: float, least_pairs: int = FIRST_LOOK) -> None:
        self.floor, self._least_pairs = floor, least_pairs

    def measure(
        self,
        arms: Sequence[Arm],
        role: Role,
        rounds: int,
        executor: Executor | None = None,
        plan: ProofPlan | None = None,
    ) -> Block:
        """Measures one block and enters it; `arms` begins with the control.

        StoppedByUser: the user asked to stop. HztuneError: the control keeps failing.
        """
        number, measuring = self._begun(plan), executor or self.executor
        block = measuring.measure(arms, role=role, rounds=rounds, number=number)
        return self._enter(block, plan)

    def unanswered(self, inquiries: Sequence[Asked], until_s: float) -> list[Asked]:
        """Measures a block of each in rotation until all are answered, or have no time left.

        `until_s`: second of the budget by which the last block ends. It raises what `measure` does.
        """
        late: list[Asked] = []
        while True:
            asked = [(each, each.wanted()) for each in inquiries if each not in late]
            if not any(wanted for _, wanted in asked):
                return late
            for each, wanted in asked:
                if wanted is None:
                    continue
                cost_s = (wanted.executor or self.executor).cost(len(wanted.arms), wanted.rounds)
                try:
                    if cost_s > until_s + wanted.overtime_s - self.budget.elapsed():
                        raise OutOfTime
                    arms, role, rounds, executor, plan, _ = wanted
                    self.measure(arms, role, rounds, executor, plan)
                    each.tell()
                except OutOfTime:
                    late.append(each)

    def search(self, arms: Sequence[Arm], rounds: int) -> None:
        """Measures a block of the search as `measure` does; on a cluster it is entered later."""
        number = self._begun(None)
        for block in self.executor.submit(arms, role="search", rounds=rounds, number=number):
            self._enter(block, None)

    def collect(self) -> bool:
        """Enters what has come back, waiting for at least one block; false: none is awaited."""
        found = self.executor.collect()
        for block in found:
            self._enter(block, None)
        return bool(found)

    def _begun(self, plan: ProofPlan | None) -> int:
        if self.stop():
            raise StoppedByUser("stopped by the user")
        self.note(plan)
        self._number = max(self.ledger.next_number, self._number + 1)
        return self._number

    def _enter(self, block: Block, plan: ProofPlan | None) -> Block:
        block = replace(block, machine=block.machine or self.ledger.machine, plan=plan)
        self.ledger.add(block)
        self._refuse_dead_control()
        return block

    def rounds(self, arms: int, most_s: float, noise: Noise | None = None) -> int:
        """Rounds for each process of a block: the least variance a second.

        But enough that warm-up keeps to its share, and above all no more than `most_s` seconds: few
        long blocks would leave the scatter between processes, and with it every interval, unknown.
        """
        if self.is_whole:
            return self.repeats()
        start, each = self.costs()
        most = self.most_rounds(arms, most_s)
        noise = noise or self.ledger.noise()
        return noise.best_rounds(start, each, min(self.least_rounds(), most), most)

    def most_rounds(self, arms: int, seconds: float) -> int:
        start, each = self.costs()
        least = 1 if self.is_whole else LEAST_ROUNDS
        return max(least, min(MOST_ROUNDS, int((seconds / arms - start) / each)))

    def least_rounds(self) -> int:
        """Rounds with which warm-up takes no more than its share: those so far, scaled.

        A session that goes on and has measured nothing keeps to those of the one before.
        """
        rounds = [o.rounds for b in self.ledger.own_blocks() for o in b.outcomes if o.rounds]
        used = self.executor.accounting
        if not rounds:
            return LEAST_ROUNDS
        usual = sum(rounds) / len(rounds)
        if used.measured_s <= 0.0:
            return max(LEAST_ROUNDS, round(usual))
        allowed = WARMUP_SHARE / (1.0 - WARMUP_SHARE)
        return max(LEAST_ROUNDS, math.ceil(usual * used.warmup_s / used.measured_s / allowed))

    @property
    def is_whole(self) -> bool:
        """Whether a fresh process costs no more than another round: whole programs."""
        start, each = self.costs()
        return start <= max(_LEAST_START_S, _FREE_START * each)

    def repeats(self) -> int:
        seconds = self.run_s()
        return 1 if seconds is None else max(1, min(_MOST_REPEATS, math.ceil(SHORT_S / seconds)))

    def run_s(self) -> float | None:
        """Usual seconds of a run of the default; None: there was none."""
        seconds = [1e-9 * run.counted_ns for runs in self.default_moments() for run in runs]
        return median(seconds) if seconds else None

    def default_moments(self) -> list[list[Turn]]:
        """Every run of the calibration, the default by itself: what was measured side by side."""
        moments: dict[tuple[int, int], list[Turn]] = {}
        for block in self.ledger.own_blocks("aa"):
            for run in (run for outcome in block.outcomes for run in outcome.turns):
                moments.setdefault((block.number, run.round), []).append(run)
        return [*moments.values()]

    def costs(self) -> tuple[float, float]:
        """Seconds that a process costs before its first round, and for each round."""
        few, many = self.executor.cost(2, 1), self.executor.cost(2, 11)
        each = (many - few) / 20.0
        return max(_LEAST_START_S, few / 2.0 - each), max(1e-4, each)

    def tell(
        self,
        phase: str,
        best: float = 0.0,
        error: float = math.inf,
        *,
        pairs: int = 0,
        planned: int = 0,
        subject: str = "",
    ) -> None:
        failed = sum(bool(record.failures) for record in self.ledger.searched.values())
        left_s = self.budget.left() + self.budget.beside_s
        status = StudyStatus(phase, len(self.ledger.searched), failed, best, error, self.floor,
                             left_s, pairs, planned, subject)  # fmt: skip
        self.reporter.update(status)

    def _refuse_dead_control(self) -> None:
        # a comparison goes on, and says how often it failed
        last = [b for b in self.ledger.own_blocks() if b.role != "explore"][-_MOST_VOID:]
        if len(last) == _MOST_VOID and not any(block.control.ok for block in last):
            control = last[-1].control
            raise HztuneError(
                f"the control failed {_MOST_VOID} times in a row ({control.words}); mend that "
                "first: nothing can be compared with it"
            )
