"""The examination of a winner on the panel: what is harmed, which step does it, what is left out.

Harm is found by pairs of the winner and the control. On a workload with harm, blocks then hold the
control, the winner and the shorter configurations of its proved chain side by side: the first that
carries most of the harm is the step that harms. What the profile emits ends before that step, which
is a proved gain by itself, unless the step is worth its place, or is the first; then it stays, and
a line says what it does. A decision is a function of the ledger, so that an examination that was
interrupted goes on with its next block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hztune.blocks import Arm, Block, Outcome, times_of
from hztune.caution import Caution
from hztune.confirm import Step
from hztune.measure import Accounting
from hztune.panel.judging import LOOKS, SPEED_MARGIN, Harm, Seen, relief, seen_in
from hztune.panel.workloads import PanelExecutor
from hztune.stats import fixed_interval
from hztune.trial import Workbench

WORTH = SPEED_MARGIN
"""Log gain on the user's own workload above which a step stays: a loss of that size elsewhere would
be called harm, so that a gain of that size is called worth it."""

MOST_BLAME_BLOCKS = 8
"""Blocks in which a cause is sought; one that is not found in them is told as not found."""

MOST_VOID = 2
"""Blocks in which the control failed, after which a workload is given up."""

_PART = 0.5
"""Part of a harm that is gone without the step that does it, at least."""

_FAILURES = 2
"""Blocks in which a configuration failed that carries a failure."""


@dataclass(frozen=True, slots=True)
class Examination:
    """What the panel has shown.

    Attributes:
        winner: What was examined.
        steps: What is left of its chain, with what each adds; never empty.
        harms: Harm that what is left does.
        left_out: Harm that the steps did that went, in order.
        seen: What it was seen to do on each workload, or why nothing was measured there.
    """

    winner: Arm
    steps: tuple[Step, ...]
    harms: tuple[Harm, ...] = ()
    left_out: tuple[Harm, ...] = ()
    seen: tuple[Seen, ...] = ()

    @property
    def arm(self) -> Arm:
        """What is left of the winner."""
        return self.steps[-1].arm

    @property
    def cautions(self) -> tuple[Caution, ...]:
        """What is to be told of what is left."""
        found = [harm.caution for harm in self.harms]
        return tuple(one for at, one in enumerate(found) if one not in found[:at])

    @property
    def gone(self) -> tuple[Caution, ...]:
        """The harm that what was left out did."""
        return tuple(harm.caution for harm in self.left_out)


@dataclass
class Panel:
    """Other workloads on which a winner is examined, each with what measures it."""

    executors: Sequence[PanelExecutor]

    @property
    def accounting(self) -> Accounting:
        """Where the time on all of them went."""
        return sum((each.accounting for each in self.executors), Accounting())

    def examine(
        self,
        bench: Workbench,
        control: Arm,
        steps: Sequence[Step],
        *,
        seconds: float,
        until_s: float = 0.0,
        may_remove: bool = True,
    ) -> Examination:
        """Measures a winner on the panel.

        Args:
            bench: Where blocks are entered; its reporter is told, its stop is asked.
            control: What the winner was proved against.
            steps: Of its proof, each proved to add something; the last one is the winner.
            seconds: For all of it, with what an earlier session spent.
            until_s: Second of the budget before which it need not end: a proof that ended early has
                left that time.
            may_remove: Whether anything may go.

        Raises:
            StoppedByUser: The user asked to stop; every block is kept.
        """
        spent = times_of(block for block in bench.ledger.panel if bench.ledger.is_own(block))
        left_s = seconds - max((end for _, end in spent), default=0.0)
        until_s = max(until_s, bench.budget.elapsed() + left_s)
        return _Course(bench, control, self.executors, until_s, may_remove).run(tuple(steps))

    def known(self, bench: Workbench, control: Arm, steps: Sequence[Step]) -> Examination:
        """What the blocks that are there show of a winner; nothing is measured, nothing goes."""
        return _Course(bench, control, self.executors, -math.inf, False).run(tuple(steps))


@dataclass
class _Course:
    """One examination."""

    bench: Workbench
    control: Arm
    executors: Sequence[PanelExecutor]
    until_s: float
    may_remove: bool

    def run(self, steps: tuple[Step, ...]) -> Examination:
        """Examines, leaves out and examines what is left, until nothing more goes."""
        winner, gone = steps[-1].arm, list[Harm]()
        while True:
            is_last = not self._measure(steps)
            harms = [*self._shown(steps, is_last=is_last)]
            found = next((harm for harm in harms if self._goes(harm, steps)), None)
            if found is None or found.step is None:
                break
            gone.append(found)
            steps = steps[: steps.index(found.step)]
            self.bench.reporter.say(f"left out: {found.caution.text}")
        seen = tuple(self._seen(steps, each, is_last=True) for each in self.executors)
        return Examination(winner, steps, tuple(harms), tuple(gone), seen)

    def _measure(self, steps: tuple[Step, ...]) -> bool:
        """Measures on each workload by turns; returns whether something is found that goes."""
        waiting = self._affordable(steps)
        while not any(self._goes(harm, steps) for harm in self._shown(steps)):
            waiting = [each for each in waiting if self._is_open(steps, each)]
            for each in waiting:
                arms, spare_s = [self.control, steps[-1].arm], 0.0
                if self._is_cause_open(steps, each):
                    spare_s = LOOKS[0] * each.cost(2, each.rounds)
                    arms += [step.arm for step in steps[:-1]]
                cost_s = each.cost(len(arms), each.rounds)
                if self.bench.budget.elapsed() + cost_s > self.until_s - spare_s:
                    return False
                self.bench.measure(arms, "panel", each.rounds, each)
                total = steps[-1].total
                self.bench.tell("panel", total.estimate if total else 0.0)
            if not waiting:
                return False
        return True

    def _affordable(self, steps: tuple[Step, ...]) -> list[PanelExecutor]:
        """The workloads that have time for the fewest pairs, those that were begun first."""
        left_s = self.until_s - self.bench.budget.elapsed()
        chosen = []
        for each in sorted(self.executors, key=lambda one: not self._pairs(steps, one)):
            more = max(0, LOOKS[0] - len(self._pairs(steps, each)))
            left_s -= more * each.cost(2, each.rounds)
            if left_s >= 0.0:
                chosen.append(each)
        return chosen

    def _is_open(self, steps: tuple[Step, ...], executor: PanelExecutor) -> bool:
        """Whether more blocks may still tell something."""
        if sum(not block.control.ok for block in self._blocks(executor)) >= MOST_VOID:
            return False
        seen, few = self._seen(steps, executor), len(self._pairs(steps, executor)) < LOOKS[-1]
        return (few and seen.state == "open") or self._is_cause_open(steps, executor)

    def _is_cause_open(self, steps: tuple[Step, ...], executor: PanelExecutor) -> bool:
        """Whether harm, or what looks like it, has a cause that more blocks may still show."""
        seen = self._seen(steps, executor)
        if len(self._beside(steps, executor)) >= MOST_BLAME_BLOCKS:
            return False
        return any(self._blame(harm, steps, executor)[1] for harm in (*seen.harms, *seen.hints))

    def _shown(self, steps: tuple[Step, ...], *, is_last: bool = False) -> Iterator[Harm]:
        """Yields the harm that is shown by now, with its cause; `is_last`: time is up."""
        for each in self.executors:
            for harm in self._seen(steps, each, is_last=is_last).harms:
                yield replace(harm, step=self._blame(harm, steps, each)[0])

    def _goes(self, harm: Harm, steps: tuple[Step, ...]) -> bool:
        """Whether the chain ends before the step that harms; none is worth a failure."""
        if not self.may_remove or harm.step is None or harm.step == steps[0]:
            return False
        gain = harm.step.interval.estimate if harm.step.interval else 0.0
        return harm.what == "failure" or gain <= WORTH

    # ---- what the blocks say ---------------------------------------------------------------------

    def _blocks(self, executor: PanelExecutor) -> list[Block]:
        """Those of this machine on one workload."""
        own = (block for block in self.bench.ledger.panel if self.bench.ledger.is_own(block))
        return [block for block in own if block.workload == executor.workload]

    def _pairs(self, steps: tuple[Step, ...], executor: PanelExecutor) -> list[Block]:
        """Those of the winner in which the control ran."""
        winner = steps[-1].arm
        return [
            block
            for block in self._blocks(executor)
            if block.control.ok and block.outcomes[1].arm == winner
        ]

    def _beside(self, steps: tuple[Step, ...], executor: PanelExecutor) -> list[dict[Arm, Outcome]]:
        """Those of them that hold the shorter configurations, too: outcomes by arm."""
        blocks = self._pairs(steps, executor)
        each = [{outcome.arm: outcome for outcome in block.outcomes[1:]} for block in blocks]
        return [found for found in each if all(step.arm in found for step in steps)]

    def _seen(
        self, steps: tuple[Step, ...], executor: PanelExecutor, *, is_last: bool = False
    ) -> Seen:
        blocks = self._blocks(executor)
        return seen_in(blocks, steps[-1].arm, executor.workload, executor.phrase, is_last=is_last)

    def _blame(
        self, harm: Harm, steps: tuple[Step, ...], executor: PanelExecutor
    ) -> tuple[Step | None, bool]:
        """The step that harms; None: not found. And whether more blocks may show it."""
        if len(steps) == 1:
            return steps[0], False
        found = self._beside(steps, executor)
        for step in steps[:-1]:
            pairs = [(outcomes[steps[-1].arm], outcomes[step.arm]) for outcomes in found]
            if (carries := _carries(harm, pairs)) is None:
                return None, len(found) < MOST_BLAME_BLOCKS
            if carries:
                return step, False
        return steps[-1], False


def _carries(harm: Harm, pairs: Sequence[tuple[Outcome, Outcome]]) -> bool | None:
    """Whether a shorter configuration does most of what the winner does; None: not known.

    The harm itself is shown elsewhere, so that the interval may be a plain one.
    """
    if harm.interval is None:
        winner, shorter = (sum(not pair[side].ok for pair in pairs) for side in (0, 1))
        if max(winner, shorter) < _FAILURES or (0 < shorter < _FAILURES):
            return None
        return shorter > 0
    known = [value for pair in pairs if (value := relief(harm, *pair)) is not None]
    if len(known) < LOOKS[0]:
        return None
    gone, least = fixed_interval(known), _PART * abs(harm.interval.estimate)
    if gone.low > 0.0 and gone.estimate >= least:
        return False
    return True if gone.high < least else None
