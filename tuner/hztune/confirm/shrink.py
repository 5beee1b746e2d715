"""Ablation: a proved configuration goes back towards the default, knob by knob.

A shorter profile is a better one. Knobs are taken back in groups that are halved where they matter
(Zeller & Hildebrandt, Simplifying and Isolating Failure-Inducing Input, IEEE TSE 28, 2002): most
knobs of a winner do nothing, and a whole group of them goes in one step. A group goes when the
interval of its effect holds zero and what it would likely cost is a small part of the gain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hztune.confirm.proof import pair_rounds
from hztune.params import Value
from hztune.samples import Arm
from hztune.search import Bench
from hztune.space import Config, Space
from hztune.stats import PairRatio, pool_plain

GROUPS = 4
"""Groups that are taken back side by side in one block."""

LEAST_PAIRS = 2
MOST_PAIRS = 6
LOSS_SHARE = 0.15
"""Most of the gain that dropping one group may likely cost."""


@dataclass(frozen=True, slots=True)
class Group:
    """Knobs that are taken back together, and the configuration without them."""

    knobs: tuple[str, ...]
    without: Config


def shrink(bench: Bench, space: Space, finalist: Arm, gain: float, share: float) -> Arm:
    """Drops the knobs that do not matter, as far as the time allows.

    Args:
        bench: Where blocks are measured.
        space: What configurations of the finalist's allocator are legal.
        finalist: A proved configuration.
        gain: Its log ratio to the default.
        share: Part of the budget that may be used by then.

    Returns:
        The shorter configuration; `finalist` itself when nothing could be dropped.
    """
    config = finalist.config
    pending = _split(tuple(config), GROUPS)
    while pending:
        groups, pending = _next_groups(space, config, pending)
        measured = _measure(bench, space, config, groups, gain, share)
        if not measured:
            break
        dropped = [g for g in groups if _may_go(bench, measured[g.knobs], gain)]
        kept = [g.knobs for g in groups if g not in dropped]
        config = _without(space, config, [knob for g in dropped for knob in g.knobs])
        pending += [half for knobs in kept if len(knobs) > 1 for half in _split(knobs, 2)]
    return space.arm(config)


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


def _measure(
    bench: Bench,
    space: Space,
    config: Mapping[str, Value],
    groups: Sequence[Group],
    gain: float,
    share: float,
) -> dict[tuple[str, ...], list[PairRatio]] | None:
    """What taking each group back does, from enough blocks to decide; None: no time for them."""
    whole = space.arm(config)
    arms = [space.arm(group.without) for group in groups]
    while True:
        removals = bench.ledger.removals(whole)
        found = {g.knobs: removals.get(a.key, []) for g, a in zip(groups, arms, strict=True)}
        fewest = min((len(pairs) for pairs in found.values()), default=MOST_PAIRS)
        if fewest >= MOST_PAIRS:
            return found
        if fewest >= LEAST_PAIRS and all(_clear(bench, p, gain) for p in found.values()):
            return found
        rounds = pair_rounds(bench)
        if not bench.budget.allows(bench.executor.cost(1 + len(arms), rounds), share):
            return found if fewest >= LEAST_PAIRS else None
        bench.measure([whole, *arms], "ablate", rounds)
        bench.tell("ablate", gain)


def _may_go(bench: Bench, pairs: Sequence[PairRatio], gain: float) -> bool:
    mean, error = pool_plain(pairs, bench.ledger.noise())
    return mean + 1.96 * error >= 0.0 and -mean <= LOSS_SHARE * gain


def _clear(bench: Bench, pairs: Sequence[PairRatio], gain: float) -> bool:
    """Whether more pairs would hardly change what `_may_go` says."""
    mean, error = pool_plain(pairs, bench.ledger.noise())
    return mean + 1.96 * error < 0.0 or mean - error > -LOSS_SHARE * gain


def _group(space: Space, config: Mapping[str, Value], knobs: tuple[str, ...]) -> Group | None:
    """The group, or None when the configuration without it is not legal or the same."""
    without = _without(space, config, knobs)
    if without == dict(config) or space.objection(without) is not None:
        return None
    return Group(knobs, without)


def _without(space: Space, config: Mapping[str, Value], knobs: Sequence[str]) -> Config:
    """`config` with some knobs at their defaults, and those that thereby lost their meaning."""
    left = {name: value for name, value in config.items() if name not in knobs}
    full = space.full(left)
    idle = {d.name for d in space.dimensions if d.when is not None and not d.when.holds(full)}
    return space.reduced({name: value for name, value in left.items() if name not in idle})


def _split(knobs: tuple[str, ...], parts: int) -> list[tuple[str, ...]]:
    """`knobs` in up to `parts` groups of nearly one size."""
    size = max(1, math.ceil(len(knobs) / parts))
    return [knobs[start : start + size] for start in range(0, len(knobs), size)]
