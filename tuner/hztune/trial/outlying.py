"""Pairs of processes that lie far from the others of their kind: told of, and counted all the same.

Looked at are the pairs that claims rest on: the default with itself, and the fresh pairs of each
finalist, on the machine that confirms. Elsewhere a configuration has too few pairs to show what is
usual for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hztune.blocks import Arm, Block
from hztune.stats import far_off, pair_ratio
from hztune.trial.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Outlier:
    """A pair of processes that lies far from the others of its kind; it counts all the same.

    Attributes:
        arm: Whose pair with the control it is; the control itself: of the default with itself.
        block: Number of the block in which it was measured.
        ratio: Its ratio to the median of all these pairs.
        pairs: How many these are.
    """

    arm: Arm
    block: int
    ratio: float
    pairs: int


def outlying_pairs(ledger: Ledger) -> list[Outlier]:
    """The pairs of a study that lie far from the others, arm by arm, in order of time."""
    found: dict[Arm, list[tuple[int, float]]] = {}
    for block in ledger.own_blocks():
        for arm, log_ratio in _pairs(block):
            found.setdefault(arm, []).append((block.number, log_ratio))
    return [
        Outlier(arm, pairs[index][0], math.exp(distance), len(pairs))
        for arm, pairs in found.items()
        for index, distance in far_off([log_ratio for _, log_ratio in pairs])
    ]


def _pairs(block: Block) -> list[tuple[Arm, float]]:
    """The log ratios of a block whose pairs are looked at; A/A processes are taken two by two."""
    outcomes = block.outcomes
    both = {
        "aa": zip(outcomes[::2], outcomes[1::2], strict=False),
        "confirm": ((block.control, outcome) for outcome in outcomes[1:]),
    }.get(block.role, ())
    pairs = ((other.arm, pair_ratio(one, other)) for one, other in both)
    return [(arm, pair.log_ratio) for arm, pair in pairs if pair is not None]
