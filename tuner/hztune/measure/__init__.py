"""Measuring: one interface, `Executor`, and the executors behind it.

turns: built-in workloads, by short alternating turns. whole: whole programs, by interleaved runs.
alternate: programs and servers, by turns. cluster: any of them, on the workers of a Dask cluster.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Protocol

from hztune.blocks import Arm, Block, Outcome, Role, Turn, joined, times_of
from hztune.store import Evidence, Plan, Sink

MakePart = Callable[[Sink], "Executor"]  # makes the executor of one workload


@dataclass(frozen=True, slots=True)
class Accounting:
    measured_s: float = 0.0  # seconds in counted parts of turns or runs, disturbed ones included
    warmup_s: float = 0.0  # Seconds of warm-up, and of the skipped start of each turn
    wall_s: float = 0.0  # seconds inside `measure`, from call to return
    turns: int = 0  # Number of turns
    disturbed: int = 0  # how many of them were disturbed, and so repeated

    @classmethod
    def of(cls, turns: Sequence[Turn], warmup_s: float, wall_s: float) -> Accounting:
        disturbed = sum(bool(turn.disturbed) for turn in turns)
        measured_s = sum(turn.counted_ns for turn in turns) * 1e-9
        return cls(measured_s, warmup_s, wall_s, len(turns), disturbed)

    def __add__(self, other: Accounting) -> Accounting:
        return Accounting(*map(operator.add, astuple(self), astuple(other)))

    def __sub__(self, other: Accounting) -> Accounting:
        return Accounting(*map(operator.sub, astuple(self), astuple(other)))


class Executor(Protocol):
    """Measures arms against each other; what is measured, and how, is the implementation's own."""

    _accounting: Accounting = Accounting()

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        """Measures all arms at the same moment, in fresh processes, in randomised order.

        Args:
            arms: The control first. The same arm may stand twice (A/A): each gets a process of its
                own.
            rounds: Turns (or runs) that each arm gets, at least 1; disturbed ones are repeated
                beyond it.

        Returns:
            One outcome for each arm, in the order of `arms`. A failing arm never raises: its
            outcome says how.

        Raises:
            HztuneError: The measuring itself failed (a missing program, a full disk), not an arm.
        """

    def cost(self, arms: int, rounds: int) -> float:
        """Returns the wall seconds that `measure` will take for that many arms and rounds."""

    @property
    def accounting(self) -> Accounting:
        """Where the time went since the executor was made."""
        return self._accounting

    def prepare(self, *arms: Arm) -> None:
        """Finds out how arms are measured, and what a block costs; else `measure` does, first.

        The first is the control; of others only those matter that are commands of their own.
        """
        return None

    def recall(self, blocks: Sequence[Block]) -> None:
        """Learns from what was measured on this machine before the executor was made."""
        return None

    @property
    def pending(self) -> Sequence[Arm]:
        """What is still being measured, without controls."""
        return ()

    def submit(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> list[Block]:
        """Begins a block as `measure` does; returns the blocks there are now: here, that one."""
        return [self.measure(arms, role=role, rounds=rounds, number=number)]

    def collect(self) -> list[Block]:
        """Waits for at least one block that was begun; none: none is awaited."""
        return []


@dataclass
class Around(Executor):
    inner: Executor

    @property
    def accounting(self) -> Accounting:
        return self.inner.accounting

    def prepare(self, *arms: Arm) -> None:
        self.inner.prepare(*arms)

    def cost(self, arms: int, rounds: int) -> float:
        return self.inner.cost(arms, rounds)

    def recall(self, blocks: Sequence[Block]) -> None:
        self.inner.recall(blocks)


class Remembered(Around):
    """An executor that has blocks of a study from before it was stopped, and goes on from there."""

    def __init__(self, inner: Executor, blocks: Iterable[Block]) -> None:
        super().__init__(inner)
        self._known = {block.number: block for block in blocks}

    @property
    def accounting(self) -> Accounting:
        return self._accounting + self.inner.accounting

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        found = self._known.pop(number, None)
        if found is None or found.role != role or [o.arm for o in found.outcomes] != [*arms]:
            return self.inner.measure(arms, role=role, rounds=rounds, number=number)
        self.inner.recall([found])
        turns = [turn for outcome in found.outcomes for turn in outcome.all_turns]
        ((_, wall_s),) = times_of([found])
        self._accounting += Accounting.of(turns, 0.0, wall_s)
        return found


class SeveralExecutor(Executor):
    """Measures a block on several workloads; only ratios are joined (`stats.ratios.pair_ratio`)."""

    def __init__(self, parts: Sequence[tuple[str, MakePart]], sink: Sink | None = None) -> None:
        self._names = [name for name, _ in parts]
        self._executors = [
            make(WorkloadSink(sink or Sink(), name, index, len(parts)))
            for index, (name, make) in enumerate(parts)
        ]

    @property
    def accounting(self) -> Accounting:
        return sum((each.accounting for each in self._executors), Accounting())

    def prepare(self, *arms: Arm) -> None:
        for each in self._executors:
            each.prepare(*arms)

    def cost(self, arms: int, rounds: int) -> float:
        return sum(each.cost(arms, rounds) for each in self._executors)

    def recall(self, blocks: Sequence[Block]) -> None:
        for number, each in enumerate(self._executors):
            each.recall(
                [replace(b, outcomes=tuple(o.parts[number] for o in b.outcomes)) for b in blocks]
            )

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        blocks = [
            each.measure(arms, role=role, rounds=rounds, number=number) for each in self._executors
        ]
        return joined(blocks, self._names)


@dataclass
class WorkloadSink(Sink):
    sink: Sink
    workload: str
    part: int = 0
    parts: int = 1

    def begin(self, plan: Plan) -> None:
        self.sink.begin(replace(plan, workload=self.workload, part=self.part, parts=self.parts))

    def turn(self, index: int, pid: int, turn: Turn, evidence: Evidence) -> None:
        self.sink.turn(index, pid, turn, evidence)

    def outcome(self, index: int, pid: int, outcome: Outcome) -> None:
        self.sink.outcome(index, pid, outcome)

    def end(self) -> None:
        self.sink.end()
