"""What do lessons of earlier studies save, and what do wrong ones cost?

    pip install '.[regret]'
    python experiments/engine/prior.py experiments/engine/landscape-*.json
    python experiments/engine/prior.py --equals 400 experiments/engine/noise-*.json

The first command lets hztune work on each landscape with the prior that lessons make, and tells its
regret as regret.py does. The lessons are of simulated studies, with seeds of their own: three of
the same landscape, or three of each of the others. The wrong ones are made up: of ten new studies
of the very same workload, which say that whatever helps here showed nothing, and that three others
helped.

The second one counts claims of a gain where all configurations are equal, beside a prior that is as
sure of three parameters as any can be.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean, median

from regret import Surface, story_of
from studies import ANY, EQUAL, NOW, hz_space, prior_of, recorded, share, told

from hztune.prior import NOTHING, Gain, Learned, Lesson, Prior, Subject
from hztune.space import Space
from hztune.tune.learned import learned_of

EARLIER = 3
"""Studies that leave a lesson, of each landscape."""

FIRST_EARLIER = 1000
"""Seed of the first of them."""

LIES = 10
"""Wrong lessons: enough to move the odds as far as they may go."""


def subject_of(surface: Surface) -> Subject:
    """What a study on a landscape is about."""
    return Subject(surface.name, int(surface.name.rpartition("-")[2]), "ops_per_s", "here")


def lessons_of(surface: Surface, budget_s: float) -> list[Lesson]:
    """What earlier studies on a landscape learned."""
    found = []
    for seed in range(FIRST_EARLIER, FIRST_EARLIER + EARLIER):
        story = story_of(surface, seed, budget_s, NOTHING)
        decision = story.run()
        learned = learned_of(surface.space, "", story.bench.ledger, decision)
        found.append(Lesson(subject_of(surface), (learned,), "", NOW))
    return found


def lies(surface: Surface, right: Sequence[Lesson]) -> list[Lesson]:
    """Lessons that turn round what others say."""
    names = [d.name for d in surface.space.dimensions]
    true = {n for one in right for g in one.learned[0].gains for n, _ in g.levels} or {"thp"}
    rng = Random(surface.name)
    false = rng.sample([name for name in names if name not in true], 3)
    gains = tuple(Gain(((name, 0),), 1.1, 1.2) for name in false)
    learned = Learned("hz", "", gains, tuple((name, 100) for name in sorted(true)))
    return [Lesson(subject_of(surface), (learned,), "", NOW)] * LIES


def priors(surfaces: Sequence[Surface], budget_s: float) -> dict[str, dict[str, Prior]]:
    """For each landscape, every prior by its name."""
    own = {surface.name: lessons_of(surface, budget_s) for surface in surfaces}
    return {
        surface.name: {
            "none": NOTHING,
            "presets": _made(surface, []),
            "same workload": _made(surface, own[surface.name]),
            "other workloads": _made(surface, _but(own, surface.name)),
            "wrong": _made(surface, lies(surface, own[surface.name])),
        }
        for surface in surfaces
    }


def _made(surface: Surface, lessons: Sequence[Lesson]) -> Prior:
    return prior_of(surface.space, subject_of(surface), lessons)


def _but(own: Mapping[str, Sequence[Lesson]], name: str) -> list[Lesson]:
    return [lesson for other, each in own.items() if other != name for lesson in each]


def regrets(surface: Surface, prior: Prior, seeds: range, budget_s: float) -> list[float]:
    """How much slower than the best what a study emits is."""
    best = surface.best()
    arms = [story_of(surface, seed, budget_s, prior).run().arm for seed in seeds]
    return [max(0.0, 1.0 - math.exp(surface(arm).log_ratio - best)) for arm in arms]


def on_landscapes(
    paths: Sequence[Path], names: Sequence[str] | None, seeds: int, budget_s: float
) -> object:
    """Regrets with every prior on every landscape, or on those that are named."""
    surfaces, found = [Surface.read(path) for path in paths], []
    by_name = priors(surfaces, budget_s)
    print("| landscape | prior | mean | median | worst |\n|---|---|---|---|---|", file=sys.stderr)
    for surface in (each for each in surfaces if not names or each.name in names):
        for name, prior in by_name[surface.name].items():
            each = regrets(surface, prior, range(1, seeds + 1), budget_s)
            found.append({"landscape": surface.name, "prior": name, "regrets": each})
            told = f"{fmean(each):.2%} | {median(each):.2%} | {max(each):.2%}"
            print(f"| {surface.name} | {name} | {told} |", file=sys.stderr, flush=True)
    return found


def sure(space: Space, seed: int) -> Prior:
    """A prior that is as sure of three parameters as any can be."""
    names = Random(seed).sample([d.name for d in space.dimensions], 3)
    learned = Learned("hz", "", tuple(Gain(((name, 0),), 1.1, 1.2) for name in names), ())
    return prior_of(space, ANY, [Lesson(ANY, (learned,), "", NOW)] * 100)


def on_equals(paths: Sequence[Path], count: int, budget_s: float) -> object:
    """Claims of a gain where there is none."""
    false = finalists = 0
    for seed in range(count):
        noise = recorded(paths[seed % len(paths)])
        story, decision = told(noise, EQUAL, seed, budget_s, sure(hz_space(), seed))
        false += decision.verdict == "improved"
        finalists += len(story.aim.proofs)
    print(f"false claims: {share(false, count)}; {finalists} finalists", file=sys.stderr)
    return {"studies": count, "false_claims": false, "finalists": finalists}


def main() -> None:
    """Measures what was asked for; a table for people, JSON for programs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="landscapes, or noise for --equals")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds")
    parser.add_argument("--on", action="append", metavar="NAME", help="landscapes to work on")
    parser.add_argument("--equals", type=int, default=0, metavar="N", help="studies of equals")
    options = parser.parse_args()
    found = (
        on_equals(options.files, options.equals, options.budget)
        if options.equals
        else on_landscapes(options.files, options.on, options.seeds, options.budget)
    )
    json.dump({"schema": 1, "budget_s": options.budget, "results": found}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
