"""What the aims of a study have in common: one winner, or a front."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from hztune.confirm import Proof
from hztune.panel import Examination
from hztune.result.decision import Decision
from hztune.search import SearchGoal
from hztune.trial import Workbench
from hztune.trial.division import latest_search

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

    goal: ClassVar[SearchGoal]

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
