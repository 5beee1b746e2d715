"""The aim of most studies: one winner, proved parameter by parameter, and examined on a panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hztune.blocks import Arm
from hztune.confirm import (
    Proof,
    Step,
    affordable_pairs,
    claim_error,
    difference,
    given_up,
    prove,
)
from hztune.confirm.proof import loss_words, plan_of
from hztune.panel import Examination
from hztune.profile import TOLD_FROM, Verdict
from hztune.progress import percent
from hztune.rests import MEMORIES, MemoryKind
from hztune.result.decision import REASONS, Decision, claim_of
from hztune.search import MOST_STEPS, Chain, FastestGoal
from hztune.stats import Interval
from hztune.trial import PAIRS
from hztune.trial.division import (
    NEXT_SEARCH,
    PROOF_SHARE,
    PROVED_BY,
    SEARCHED_BY,
    no_time_for_claim,
)
from hztune.tune.aim import Aim

if TYPE_CHECKING:
    from hztune.tune.on_program import LastProof


class Winner(Aim):
    """The part of a story that searches and proves until a gain is proved."""

    goal = FastestGoal()

    def proof_plan(self) -> tuple[float, float]:
        """Seconds for the pairs of a finalist, and the error that its claim may use."""
        return self.bench.budget.total_s * PROOF_SHARE, claim_error(0)

    def decide(self) -> Decision:
        """Searches and proves until a gain is proved, or no candidate or no time is left."""
        is_further = False
        while True:
            resumed = self._resumed()
            for chain in resumed[:-1]:
                self._refuse(given_up(self.bench, self.story.control, chain, alpha=self._alpha()))
            if resumed and (winner := self._prove(resumed[-1])) is not None:
                return self._improved(winner)
            has_measured = self.search(self._searched_by(is_further))
            if not self._time_for_proof():
                return self._nothing_found()
            finalist = self.story.search.finalist(self._most_steps())
            if finalist is None:
                if is_further and not has_measured:
                    return self._nothing_found()
                is_further = True  # nothing promises anything so far: the time left is for more
                continue
            if (winner := self._prove(finalist)) is not None:
                return self._improved(winner)

    def _resumed(self) -> list[Chain]:
        """Chains of an earlier session on this machine that are still to be judged, in order.

        No two attempts at a proof begin with the same arm: where one fails, its first arm is out.
        The first block of a proof holds its whole chain; later ones hold the beginning of it.
        """
        chains: dict[Arm, Chain] = {}
        for block in self.bench.ledger.own_blocks():
            if block.role == "confirm":
                arms = tuple(outcome.arm for outcome in block.outcomes[1:])
                chains.setdefault(arms[0], arms)
        judged = {proof.first for proof in self.proofs}
        return [arms for first, arms in chains.items() if first not in judged]

    def _searched_by(self, is_further: bool) -> float:
        """The share of the budget by which the next search must end."""
        if not self.proofs and not is_further:
            return SEARCHED_BY
        now = self.bench.budget.elapsed() / self.bench.budget.total_s
        return now + NEXT_SEARCH * max(0.0, PROVED_BY - now)

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
        proof = prove(self.bench, self.story.control, chain, alpha=self._alpha(), until=PROVED_BY)
        if not proof.succeeded:
            self._refuse(proof)
            return None
        self.proofs.append(proof)
        return proof

    def _alpha(self) -> float:
        """The error that the next proof may use."""
        return claim_error(len(self.proofs))

    def _refuse(self, proof: Proof) -> None:
        """Leaves a chain out for good: its proof has failed."""
        self.proofs.append(proof)
        self.story.search.refuse(proof.first)
        self.bench.reporter.say(f"not confirmed ({self._reason(proof)}){_seen(proof)}")

    def _told(self, chain: Chain) -> str:
        """What a proof will add, one after another."""
        steps = zip(chain, (self.story.control, *chain), strict=False)
        return ", then ".join(difference(arm, before) for arm, before in steps)

    def _reason(self, proof: Proof) -> str:
        """Why a finalist is not confirmed."""
        if proof.answer == "over_loss":
            return loss_words(self.bench.ledger, self.bench.ledger.fresh(proof.arm, proof.first))
        if (floor := self._floor_above(proof)) is not None:
            return f"its gain is below the noise floor of {percent(floor, sign=False)}"
        return REASONS[proof.answer]

    def _floor_above(self, proof: Proof) -> float | None:
        """The noise floor, where a gain is refused that is shown, but no larger than it."""
        gain, plan = proof.interval, plan_of(self.bench.ledger, (proof.first,))
        if proof.answer not in ("futile", "out_of_time") or gain is None or plan is None:
            return None
        return plan.floor if gain.low > 0.0 and gain.estimate < plan.floor else None

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
        steps = proof.proved_steps
        if self.story.panel is not None:
            steps = self._examine(steps).steps
        arm, interval = steps[-1].arm, steps[-1].total
        assert interval is not None  # it is proved
        gain = self.story.gain_words(interval.estimate)
        why = f"{gain} on {interval.pairs} fresh pairs of processes"
        record = self.bench.ledger.fresh_by_arm[arm.key]
        why += _price({kind: record.ratio_of(kind) for kind in MEMORIES})
        decision = self.story.decided("improved", arm, interval, why, steps)
        return decision if self.story.last is None else self._on_program(decision, self.story.last)

    def _on_program(self, found: Decision, last: LastProof) -> Decision:
        """The verdict of the program itself on what was found on its trace."""
        seen = last.prove(self.bench, self.story.control, found.arm)
        interval, on_trace = seen.proof.interval, f"on its trace, {found.why}"
        told = f": {interval.text} on {interval.pairs} fresh pairs" if interval else ""
        shared = replace(
            found,
            calibration=seen.calibration,
            each=(),
            on_program=True,
            rss_ratio=seen.rss_ratio,
        )
        if seen.proof.succeeded and interval is not None:
            self.bench.reporter.say(f"confirmed on {last.label} itself{told}")
            why = f"{percent(interval.estimate)} on {interval.pairs} fresh pairs of {last.label} "
            claim = claim_of(last.metric, "improved", interval)
            why += f"itself{_price({'rss': seen.rss_ratio})}; {on_trace}"
            return replace(shared, claim=claim, why=why)
        reason = f"{last.label} itself does not confirm it ({REASONS[seen.proof.answer]}){told}"
        self.bench.reporter.say(f"not confirmed: {reason}")
        return replace(
            shared,
            arm=self.story.control,
            claim=claim_of(last.metric, "no_gain", seen.itself),
            why=f"{on_trace}, but {reason}",
            steps=(),
            rss_ratio=None,
        )

    def _saved(self, proof: Proof, interval: Interval) -> Decision:
        """The verdict where the default breaks the memory limit, and the finalist keeps it."""
        limit = self.bench.ledger.limit
        assert limit is not None  # or nothing would have to be saved
        if self.story.panel is not None:
            self._examine(proof.proved_steps, may_remove=False)
        verdict: Verdict = "improved" if proof.answer == "proved" else "within_limit"
        why = (
            f"it stays within {limit.words} on {interval.pairs} fresh pairs of processes, which "
            f"the default does not, at {percent(interval.estimate)} speed"
        )
        return self.story.decided(verdict, proof.arm, interval, why, proof.proved_steps)

    def _examine(self, steps: Sequence[Step], *, may_remove: bool = True) -> Examination:
        """Has the panel look at a winner, of which it may leave steps out."""
        assert self.story.panel is not None  # the caller has looked
        budget = self.bench.budget
        self.examined = self.story.panel.examine(
            self.bench,
            self.story.control,
            steps,
            seconds=budget.reserved_s,
            until_s=PROVED_BY * budget.total_s + budget.reserved_s,
            may_remove=may_remove,
        )
        budget.release()
        return self.examined

    def _nothing_found(self) -> Decision:
        """The verdict when nothing was proved better than the default."""
        story, records = self.story, self.bench.ledger.searched.values()
        if records and not any(record.feasible for record in records):
            why = "no configuration beside the default ran within the limits"
        elif not self.proofs and story.search.best() is not None:
            why = no_time_for_claim(self.bench)
        elif not self.proofs:
            why = "no configuration promised more than the default"
        else:
            count = len(self.proofs)
            tried = "1 finalist was" if count == 1 else f"{count} finalists were"
            why = f"{tried} not proved to be better than the default on fresh pairs"
            lossy = [proof for proof in self.proofs if proof.answer == "over_loss"]
            if lossy and (gain := lossy[0].interval) is not None:
                seen = f"{lossy[0].arm.text} has {story.gain_words(gain.estimate)}"
                why = f"{seen}, but {self._reason(lossy[0])}"
        return story.nothing_found(why)


def _seen(proof: Proof) -> str:
    """The interval of a proof in words, or nothing when there is none."""
    if proof.interval is None:
        return ""
    pairs = f"{proof.interval.pairs} pairs"
    if proof.interval.pairs < proof.planned:
        pairs = f"{proof.interval.pairs} of {proof.planned} planned pairs"
        pairs += ", then the time was up" if proof.time_is_up else ""
    return f": {proof.interval.text} on {pairs}"


def _price(ratios: Mapping[MemoryKind, float | None]) -> str:
    """What a gain costs in memory, tuned / default; "" where it hardly does."""
    told = [
        f"{ratio:.2f} times the {MEMORIES[kind]}"
        for kind, ratio in ratios.items()
        if ratio is not None and ratio > TOLD_FROM
    ]
    return f", at {' and '.join(told)}" if told else ""
