"""Which parameters of a winner do the harm: configurations that differ in one, side by side.

First each parameter is taken out of the winner, the likely ones before the others. Where two
parameters do the same harm, taking one of them out changes nothing; then they are added to the
defaults, one after the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hztune.blocks import Arm, Block, Outcome
from hztune.panel.judging import LOOKS, Harm, relief_of
from hztune.panel.workloads import MOST_SUSPECTS, PanelExecutor
from hztune.space import Space
from hztune.stats import Interval, fixed_interval
from hztune.trial import Workbench

MOST_BLAME_BLOCKS = 8
"""Blocks in which a cause is sought; one that is not found in them is told as not found."""

MOST_VOID = 2
"""Blocks in which the control failed, after which a workload is given up."""

_PART = 0.5
"""Least part of the harm, and of the greatest relief, that is gone without what does it."""

_FAILURES = 2
"""Blocks in which a process failed with a parameter, and none without it."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A parameter, and two configurations that differ in it."""

    name: str
    with_it: Arm
    without: Arm


def culprits(
    bench: Workbench,
    executor: PanelExecutor,
    harm: Harm,
    suspects: Sequence[Sequence[Suspect]],
    arms: tuple[Arm, Arm],
    gain: float,
    until_s: float,
) -> tuple[str, ...]:
    """The parameters that do a harm; empty: not found.

    Args:
        bench: Where blocks are measured.
        executor: What measures the workload on which the harm was shown.
        harm: What was shown.
        suspects: Groups, in the order in which they are looked at.
        arms: Control and winner.
        gain: Of the winner, log units, for the progress.
        until_s: When to end, seconds of the budget.
    """
    for whole in suspects:
        group = _fitting(bench, executor, whole, arms, until_s)
        found = _guilty(bench, executor, harm, whole)
        while not found and any(_is_open(bench, executor, harm, one) for one in group):
            if len(void_on(bench, executor.workload)) >= MOST_VOID:
                return ()
            block = _block(arms, group)
            if bench.budget.elapsed() + executor.cost(len(block), executor.rounds) > until_s:
                return ()
            bench.measure(block, "panel", executor.rounds, executor)
            bench.tell("panel", gain)
            found = _guilty(bench, executor, harm, whole)
        if found:
            return found
    return ()


def _fitting(
    bench: Workbench,
    executor: PanelExecutor,
    group: Sequence[Suspect],
    arms: tuple[Arm, Arm],
    until_s: float,
) -> Sequence[Suspect]:
    """As many of a group as there is time for, the first one at least."""
    left_s = until_s - bench.budget.elapsed()
    for count in range(len(group), 1, -1):
        cost_s = executor.cost(len(_block(arms, group[:count])), executor.rounds)
        if LOOKS[0] * cost_s <= left_s:
            return group[:count]
    return group[:1]


def _block(arms: tuple[Arm, Arm], group: Sequence[Suspect]) -> list[Arm]:
    """Control, winner, and what suspects are judged by."""
    return [*dict.fromkeys((*arms, *(arm for one in group for arm in _both(one))))]


def suspected(
    space: Space, control: Arm, arm: Arm, order: Sequence[str], likely: Collection[str]
) -> list[list[Suspect]]:
    """The suspects of a winner, in groups that stand in one block.

    Args:
        space: Of the winner's allocator.
        control: What it is compared with.
        arm: The winner.
        order: Its parameters, the one that matters least first.
        likely: Those of a known risk, or that do harm elsewhere.
    """
    removed = [Suspect(name, arm, _without(space, control, arm, {name})) for name in order]
    chain = [
        _without(space, control, arm, set(order[:count])) for count in range(len(order), -1, -1)
    ]
    names = list(reversed(order))
    added = (Suspect(*each) for each in zip(names, chain[1:], chain[:-1], strict=True))
    first = _groups(space, [one for one in removed if one.name in likely])
    others = _groups(space, [one for one in removed if one.name not in likely])
    groups = [*first, *others]
    return [*groups, *_groups(space, added)] if len(order) > 1 else groups


def _without(space: Space, control: Arm, arm: Arm, names: set[str]) -> Arm:
    """An arm without some parameters; without all, and of the control's allocator, the control."""
    left = space.arm(space.without(arm.config, names))
    return control if left.is_default and left.allocator == control.allocator else left


def _groups(space: Space, suspects: Iterable[Suspect]) -> Iterator[list[Suspect]]:
    """Yields those whose configurations differ and are legal, as many together as may live."""
    legal = [
        one
        for one in suspects
        if one.with_it != one.without
        and all(space.objection(arm.config) is None for arm in _both(one) if arm.params)
    ]
    for start in range(0, len(legal), MOST_SUSPECTS):
        yield legal[start : start + MOST_SUSPECTS]


def _both(suspect: Suspect) -> tuple[Arm, Arm]:
    return suspect.with_it, suspect.without


def all_on(bench: Workbench, workload: str) -> list[Block]:
    """The blocks of this machine on one workload of the panel."""
    own = (block for block in bench.ledger.panel if bench.ledger.is_own(block))
    return [block for block in own if block.workload == workload]


def blocks_on(bench: Workbench, workload: str) -> list[Block]:
    """Those of them in which the control ran."""
    return [block for block in all_on(bench, workload) if block.control.ok]


def void_on(bench: Workbench, workload: str) -> list[Block]:
    """Those in which it failed."""
    return [block for block in all_on(bench, workload) if not block.control.ok]


def _pairs(
    bench: Workbench, executor: PanelExecutor, suspect: Suspect
) -> Iterator[tuple[Outcome, Outcome]]:
    """Yields with and without it, of each block that has both."""
    for block in blocks_on(bench, executor.workload):
        found = {outcome.arm: outcome for outcome in reversed(block.outcomes)}
        if suspect.with_it in found and suspect.without in found:
            yield found[suspect.with_it], found[suspect.without]


def _is_open(bench: Workbench, executor: PanelExecutor, harm: Harm, suspect: Suspect) -> bool:
    """Whether more blocks may still show that it does most of the harm."""
    pairs = [*_pairs(bench, executor, suspect)]
    if harm.interval is None:
        return len(pairs) < MOST_BLAME_BLOCKS and all(other.ok for _, other in pairs)
    interval = _relief(harm, pairs)
    most = abs(harm.interval.estimate) if interval is None else interval.high
    return len(pairs) < MOST_BLAME_BLOCKS and most >= _PART * abs(harm.interval.estimate)


def _guilty(
    bench: Workbench, executor: PanelExecutor, harm: Harm, group: Sequence[Suspect]
) -> tuple[str, ...]:
    """The suspects without which most of the harm is gone."""
    if harm.interval is None:
        return tuple(one.name for one in group if _fails(bench, executor, one))
    found = {one.name: _relief(harm, [*_pairs(bench, executor, one)]) for one in group}
    reliefs = {name: each.estimate for name, each in found.items() if each and each.low > 0.0}
    least = _PART * max([abs(harm.interval.estimate), *reliefs.values()])
    return tuple(name for name, relief in reliefs.items() if relief >= least)


def _fails(bench: Workbench, executor: PanelExecutor, suspect: Suspect) -> bool:
    """Whether processes fail with it and none without it."""
    pairs = [*_pairs(bench, executor, suspect)]
    failed = [one for one, other in pairs if not one.ok]
    return len(failed) >= _FAILURES and all(other.ok for _, other in pairs)


def _relief(harm: Harm, pairs: Sequence[tuple[Outcome, Outcome]]) -> Interval | None:
    """How much of the harm is gone without a parameter, log units; None: too few pairs.

    The harm itself is shown elsewhere, so that the interval may be a plain one.
    """
    relief = relief_of(harm)
    values = (relief(*pair) for pair in pairs)
    known = [value for value in values if value is not None]
    return fixed_interval(known) if len(known) >= LOOKS[0] else None
