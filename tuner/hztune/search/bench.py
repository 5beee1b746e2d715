"""The bench: where every phase of a study has its blocks measured, entered and reported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from hztune.errors import HztuneError, StoppedByUser
from hztune.measure import Executor
from hztune.progress import Reporter, Status
from hztune.samples import Arm, Block, Role
from hztune.search.budget import Budget, Stop
from hztune.search.ledger import Ledger

LEAST_ROUNDS = 4
"""Rounds of a process that was expensive to start: they show what its turns scatter."""

MOST_ROUNDS = 200
WARMUP_SHARE = 0.28
"""Most of the measuring time that may be warm-up; rounds are added until it holds."""

_MOST_VOID = 3
_FREE_START = 0.05


@dataclass
class Bench:
    """One executor, one ledger, one budget.

    Attributes:
        executor: What measures.
        ledger: Where every block is entered.
        budget: The time that is left.
        reporter: Who is told.
        stop: Whether the user wants an end.
        floor: Noise floor of the study, log units; 0 before the calibration.
    """

    executor: Executor
    ledger: Ledger
    budget: Budget
    reporter: Reporter
    stop: Stop = field(default=lambda: False)
    floor: float = 0.0

    def measure(self, arms: Sequence[Arm], role: Role, rounds: int) -> Block:
        """Measures one block and enters it.

        Raises:
            StoppedByUser: The user asked to stop; nothing was measured.
            HztuneError: The control keeps failing, so that nothing can be compared with it.
        """
        if self.stop():
            raise StoppedByUser("stopped by the user")
        block = self.executor.measure(arms, role=role, rounds=rounds, pair=self.ledger.next_pair)
        self.ledger.add(block)
        self._refuse_dead_control()
        return block

    def rounds(self, arms: int, most_s: float) -> int:
        """Rounds for each process of a block.

        The least variance a second, but enough that warm-up keeps to its share, and above all no
        more than `most_s` seconds: few long blocks would leave the scatter between processes, and
        with it every interval, unknown.
        """
        start, each = self.costs()
        if start < _FREE_START * each:
            return 1  # whole programs: a fresh process costs no more than another round
        most = int((most_s / arms - start) / each)
        most = max(LEAST_ROUNDS, min(MOST_ROUNDS, most))
        return self.ledger.noise().best_rounds(start, each, min(self._least_rounds(), most), most)

    def costs(self) -> tuple[float, float]:
        """Seconds that a process costs before its first round, and for each round."""
        few, many = self.executor.cost(2, 1), self.executor.cost(2, 11)
        each = (many - few) / 20.0
        return max(1e-3, few / 2.0 - each), max(1e-4, each)

    def tell(self, phase: str, best: float = 0.0, error: float = math.inf) -> None:
        """Reports the status."""
        records = self.ledger.searched.values()
        self.reporter.update(
            Status(
                phase=phase,
                trials=self.ledger.trials,
                failed=sum(bool(record.failures) for record in records),
                best=best,
                error=error,
                floor=self.floor,
                left_s=self.budget.left(),
                share=self.budget.elapsed() / self.budget.total_s,
            )
        )

    def _least_rounds(self) -> int:
        """Scales the rounds used so far so that warm-up takes no more than its share."""
        rounds = [len(o.turns) for b in self.ledger.blocks for o in b.outcomes if o.turns]
        used = self.executor.accounting
        if not rounds or used.measured_s <= 0.0:
            return LEAST_ROUNDS
        usual = sum(rounds) / len(rounds)
        allowed = WARMUP_SHARE / (1.0 - WARMUP_SHARE)
        return max(LEAST_ROUNDS, math.ceil(usual * used.warmup_s / used.measured_s / allowed))

    def _refuse_dead_control(self) -> None:
        last = self.ledger.blocks[-_MOST_VOID:]
        if len(last) == _MOST_VOID and not any(block.control.ok for block in last):
            control = last[-1].control
            raise HztuneError(
                f"the control failed {_MOST_VOID} times in a row ({control.status}: "
                f"{control.detail}); mend that first: nothing can be compared with it"
            )
