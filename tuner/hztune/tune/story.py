"""The story of a study: calibrate, then what its aim tells: search and prove; then the verdict.

Nothing here knows processes, files or the wall clock: an executor measures, a budget says how much
time is left, and every decision is a function of the ledger. So a study that was stopped is told
again from its blocks and goes on where it ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hztune.arguments import SPARSE
from hztune.blocks import Arm
from hztune.errors import OutOfTime, StoppedByUser
from hztune.profile import Verdict
from hztune.progress import percent
from hztune.rests import MEMORIES
from hztune.result import Decision, claim_of
from hztune.space import AnySpace
from hztune.stats.intervals import Interval, fixed_interval
from hztune.study.bench import Workbench
from hztune.study.calibration import (
    CALIBRATED_BY,
    LEAST_SLOTS,
    PROVED_BY,
    Calibration,
    TooLittleTime,
    assess,
    calibrate,
    require_enough,
    warnings_about,
)
from hztune.study.ledger import Ledger
from hztune.study.panel import Panel
from hztune.study.proof import Step, against_itself, reported_each
from hztune.study.search import Ranked, Search
from hztune.tune.aims import Aim, Winner
from hztune.tune.on_program import LastProof
from hztune.workload import METRICS


@dataclass
class Story:
    """A study that can be run, stopped and run again."""

    bench: Workbench  # where blocks are measured; its ledger may hold blocks of an earlier session
    space: AnySpace  # what may be proposed
    seed: int  # of everything that is chosen at random
    # most configurations to search; None: as many as there is time for
    max_trials: int | None = None
    # other workloads on which the winner is examined; None: there are none
    panel: Panel | None = None
    metric: str = "ops_per_s"  # what is made better, as the claim names it
    # proves on the program what was found on its trace; None: the trace is all there is
    last: LastProof | None = None
    kind: Callable[[Story], Aim] = Winner  # makes the aim: one winner, or a front
    sampler: str = SPARSE  # what proposes new configurations, by name

    def __post_init__(self) -> None:
        """Prepares a study that has decided nothing yet."""
        self.aim = self.kind(self)
        self.search = Search(
            self.bench, self.space, self.seed, self.max_trials, self.aim.goal, self.sampler
        )
        self.calibration: Calibration | None = None

    @property
    def control(self) -> Arm:
        """What everything is compared with."""
        return self.search.control

    def run(self) -> Decision:
        """Tells the story to its end; an interruption ends it with the best so far."""
        try:
            return self._told()
        except OutOfTime as late:
            return self._without_claim("not_enough_data", str(late))
        except (KeyboardInterrupt, StoppedByUser):
            return self._without_claim("interrupted", "stopped by the user; not a claim")

    def _told(self) -> Decision:
        """The story; where the time does not hold it, what it holds."""
        try:
            self._prepare()
            calibrate(self.bench, self.control, CALIBRATED_BY, require_enough)
            self._assess()
            require_enough(self.bench)
            return self.aim.decide()
        except TooLittleTime as short:
            self.bench.reporter.say(f"{short}; what there is time for is measured")
            self._set_beside()
            raise

    def _set_beside(self) -> None:
        """Measures what the search begins with beside the default, in two blocks or more."""
        bench = self.bench
        rounds = bench.rounds(2, 0.0)
        arms = [arm for arm in self.search.starts if arm != self.control][:LEAST_SLOTS]

        def cost_s(count: int) -> float:
            return bench.executor.cost(1 + count, rounds)

        counts = [*range(len(arms), 1, -1)]
        count = next((n for n in counts if bench.budget.allows(2.0 * cost_s(n))), 1)
        while arms and bench.budget.allows(cost_s(count), PROVED_BY):
            bench.measure([self.control, *arms[:count]], "search", rounds)

    def _prepare(self) -> None:
        """Finds out what a block costs."""
        self.bench.executor.prepare(self.control)
        if self.last is not None and not self.bench.ledger.searched:
            self.last.require_enough(self.control)

    def _assess(self) -> None:
        """Says what this study can see, before it looks."""
        confirm_s, alpha = self.aim.proof_plan()
        self.calibration = assess(self.bench, confirm_s, alpha)
        self.bench.calibrated(self.calibration.floor, self.calibration.least_pairs)
        warnings = warnings_about(self.bench, self.calibration)
        seen = [self.calibration.search_line()] if isinstance(self.aim, Winner) else []
        for line in (self.calibration.line(), *seen, *warnings):
            self.bench.reporter.say(line)

    def nothing_found(self, why: str) -> Decision:
        """The verdict when nothing was proved better than the default.

        Args:
            why: The reason, unless it is that nothing keeps the memory limit.
        """
        ledger = self.bench.ledger
        least = _least_memory(ledger) if ledger.default_breaks_limit else ""
        if cut := self.search.cut_short:
            why = "; ".join(filter(None, (cut, least)))
            return self.decided("not_enough_data", self.control, None, why)
        if least:
            return self.decided("infeasible", self.control, None, least)
        return self.decided("no_gain", self.control, against_itself(ledger), why)

    def _without_claim(self, verdict: Verdict, why: str) -> Decision:
        """The best so far; its interval is of the pairs of the search where there are no others."""
        proved = [proof for proof in self.aim.proofs if proof.succeeded]
        best: Ranked | None = self.search.best()
        arm = proved[-1].arm if proved else best.record.arm if best else self.control
        if proved and self.panel is not None:
            steps = proved[-1].proved_steps
            self.aim.examined = self.panel.known(self.bench, self.control, steps)
        ledger = self.bench.ledger
        record = ledger.fresh_by_arm.get(arm.key) or ledger.searched.get(arm.key)
        logs = record.log_ratios if record else []
        return self.decided(verdict, arm, fixed_interval(logs) if len(logs) > 1 else None, why)

    def gain_words(self, estimate: float) -> str:
        """A gain as a sentence tells it: of memory at rest, how much less it is."""
        if self.metric == METRICS["kept"]:
            return f"{percent(-estimate)} kept memory"
        return percent(estimate)

    def decided(
        self,
        verdict: Verdict,
        arm: Arm,
        interval: Interval | None,
        why: str,
        steps: tuple[Step, ...] = (),
        memory: Interval | None = None,
    ) -> Decision:
        """The decision for an arm, with all that the study has come to know."""
        record = self.bench.ledger.fresh_by_arm.get(arm.key)
        return Decision(
            arm,
            claim_of(self.metric, verdict, interval, memory, self.bench.ledger.memory),
            self.calibration,
            tuple(self.aim.proofs),
            why,
            each=reported_each(record) if record else (),
            steps=steps,
            examined=self.aim.examined,
        )


def _least_memory(ledger: Ledger) -> str:
    """Why the memory limit cannot be kept: the least that was found."""
    assert ledger.limit is not None  # or there was nothing to keep
    why = f"nothing was shown to keep {ledger.limit.words}, and the default does not"
    records = [*ledger.searched.values(), *ledger.fresh_by_arm.values()]
    for memory in {each.memory: None for each in ledger.limit.all()}:
        measured = [
            (ratio, record.arm)
            for record in records
            if (ratio := record.ratio_of(memory)) is not None and not record.failures
        ]
        if measured:
            ratio, arm = min(measured, key=lambda each: each[0])
            why += f"; the least is {ratio:.2f}x of its {MEMORIES[memory]}, by {arm.text}"
    return why
