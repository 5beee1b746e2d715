"""The looks of a proof: when its fresh pairs are looked at, and what interval each look has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hztune.stats import (
    Interval,
    Noise,
    planned_interval,
    planned_looks,
)


@dataclass(frozen=True, slots=True)
class Looks:
    """The looks that were due so far. All that is decided at them uses the same kind of interval.

    Attributes:
        counts: Pairs at each look, rising.
        planned: Pairs of the whole proof.
        rounds: Rounds of each pair.
        is_last: Whether time is up, so that the last look spends all the error that is left.
    """

    counts: tuple[int, ...]
    planned: int
    rounds: int = 1
    is_last: bool = False

    @classmethod
    def due(
        cls, pairs: int, least: int, planned: int, rounds: int, *, is_last: bool = False
    ) -> Looks:
        """The looks of a plan that were due so far.

        When the time is up there is one whose moment the data did not choose.

        Args:
            pairs: That there are.
            least: Pairs at the first look at least.
            planned: Pairs of the whole proof.
            rounds: Rounds of each pair.
            is_last: Whether time is up.
        """
        counts = [each for each in planned_looks(planned) if least <= each <= pairs]
        if is_last and pairs >= least and pairs not in counts:
            counts.append(pairs)
        return cls(tuple(counts), planned, rounds, is_last)

    def intervals(
        self, values: Sequence[float], alpha: float, noise: Noise | None = None
    ) -> list[Interval]:
        """What each look sees of some log ratios, one a pair; nothing where there are none.

        Args:
            values: In order of time.
            alpha: 1 - coverage, over all looks together.
            noise: What other pairs of the same kind say of their scatter.
        """
        if not values:
            return []
        prior = noise.spread(self.rounds) if noise else None
        return [
            planned_interval(
                values[:count],
                alpha,
                self.planned,
                prior=prior,
                is_last=self.is_last and count == self.counts[-1],
            )
            for count in self.counts
        ]
