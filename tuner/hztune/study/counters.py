"""What an allocator did differently, counted: the default beside the tuned, pair by pair.

Counters cover a whole process, and the faster process does more work in its time: so what happens
again and again is told per operation, wherever the operations are known. Only pairs of the machine
that confirms are looked at: elsewhere too few show what is usual.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

from hztune import artifacts
from hztune.blocks import Arm, Outcome
from hztune.study.ledger import Ledger

FAULTS = "minor_faults"  # page faults without I/O, which the kernel counts

WHOLE = frozenset({"committed_bytes", "huge_page_bytes", "small_page_bytes", "prefaulted_bytes"})
WHOLE |= {"heaps_born", "background_rounds"}
"""Counters that do not grow with the operations: of the process as a whole."""

_SLIGHT = 100.0  # counts that differ by less say little, however great their ratio is

_OPS = "ops"

Pair = tuple[Outcome, Outcome]


@dataclass(frozen=True, slots=True)
class CounterChange:
    counter: str  # its name, or FAULTS
    default: int  # counted in a process of the default
    tuned: int  # the same of the tuned
    # per 1000 operations of the default; None: the operations are not known, or the counter does
    # not grow with them
    default_rate: float | None = None
    tuned_rate: float | None = None  # the same of the tuned

    @property
    def shown(self) -> tuple[float, float]:
        if self.default_rate is None or self.tuned_rate is None:
            return self.default, self.tuned
        return self.default_rate, self.tuned_rate

    @property
    def size(self) -> float:
        """How great the change is, log units: for as many operations as the default's."""
        before, after = self.shown
        tuned = after * self.default / before if before else float(self.tuned)
        return abs(math.log((tuned + _SLIGHT) / (self.default + _SLIGHT)))

    @property
    def noun(self) -> str:
        return _nouns().get(self.counter, self.counter)

    @property
    def unit(self) -> str:
        of = "per process" if self.default_rate is None else "per 1000 operations"
        return f"bytes {of}" if self.counter.endswith("_bytes") else of


@cache
def _nouns() -> Mapping[str, str]:
    """What each counter counts, so that "more" can stand before it."""
    table = (artifacts.include_dir() / "hz" / "stats.def").read_text()
    return {FAULTS: "page faults", **dict(re.findall(r'^HZ_STAT\((\w+), *"(.+)"\)', table, re.M))}


def fresh_outcomes(ledger: Ledger, arm: Arm) -> list[Pair]:
    """The control and an arm in each fresh pair of this machine, of its last attempt, in order."""
    found = [
        (block.outcomes[1].arm, (block.control, outcome))
        for block in ledger.own_blocks("confirm")
        for outcome in block.outcomes[1:]
        if outcome.arm == arm
    ]
    return [pair for first, pair in found if first == found[-1][0]]


def counter_changes(pairs: Sequence[Pair]) -> tuple[CounterChange, ...]:
    well = [(_counted(one), _counted(two)) for one, two in pairs if one.ok and two.ok]
    names = [
        name
        for name in (well[0][0] if well else ())
        if name != _OPS and all(name in each for pair in well for each in pair)
    ]
    found = (_change(name, well) for name in names)
    return tuple(
        sorted((each for each in found if each.default != each.tuned), key=lambda each: -each.size)
    )


def _counted(outcome: Outcome) -> Mapping[str, int]:
    facts = {name: outcome.facts[name] for name in (FAULTS, _OPS) if name in outcome.facts}
    return {**outcome.counters, **facts}


def _change(
    name: str, pairs: Sequence[tuple[Mapping[str, int], Mapping[str, int]]]
) -> CounterChange:
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    default, tuned = (round(median(each[name] for each in side)) for side in sides)
    if name in WHOLE or not all(each.get(_OPS) for side in sides for each in side):
        return CounterChange(name, default, tuned)
    rates = (median(1000.0 * each[name] / each[_OPS] for each in side) for side in sides)
    return CounterChange(name, default, tuned, *rates)
