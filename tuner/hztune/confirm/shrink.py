"""Ablation: a member of a front goes back towards the default, knob by knob.

Knobs are taken back in groups that are halved where they matter
(Zeller & Hildebrandt, Simplifying and Isolating Failure-Inducing Input, IEEE TSE 28, 2002): most
knobs of a winner do nothing, and a whole group of them goes in one step. Whether a group may go is
for a judge to say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hztune.blocks import Arm
from hztune.params import Value
from hztune.space import ConfigDict, Space
from hztune.trial import ArmRecord, Bench

GROUPS = 4
"""Groups that are taken back side by side in one block."""

LEAST_ABLATION_PAIRS = 2
MOST_ABLATION_PAIRS = 6


class DropRule(Protocol):
    """What says whether a shorter configuration is as good, from its pairs with the whole one."""

    @property
    def gain(self) -> float:
        """Log ratio of the whole one to the default, for the progress."""

    def may_go(self, without: ArmRecord) -> bool:
        """Whether what was left out is not needed."""

    def is_clear(self, without: ArmRecord) -> bool:
        """Whether more pairs would hardly change what `may_go` says."""


@dataclass(frozen=True, slots=True)
class Group:
    """Knobs that are taken back together, and the configuration without them."""

    knobs: tuple[str, ...]
    without: ConfigDict


def shorten(
    bench: Bench, space: Space, finalist: Arm, judge: DropRule, rounds: int, share: float
) -> Arm:
    """Drops the knobs that a judge lets go, as far as the time allows.

    Args:
        bench: Where blocks are measured.
        space: What configurations of the finalist's allocator are legal.
        finalist: The arm to shorten.
        judge: What decides.
        rounds: Rounds of each process.
        share: Part of the budget that may be used by then.

    Returns:
        The shorter configuration; `finalist` itself when nothing could be dropped.
    """
    config = finalist.config
    pending = _split(tuple(config), GROUPS)
    while pending:
        groups, pending = _next_groups(space, config, pending)
        arms = [space.arm(group.without) for group in groups]
        measured = beside(bench, space.arm(config), arms, judge, rounds, share)
        if measured is None:
            break
        dropped = [g for g, one in zip(groups, measured, strict=True) if judge.may_go(one)]
        kept = [g.knobs for g in groups if g not in dropped]
        config = _without(space, config, [knob for g in dropped for knob in g.knobs])
        pending += [half for knobs in kept if len(knobs) > 1 for half in _split(knobs, 2)]
    return space.arm(config)


def beside(
    bench: Bench, whole: Arm, arms: Sequence[Arm], judge: DropRule, rounds: int, share: float
) -> list[ArmRecord] | None:
    """Measures shorter configurations beside the whole one, in blocks enough to decide.

    Returns:
        One record for each arm, in their order; None: there was no time for it.
    """
    while True:
        removals = bench.ledger.removals(whole)
        found = [removals.get(arm.key, ArmRecord(arm)) for arm in arms]
        open_ = [one for one in found if not one.failures and len(one.pairs) < MOST_ABLATION_PAIRS]
        is_known = all(len(one.pairs) >= LEAST_ABLATION_PAIRS for one in open_)
        if is_known and all(judge.is_clear(one) for one in open_):
            return found
        if not bench.budget.allows(bench.executor.cost(1 + len(arms), rounds), share):
            return found if is_known else None
        bench.measure([whole, *arms], "ablate", rounds)
        bench.tell("ablate", judge.gain)


def _next_groups(
    space: Space, config: Mapping[str, Value], pending: Sequence[tuple[str, ...]]
) -> tuple[list[Group], list[tuple[str, ...]]]:
    """The groups for one block, and the rest; what cannot go together is halved on the way."""
    groups: list[Group] = []
    left = list(pending)
    while left and len(groups) < GROUPS:
        knobs = left.pop(0)
        group = _group(space, config, knobs)
        if group is not None:
            groups.append(group)
        elif len(knobs) > 1:
            left[:0] = _split(knobs, 2)
    return groups, left


def _group(space: Space, config: Mapping[str, Value], knobs: tuple[str, ...]) -> Group | None:
    """The group, or None when the configuration without it is not legal or the same."""
    without = _without(space, config, knobs)
    if without == dict(config) or space.objection(without) is not None:
        return None
    return Group(knobs, without)


def _without(space: Space, config: Mapping[str, Value], knobs: Sequence[str]) -> ConfigDict:
    """`config` with some knobs at their defaults, and those that thereby lost their meaning."""
    left = {name: value for name, value in config.items() if name not in knobs}
    full = space.full(left)
    idle = {d.name for d in space.dimensions if d.when is not None and not d.when.holds(full)}
    return space.reduced({name: value for name, value in left.items() if name not in idle})


def _split(knobs: tuple[str, ...], parts: int) -> list[tuple[str, ...]]:
    """`knobs` in up to `parts` groups of nearly one size."""
    size = max(1, math.ceil(len(knobs) / parts))
    return [knobs[start : start + size] for start in range(0, len(knobs), size)]
