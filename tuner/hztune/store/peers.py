"""What a worker asks of the others of its study, and the answers where it works alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from hztune.blocks import Arm, Block, Role
from hztune.errors import HztuneError


class EndedElsewhere(HztuneError):
    """Another worker has ended the study: its verdict stands in the storage."""


@dataclass(frozen=True, slots=True)
class News:
    """What the others did since the last look.

    Attributes:
        blocks: What they measured, in the order in which it was entered.
        held: The new configurations that they are measuring now.
        proving: Whether one of them is proving a finalist, so that no other needs to search.
        elapsed_s: How much of the budget was used when the last block of all was entered.
    """

    blocks: tuple[Block, ...] = ()
    held: tuple[Arm, ...] = ()
    proving: bool = False
    elapsed_s: float = 0.0


class Peers(Protocol):
    """The other workers of a study."""

    def look(self) -> News:
        """What they did since the last look.

        Raises:
            EndedElsewhere: One of them has ended the study.
        """

    def reserve(self, arms: Sequence[Arm]) -> Collection[Arm]:
        """Holds configurations until the next block is entered; returns those that others hold."""

    def begin(self, role: Role) -> int | None:
        """Takes note that a block begins; returns its number. None: it follows from the ledger."""

    def enter(self, elapsed_s: float) -> None:
        """Enters the block that was begun; `elapsed_s` of the study's budget are used.

        Raises:
            EndedElsewhere: One of them has ended the study.
        """

    def lead(self) -> bool:
        """Whether it is this worker that decides; it takes the lead where no other has it."""

    def wait(self) -> None:
        """Lets a moment pass before the next question."""


class Alone:
    """There are no other workers."""

    def look(self) -> News:
        """Nothing happened."""
        return News()

    def reserve(self, arms: Sequence[Arm]) -> Collection[Arm]:
        """Everything is free."""
        return ()

    def begin(self, role: Role) -> int | None:
        """Blocks follow each other."""
        return None

    def enter(self, elapsed_s: float) -> None:
        """Enters it nowhere: the executor's sink has it."""

    def lead(self) -> bool:
        """True: there is no other worker that could lead."""
        return True

    def wait(self) -> None:
        """Does not wait."""
