"""Other ways of searching, in the same blocks as hztune: what differs is what is proposed.

A rival measures its proposals beside the default, six to a block, with the rounds that hztune would
choose; its best configuration by the pooled estimates goes into hztune's own proof. So what is
compared is the search, and neither the measuring nor the proof.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Protocol

import optuna

from hztune.blocks import Arm
from hztune.space import ConfigDict, Dimension, Space
from hztune.study.bench import Workbench
from hztune.study.finalist import Chain
from hztune.study.search import FEWEST_BLOCKS, SEARCH_BLOCKS, SLOTS, Ranked


class Strategy(Protocol):
    """What proposes."""

    def ask(self, count: int) -> list[ConfigDict]:
        """Configurations to measure next."""

    def tell(self, config: ConfigDict, log_ratio: float) -> None:
        """What one of them was measured as."""


class Rival:
    """Stands in the place of `hztune.study.search.Search`."""

    cut_short = ""

    def __init__(self, bench: Workbench, space: Space, strategy: Strategy) -> None:
        """Starts with nothing measured."""
        self.bench, self.space, self._strategy = bench, space, strategy
        self._refused: set[str] = set()
        self.control, self.starts = space.control, space.starts

    def run(self, share: float, latest: float = 0.0) -> None:
        """Measures proposals until `share` of the budget is used."""
        bench, total_s = self.bench, self.bench.budget.total_s
        while True:
            most_blocks = (SEARCH_BLOCKS, FEWEST_BLOCKS)
            usual, most = (bench.rounds(1 + SLOTS, total_s / n) for n in most_blocks)
            rounds = max(usual, min(bench.least_rounds(), most))
            if not bench.budget.allows(bench.executor.cost(1 + SLOTS, rounds), share):
                return
            asked = self._strategy.ask(SLOTS)
            arms = [*dict.fromkeys(map(self.space.arm, asked))]
            bench.measure([self.control, *[a for a in arms if not a.is_default]], "search", rounds)
            for config in asked:
                self._strategy.tell(config, self._last(self.space.arm(config)))

    def refuse(self, finalist: Arm) -> None:
        """Leaves an arm out for good."""
        self._refused.add(finalist.key)

    def best(self) -> Ranked | None:
        """The best by the pooled estimates; None where none is above the default."""
        known = self.bench.ledger.estimates()
        left = [key for key in known if key not in self._refused and known[key].mean > 0.0]
        if not left:
            return None
        key = max(left, key=lambda each: known[each].mean)
        return Ranked(self.bench.ledger.searched[key], known[key])

    def finalist(self, most: int) -> Chain | None:
        """The best one alone."""
        best = self.best()
        return None if best is None else (best.record.arm,)

    def _last(self, arm: Arm) -> float:
        record = self.bench.ledger.searched.get(arm.key)
        return record.log_ratios[-1] if record and record.pairs else 0.0


class Chance:
    """Random search."""

    def __init__(self, space: Space, seed: int) -> None:
        """Seeds the draws."""
        self._space, self._rng = space, random.Random(seed)

    def ask(self, count: int) -> list[ConfigDict]:
        """Anything that is legal."""
        return [self._space.sample(self._rng) for _ in range(count)]

    def tell(self, config: ConfigDict, log_ratio: float) -> None:
        """Learns nothing."""


class Asking:
    """A package that is asked again until what it suggests is legal."""

    def __init__(self, space: Space, seed: int) -> None:
        """Begins with nothing asked."""
        self._space, self._seed, self._open = space, seed, list[tuple[ConfigDict, Any]]()

    def ask(self, count: int) -> list[ConfigDict]:
        """What is suggested and legal."""
        while len(self._open) < count:
            config, asked = self.suggested()
            if self._space.objection(config) is None:
                self._open.append((config, asked))
            else:
                self.ended(asked, None)
        return [config for config, _ in self._open]

    def tell(self, config: ConfigDict, log_ratio: float) -> None:
        """Ends the first open suggestion of that configuration."""
        place = next(n for n, (known, _) in enumerate(self._open) if known == config)
        self.ended(self._open.pop(place)[1], log_ratio)

    def suggested(self) -> tuple[ConfigDict, Any]:
        """A configuration, and what the package knows it by."""
        raise NotImplementedError

    def ended(self, asked: Any, log_ratio: float | None) -> None:
        """Tells the package; None: it was not legal."""
        raise NotImplementedError


class Tpe(Asking):
    """Optuna's TPE with its defaults, with the constant liar for several at a time."""

    @cached_property
    def _study(self) -> optuna.Study:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=self._seed, constant_liar=True)
        return optuna.create_study(direction="maximize", sampler=sampler)

    def suggested(self) -> tuple[ConfigDict, Any]:
        """What TPE suggests."""
        trial = self._study.ask()

        def choose(dimension: Dimension) -> int:
            most = len(dimension.values) - 1
            if dimension.is_ordered:
                return trial.suggest_int(dimension.name, 0, most)
            return int(trial.suggest_categorical(dimension.name, list(range(most + 1))))

        return self._space.decode(choose), trial

    def ended(self, asked: Any, log_ratio: float | None) -> None:
        """What is not legal fails."""
        failed = optuna.trial.TrialState.FAIL if log_ratio is None else None
        self._study.tell(asked, log_ratio, state=failed)


class Smac(Asking):
    """SMAC3's facade for hyperparameters, with its defaults."""

    @cached_property
    def _smac(self) -> Any:
        from ConfigSpace import Categorical, ConfigurationSpace, Integer
        from smac import HyperparameterOptimizationFacade, Scenario

        cube = ConfigurationSpace(seed=self._seed)
        for dimension in self._space.dimensions:
            most = len(dimension.values) - 1
            cube.add(
                Integer(dimension.name, (0, most))
                if dimension.is_ordered and most > 0
                else Categorical(dimension.name, list(range(most + 1)))
            )
        folder, own = Path(mkdtemp()), {"deterministic": True, "seed": self._seed}
        scenario = Scenario(cube, output_directory=folder, n_trials=10_000, **own)
        return HyperparameterOptimizationFacade(
            scenario, lambda config, seed=0: 0.0, overwrite=True, logging_level=False
        )

    def suggested(self) -> tuple[ConfigDict, Any]:
        """What SMAC suggests."""
        asked = self._smac.ask()
        return self._space.decode(lambda each: int(asked.config[each.name])), asked

    def ended(self, asked: Any, log_ratio: float | None) -> None:
        """What is not legal is a great loss."""
        from smac.runhistory.dataclasses import TrialValue

        self._smac.tell(asked, TrialValue(cost=1.0 if log_ratio is None else -log_ratio))


class Presets:
    """The presets of the space, again and again."""

    def __init__(self, space: Space, seed: int) -> None:
        """Knows them all from the start."""
        self._presets = [dict(preset.config) for preset in space.presets]

    def ask(self, count: int) -> list[ConfigDict]:
        """All of them, as many as fit."""
        return self._presets[:count]

    def tell(self, config: ConfigDict, log_ratio: float) -> None:
        """Learns nothing."""


class Forward:
    """Forward selection: every single change, the best ones again, the best is kept, and so on."""

    AGAIN = 6
    """Changes that are measured again, twice."""

    def __init__(self, space: Space, seed: int) -> None:
        """Begins at the default."""
        self._space, self._rng = space, random.Random(seed)
        self._base: ConfigDict = {}
        self._sums, self._times = Counter[str](), Counter[str]()
        self._begin()

    def ask(self, count: int) -> list[ConfigDict]:
        """The next changes of this stage."""
        while not self._queue:
            if self._repeats:
                self._repeats -= 1
                self._queue = self._best(self.AGAIN)
            else:
                self._base = self._best(1)[0] if self._best(1) else self._base
                self._begin()
        asked, self._queue = self._queue[:count], self._queue[count:]
        return asked

    def tell(self, config: ConfigDict, log_ratio: float) -> None:
        """Takes a measurement in."""
        self._sums[str(config)] += log_ratio  # type: ignore[assignment]
        self._times[str(config)] += 1

    def _begin(self) -> None:
        full, found = self._space.full(self._base), []
        for dimension in self._space.dimensions:
            if dimension.when is None or dimension.when.holds(full):
                for index in range(len(dimension.values)):
                    value = dimension.values[index]
                    config = self._space.reduced({**self._base, dimension.name: value})
                    if config != self._base and self._space.objection(config) is None:
                        found.append(config)
        self._rng.shuffle(found)
        self._options, self._queue, self._repeats = found, [*found], 2

    def _best(self, count: int) -> Sequence[ConfigDict] | list[ConfigDict]:
        measured = [each for each in self._options if self._times[str(each)]]
        mean = {str(each): self._sums[str(each)] / self._times[str(each)] for each in measured}
        return sorted(measured, key=lambda each: -mean[str(each)])[:count]
