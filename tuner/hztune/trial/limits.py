"""What a configuration must not exceed, written `1.10x` (of the default's) or `512M`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hztune.arguments import memory_amount, percentage
from hztune.stats import Interval


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The most peak memory that a configuration may take.

    Attributes:
        text: As the user wrote it.
        ratio: Times the default's, measured at the same moment; 0 when the limit is absolute.
        kb: KiB; 0 when the limit is relative.
    """

    text: str
    ratio: float = 0.0
    kb: int = 0

    @classmethod
    def of(cls, text: str) -> MemoryLimit:
        """The limit that a user wrote.

        Raises:
            UsageError: It is written in no known way, or is nothing.
        """
        return cls(text, *memory_amount(text))

    def excess(self, control_kb: float, candidate_kb: float) -> float:
        """Logarithm of what the candidate takes / what it may take; above 0 it is too much."""
        allowed = self.kb if self.kb else self.ratio * control_kb
        return math.log(max(1.0, candidate_kb) / max(1.0, allowed))

    def kept(self, interval: Interval) -> bool:
        """Whether the interval of `excess` on fresh pairs shows that the limit is kept."""
        return interval.high <= 0.0

    def broken(self, interval: Interval) -> bool:
        """Whether it shows that it is not."""
        return interval.low > 0.0


@dataclass(frozen=True, slots=True)
class LossLimit:
    """The most that any one of several workloads may lose.

    It is kept where the interval of every workload excludes a greater loss. What can be shown so of
    a configuration that loses nothing, on two workloads at the error of a first claim, after 15 A/A
    pairs on each (10,000 simulated proofs each: experiments/engine/losses.py):

    | SD of a pair | pairs | at most 1 % | 2 % | 3 % | 4 % | 5 % | 6 % |
    |---|---|---|---|---|---|---|---|
    | 0.02 | 10 | 1 % | 27 % | 85 % | 99 % | 100 % | 100 % |
    | 0.03 | 15 | 0 % | 13 % | 64 % | 96 % | 100 % | 100 % |
    | 0.04 | 15 | 0 % | 3 % | 23 % | 64 % | 92 % | 99 % |
    | 0.05 | 20 | 0 % | 2 % | 18 % | 56 % | 88 % | 98 % |

    Attributes:
        text: As the user wrote it.
        log: Log units, above 0.
        workloads: What the workloads are called, in their order; empty: not known.
    """

    text: str
    log: float
    workloads: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str) -> LossLimit:
        """The limit that a user wrote.

        Raises:
            UsageError: It is no percentage below 100.
        """
        return cls(text, -math.log1p(-percentage(text)))

    def excess(self, log_ratio: float) -> float:
        """How far a workload's log ratio is below what it may be; above 0 it is too much."""
        return -log_ratio - self.log

    def kept(self, interval: Interval) -> bool:
        """Whether the interval of a workload excludes a greater loss."""
        return self.excess(interval.low) <= 0.0

    def broken(self, interval: Interval) -> bool:
        """Whether it excludes that the loss is no greater."""
        return self.excess(interval.high) > 0.0

    def name_of(self, part: int) -> str:
        """What a workload is called, by its place."""
        return self.workloads[part] if self.workloads else f"workload {part + 1}"


def limits_of(texts: Mapping[str, str]) -> tuple[MemoryLimit | None, LossLimit | None]:
    """The limits of a study from their texts by name, as a profile has them."""
    memory, loss = texts.get("max_rss"), texts.get("max_loss")
    return MemoryLimit.of(memory) if memory else None, LossLimit.of(loss) if loss else None
