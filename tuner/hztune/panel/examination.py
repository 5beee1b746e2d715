"""The examination of a winner on the panel: what is harmed, what does it, what is left out.

A parameter that harms strange workloads goes, unless it is worth its place; then it stays, and a
line says what it does. A decision is a function of the ledger, so that an examination that was
interrupted goes on with its next block.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hztune.blocks import Arm, Block, times_of
from hztune.caution import Caution
from hztune.measure import Accounting
from hztune.panel.blame import MOST_VOID, all_on, blocks_on, culprits, suspected, void_on
from hztune.panel.judging import LOOKS, SPEED_MARGIN, Harm, Seen, seen_in
from hztune.panel.workloads import PanelExecutor
from hztune.space import Space
from hztune.trial import Workbench

WORTH = SPEED_MARGIN
"""Log gain on the user's own workload above which a parameter stays: a loss of that size elsewhere
would be called harm, so that a gain of that size is called worth it."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A parameter that was left out, the harm that it did, and the arm that it was left out of."""

    harm: Harm
    arm: Arm

    @property
    def caution(self) -> Caution:
        """What would have had to be told."""
        return self.harm.caution(self.arm)


@dataclass(frozen=True, slots=True)
class Examination:
    """What the panel has shown.

    Attributes:
        winner: What was examined.
        arm: What is left of it.
        harms: Harm that it does; each names the parameters that do it, if they were found.
        left_out: What went, in order.
        seen: What it was seen to do on each workload, or why nothing was measured there.
    """

    winner: Arm
    arm: Arm
    harms: tuple[Harm, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    seen: tuple[Seen, ...] = ()

    def cautions(self, emitted: Arm) -> tuple[Caution, ...]:
        """What is to be told of the configuration that is emitted, which may have more parameters.

        That is so where what is left was not proved to keep the gain.
        """
        kept = [h.caution(self.arm) for h in self.harms if self._has(emitted, h.params)]
        back = [one.caution for one in self.left_out if self._has(emitted, one.harm.params)]
        return tuple(dict.fromkeys((*kept, *back)))

    def is_gone(self, emitted: Arm) -> tuple[Caution, ...]:
        """What was left out of it, with the harm that it did."""
        gone = (one for one in self.left_out if not self._has(emitted, one.harm.params))
        return tuple(one.caution for one in gone)

    @staticmethod
    def _has(emitted: Arm, names: Sequence[str]) -> bool:
        return bool(emitted.params) and emitted.config.keys() >= set(names)


@dataclass
class Panel:
    """Other workloads on which a winner is examined.

    Attributes:
        executors: What measures each.
    """

    executors: Sequence[PanelExecutor]

    @property
    def accounting(self) -> Accounting:
        """Where the time on all of them went."""
        return sum((each.accounting for each in self.executors), Accounting())

    def examine(
        self,
        bench: Workbench,
        space: Space,
        control: Arm,
        winner: Arm,
        *,
        gains: Mapping[str, float],
        seconds: float,
        until_s: float = 0.0,
        gain: float = 0.0,
        may_remove: bool = True,
    ) -> Examination:
        """Measures a winner on the panel.

        Args:
            bench: Where blocks are entered; its reporter is told, its stop is asked.
            space: Of the winner's allocator.
            control: What the winner was proved against.
            winner: A proved configuration.
            gains: What parameters were proved to add, log units; one that is missing is not worth
                its place.
            seconds: For all of it, with what an earlier session spent.
            until_s: Second of the budget before which it need not end: a proof that ended early has
                left that time.
            gain: Of the winner, log units, for the progress.
            may_remove: Whether anything may go.

        Raises:
            StoppedByUser: The user asked to stop; every block is kept.
        """
        spent = times_of(block for block in bench.ledger.panel if bench.ledger.is_own(block))
        left_s = seconds - max((end for _, end in spent), default=0.0)
        until_s = max(until_s, bench.budget.elapsed() + left_s)
        course = _Course(bench, space, control, self.executors, gains, gain, until_s, may_remove)
        return course.run(winner)

    def known(self, bench: Workbench, space: Space, control: Arm, winner: Arm) -> Examination:
        """What the blocks that are there show of a winner; nothing is measured, nothing goes."""
        return _Course(bench, space, control, self.executors, {}, 0.0, -math.inf, False).run(winner)


@dataclass
class _Course:
    """One examination."""

    bench: Workbench
    space: Space
    control: Arm
    executors: Sequence[PanelExecutor]
    gains: Mapping[str, float]
    gain: float
    until_s: float
    may_remove: bool
    causes: dict[tuple[Arm, str, str], tuple[str, ...]] = field(default_factory=dict)

    def run(self, winner: Arm) -> Examination:
        """Examines, leaves out and examines what is left, until nothing more goes."""
        arm, gone = winner, []
        while True:
            harms = self._harms(arm)
            found = next((harm for harm in harms if self._goes(harm, arm)), None)
            if found is None:
                break
            names = self._unworthy(found)
            gone.append(LeftOut(replace(found, params=names), arm))
            arm = self._without(arm, names)
            self.bench.reporter.say(f"left out: {gone[-1].caution.text}")
        seen = tuple(self._seen(arm, each, is_last=True) for each in self.executors)
        return Examination(winner, arm, tuple(harms), tuple(gone), seen)

    def _harms(self, arm: Arm) -> list[Harm]:
        """Every harm that is shown of an arm, with its cause, which is sought as soon as it is."""
        while True:
            self._compare(arm)
            news = self._news(arm)
            for each, harm in news:
                self._cause(harm, arm, each)
            found = self._with_causes(arm, is_last=False)
            if not news or any(self._goes(harm, arm) for harm in found):
                break
        return found if news else self._with_causes(arm, is_last=True)

    def _compare(self, arm: Arm) -> None:
        """Measures pairs on each workload by turns, until there is news, or nothing to learn."""
        waiting = self._affordable(arm)
        while not self._news(arm):
            waiting = [each for each in waiting if self._is_open(arm, each)]
            for each in waiting:
                cost_s = each.cost(2, each.rounds)
                if self.bench.budget.elapsed() + cost_s > self.until_s:
                    return
                self.bench.measure([self.control, arm], "panel", each.rounds, each)
                self.bench.tell("panel", self.gain)
            if not waiting:
                return

    def _news(self, arm: Arm) -> list[tuple[PanelExecutor, Harm]]:
        """What is harm or looks like it, and whose cause was not sought yet."""
        found = []
        for each in self._begun(arm):
            seen = self._seen(arm, each, is_last=False)
            found += [(each, harm) for harm in (*seen.harms, *seen.hints)]
        return [(each, harm) for each, harm in found if (arm, *harm.kind) not in self.causes]

    def _affordable(self, arm: Arm) -> list[PanelExecutor]:
        """The workloads that have time for the fewest pairs, those that were begun first."""
        left_s = self.until_s - self.bench.budget.elapsed()
        chosen = []
        for each in sorted(self.executors, key=lambda one: one not in self._begun(arm)):
            more = max(0, LOOKS[0] - len(self._blocks(arm, each)))
            left_s -= more * each.cost(2, each.rounds)
            if left_s >= 0.0:
                chosen.append(each)
        return chosen

    def _is_open(self, arm: Arm, executor: PanelExecutor) -> bool:
        """Whether more pairs may still tell something."""
        void = len(void_on(self.bench, executor.workload))
        few = len(self._blocks(arm, executor)) < LOOKS[-1]
        state = self._seen(arm, executor, is_last=False).state
        return void < MOST_VOID and few and state == "open"

    def _begun(self, arm: Arm) -> list[PanelExecutor]:
        return [each for each in self.executors if self._blocks(arm, each)]

    def _blocks(self, arm: Arm, executor: PanelExecutor) -> list[Block]:
        blocks = blocks_on(self.bench, executor.workload)
        return [block for block in blocks if block.outcomes[1].arm == arm]

    def _seen(self, arm: Arm, executor: PanelExecutor, *, is_last: bool) -> Seen:
        blocks = all_on(self.bench, executor.workload)
        return seen_in(blocks, arm, executor.workload, executor.phrase, is_last=is_last)

    def _with_causes(self, arm: Arm, *, is_last: bool) -> list[Harm]:
        """What is shown by now; `is_last`: time is up."""
        found = []
        for each in self._begun(arm):
            for harm in self._seen(arm, each, is_last=is_last).harms:
                found.append(replace(harm, params=self._cause(harm, arm, each)))
        return found

    def _cause(self, harm: Harm, arm: Arm, executor: PanelExecutor) -> tuple[str, ...]:
        """The parameters that do it; sought once for each arm."""
        key = (arm, *harm.kind)
        if key in self.causes:
            return self.causes[key]
        order = sorted(arm.config, key=lambda name: self.gains.get(name, 0.0))
        risky = {name for params, _ in self.space.known_risks(arm.config) for name in params}
        likely = risky.union(*self.causes.values())
        groups = suspected(self.space, self.control, arm, order, likely)
        spare_s = LOOKS[0] * executor.cost(2, executor.rounds)
        arms = (self.control, arm)
        until_s = self.until_s - spare_s
        self.causes[key] = culprits(self.bench, executor, harm, groups, arms, self.gain, until_s)
        return self.causes[key]

    def _goes(self, harm: Harm, arm: Arm) -> bool:
        """Whether something goes for it; the last parameter is all the gain there is, and stays."""
        names = self._unworthy(harm)
        if not names or not self.may_remove:
            return False
        left = self._without(arm, names)
        legal = self.space.objection(left.config) is None
        return legal and left not in (arm, self.control)

    def _unworthy(self, harm: Harm) -> tuple[str, ...]:
        """Those of its parameters that are not worth their place; none is worth a failure."""
        if harm.what == "failure":
            return harm.params
        return tuple(name for name in harm.params if self.gains.get(name, 0.0) <= WORTH)

    def _without(self, arm: Arm, names: Sequence[str]) -> Arm:
        return self.space.arm(self.space.without(arm.config, names))
