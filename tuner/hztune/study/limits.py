"""What a configuration must not exceed of memory, as `1.10x` or `512M`, nor lose of speed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hztune.arguments import memory_amount, percentage
from hztune.blocks import Outcome
from hztune.rests import MEMORIES, MemoryKind
from hztune.stats.intervals import REPORTED_ERROR, Looks, Question, Spread
from hztune.stats.ratios import PairRatio

OF_LOAD = "max_load_loss"  # how a profile names the limit of what the load may lose


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    text: str  # as the user wrote it
    ratio: float = 0.0  # times the default's, at the same moment; 0: the limit is absolute
    kb: int = 0  # 0: the limit is relative
    memory: MemoryKind = "rss"
    beside: MemoryLimit | None = None  # is to be kept as well

    @classmethod
    def of(cls, text: str, memory: MemoryKind = "rss") -> MemoryLimit:
        """The limit that a user wrote; UsageError: it has no known form, or is nothing."""
        return cls(text, *memory_amount(text, f"--max-{memory}"), memory)

    def all(self) -> Iterator[MemoryLimit]:
        yield self
        if self.beside is not None:
            yield from self.beside.all()

    @property
    def words(self) -> str:
        """In words: "1.10x of peak memory and 0.7x of kept memory"."""
        return " and ".join(f"{each.text} of {MEMORIES[each.memory]}" for each in self.all())

    def excess(self, control_kb: float, candidate_kb: float) -> float:
        """Logarithm of what the candidate takes / what it may take; above 0 it is too much."""
        allowed = self.kb if self.kb else self.ratio * control_kb
        return math.log(max(1.0, candidate_kb) / max(1.0, allowed))

    def excess_of(self, control: Outcome, outcome: Outcome) -> float | None:
        """How far an outcome is above it, log units; the worst of several; None: not known."""
        if outcome.parts:
            both = zip(control.parts, outcome.parts, strict=True)
            found = [self.excess_of(one, other) for one, other in both]
        else:
            found = [
                each.excess(control.memory_kb(each.memory), kb)
                if (kb := outcome.memory_kb(each.memory))
                else None
                for each in self.all()
            ]
        known = [each for each in found if each is not None]
        return max(known) if len(known) == len(found) else None

    def question(self, excesses: Sequence[float], looks: Looks, error: float) -> Question:
        """Is it kept? Configurations are not alike in the scatter of memory: there is no prior."""
        spare = [-excess for excess in excesses]
        return Question(spare, looks, error, refusal=REPORTED_ERROR, may_touch=True)


@dataclass(frozen=True, slots=True)
class LossLimit:
    """The most that any one of several workloads may lose, or of the speed of a load.

    It is kept where the interval of every workload excludes a greater loss. What can be shown so of
    a configuration that loses nothing, on two workloads at the error of a first claim, after 15 A/A
    pairs on each (10,000 simulated proofs each: experiments/engine/losses.py):

    | SD of a pair | pairs | at most 1 % | 2 % | 3 % | 4 % | 5 % | 6 % |
    |---|---|---|---|---|---|---|---|
    | 0.02 | 10 | 1 % | 27 % | 85 % | 99 % | 100 % | 100 % |
    | 0.03 | 15 | 0 % | 13 % | 64 % | 96 % | 100 % | 100 % |
    | 0.04 | 15 | 0 % | 3 % | 23 % | 64 % | 92 % | 99 % |
    | 0.05 | 20 | 0 % | 2 % | 18 % | 56 % | 88 % | 98 % |
    """

    text: str
    log: float  # log units, above 0
    workloads: tuple[str, ...] = ()  # what they are called, in order; empty: not known
    of_load: bool = False  # where memory at rest is made less: of the speed of the load

    @classmethod
    def of(cls, text: str, workloads: Sequence[str] = (), *, of_load: bool = False) -> LossLimit:
        """The limit that a user wrote; UsageError: it is no percentage from 0 to below 100."""
        named = ("the speed of its load",) if of_load else tuple(workloads)
        return cls(text, -math.log1p(-percentage(text, "--max-loss")), named, of_load)

    def excess(self, log_ratio: float) -> float:
        """How far a workload's log ratio is below what it may be; above 0 it is too much."""
        return -log_ratio - self.log

    def questions(
        self,
        each: Sequence[Sequence[PairRatio]],
        looks: Looks,
        error: float,
        priors: Sequence[Spread | None],
    ) -> list[Question]:
        """Does each workload lose no more? One of them refuses all, so that they share that error.

        `error`: of a yes, which takes all. `priors`: what others say of the scatter on each.
        """
        return [
            Question(
                [pair.log_ratio for pair in pairs],
                looks,
                error,
                margin=-self.log,
                prior=prior,
                refusal=REPORTED_ERROR / len(each),
                may_touch=True,
            )
            for pairs, prior in zip(each, priors, strict=True)
        ]


def limits_of(
    texts: Mapping[str, str], workloads: Sequence[str] = ()
) -> tuple[MemoryLimit | None, LossLimit | None]:
    found: MemoryLimit | None = None
    for memory in reversed(MEMORIES):
        if text := texts.get(f"max_{memory}"):
            found = replace(MemoryLimit.of(text, memory), beside=found)
    loss, of_load = texts.get("max_loss"), texts.get(OF_LOAD)
    if of_load:
        return found, LossLimit.of(of_load, of_load=True)
    return found, LossLimit.of(loss, workloads) if loss else None
