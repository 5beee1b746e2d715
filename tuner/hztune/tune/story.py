"""The story of a study: calibrate, search, prove parameter by parameter; then the verdict.

Nothing here knows processes, files or the wall clock: an executor measures, a budget says how much
time is left, and every decision is a function of the ledger. So a study that was stopped is told
again from its blocks and goes on where it ended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hztune.blocks import Arm
from hztune.confirm import (
    PROOF_SHARE,
    REPORTED_ERROR,
    Proof,
    Step,
    affordable_pairs,
    claim_error,
    difference,
    given_up,
    prove,
    reported,
    reported_each,
)
from hztune.confirm.proof import loss_words
from hztune.errors import StoppedByUser
from hztune.panel import Examination, Panel
from hztune.prior import NOTHING, Prior
from hztune.profile import Verdict
from hztune.progress import percent
from hztune.search import MOST_STEPS, Best, Chain, Search
from hztune.space import Space
from hztune.stats import Interval, fixed_interval
from hztune.trial import (
    PAIRS,
    ArmRecord,
    Bench,
    Calibration,
    Ledger,
    assess,
    calibrate,
    warnings_about,
)

CALIBRATED_BY = 0.08
SEARCHED_BY = 0.52
PROVED_BY = 0.97
"""The shares of the budget by which each phase ends; what one leaves, the next may use."""

_NEXT_SEARCH = 0.45
"""Part of what is left that a further search gets after a finalist was refused."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How a study ended.

    Attributes:
        verdict: What is claimed.
        arm: What the profile carries; the default unless a gain was proved (or interrupted).
        interval: Of the arm's log ratio to the default, from fresh pairs; None: not measured.
        calibration: What the study could see; None when it ended before.
        proofs: Every attempt to prove a gain, in order.
        why: The verdict's reason in one sentence.
        each: The interval on each of several workloads; empty where there is one only.
        steps: What each parameter of the arm is proved to add, in order; empty without a proof.
        memory: Of the arm's log ratio of peak memory, where a front was sought; else None.
        front: The decision for each member of a front, the fastest first; empty where none was
            sought, or where the default is alone on it.
        examined: What the panel has shown of the winner; None: there is no panel, or no winner.
    """

    verdict: Verdict
    arm: Arm
    interval: Interval | None
    calibration: Calibration | None
    proofs: tuple[Proof, ...]
    why: str
    each: tuple[Interval | None, ...] = ()
    steps: tuple[Step, ...] = ()
    memory: Interval | None = None
    front: tuple[Decision, ...] = ()
    examined: Examination | None = None


@dataclass
class Story:
    """A study that can be run, stopped and run again.

    Attributes:
        bench: Where blocks are measured; its ledger may hold blocks of an earlier session.
        space: What may be proposed.
        seed: Of everything that is chosen at random.
        max_trials: Most configurations to search; None: as many as there is time for.
        panel: Other workloads on which the winner is examined; None: there are none.
        prior: With what the search begins; the proof does not know of it.
    """

    bench: Bench
    space: Space
    seed: int
    max_trials: int | None = None
    panel: Panel | None = None
    prior: Prior = NOTHING

    def __post_init__(self) -> None:
        """Prepares a study that has decided nothing yet."""
        self.search = Search(
            self.bench, self.space, self.seed, self.max_trials, odds=self.prior.odds
        )
        self.calibration: Calibration | None = None
        self.proofs: list[Proof] = []
        self.examined: Examination | None = None

    @property
    def control(self) -> Arm:
        """What everything is compared with."""
        return self.search.control

    def run(self) -> Decision:
        """Tells the story to its end; an interruption ends it with the best so far."""
        try:
            calibrate(self.bench, self.control, CALIBRATED_BY)
            self._assess()
            return self._decide()
        except (KeyboardInterrupt, StoppedByUser):
            return self._interrupted()

    def _assess(self) -> None:
        """Says what this study can see, before it looks."""
        confirm_s, alpha = self._planned()
        self.calibration = assess(self.bench, confirm_s, alpha)
        self.bench.calibrated(self.calibration.floor, self.calibration.least_pairs)
        warnings = warnings_about(self.bench, self.calibration)
        for line in (self.calibration.line(), *warnings):
            self.bench.reporter.say(line)

    def _planned(self) -> tuple[float, float]:
        """Seconds for the pairs of a finalist, and the error that its claim may use."""
        return self.bench.budget.total_s * PROOF_SHARE, claim_error(0)

    def _decide(self) -> Decision:
        """Searches and proves until a gain is proved, or no candidate or no time is left."""
        if self._resumed():
            self._take_lead()
        while True:
            resumed = self._resumed()
            for chain in resumed[:-1]:
                self._refuse(given_up(self.bench, self.control, chain.arms, alpha=self._alpha()))
            if resumed and (winner := self._prove(resumed[-1])) is not None:
                return self._improved(winner)
            self.search.run(self._searched_by())
            self._take_lead()
            if self._resumed():
                continue
            finalist = self.search.finalist(self._most_steps())
            if finalist is None or not self._time_for_proof():
                return self._nothing_found()
            if (winner := self._prove(finalist)) is not None:
                return self._improved(winner)

    def _take_lead(self) -> None:
        """Waits until this worker decides; while the one that does searches, it searches, too.

        The time in which it waited for one that has died is no time of the study.

        Raises:
            EndedElsewhere: Another worker has come to the verdict.
        """
        if self.bench.lead():
            return
        self.bench.reporter.say("another worker proves its finalist; this one stands by")
        while not self.bench.lead():
            self.search.run(PROVED_BY)
            self.bench.peers.wait()
        self.bench.budget.go_back()

    def _resumed(self) -> list[Chain]:
        """Chains of an earlier session on this machine that are still to be judged, in order.

        No two attempts at a proof begin with the same arm: where one fails, its first arm is out.
        The first block of a proof holds its whole chain; later ones hold the beginning of it.
        """
        chains: dict[Arm, tuple[Arm, ...]] = {}
        for block in self.bench.ledger.own_blocks():
            if block.role == "confirm":
                arms = tuple(outcome.arm for outcome in block.outcomes[1:])
                chains.setdefault(arms[0], arms)
        judged = {proof.first for proof in self.proofs}
        return [Chain(arms) for first, arms in chains.items() if first not in judged]

    def _searched_by(self) -> float:
        """The share of the budget by which the next search must end."""
        if not self.proofs:
            return SEARCHED_BY
        now = self.bench.budget.elapsed() / self.bench.budget.total_s
        return now + _NEXT_SEARCH * max(0.0, PROVED_BY - now)

    def _most_steps(self) -> int:
        """Configurations of a chain for which the time left holds the pairs of a proof."""
        pairs = max(PAIRS, self.bench.least_pairs)
        for arms in range(MOST_STEPS, 1, -1):
            if affordable_pairs(self.bench, arms, PROVED_BY) >= pairs:
                return arms
        return 1

    def _time_for_proof(self) -> bool:
        return affordable_pairs(self.bench, 1, PROVED_BY) >= self.bench.least_pairs

    def _prove(self, chain: Chain) -> Proof | None:
        """The proof of a finalist, None when it failed; then it is out for good."""
        self.bench.reporter.say(f"finalist {len(self.proofs) + 1}: {self._told(chain)}")
        proof = prove(self.bench, self.control, chain.arms, alpha=self._alpha(), until=PROVED_BY)
        if not proof.succeeded:
            self._refuse(proof)
            return None
        self.proofs.append(proof)
        return proof

    def _alpha(self) -> float:
        """The error that the next proof may use."""
        return claim_error(len(self.proofs) + self.bench.ledger.attempts_of_other_machines)

    def _refuse(self, proof: Proof) -> None:
        """Leaves a chain out for good: its proof has failed."""
        self.proofs.append(proof)
        self.search.refuse(proof.first)
        self.bench.reporter.say(f"not confirmed ({self._reason(proof)}){_seen(proof)}")

    def _told(self, chain: Chain) -> str:
        """What a proof will add, one after another."""
        steps = zip(chain.arms, (self.control, *chain.arms), strict=False)
        return ", then ".join(difference(arm, before) for arm, before in steps)

    def _reason(self, proof: Proof) -> str:
        """Why a finalist is not confirmed."""
        if proof.answer == "over_loss":
            return loss_words(self.bench.ledger, self.bench.ledger.fresh(proof.arm, proof.first))
        return REASONS[proof.answer]

    def _improved(self, proof: Proof) -> Decision:
        """The verdict of a proved gain."""
        assert proof.interval is not None  # a proof needs more pairs than an interval
        if self.bench.ledger.default_breaks_limit:
            return self._saved(proof, proof.interval)
        self.bench.reporter.say(f"confirmed{_seen(proof)}")
        for step in proof.steps[1:]:
            if not step.succeeded:
                said = difference(step.arm, step.before)
                self.bench.reporter.say(f"left out: {said} is not proved to add anything")
        arm, interval, steps = self._safe(proof)
        if interval is None:
            return self._harmful(proof)
        why = f"{percent(interval.estimate)} on {interval.pairs} fresh pairs of processes"
        return self._decision("improved", arm, interval, why, steps)

    def _saved(self, proof: Proof, interval: Interval) -> Decision:
        """The verdict where the default breaks the memory limit, and the finalist keeps it."""
        limit = self.bench.ledger.limit
        assert limit is not None  # or nothing would have to be saved
        if self.panel is not None:
            self._examine(proof.arm, interval.estimate, {}, may_remove=False)
        verdict: Verdict = "improved" if proof.answer == "proved" else "within_limit"
        why = (
            f"it keeps {limit.text} of memory on {interval.pairs} fresh pairs of processes, which "
            f"the default does not, at {percent(interval.estimate)} speed"
        )
        return self._decision(verdict, proof.arm, interval, why, proof.steps)

    def _safe(self, proof: Proof) -> tuple[Arm, Interval | None, tuple[Step, ...]]:
        """What the panel leaves of a winner: up to the first parameter that it leaves out.

        Returns:
            The configuration, its interval and its steps; no interval where nothing is left.
        """
        steps = tuple(step for step in proof.steps if step.succeeded)
        if self.panel is None:
            return proof.arm, proof.interval, steps
        gains = {
            name: step.interval.estimate
            for step in steps
            for name in step.added
            if step.interval is not None
        }
        assert proof.interval is not None  # it is proved
        examined = self._examine(proof.arm, proof.interval.estimate, gains)
        left_out = {name for one in examined.left_out for name in one.harm.params}
        for place, step in enumerate(steps):
            if left_out & {*step.added}:
                last = steps[place - 1] if place else None
                return (
                    last.arm if last else self.control,
                    reported(self.bench.ledger.fresh(last.arm, proof.first)) if last else None,
                    steps[:place],
                )
        return proof.arm, proof.interval, steps

    def _examine(
        self, winner: Arm, gain: float, gains: Mapping[str, float], *, may_remove: bool = True
    ) -> Examination:
        """Has the panel look at a winner.

        Args:
            winner: What would be emitted.
            gain: Its log ratio to the default, for the progress.
            gains: What each of its parameters was proved to add, log units.
            may_remove: Whether the study can do without one of them.
        """
        assert self.panel is not None  # the caller has looked
        budget, space = self.bench.budget, self.space.part(winner.allocator)
        self.examined = self.panel.examine(
            self.bench,
            space,
            self.control,
            winner,
            gain=gain,
            gains=gains,
            seconds=budget.reserved_s,
            may_remove=may_remove,
        )
        budget.release()
        return self.examined

    def _harmful(self, proof: Proof) -> Decision:
        """The verdict where what is gained is not worth the harm that it does elsewhere."""
        why = f"{proof.arm.text} is faster, but not worth the harm that it does to other programs"
        return self._decision("no_gain", self.control, None, why)

    def _nothing_found(self) -> Decision:
        """The verdict when nothing was proved better than the default."""
        ledger = self.bench.ledger
        records = ledger.searched.values()
        if ledger.default_breaks_limit:
            return self._decision("infeasible", self.control, None, _least_memory(ledger))
        if records and not any(record.feasible for record in records):
            why = "no configuration beside the default ran within the limits"
        elif not self.proofs and self.search.best() is not None:
            why = f"no time was left for the {self.bench.least_pairs} fresh pairs of a claim"
        elif not self.proofs:
            why = "no configuration promised more than the default"
        else:
            why = f"{len(self.proofs)} finalist(s) did not beat the default on fresh pairs"
        aa = [pair.log_ratio for pair in ledger.own_calibration]
        return self._decision("no_gain", self.control, _around_zero(aa), why)

    def _interrupted(self) -> Decision:
        """The best so far, without a claim."""
        proved = [proof for proof in self.proofs if proof.succeeded]
        best: Best | None = self.search.best()
        arm = proved[-1].arm if proved else best.record.arm if best else self.control
        record = self.bench.ledger.fresh_by_arm.get(arm.key)
        interval = reported(record) if record else None
        return self._decision("interrupted", arm, interval, "stopped by the user; not a claim")

    def _decision(
        self,
        verdict: Verdict,
        arm: Arm,
        interval: Interval | None,
        why: str,
        steps: tuple[Step, ...] = (),
    ) -> Decision:
        record = self.bench.ledger.fresh_by_arm.get(arm.key)
        each = reported_each(record) if record else ()
        return Decision(
            verdict,
            arm,
            interval,
            self.calibration,
            tuple(self.proofs),
            why,
            each,
            steps,
            examined=self.examined,
        )


REASONS = {
    "futile": "its gain is below what this budget can prove",
    "out_of_time": "time is up before its gain is proved",
    "failed": "it failed in a fresh process",
    "over_limit": "it is not shown to keep the memory limit",
    "over_loss": "it is not shown to lose at most what --max-loss allows on each workload",
    "dominated": "another one dominates it: faster, and no more memory, or hardly more",
}


def _least_memory(ledger: Ledger) -> str:
    """Why the memory limit cannot be kept: the least that was found."""
    assert ledger.limit is not None  # or there was nothing to keep
    why = f"nothing was shown to keep {ledger.limit.text} of memory, and the default does not"
    records = [*ledger.searched.values(), *ledger.fresh_by_arm.values()]
    measured = [record for record in records if record.rss and not record.failures]
    if not measured:
        return why
    least = min(measured, key=_rss_ratio)
    return f"{why}; the least is {_rss_ratio(least):.2f}x of its memory, by {least.arm.text}"


def _rss_ratio(record: ArmRecord) -> float:
    return math.exp(sum(record.rss) / len(record.rss))


def _seen(proof: Proof) -> str:
    """The interval of a proof in words, or nothing when there is none."""
    if proof.interval is None:
        return ""
    ratio, low, high = proof.interval.ratio
    pairs = f"{proof.interval.pairs} pairs"
    if proof.interval.pairs < proof.planned:
        pairs = f"{proof.interval.pairs} of {proof.planned} planned pairs"
        pairs += ", then the time was up" if proof.time_is_up else ""
    return f": {ratio:.3f}x [{low:.3f}, {high:.3f}] on {pairs}"


def _around_zero(aa: list[float]) -> Interval | None:
    """What the default is against itself: no gain, as exactly as the calibration knows."""
    if len(aa) < 2:
        return None
    half = fixed_interval(aa, REPORTED_ERROR).half_width
    return Interval(0.0, -half, half, len(aa))
