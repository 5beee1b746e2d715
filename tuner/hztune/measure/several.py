"""Several workloads as one: every block is measured on each of them, the same arms everywhere.

What is compared stays what it was, arms measured at the same moment on the same workload; only
their ratios are joined afterwards (see `blocks.joined` and `stats.pair_ratio`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hztune.blocks import joined
from hztune.measure.types import Accounting, Arm, Block, Executor, Outcome, Role, Turn
from hztune.store import Evidence, Nowhere, Plan, Sink

MakePart = Callable[[Sink], Executor]
"""Makes the executor of one workload, given where it puts what it measures."""


class SeveralExecutor:
    """Measures arms on one workload after another."""

    def __init__(self, parts: Sequence[tuple[str, MakePart]], sink: Sink | None = None) -> None:
        """Makes the executor.

        Args:
            parts: What each workload is called, and what makes its executor.
            sink: Where every turn goes as soon as it exists; None: nowhere.
        """
        self._names = [name for name, _ in parts]
        self._executors = [
            make(WorkloadSink(sink or Nowhere(), name, index, len(parts)))
            for index, (name, make) in enumerate(parts)
        ]

    @property
    def accounting(self) -> Accounting:
        """Where the time went, on all workloads."""
        return sum((each.accounting for each in self._executors), Accounting())

    def prepare(self, control: Arm) -> None:
        """Lets the executor of each workload find out."""
        for each in self._executors:
            each.prepare(control)

    def cost(self, arms: int, rounds: int) -> float:
        """Returns the wall seconds of a block on all workloads."""
        return sum(each.cost(arms, rounds) for each in self._executors)

    def recall(self, blocks: Sequence[Block]) -> None:
        """Lets the executor of each workload learn from what was measured on it."""
        for number, each in enumerate(self._executors):
            each.recall([_on(block, number) for block in blocks])

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        """Measures a block on every workload; it is one block with an outcome for each arm."""
        blocks = [
            each.measure(arms, role=role, rounds=rounds, number=number) for each in self._executors
        ]
        return joined(blocks, self._names)


def _on(block: Block, number: int) -> Block:
    """Returns what a block showed on one of its workloads."""
    return replace(block, outcomes=tuple(outcome.parts[number] for outcome in block.outcomes))


class WorkloadSink:
    """A sink that says which of several workloads its blocks are on."""

    def __init__(self, sink: Sink, workload: str, part: int = 0, parts: int = 1) -> None:
        """Takes where everything goes, the name, and which of how many workloads it is."""
        self._sink, self._workload, self._part, self._parts = sink, workload, part, parts

    def begin(self, plan: Plan) -> None:
        """Adds the workload to what is noted."""
        self._sink.begin(replace(plan, workload=self._workload, part=self._part, parts=self._parts))

    def turn(self, index: int, pid: int, turn: Turn, evidence: Evidence) -> None:
        """Hands a turn on."""
        self._sink.turn(index, pid, turn, evidence)

    def outcome(self, index: int, pid: int, outcome: Outcome) -> None:
        """Hands an outcome on."""
        self._sink.outcome(index, pid, outcome)

    def end(self) -> None:
        """Hands the end on."""
        self._sink.end()
