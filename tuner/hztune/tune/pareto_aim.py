"""The aim of a study with two objectives: a front, whose members are proved by turns.

The members are chosen once, by what the search knows; all their claims share one error. So a study
that was stopped during the proof goes on with the members that it had, which are those that have
fresh pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hztune.blocks import Arm
from hztune.confirm import (
    MOST_MEMBERS,
    Proof,
    affordable_members,
    member_error,
    on_front,
    prove_front,
)
from hztune.profile import Verdict
from hztune.progress import percent
from hztune.result.decision import REASONS, Decision
from hztune.search import FrontGoal, members
from hztune.trial.division import FRONT_SHARE, PROVED_BY, SEARCHED_BY, no_time_for_claim
from hztune.tune.aim import Aim


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
        fresh = [block for block in self.bench.ledger.own_blocks() if block.role == "confirm"]
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
    claims = [
        word
        for word, is_proved in (("faster", member.is_faster), ("less memory", member.is_saving))
        if is_proved
    ]
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
