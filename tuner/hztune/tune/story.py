"""The story of a study: calibrate, search, prove, shrink, seal; then the verdict.

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
    Proof,
    claim_error,
    pair_rounds,
    prove,
    reported,
    reported_each,
    sharpen,
    shrink,
)
from hztune.confirm.proof import REPORTED_ERROR, loss_words
from hztune.errors import StoppedByUser
from hztune.panel import Examination, Panel
from hztune.profile import Verdict
from hztune.progress import percent
from hztune.search import Best, Search
from hztune.space import Space
from hztune.stats import Interval, fixed_interval
from hztune.trial import Bench, Calibration, Ledger, Samples, assess, calibrate, warnings_about

CALIBRATED_BY = 0.08
SEARCHED_BY = 0.55
PROVED_BY = SEARCHED_BY + PROOF_SHARE
SHRUNK_BY = 0.87
SEALED_BY = 0.97
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
    """

    bench: Bench
    space: Space
    seed: int
    max_trials: int | None = None
    panel: Panel | None = None

    def __post_init__(self) -> None:
        """Prepares a study that has decided nothing yet."""
        self.search = Search(self.bench, self.space, self.seed, self.max_trials)
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
            for finalist in self._resumed():
                if (winner := self._prove(finalist, self._shares()[1])) is not None:
                    return self._improved(winner)
            searched_by, proved_by = self._shares()
            self.search.run(searched_by)
            self._take_lead()
            if self._resumed():
                continue
            best = self.search.best()
            if best is None or not self._time_for_proof(proved_by):
                return self._nothing_found()
            if (winner := self._prove(best.record.arm, proved_by)) is not None:
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
            self.search.run(SEALED_BY)
            self.bench.peers.wait()
        self.bench.budget.go_back()

    def _resumed(self) -> list[Arm]:
        """Finalists of an earlier session on this machine that are still to be judged, in order.

        A shortened configuration is not among them: it stands for the one it was made from.
        """
        ledger, judged = self.bench.ledger, {proof.arm.key for proof in self.proofs}
        return [
            record.arm
            for key, record in ledger.confirmed.items()
            if key in ledger.searched and key not in judged
        ]

    def _shares(self) -> tuple[float, float]:
        """By when the next search and the next proof must end."""
        if not self.proofs:
            return SEARCHED_BY, PROVED_BY
        now = self.bench.budget.elapsed() / self.bench.budget.total_s
        return now + _NEXT_SEARCH * max(0.0, SEALED_BY - now), SEALED_BY

    def _time_for_proof(self, share: float) -> bool:
        pair_s = self.bench.executor.cost(2, pair_rounds(self.bench))
        return self.bench.budget.allows(self.bench.least_pairs * pair_s, share)

    def _prove(self, finalist: Arm, share: float) -> Proof | None:
        """The proof of a finalist, None when it failed; then it is out for good."""
        alpha = claim_error(len(self.proofs) + self.bench.ledger.attempts_of_other_machines)
        self.bench.reporter.say(f"finalist {len(self.proofs) + 1}: {finalist.text}")
        proof = prove(self.bench, self.control, finalist, alpha=alpha, share=share, phase="confirm")
        self.proofs.append(proof)
        if proof.succeeded:
            return proof
        self.search.refuse(finalist)
        self.bench.reporter.say(f"not confirmed ({self._reason(proof)}){_seen(proof)}")
        return None

    def _reason(self, proof: Proof) -> str:
        """Why a finalist is not confirmed."""
        if proof.answer == "over_loss":
            return loss_words(self.bench, self.bench.ledger.fresh(proof.arm))
        return REASONS[proof.answer]

    def _improved(self, proof: Proof) -> Decision:
        """Shortens the winner, seals what is left with fresh pairs of its own, and decides."""
        assert proof.interval is not None  # a proof needs more pairs than an interval
        if self.bench.ledger.default_breaks_limit:
            return self._saved(proof, proof.interval)
        gain = proof.interval.estimate
        self.bench.reporter.say(f"confirmed{_seen(proof)}")
        space = self.space.part(proof.arm.allocator)
        shorter = shrink(self.bench, space, proof.arm, gain, SHRUNK_BY)
        shorter = self._safe(shorter, gain, {})
        arm, interval = self._seal(proof, shorter)
        why = f"{percent(interval.estimate)} on {interval.pairs} fresh pairs of processes"
        return self._decision("improved", arm, interval, why)

    def _saved(self, proof: Proof, interval: Interval) -> Decision:
        """The verdict where the default breaks the memory limit, and the finalist keeps it."""
        limit = self.bench.ledger.limit
        assert limit is not None  # or nothing would have to be saved
        self._safe(proof.arm, interval.estimate, {}, may_remove=False)
        verdict: Verdict = "improved" if proof.answer == "proved" else "within_limit"
        why = (
            f"it keeps {limit.text} of memory on {interval.pairs} fresh pairs of processes, which "
            f"the default does not, at {percent(interval.estimate)} speed"
        )
        return self._decision(verdict, proof.arm, interval, why)

    def _safe(
        self, winner: Arm, gain: float, gains: Mapping[str, float], *, may_remove: bool = True
    ) -> Arm:
        """What the panel leaves of a winner; its fresh pairs are still to be measured, if any went.

        Args:
            winner: What would be emitted.
            gain: Its log ratio to the default, for the progress.
            gains: What each of its parameters was proved to add, log units, as far as it is known.
            may_remove: Whether what is left would be proved.
        """
        if self.panel is None:
            return winner
        budget, space = self.bench.budget, self.space.part(winner.allocator)
        self.examined = self.panel.examine(
            self.bench,
            space,
            self.control,
            winner,
            gains=gains,
            gain=gain,
            seconds=budget.reserved_s,
            may_remove=may_remove,
        )
        budget.release()
        return self.examined.arm

    @property
    def _left_out(self) -> bool:
        """Whether the panel has left anything out."""
        return self.examined is not None and bool(self.examined.left_out)

    def _seal(self, proof: Proof, shorter: Arm) -> tuple[Arm, Interval]:
        """The configuration to emit: the shorter one if its own fresh pairs hold the gain."""
        assert proof.interval is not None
        if shorter not in (proof.arm, self.control):
            said = f"{len(shorter.params)} of {len(proof.arm.params)} parameters seem to matter"
            self.bench.reporter.say(f"{said}: {shorter.text}")
            self.bench.ledger.start_fresh(shorter)
            sealed = prove(
                self.bench,
                self.control,
                shorter,
                alpha=REPORTED_ERROR,
                share=SEALED_BY,
                phase="seal",
            )
            if sealed.answer == "proved" and (self._left_out or self._holds(proof, sealed)):
                interval = sharpen(self.bench, self.control, shorter, share=SEALED_BY)
                return shorter, _positive(interval, sealed.interval)
            self.bench.reporter.say("the shorter one is not proved to hold the gain: all are kept")
        interval = sharpen(self.bench, self.control, proof.arm, share=SEALED_BY)
        return proof.arm, _positive(interval, proof.interval)

    def _holds(self, proof: Proof, sealed: Proof) -> bool:
        """Whether the shorter one's gain is within what was proved for the longer one."""
        assert proof.interval is not None and sealed.interval is not None
        return sealed.interval.estimate >= proof.interval.low

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
        record = self.bench.ledger.confirmed.get(arm.key)
        interval = reported(record) if record else None
        return self._decision("interrupted", arm, interval, "stopped by the user; not a claim")

    def _decision(
        self, verdict: Verdict, arm: Arm, interval: Interval | None, why: str
    ) -> Decision:
        record = self.bench.ledger.confirmed.get(arm.key)
        each = reported_each(record) if record else ()
        proofs, examined = tuple(self.proofs), self.examined
        return Decision(
            verdict, arm, interval, self.calibration, proofs, why, each, examined=examined
        )


REASONS = {
    "futile": "its gain is below what this budget can prove",
    "out_of_time": "time is up before its gain is proved",
    "failed": "it failed in a fresh process",
    "over_limit": "it is not shown to keep the memory limit",
    "over_loss": "it is not shown to lose at most what --max-loss allows on each workload",
    "dominated": "another one is faster and takes no more memory, or hardly more",
}


def _least_memory(ledger: Ledger) -> str:
    """Why the memory limit cannot be kept: the least that was found."""
    assert ledger.limit is not None  # or there was nothing to keep
    why = f"nothing was shown to keep {ledger.limit.text} of memory, and the default does not"
    records = [*ledger.searched.values(), *ledger.confirmed.values()]
    measured = [record for record in records if record.rss and not record.failures]
    if not measured:
        return why
    least = min(measured, key=_rss_ratio)
    return f"{why}; the least is {_rss_ratio(least):.2f}x of its memory, by {least.arm.text}"


def _rss_ratio(record: Samples) -> float:
    return math.exp(sum(record.rss) / len(record.rss))


def _seen(proof: Proof) -> str:
    """The interval of a proof in words, or nothing when there is none."""
    if proof.interval is None:
        return ""
    ratio, low, high = proof.interval.ratio
    return f": {ratio:.3f}x [{low:.3f}, {high:.3f}] on {proof.interval.pairs} pairs"


def _positive(interval: Interval | None, otherwise: Interval | None) -> Interval:
    """The newest interval of a proved gain; the proof's own should that one reach zero.

    Both cover at once (see stats.sequential), so that choosing between them costs nothing.
    """
    chosen = interval if interval is not None and interval.low > 0.0 else otherwise
    assert chosen is not None
    return chosen


def _around_zero(aa: list[float]) -> Interval | None:
    """What the default is against itself: no gain, as exactly as the calibration knows."""
    if len(aa) < 2:
        return None
    half = fixed_interval(aa, REPORTED_ERROR).half_width
    return Interval(0.0, -half, half, len(aa))
