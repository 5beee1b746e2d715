"""What the aims of a study have in common: one winner, or a front.

The aim of most studies: one winner, proved parameter by parameter, and examined on a panel.

The aim of a study with two objectives: a front, whose members are proved by turns.

The members are chosen once, by what the search knows; all their claims share one error. So a study
that was stopped during the proof goes on with the members that it had, which are those that have
fresh pairs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from hztune.blocks import Arm
from hztune.profile import Verdict
from hztune.progress import percent
from hztune.rests import MEMORIES
from hztune.result import REASONS, Decision
from hztune.stats.intervals import Interval
from hztune.study.bench import Workbench
from hztune.study.calibration import (
    FRONT_SHARE,
    NEXT_SEARCH,
    PAIRS,
    PROOF_SHARE,
    PROVED_BY,
    SEARCHED_BY,
    latest_search,
    no_time_for_claim,
)
from hztune.study.finalist import MOST_STEPS, Chain
from hztune.study.front import FrontGoal, members
from hztune.study.panel import Examination
from hztune.study.proof import (
    MOST_MEMBERS,
    Proof,
    Step,
    affordable_members,
    affordable_pairs,
    claim_error,
    difference,
    given_up,
    loss_words,
    member_error,
    on_front,
    plan_of,
    prove,
    prove_front,
)
from hztune.study.search import FastestGoal
from hztune.tune.on_program import price_words

if TYPE_CHECKING:
    from hztune.tune.story import Story


class Aim(ABC):
    """What a study is to prove, and how it goes about it once it is calibrated.

    Attributes:
        goal: What the search looks for.
        story: The study.
        proofs: What was proved or refused so far, in order.
        examined: What the panel saw of the winner; None: it has not looked.
    """

    goal: ClassVar[FastestGoal]

    def __init__(self, story: Story) -> None:
        """Becomes the aim of a study."""
        self.story = story
        self.proofs: list[Proof] = []
        self.examined: Examination | None = None

    @property
    def bench(self) -> Workbench:
        """Where blocks are measured."""
        return self.story.bench

    def search(self, share: float) -> bool:
        """Searches until that share of the budget, sooner where the proof needs more.

        Returns:
            Whether anything was measured.
        """
        latest, before = latest_search(self.bench), len(self.bench.ledger.blocks)
        self.story.search.run(min(share, latest), latest)
        return len(self.bench.ledger.blocks) > before

    @abstractmethod
    def proof_plan(self) -> tuple[float, float]:
        """Seconds for the pairs of a finalist, and the error that its claim may use."""

    @abstractmethod
    def decide(self) -> Decision:
        """Searches and proves, as far as the time allows."""


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
        for block in self.bench.ledger.own_blocks("confirm"):
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
        counts = range(MOST_STEPS, 1, -1)
        bench = self.bench
        return next((n for n in counts if affordable_pairs(bench, n, PROVED_BY) >= pairs), 1)

    def _time_for_proof(self) -> bool:
        return affordable_pairs(self.bench, 1, PROVED_BY) >= self.bench.least_pairs

    def _prove(self, chain: Chain) -> Proof | None:
        """The proof of a finalist, None when it failed; then it is out for good."""
        steps = zip(chain, (self.story.control, *chain), strict=False)
        told = ", then ".join(difference(arm, before) for arm, before in steps)
        self.bench.reporter.say(f"finalist {len(self.proofs) + 1}: {told}")
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

    def _reason(self, proof: Proof) -> str:
        """Why a finalist is not confirmed."""
        ledger, gain = self.bench.ledger, proof.interval
        if proof.answer == "over_loss":
            return loss_words(ledger, ledger.fresh(proof.arm, proof.first))
        floor = plan.floor if (plan := plan_of(ledger, (proof.first,))) else 0.0
        is_open = proof.answer in ("futile", "out_of_time")
        if is_open and gain and gain.low > 0.0 and gain.estimate < floor:
            return f"its gain is below the noise floor of {percent(floor, sign=False)}"
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
        steps = proof.proved_steps
        if self.story.panel is not None:
            steps = self._examine(steps).steps
        arm, interval = steps[-1].arm, steps[-1].total
        assert interval is not None  # it is proved
        gain = self.story.gain_words(interval.estimate)
        why = f"{gain} on {interval.pairs} fresh pairs of processes"
        record = self.bench.ledger.fresh_by_arm[arm.key]
        why += price_words({kind: record.ratio_of(kind) for kind in MEMORIES})
        found = self.story.decided("improved", arm, interval, why, steps)
        last = self.story.last
        return last.verdict(self.bench, self.story.control, found) if last else found

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


class Front(Aim):
    """The part of a story that ends with proved configurations, none beaten in both objectives."""

    goal = FrontGoal()

    def proof_plan(self) -> tuple[float, float]:
        """Seconds for the pairs of each member of a full front, and the error of its claims."""
        proof_s = self.bench.budget.total_s * FRONT_SHARE
        return proof_s / MOST_MEMBERS, member_error(MOST_MEMBERS)

    def decide(self) -> Decision:
        """Searches, proves the members that were found, and tells which are on the front."""
        arms = self._members()
        if not arms:
            return self._nothing_found()
        for number, arm in enumerate(arms, start=1):
            self.bench.reporter.say(f"candidate {number} for the front: {arm.text}")
        self.proofs = prove_front(self.bench, self.story.control, arms, PROVED_BY)
        for number, member in enumerate(self.proofs, start=1):
            self.bench.reporter.say(f"candidate {number}: {_told(member)}")
        front = on_front(self.proofs)
        return self._emitted(front) if front else self._nothing_found()

    def _members(self) -> list[Arm]:
        """The arms to prove, as many as there is time for, those whose proof was begun first."""
        if not self._begun():
            self.search(SEARCHED_BY)
        begun = self._begun()
        if begun and max(begun.values()) > 1:
            return [*begun]  # all had their first pair
        now = self.bench.budget.elapsed() / self.bench.budget.total_s
        most = affordable_members(self.bench, min(PROVED_BY, now + FRONT_SHARE))
        arms = dict.fromkeys([*begun, *members(self.story.search, most)])
        return [*arms][: max(most, len(begun))]

    def _begun(self) -> Counter[Arm]:
        """The arms that have fresh pairs of this machine, with how many."""
        fresh = self.bench.ledger.own_blocks("confirm")
        return Counter(outcome.arm for block in fresh for outcome in block.outcomes[1:])

    def _emitted(self, front: Sequence[Proof]) -> Decision:
        """The decision for the fastest member, or for the most saving one when none is faster."""
        each = tuple(self._about(member) for member in front)
        chosen = next((one for one in each if one.verdict == "improved"), each[-1])
        several = f"configurations, {_words(front[0])} to {_words(front[-1])}"
        spread = several if len(front) > 1 else f"configuration, {_words(front[0])}"
        why = f"a front of {len(front)} {spread}, on fresh pairs of processes"
        return replace(chosen, front=each, why=why)

    def _about(self, member: Proof) -> Decision:
        """The decision for one member."""
        assert member.interval is not None  # it is confirmed
        verdict: Verdict = "improved" if member.is_faster else "less_memory"
        why = f"{_words(member)} on {member.interval.pairs} fresh pairs of processes"
        return self.story.decided(verdict, member.arm, member.interval, why, memory=member.memory)

    def _nothing_found(self) -> Decision:
        """The verdict when the front is the default alone."""
        story = self.story
        why = f"{len(self.proofs)} candidate(s) proved neither more speed nor less memory"
        if not self.proofs:
            why = "no configuration promised more speed or less memory"
            if members(story.search, MOST_MEMBERS):
                why = no_time_for_claim(self.bench)
        alone = "the unchanged program" if story.control.allocator == "none" else "the default"
        return story.nothing_found(f"the front is {alone} alone: {why}")


def _told(member: Proof) -> str:
    """What became of a member, in words."""
    claims = ["faster"] * member.is_faster + ["less memory"] * member.is_saving
    if member.answer == "proved":
        fate = f"confirmed ({' and '.join(claims)})"
    else:
        fate = f"not on the front ({REASONS[member.answer]})"
    if member.interval is None or member.memory is None:
        return fate
    return f"{fate}: speed {member.interval.text}, memory {member.memory.text}"


def _words(member: Proof) -> str:
    """Its speed and memory, in words."""
    speed, saving = member.point
    return f"{percent(speed)} speed with {percent(-saving)} memory"
