"""Does a search find a gain at one value of a parameter whose other values are level?

    python experiments/engine/cliffs.py [--gain 25] [--budget 90] [--axis depot_slots]

Whole studies in virtual time. One ordered parameter of hz, drawn by the study's number, gains at
the value that is farthest from its default, or at one that is no end and that the screening
does not try near the default (`--inner`). Every other value of every parameter changes the speed by
at most 1 %, up or down. In every second study the far ends of three other parameters harm.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from statistics import median
from typing import NamedTuple

import odd
from studies import Landscape, hz_space, share, told

from hztune.params import Value
from hztune.space import Dimension, Space
from hztune.sparse import SparseSampler, screening_step

NOISE = replace(odd.QUIET, between=0.02)
"""A minute and a half has a floor of about 1.5 % with it."""

HARMS = (0.5, 0.5, 0.11)
"""Speed at a harmful end: one of a maximum of shards had 0.11."""

WOBBLE = 0.01
"""Log ratio that a value adds at most, either way, where nothing is to be gained or lost."""

_POWERS = (16, 32, 64, 128, 256, 512, 1024)


class Ended(NamedTuple):
    """What one study came to."""

    tried: bool  # whether it measured the value that gains
    found: bool  # whether it proved a configuration with it
    false: bool  # whether it claimed a gain for a configuration that has none
    floor: float  # its noise floor, log units


def space_with(slots: Sequence[Value]) -> Space:
    """The search space of hz with these values of depot_slots."""
    space = hz_space()
    dimensions = tuple(
        replace(d, values=tuple(slots)) if d.name == "depot_slots" else d for d in space.dimensions
    )
    return replace(space, dimensions=dimensions)


def cliff(
    space: Space, seed: int, gain: float, axis: str | None = None, *, is_inner: bool = False
) -> tuple[Landscape, str, Value]:
    """A landscape with one cliff, and the parameter and the value that gain.

    Args:
        space: Whose parameters they are.
        seed: Decides which, and whether others harm.
        gain: Log ratio.
        axis: The parameter that gains; None: any ordered one.
        is_inner: Whether it gains at a value that the screening does not try.
    """
    rng = Random(f"cliff {seed}")
    always = [d for d in space.dimensions if d.when is None]
    effects: dict[tuple[str, Value], float] = {
        (d.name, value): rng.uniform(-WOBBLE, WOBBLE)
        for d in always
        for value in d.values
        if value != d.param.default
    }
    ordered = [d for d in always if d.is_ordered and len(d.values) > 3]
    if is_inner:
        ordered = [d for d in ordered if _between(d)]
    winner, *others = rng.sample(ordered, 1 + len(HARMS))
    if axis is not None:
        others = [d for d in (winner, *others) if d.name != axis][: len(HARMS)]
        (winner,) = (d for d in always if d.name == axis)
    if seed % 2:
        for speed, dimension in zip(HARMS, others, strict=True):
            effects[dimension.name, _far_end(dimension)] = math.log(speed)
    value = rng.choice(_between(winner)) if is_inner else _far_end(winner)
    if gain > 0.0:
        effects[winner.name, value] = gain
    return Landscape(effects), winner.name, value


def _between(dimension: Dimension) -> list[Value]:
    """The values that are no end, nor one that the screening tries near the default."""
    values, default = dimension.values, dimension.values.index(dimension.param.default)
    step = screening_step(len(values))
    tried = {0, len(values) - 1, default, default - step, default + step}
    return [value for number, value in enumerate(values) if number not in tried]


def _far_end(dimension: Dimension) -> Value:
    """The value that is most steps away from the default."""
    values, default = dimension.values, dimension.values.index(dimension.param.default)
    return values[-1] if len(values) - 1 - default >= default else values[0]


def ended(
    space: Space,
    seed: int,
    gain: float,
    budget_s: float,
    axis: str | None = None,
    *,
    is_inner: bool = False,
) -> Ended:
    """Tells one study; see `cliff`."""
    landscape, name, value = cliff(space, seed, gain, axis, is_inner=is_inner)
    story, decision = told(NOISE, landscape, seed, budget_s, space=space)
    assert story.calibration is not None
    searched = story.bench.ledger.searched
    claimed = decision.verdict == "improved"
    return Ended(
        tried=any(one.arm.config.get(name) == value for one in searched.values()),
        found=claimed and decision.arm.config.get(name) == value,
        false=claimed and landscape(decision.arm).log_ratio <= 0.0,
        floor=story.calibration.floor,
    )


def main() -> None:
    """Tells the studies that were asked for, and prints a row of a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--gain", type=float, default=25.0, help="percent; 0: no value gains over 1 %%")
    add("--budget", type=float, default=90.0, help="seconds of a study")
    add("--first", type=int, default=0, help="number of the first study")
    add("--count", type=int, default=40, help="studies")
    add("--axis", help="the parameter that gains; any without")
    add("--slots", type=int, nargs="+", default=_POWERS, help="values of depot_slots")
    add("--near", action="store_true", help="screen near the defaults only, as once")
    add("--inner", action="store_true", help="it gains where the screening does not look")
    options = parser.parse_args()
    if options.near:
        SparseSampler.ends = SparseSampler.anywhere = 0.0
    space, gain = space_with(options.slots), math.log1p(options.gain / 100.0)
    numbers = range(options.first, options.first + options.count)
    studies = [
        ended(space, n, gain, options.budget, options.axis, is_inner=options.inner) for n in numbers
    ]
    harmed = [one for one, n in zip(studies, numbers, strict=True) if n % 2]
    heads = "gain", "budget", "studies", "tried", "found", "found beside harm", "false", "floor"
    cells = [
        f"{options.gain:g} %",
        f"{options.budget:g} s",
        str(len(studies)),
        share(sum(one.tried for one in studies), len(studies)),
        share(sum(one.found for one in studies), len(studies)),
        share(sum(one.found for one in harmed), len(harmed)),
        str(sum(one.false for one in studies)),
        f"{median(one.floor for one in studies):.1%}",
    ]
    for line in (heads, ["---"] * len(heads), cells):
        print(f"| {' | '.join(line)} |")


if __name__ == "__main__":
    main()
