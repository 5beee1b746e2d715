"""An executor that has some of its blocks already, from before it was stopped.

What asks for blocks in the order of their numbers, and decides by what they showed and by how long
they took, comes to where it stood, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hztune.blocks import Block, times_of
from hztune.measure.types import Accounting, Arm, Around, Executor, Role


class Remembered(Around):
    """Measures blocks with an executor, except those that are there."""

    def __init__(self, inner: Executor, blocks: Iterable[Block]) -> None:
        """Takes what measures, and what was measured."""
        super().__init__(inner)
        self._known = {block.number: block for block in blocks}
        self._spent = Accounting()

    @property
    def accounting(self) -> Accounting:
        """Where the time went, that of the blocks that were there included."""
        return self._spent + self.inner.accounting

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        """Returns the block that is there, or measures it; see `Executor.measure`."""
        found = self._known.pop(number, None)
        if found is None or found.role != role or [o.arm for o in found.outcomes] != [*arms]:
            return self.inner.measure(arms, role=role, rounds=rounds, number=number)
        self.inner.recall([found])
        self._spent += _spent(found)
        return found


def _spent(block: Block) -> Accounting:
    """What a block took, as far as its turns tell."""
    turns = [turn for outcome in block.outcomes for turn in outcome.all_turns]
    ((_, wall_s),) = times_of([block])
    return Accounting(
        measured_s=sum(turn.counted_ns for turn in turns) * 1e-9,
        wall_s=wall_s,
        turns=len(turns),
        disturbed=sum(bool(turn.disturbed) for turn in turns),
    )
