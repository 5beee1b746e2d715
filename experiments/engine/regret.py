"""How far from the best does a tuner end? hztune beside others, on recorded landscapes.

    pip install '.[regret]'
    python experiments/engine/regret.py [--seeds 15] experiments/engine/landscape-*.json

A Gaussian process through the recorded configurations says how fast any other one is; measuring
adds noise drawn from the recorded A/A blocks, and takes as long as it would. All are relative to
the defaults that the landscape records, whatever the core's are by now. Each tuner gets the
same measured seconds. What counts is the true speed of the configuration that it emits: its regret
is what the best one of the recording is faster.

Every tuner works inside the same blocks and its best goes into the same proof: see rivals.py.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median, variance
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from record import SPACE
from rivals import Chance, Forward, Presets, Rival, Smac, Strategy, Tpe
from studies import recorded

from hztune import params
from hztune.blocks import Arm, Block, Role
from hztune.machine import Machine
from hztune.params import Value
from hztune.progress import Reporter
from hztune.space import ConfigDict, Space, load, machine_facts
from hztune.study.bench import Budget, Workbench
from hztune.study.ledger import FAR_BEHIND, Ledger
from hztune.tuning.story import Story, Winner

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lab.replay import NoiseSource, ReplayExecutor, Truth, VirtualClock

LENGTHS = (0.2, 100.0)
"""Part of a parameter's range over which speed changes: at least that, or hardly ever."""

_OF_RUNS = {"skip_ms": 0.0, "warmup_ms": 0.0, "start_ms": 2.0}
"""What runs of a program take beside themselves; they are counted from their beginning."""

USUAL_FREEDOM = 2
"""Degrees of freedom that the usual scatter counts for beside a configuration's own."""


class Model(Protocol):
    """What says how fast configurations are that were not measured."""

    def predict(self, where: NDArray[np.float64]) -> NDArray[np.float64]:
        """The log ratio at each point of the unit cube, shapes (points, coordinates), (points,)."""


@dataclass
class Surface:
    """A landscape that can be asked anywhere.

    Attributes:
        name: Of its file.
        space: What may be proposed.
        noise: What measuring adds.
        run_ms: Of a program, what a run of it takes; 0: it is a workload, measured in turns.
    """

    name: str
    space: Space
    noise: NoiseSource
    run_ms: float
    _model: Model
    _recorded: Sequence[ConfigDict]
    _known: dict[str, Truth]

    @classmethod
    def read(cls, path: Path) -> Surface:
        """Fits a landscape that record.py has written.

        Raises:
            SystemExit: It was recorded in another space.
        """
        found = json.loads(path.read_text())
        space = space_of(found)
        if not all(space.contains(point["params"]) for point in found["points"]):
            raise SystemExit(f"{path} was recorded in another space than {SPACE}")
        noise = recorded(path.with_name(path.name.replace("landscape-", "noise-")))
        points = [point for point in found["points"] if point["status"] == "ok"]
        where = np.array([coordinates(space, point["params"]) for point in points])
        level = np.array([max(FAR_BEHIND, fmean(point["pairs"])) for point in points])
        model = fitted(where, level, errors([point["pairs"] for point in points]))
        recorded_configs = [point["params"] for point in points]
        name = path.stem.removeprefix("landscape-")
        run_ms = found.get("run_ms", 0.0)
        return cls(name, space, noise, run_ms, model, recorded_configs, {})

    def __call__(self, arm: Arm) -> Truth:
        """How fast an arm is; the default is 1 by definition."""
        if arm.key not in self._known:
            at = np.array([coordinates(self.space, arm.config), coordinates(self.space, {})])
            here, default = self._model.predict(at)
            self._known[arm.key] = Truth(float(here - default))
        return self._known[arm.key]

    def best(self) -> float:
        """The log ratio of the best configuration that was recorded.

        Where nothing was measured, the process may promise what was never seen.
        """
        return max(self(self.space.arm(config)).log_ratio for config in self._recorded)


def space_of(found: Mapping[str, Any]) -> Space:
    """The space as it was: its defaults and its machine are those that the landscape records."""
    then = found["defaults"]
    rows = [replace(row, default=then.get(row.name, row.default)) for row in params.table()]
    threads = found.get("threads") or int(found["workload"].rpartition("T=")[2])
    facts = machine_facts(threads, Machine(**found["machine"]))
    return load(SPACE, rows, check=params.check, facts=facts)


def fitted(
    where: NDArray[np.float64], level: NDArray[np.float64], error: NDArray[np.float64]
) -> Model:
    """A Gaussian process through measured points.

    Args:
        where: Points of the unit cube, shape (points, coordinates).
        level: Their log ratios, shape (points,).
        error: The standard errors of these, shape (points,).
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    lengths = Matern(np.ones(where.shape[1]), LENGTHS, nu=2.5)
    kernel = ConstantKernel(0.1) * lengths + WhiteKernel(1e-4)
    alpha = (error / level.std()) ** 2  # scikit-learn adds it to what it has normalised
    model = GaussianProcessRegressor(kernel, alpha=alpha, normalize_y=True, random_state=1)
    with warnings.catch_warnings():  # a parameter that does not matter has no length: its bound
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(where, level)
    found: Model = model
    return found


def coordinates(space: Space, config: ConfigDict | dict[str, Value]) -> NDArray[np.float64]:
    """A configuration as a point of the unit cube; words get a coordinate each."""
    point = space.encode(config)
    found: list[float] = []
    for dimension in space.dimensions:
        index = point.get(dimension.name, 0)
        count = len(dimension.values)
        if dimension.is_ordered:
            found.append(index / max(1, count - 1))
        else:
            found.extend(float(index == each) for each in range(count))
    return np.array(found)


def errors(pairs: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """The standard error of each configuration's mean.

    Slow configurations scatter far more than fast ones, so each has a variance of its own, drawn
    towards the usual one: two or three pairs alone say little.
    """
    own = [variance(several) if len(several) > 1 else math.nan for several in pairs]
    usual = float(np.nanmedian(own))
    counts = np.array([len(several) for several in pairs])
    freedom = np.maximum(counts - 1, 0)
    drawn = (np.nan_to_num(own) * freedom + usual * USUAL_FREEDOM) / (freedom + USUAL_FREEDOM)
    return np.sqrt(drawn / counts)


# ---- tuners --------------------------------------------------------------------------------------

Tuner = Callable[[Surface, int, float], Arm]


class Workers(ReplayExecutor):
    """Several machines: they measure blocks of a search beside each other, what is proved alone."""

    workers = 1

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._flying: list[tuple[float, Block]] = []  # when each ends

    @property
    def pending(self) -> list[Arm]:
        return [o.arm for _, block in self._flying for o in block.outcomes[1:]]

    def submit(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> list[Block]:
        began_s = self.clock()
        block = self.measure(arms, role=role, rounds=rounds, number=number)
        self._flying.append((self.clock(), block))
        self.clock.advance(began_s - self.clock())
        return self.collect() if len(self._flying) >= self.workers else []

    def collect(self) -> list[Block]:
        if not self._flying:
            return []
        first = min(self._flying, key=lambda each: each[0])
        self._flying.remove(first)
        self.clock.advance(max(0.0, first[0] - self.clock()))
        return [first[1]]


def by_hztune(surface: Surface, seed: int, budget_s: float) -> Arm:
    """The whole study: calibration, search and fresh proof; the default unless a gain is proved."""
    return story_of(surface, seed, budget_s).run().arm


def by(strategy: Callable[[Space, int], Strategy]) -> Tuner:
    """The same story with another way of searching."""

    def tuner(surface: Surface, seed: int, budget_s: float) -> Arm:
        story = story_of(surface, seed, budget_s)
        rival = Rival(story.bench, surface.space, strategy(surface.space, seed))
        story.search = rival  # type: ignore[assignment]
        return story.run().arm

    return tuner


def story_of(surface: Surface, seed: int, budget_s: float) -> Story:
    """A study on a surface, in virtual time."""
    clock = VirtualClock()
    takes = {"turn_ms": surface.run_ms, **_OF_RUNS} if surface.run_ms else {}
    executor = Workers(surface, surface.noise, seed=seed, clock=clock, **takes)
    bench = Workbench(executor, Ledger(), Budget(clock, budget_s), Reporter())
    return Winner(bench, surface.space, seed)


TUNERS: dict[str, Tuner] = {
    "hztune": by_hztune,
    "random search": by(Chance),
    "TPE": by(Tpe),
    "SMAC3": by(Smac),
    "forward selection": by(Forward),
    "presets only": by(Presets),
}


def main() -> None:
    """Lets every tuner work on every landscape; a table for people, JSON for programs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("landscapes", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=15)
    parser.add_argument("--budget", type=float, default=180.0, help="seconds")
    parser.add_argument("--workers", type=int, default=1, help="machines of a cluster")
    parser.add_argument("--tuner", action="append", choices=list(TUNERS))
    options = parser.parse_args()
    Workers.workers = options.workers
    results = []
    print(
        "| landscape | tuner | best | median regret | worst |\n|---|---|---|---|---|",
        file=sys.stderr,
    )
    for path in options.landscapes:
        surface = Surface.read(path)
        best = surface.best()
        for name in options.tuner or TUNERS:
            emitted = [
                surface(TUNERS[name](surface, seed, options.budget)).log_ratio
                for seed in range(1, options.seeds + 1)
            ]
            regrets = [max(0.0, 1.0 - math.exp(each - best)) for each in emitted]
            results.append({"landscape": surface.name, "tuner": name, "regrets": regrets})
            print(
                f"| {surface.name} | {name} | {math.exp(best):.3f}x | {median(regrets):.2%} "
                f"| {max(regrets):.2%} |",
                file=sys.stderr,
                flush=True,
            )
    asked = {"budget_s": options.budget, "workers": options.workers}
    json.dump({"schema": 1, **asked, "results": results}, sys.stdout)


if __name__ == "__main__":
    main()
