"""The story of a study: calibrate, search, prove; then the verdict.

Nothing here knows processes, files or the wall clock: an executor measures, a budget says how much
time is left, and every decision is a function of the ledger. So a study that was stopped is told
again from its blocks and goes on where it ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from hztune.arguments import SPARSE
from hztune.blocks import Arm, spent_s
from hztune.errors import OutOfTime, StoppedByUser
from hztune.profile import Verdict
from hztune.progress import percent
from hztune.rests import MEMORIES
from hztune.result import REASONS, Decision
from hztune.space import AnySpace
from hztune.stats.intervals import Interval, fixed_interval
from hztune.study.bench import Workbench
from hztune.study.calibration import (
    CALIBRATED_BY,
    FRONT_SHARE,
    LEAST_SLOTS,
    NEXT_SEARCH,
    PAIRS,
    PROOF_SHARE,
    PROVED_BY,
    SEARCHED_BY,
    Calibration,
    TooLittleTime,
    assess,
    calibrate,
    latest_search,
    no_time_for_claim,
    refuse_failing,
    require_enough,
    warnings_about,
)
from hztune.study.finalist import MOST_STEPS, Chain
from hztune.study.front import FrontGoal, members
from hztune.study.ledger import Ledger, loss_words
from hztune.study.panel import Examination, Panel, PanelExecutor
from hztune.study.proof import (
    MOST_MEMBERS,
    Proof,
    Step,
    affordable_members,
    affordable_pairs,
    claim_error,
    difference,
    given_up,
    member_error,
    on_front,
    prove,
    prove_front,
)
from hztune.study.search import FastestGoal, Search
from hztune.tuning.on_program import LastProof, price_words


@dataclass
class Story(ABC):
    """A study that can be run, stopped and run again; what it is to prove is told below.

    `proofs`: proved or refused so far, in order. `examined`, `calibration`: None until it is done.
    """

    bench: Workbench  # where blocks are measured; its ledger may hold blocks of an earlier session
    space: AnySpace  # what may be proposed
    seed: int  # of everything that is chosen at random
    # most configurations to search; None: as many as there is time for
    max_trials: int | None = None
    panel: Sequence[PanelExecutor] = ()  # other workloads on which the winner is examined
    # proves on the program what was found on its trace; None: the trace is all there is
    last: LastProof | None = None
    sampler: str = SPARSE  # what proposes new configurations, by name

    goal: ClassVar[FastestGoal]

    def __post_init__(self) -> None:
        self.proofs: list[Proof] = []
        self.examined: Examination | None = None
        self.calibration: Calibration | None = None
        self.search = Search(
            self.bench, self.space, self.seed, self.max_trials, self.goal, self.sampler
        )

    @property
    def control(self) -> Arm:
        return self.space.control

    def run(self) -> Decision:
        """Tells the story to its end; an interruption ends it with the best so far."""
        try:
            return self._told()
        except OutOfTime as late:
            return self._without_claim("not_enough_data", str(late))
        except (KeyboardInterrupt, StoppedByUser):
            return self._without_claim("interrupted", "stopped by the user; not a claim")

    @abstractmethod
    def proof_plan(self) -> tuple[float, float]:
        """Seconds for the pairs of a finalist, and the error that its claim may use."""

    @abstractmethod
    def decide(self) -> Decision:
        """Searches and proves, as far as the time allows, once the study is calibrated."""

    def _told(self) -> Decision:
        bench = self.bench
        try:
            bench.executor.prepare(self.control)  # which finds out what a block costs
            if self.last is not None and not bench.ledger.searched:
                self.last.require_enough(self.control, bench.budget.kept_s)
            calibrate(bench, self.control, CALIBRATED_BY, require_enough)
            self.calibration = assess(bench, *self.proof_plan())
            for line in self._seeing(self.calibration):
                bench.reporter.say(line)
            require_enough(bench)
            return self.decide()
        except TooLittleTime as short:
            bench.reporter.say(f"{short}; what there is time for is measured")
            self._set_beside()
            raise

    def _seeing(self, calibration: Calibration) -> list[str]:
        return [calibration.line(), *warnings_about(self.bench, calibration)]

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
        refuse_failing(bench, self.control)

    def search_until(self, share: float) -> bool:
        """Searches until that share, or sooner, for the proof; returns whether it measured."""
        latest, before = latest_search(self.bench), len(self.bench.ledger.blocks)
        self.search.run(min(share, latest), latest)
        return len(self.bench.ledger.blocks) > before

    def nothing_found(self, why: str) -> Decision:
        """The verdict when nothing was proved better: `why`, or that nothing keeps the limit."""
        ledger = self.bench.ledger
        least = _least_memory(ledger) if ledger.default_breaks_limit else ""
        if cut := self.search.cut_short:
            why = "; ".join(filter(None, (cut, least)))
            return self.decided("not_enough_data", self.control, None, why)
        if least:
            return self.decided("infeasible", self.control, None, least)
        return self.decided("no_gain", self.control, ledger.against_itself(), why)

    def _without_claim(self, verdict: Verdict, why: str) -> Decision:
        """The best so far; its interval is of the pairs of the search where there are no others."""
        proved = [proof for proof in self.proofs if proof.succeeded]
        best = self.search.best()
        arm = proved[-1].arm if proved else best.record.arm if best else self.control
        if proved and self.panel:
            self._examine(proved[-1].proved_steps, until_s=0.0, may_remove=False)
        ledger = self.bench.ledger
        record = ledger.fresh_by_arm.get(arm.key) or ledger.searched.get(arm.key)
        logs = record.log_ratios if record else []
        return self.decided(verdict, arm, fixed_interval(logs) if len(logs) > 1 else None, why)

    def _examine(
        self, steps: tuple[Step, ...], until_s: float, *, may_remove: bool
    ) -> tuple[Step, ...]:
        panel = Panel(self.bench, self.control, steps, self.panel, until_s, may_remove)
        self.examined = panel.examine()
        return self.examined.steps

    def decided(
        self,
        verdict: Verdict,
        arm: Arm,
        interval: Interval | None,
        why: str,
        steps: tuple[Step, ...] = (),
        memory: Interval | None = None,
    ) -> Decision:
        record = self.bench.ledger.fresh_by_arm.get(arm.key)
        return Decision(
            arm,
            verdict,
            interval,
            self.calibration,
            tuple(self.proofs),
            why,
            each=record.shares if record else (),
            steps=steps,
            memory=memory,
            examined=self.examined,
        )


def _least_memory(ledger: Ledger) -> str:
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


# ---- one winner ----------------------------------------------------------------------------------


class Winner(Story):
    """The aim of most studies: one winner, proved parameter by parameter, shown to a panel."""

    goal = FastestGoal()

    def proof_plan(self) -> tuple[float, float]:
        return self.bench.budget.total_s * PROOF_SHARE, claim_error(0)

    def _seeing(self, calibration: Calibration) -> list[str]:
        first, *warnings = super()._seeing(calibration)
        return [first, calibration.search_line(), *warnings]

    def decide(self) -> Decision:
        """Searches and proves until a gain is proved, or no candidate or no time is left."""
        is_further = False
        while True:
            resumed = self._resumed()
            for chain in resumed[:-1]:
                self._refuse(given_up(self.bench, self.control, chain, alpha=self._alpha()))
            if resumed and (winner := self._prove(resumed[-1])) is not None:
                return self._improved(winner)
            has_measured = self.search_until(self._searched_by(is_further))
            if affordable_pairs(self.bench, 1, PROVED_BY) < self.bench.least_pairs:
                return self._nothing_proved()
            bench, pairs = self.bench, max(PAIRS, self.bench.least_pairs)
            longest = range(MOST_STEPS, 1, -1)
            steps = (n for n in longest if affordable_pairs(bench, n, PROVED_BY) >= pairs)
            finalist = self.search.finalist(next(steps, 1))
            if finalist is None:
                if is_further and not has_measured:
                    return self._nothing_proved()
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
        if not self.proofs and not is_further:
            return SEARCHED_BY
        now = self.bench.budget.elapsed() / self.bench.budget.total_s
        return now + NEXT_SEARCH * max(0.0, PROVED_BY - now)

    def _prove(self, chain: Chain) -> Proof | None:
        """The proof of a finalist, None when it failed; then it is out for good."""
        steps = zip(chain, (self.control, *chain), strict=False)
        told = ", then ".join(difference(arm, before) for arm, before in steps)
        self.bench.reporter.say(f"finalist {len(self.proofs) + 1}: {told}")
        proof = prove(self.bench, self.control, chain, alpha=self._alpha(), until=PROVED_BY)
        if not proof.succeeded:
            self._refuse(proof)
            return None
        self.proofs.append(proof)
        return proof

    def _alpha(self) -> float:
        return claim_error(len(self.proofs))

    def _refuse(self, proof: Proof) -> None:
        self.proofs.append(proof)
        self.search.refuse(proof.first)
        self.bench.reporter.say(f"not confirmed ({self._reason(proof)}){_seen(proof)}")

    def _reason(self, proof: Proof) -> str:
        ledger, gain = self.bench.ledger, proof.interval
        if proof.answer == "over_loss":
            return loss_words(ledger, ledger.fresh(proof.arm, proof.first))
        floor = plan.floor if (plan := ledger.plan_of((proof.first,))) else 0.0
        is_open = proof.answer in ("futile", "out_of_time")
        if is_open and gain and gain.low > 0.0 and gain.estimate < floor:
            return f"its gain is below the noise floor of {percent(floor, sign=False)}"
        return REASONS[proof.answer]

    def _improved(self, proof: Proof) -> Decision:
        bench, steps = self.bench, proof.proved_steps
        must_save = bench.ledger.default_breaks_limit
        if not must_save:
            bench.reporter.say(f"confirmed{_seen(proof)}")
            for step in proof.steps[1:]:
                if not step.succeeded:
                    said = difference(step.arm, step.before)
                    bench.reporter.say(f"left out: {said} is not proved to add anything")
        if self.panel:
            spent = spent_s(filter(bench.ledger.is_own, bench.ledger.panel))
            own_s = bench.budget.elapsed() + bench.budget.reserved_s - spent
            until_s = PROVED_BY * bench.budget.total_s + bench.budget.reserved_s
            steps = self._examine(steps, max(until_s, own_s), may_remove=not must_save)
            bench.budget.release()
        arm, interval = steps[-1].arm, steps[-1].total
        assert interval is not None  # it is proved, by more pairs than an interval needs
        pairs = f"on {interval.pairs} fresh pairs of processes"
        if must_save:
            assert bench.ledger.limit is not None  # or nothing would have to be saved
            why = f"it stays within {bench.ledger.limit.words} {pairs}, which the default does not"
            why += f", at {percent(interval.estimate)} speed"
            verdict: Verdict = "improved" if proof.answer == "proved" else "within_limit"
            return self.decided(verdict, arm, interval, why, steps)
        record = bench.ledger.fresh_by_arm[arm.key]
        price = price_words({kind: record.ratio_of(kind) for kind in MEMORIES})
        why = f"{self._gain_words(interval.estimate)} {pairs}{price}"
        found = self.decided("improved", arm, interval, why, steps)
        return self.last.verdict(bench, self.control, found) if self.last else found

    def _gain_words(self, estimate: float) -> str:
        if self.bench.ledger.seeks_kept:
            return f"{percent(-estimate)} kept memory"
        return percent(estimate)

    def _nothing_proved(self) -> Decision:
        records = self.bench.ledger.searched.values()
        if records and not any(record.feasible for record in records):
            why = "no configuration beside the default ran within the limits"
        elif not self.proofs and self.search.best() is not None:
            why = no_time_for_claim(self.bench)
        elif not self.proofs:
            why = "no configuration promised more than the default"
        else:
            count = len(self.proofs)
            tried = "1 finalist was" if count == 1 else f"{count} finalists were"
            why = f"{tried} not proved to be better than the default on fresh pairs"
            lossy = [proof for proof in self.proofs if proof.answer == "over_loss"]
            if lossy and (gain := lossy[0].interval) is not None:
                seen = f"{lossy[0].arm.text} has {self._gain_words(gain.estimate)}"
                why = f"{seen}, but {self._reason(lossy[0])}"
        return self.nothing_found(why)


def _seen(proof: Proof) -> str:
    if proof.interval is None:
        return ""
    return f": {proof.interval.text} on {proof.interval.pairs} pairs"


# ---- a front -------------------------------------------------------------------------------------


class Front(Story):
    """The aim of a study with two objectives: proved configurations, none beaten in both.

    The members are chosen once, by what the search knows; all their claims share one error. So a
    study that was stopped during the proof goes on with the members that have fresh pairs.
    """

    goal = FrontGoal()

    def proof_plan(self) -> tuple[float, float]:
        proof_s = self.bench.budget.total_s * FRONT_SHARE
        return proof_s / MOST_MEMBERS, member_error(MOST_MEMBERS)

    def decide(self) -> Decision:
        say = self.bench.reporter.say
        arms = self._members()
        for number, arm in enumerate(arms, start=1):
            say(f"candidate {number} for the front: {arm.text}")
        if arms:
            self.proofs = prove_front(self.bench, self.control, arms, PROVED_BY)
        for number, member in enumerate(self.proofs, start=1):
            say(f"candidate {number}: {_told(member)}")
        if front := on_front(self.proofs):
            return self._emitted(front)
        why = f"{len(self.proofs)} candidate(s) proved neither more speed nor less memory"
        if not self.proofs:
            why = "no configuration promised more speed or less memory"
            if members(self.search, MOST_MEMBERS):
                why = no_time_for_claim(self.bench)
        alone = "the unchanged program" if self.control.allocator == "none" else "the default"
        return self.nothing_found(f"the front is {alone} alone: {why}")

    def _members(self) -> list[Arm]:
        """The arms to prove, as many as there is time for, those whose proof was begun first."""
        if not self._begun():
            self.search_until(SEARCHED_BY)
        begun = self._begun()
        if begun and max(begun.values()) > 1:
            return [*begun]  # all had their first pair
        now = self.bench.budget.elapsed() / self.bench.budget.total_s
        most = affordable_members(self.bench, min(PROVED_BY, now + FRONT_SHARE))
        arms = dict.fromkeys([*begun, *members(self.search, most)])
        return [*arms][: max(most, len(begun))]

    def _begun(self) -> Counter[Arm]:
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
        assert member.interval is not None  # it is confirmed
        verdict: Verdict = "improved" if member.is_faster else "less_memory"
        why = f"{_words(member)} on {member.interval.pairs} fresh pairs of processes"
        return self.decided(verdict, member.arm, member.interval, why, memory=member.memory)


def _told(member: Proof) -> str:
    claims = ["faster"] * member.is_faster + ["less memory"] * member.is_saving
    if member.answer == "proved":
        fate = f"confirmed ({' and '.join(claims)})"
    else:
        fate = f"not on the front ({REASONS[member.answer]})"
    if member.interval is None or member.memory is None:
        return fate
    return f"{fate}: speed {member.interval.text}, memory {member.memory.text}"


def _words(member: Proof) -> str:
    speed, saving = member.point
    return f"{percent(speed)} speed with {percent(-saving)} memory"
