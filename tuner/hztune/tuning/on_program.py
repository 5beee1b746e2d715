"""The last proof of a study that searched on a trace: fresh pairs of the program itself.

On a bench of its own the default is measured against itself first, then beside the one
configuration that the trace has left. No other decision looks at these blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hztune.blocks import Arm, Block, Role, spent_s
from hztune.measure import Around, Executor
from hztune.profile import TOLD_FROM
from hztune.progress import percent
from hztune.rests import MEMORIES, MemoryKind
from hztune.result import REASONS, Decision
from hztune.stats.intervals import FIRST_LOOK
from hztune.study.bench import PROGRAM_SHARE, Budget, Workbench
from hztune.study.calibration import (
    COPIES,
    FIRST_RUN,
    HEADROOM,
    LEAST_BLOCKS,
    SHORTER,
    TooLittleTime,
    assess,
    calibrate,
)
from hztune.study.ledger import Ledger
from hztune.study.proof import claim_error, prove

_CALIBRATED_BY = 0.25
_PROVED_BY = 0.98


@dataclass
class _Beside(Around):
    ledger: Ledger  # of the study
    label: str  # what the program is called

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        number = self.ledger.next_number
        block = self.inner.measure(arms, role=role, rounds=rounds, number=number)
        self.ledger.add(replace(block, workload=self.label, machine=self.ledger.machine))
        return block


@dataclass(frozen=True)
class LastProof:
    executor: Executor  # what measures the program
    label: str  # what the program is called

    def require_enough(self, control: Arm, seconds: float) -> None:
        """Raises TooLittleTime, before anything is searched, with the budget that would do."""
        self.executor.prepare(control)
        needed_s = LEAST_BLOCKS * self.executor.cost(COPIES, 1)
        needed_s += FIRST_LOOK * self.executor.cost(2, 1)
        if needed_s <= FIRST_RUN * _PROVED_BY * seconds:
            return
        enough_s = math.ceil(HEADROOM * needed_s / (_PROVED_BY * PROGRAM_SHARE))
        parts = f"a calibration and the {FIRST_LOOK} fresh pairs of a claim on {self.label} itself"
        raise TooLittleTime(parts, needed_s, seconds, enough_s, SHORTER)

    def verdict(self, study: Workbench, control: Arm, found: Decision) -> Decision:
        earlier = [replace(block, workload="") for block in study.ledger.on_program]
        seconds = study.budget.kept_s + max(0.0, study.budget.left())
        budget = Budget(study.budget.clock, seconds, spent_s(earlier))
        ledger = Ledger.of(earlier, machine=study.ledger.machine)
        beside = _Beside(self.executor, study.ledger, self.label)
        self.executor.recall(earlier)
        bench = Workbench(beside, ledger, budget, study.reporter, study.stop, note=study.note)
        study.reporter.say(f"on {self.label} itself: {found.arm.text}")
        calibrate(bench, control, _CALIBRATED_BY)
        calibration = assess(bench, (_PROVED_BY - _CALIBRATED_BY) * seconds, claim_error(0))
        study.reporter.say(calibration.line())
        proof = prove(bench, control, (found.arm,), alpha=claim_error(0), until=_PROVED_BY)
        record, interval = ledger.fresh_by_arm.get(found.arm.key), proof.interval
        price = price_words({"rss": record.ratio_of("rss") if record else None})
        on_trace = f"on its trace, {found.why}"
        seen = replace(found, calibration=calibration, each=(), on_program=ledger)
        told = f": {interval.text} on {interval.pairs} fresh pairs" if interval else ""
        if proof.succeeded and interval is not None:
            study.reporter.say(f"confirmed on {self.label} itself{told}")
            why = f"{percent(interval.estimate)} on {interval.pairs} fresh pairs of {self.label} "
            why += f"itself{price}; {on_trace}"
            return replace(seen, interval=interval, why=why)
        reason = f"{self.label} itself does not confirm it ({REASONS[proof.answer]}){told}"
        study.reporter.say(f"not confirmed: {reason}")
        aa, why = ledger.against_itself(), f"{on_trace}, but {reason}"
        return replace(seen, arm=control, verdict="no_gain", interval=aa, why=why, steps=())


def price_words(ratios: Mapping[MemoryKind, float | None]) -> str:
    """What a gain costs in memory, tuned / default; "" where it hardly does."""
    told = [
        f"{ratio:.2f} times the {MEMORIES[kind]}"
        for kind, ratio in ratios.items()
        if ratio is not None and ratio > TOLD_FROM
    ]
    return f", at {' and '.join(told)}" if told else ""
