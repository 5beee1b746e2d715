"""What processes counted, pair by pair: the one home of the figures in summary and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from hztune.blocks import Arm, Outcome
from hztune.result.counters import FAULTS, WHOLE, CounterChange
from hztune.trial.ledger import Ledger

_OPS = "ops"

Pair = tuple[Outcome, Outcome]


def fresh_outcomes(ledger: Ledger, arm: Arm) -> list[Pair]:
    """The control and an arm in each block of fresh pairs of this machine, in order of time.

    Of several attempts at a proof that held the arm, only the last counts.
    """
    found = [
        (block.outcomes[1].arm, (block.control, outcome))
        for block in ledger.own_blocks()
        if block.role == "confirm"
        for outcome in block.outcomes[1:]
        if outcome.arm == arm
    ]
    return [pair for first, pair in found if first == found[-1][0]]


def counter_changes(pairs: Sequence[Pair]) -> tuple[CounterChange, ...]:
    """What was counted differently by default and tuned, the greatest change first.

    Args:
        pairs: The control and the arm; a pair of which one failed does not count.
    """
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
    """What is counted of a process, and its operations where they are known."""
    facts = {name: outcome.facts[name] for name in (FAULTS, _OPS) if name in outcome.facts}
    return {**outcome.counters, **facts}


def _change(
    name: str, pairs: Sequence[tuple[Mapping[str, int], Mapping[str, int]]]
) -> CounterChange:
    """The medians of a counter; its rates are medians of the processes' own."""
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    default, tuned = (round(median(each[name] for each in side)) for side in sides)
    if name in WHOLE or not all(each.get(_OPS) for side in sides for each in side):
        return CounterChange(name, default, tuned)
    rates = (median(1000.0 * each[name] / each[_OPS] for each in side) for side in sides)
    return CounterChange(name, default, tuned, *rates)
