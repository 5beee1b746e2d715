"""The one interface behind which everything that measures stands: the executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hztune.blocks import ROLES, STATUSES, Arm, Block, Outcome, Role, Status, Turn

__all__ = [
    "ROLES",
    "STATUSES",
    "Accounting",
    "Arm",
    "Around",
    "Block",
    "Executor",
    "Outcome",
    "Role",
    "Status",
    "Turn",
]

_MUCH_FOR_HOOKS = 1 / 3
"""Share of the time in commands that are not measured, above which the user is told."""


@dataclass(frozen=True, slots=True)
class Accounting:
    """Where the time of a study went.

    Attributes:
        measured_s: Seconds in counted parts of turns or runs, disturbed ones included.
        warmup_s: Seconds in which the target ran but was not counted (warm-up, the skipped start of
            each turn).
        wall_s: Seconds inside `measure`, from call to return.
        turns: Number of turns.
        disturbed: Number of turns that were disturbed (and so repeated).
        hooks_s: Seconds in the user's commands before and after runs.
    """

    measured_s: float = 0.0
    warmup_s: float = 0.0
    wall_s: float = 0.0
    turns: int = 0
    disturbed: int = 0
    hooks_s: float = 0.0

    @property
    def remark(self) -> str:
        """What the user should know of it, in a sentence; "": nothing."""
        share = self.hooks_s / self.wall_s if self.wall_s else 0.0
        if share <= _MUCH_FOR_HOOKS:
            return ""
        return (
            f"{share:.0%} of the time goes into the commands before and after each run (--prepare, "
            "--cleanup); where they are quicker, there is time for more runs"
        )

    def __sub__(self, other: Accounting) -> Accounting:
        """Returns what was added to an earlier one, field by field."""
        earlier = {name: -getattr(other, name) for name in self.__slots__}
        return self + Accounting(**earlier)

    def __add__(self, other: Accounting) -> Accounting:
        """Returns the sum, field by field."""
        return Accounting(
            self.measured_s + other.measured_s,
            self.warmup_s + other.warmup_s,
            self.wall_s + other.wall_s,
            self.turns + other.turns,
            self.disturbed + other.disturbed,
            self.hooks_s + other.hooks_s,
        )


class Executor(Protocol):
    """Measures arms against each other; what is measured, and how, is the implementation's own."""

    @property
    def accounting(self) -> Accounting:
        """Where the time went since the executor was made."""

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        """Measures all arms at the same moment, in fresh processes, in randomised order.

        Args:
            arms: The control first. The same arm may stand twice (A/A): each gets a process of its
                own.
            role: What the block is for; it is written to every sample.
            rounds: Turns (or runs) that each arm gets, at least 1; disturbed ones are repeated
                beyond it.
            number: Of the block in its study.

        Returns:
            One outcome for each arm, in the order of `arms`. A failing arm never raises: its
            outcome says how.

        Raises:
            HztuneError: The measuring itself failed (a missing program, a full disk), not an arm.
        """

    def prepare(self, control: Arm) -> None:
        """Finds out how arms are measured, and what a block costs, before the first one.

        What is known by then costs nothing; `measure` does the rest where this was not called.
        """

    def cost(self, arms: int, rounds: int) -> float:
        """Returns the wall seconds that `measure` will take for that many arms and rounds."""

    def recall(self, blocks: Sequence[Block]) -> None:
        """Learns from what was measured on this machine before the executor was made."""


@dataclass
class Around:
    """An executor around another one: a class derived from it says what `measure` does.

    Attributes:
        inner: The one that measures.
    """

    inner: Executor

    @property
    def accounting(self) -> Accounting:
        """Where the inner one's time went."""
        return self.inner.accounting

    def prepare(self, control: Arm) -> None:
        """Lets the inner one find out."""
        self.inner.prepare(control)

    def cost(self, arms: int, rounds: int) -> float:
        """Returns the wall seconds that the inner one will take."""
        return self.inner.cost(arms, rounds)

    def recall(self, blocks: Sequence[Block]) -> None:
        """Lets the inner one learn."""
        self.inner.recall(blocks)
