"""What each allocator may still come to: the hopeless ones get no more of the search's time.

Allocators are raced by what more configurations of theirs are expected to add to the best that is
known, and proposals are shared out by the same measure. How far configurations of one allocator lie
apart is learned from those that were measured; until there are some, from what is usual. The
decision is made anew from all data before each block, so none is out for ever.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from hztune.params import Value
from hztune.space import AnySpace
from hztune.stats import Estimate, expected_improvement
from hztune.trial import ArmRecord, Ledger

CHANCES = 6
"""Configurations for which an allocator must promise a gain that can be claimed: one block."""

_USUAL_SPREAD = 0.25
"""Standard deviation of log speed among one allocator's configurations, before any is known."""

_USUAL_WEIGHT = 4
"""Configurations whose word the usual spread outweighs."""


class Ranked(NamedTuple):
    """A configuration with the model's estimate of it. Every block makes thousands."""

    record: ArmRecord
    estimate: Estimate

    @property
    def config(self) -> dict[str, Value]:
        """Its parameters."""
        return self.record.arm.config


def prospects(
    space: AnySpace, ledger: Ledger, ranked: Sequence[Ranked], floor: float
) -> dict[str, float]:
    """What each allocator in which a winner may still lie promises, log units above 0.

    Args:
        space: All of it.
        ledger: What was measured.
        ranked: Every configuration that may win, the most promising first.
        floor: The noise floor, log units: what promises less is left out, all of them if need be.
    """
    known = defaultdict(list)
    for one in ranked:
        known[one.record.arm.allocator].append(one.estimate)
    best = ranked[0].estimate.mean if ranked else 0.0
    if not ledger.default_breaks_limit:
        best = max(0.0, best)
    broken = {record.arm.allocator for record in ledger.searched.values() if _is_broken(record)}
    promised = {
        part.allocator: _promise(known[part.allocator], best)
        for part in space.parts
        if known[part.allocator] or part.allocator not in broken
    }
    return {name: promise for name, promise in promised.items() if promise > floor}


def _promise(estimates: Sequence[Estimate], best: float) -> float:
    """What a block of an allocator's further configurations may add, log units."""
    if not estimates:
        return CHANCES * expected_improvement(0.0, _USUAL_SPREAD, best)
    centre = sum([one.raw for one in estimates]) / len(estimates)
    squares = sum([(one.raw - centre) ** 2 for one in estimates])
    variance = (_USUAL_WEIGHT * _USUAL_SPREAD**2 + squares) / (_USUAL_WEIGHT + len(estimates) - 1)
    noise = sum([one.raw_error**2 for one in estimates]) / len(estimates) ** 2
    return CHANCES * expected_improvement(centre, math.sqrt(variance + noise), best)


def _is_broken(record: ArmRecord) -> bool:
    """Whether an allocator did not even run with its defaults."""
    return record.arm.is_default and bool(record.failures)
