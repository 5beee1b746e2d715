"""What the search believes of configurations, measured or not: the pooled estimates, and a model.

A pair or two of noisy measurements say little, but a hundred configurations around one say much of
it. So estimates are corrected by a model of the landscape before one is called the best, and of
many proposals those are measured that the model expects most of.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hztune.blocks import Arm
from hztune.space import Config, Space
from hztune.stats import Estimate, Surrogate, expected_improvement
from hztune.trial import Ledger, Samples
from hztune.trial.ledger import FAR_BEHIND

ENOUGH = 16
"""Configurations that a model needs."""

BOLDNESS = (0.0, 1.0, 2.0, 3.0)
"""By how many standard errors a proposal may be better than expected, choice by choice in turn."""

LEAST_WORTH = 0.001
"""Log ratio that a parameter must promise: a profile of few is the better one."""

Floats = NDArray[np.float64]
Places = dict[str, Floats]
"""Where arms are in a space, by their keys; see `Surrogate.fit`."""

_MOST_MODELLED = 120
"""Configurations that the model is made of: it costs their cube."""

_MOST_FAILED = 30
"""Configurations that failed and are told to the model, the newest."""

_CONTROL_ERROR = 0.002
"""Standard error of the control's own log ratio, which is 0 by definition."""

_FAILURE_ERROR = 0.1
"""Standard error of what failed, which counts as far behind: its neighbours likely are, too."""

_EXCESS_ERROR = 0.02
"""Standard error of how far a configuration is above the memory limit, log units."""

_EXCESS_PRICE = 10.0
"""Log speed that a proposal must promise for each log unit by which it likely breaks the limit."""


class Model:
    """What is believed after the blocks that a ledger holds now.

    Attributes:
        estimates: Of every feasible configuration that was measured, by the arm's key.
    """

    def __init__(self, space: Space, ledger: Ledger, places: Places | None = None) -> None:
        """Fits the model, if there is enough to fit it to.

        Args:
            space: What may be proposed.
            ledger: What was measured.
            places: Where arms were found to be before, and where new ones go.
        """
        self._places = {} if places is None else places
        self._space = space
        self.estimates = dict(ledger.estimates())
        keys = _modelled(self.estimates)
        self._of = Counter(ledger.searched[key].arm.allocator for key in keys)
        self._speed: Surrogate | None = None
        self._excess: Surrogate | None = None
        if len(keys) >= ENOUGH:
            self._fit(ledger, keys)

    def knows(self, allocator: str) -> bool:
        """Whether there is a model, and enough of it is of that allocator to choose by."""
        return self._speed is not None and self._of[allocator] >= ENOUGH

    def choose(
        self, proposals: Sequence[Config], count: int, best: float, *, bold: int = 0
    ) -> tuple[list[Config], float]:
        """The proposals that promise most, one by one with another boldness.

        Args:
            proposals: What may be chosen.
            count: How many are wanted.
            best: What is to be beaten: a log ratio less LEAST_WORTH for each parameter.
            bold: Place in BOLDNESS to begin at.

        Returns:
            Up to `count` proposals, and what they may be expected to add to `best`, at most.
        """
        mean, sd = self.expected(proposals)
        chosen: list[int] = []
        for number in range(min(count, len(proposals))):
            promise = mean + BOLDNESS[(bold + number) % len(BOLDNESS)] * sd
            promise[chosen] = -np.inf
            chosen.append(int(promise.argmax()))
        gains = (expected_improvement(float(mean[i]), float(sd[i]), best) for i in chosen)
        return [proposals[index] for index in chosen], sum(gains)

    def expected(self, proposals: Sequence[Config]) -> tuple[Floats, Floats]:
        """Log ratios that proposals are expected to have, less what speaks against them.

        That is their parameters, and the memory above the limit. Their standard errors come second;
        both have shape (proposals,).
        """
        assert self._speed is not None  # or there would be nothing that one knows
        at = self._at(proposals)
        mean, sd = self._speed.elsewhere(at)
        mean -= LEAST_WORTH * np.array([len(config) for config in proposals])
        if self._excess is not None:
            excess, unsure = self._excess.elsewhere(at)
            mean -= _EXCESS_PRICE * np.maximum(0.0, excess - unsure)
        return mean, sd

    def learned(
        self, ledger: Ledger, known: dict[str, Estimate], proposals: Sequence[Config]
    ) -> tuple[Floats, Floats]:
        """What others say of proposals in something else than speed: means and standard errors.

        Args:
            ledger: What was measured.
            known: Estimates of those others by their keys, the oldest first.
            proposals: Those to say it of; both results have shape (proposals,).
        """
        keys = _modelled(known)
        seen = [(ledger.searched[key].arm, known[key].raw, known[key].raw_error) for key in keys]
        return self._model(seen).elsewhere(self._at(proposals))

    def _fit(self, ledger: Ledger, keys: Sequence[str]) -> None:
        known = [(ledger.searched[key].arm, self.estimates[key]) for key in keys]
        seen = [(arm, max(FAR_BEHIND, one.raw), one.raw_error) for arm, one in known]
        if self._space.holds(self._space.control):
            seen.append((self._space.control, 0.0, _CONTROL_ERROR))
        failed = [record.arm for record in ledger.searched.values() if record.failures]
        seen += [(arm, FAR_BEHIND, _FAILURE_ERROR) for arm in failed[-_MOST_FAILED:]]
        self._speed = self._model(seen)
        self._correct(keys)
        if len(limited := [one for one in ledger.searched.values() if one.excesses]) >= ENOUGH:
            self._excess = self._model([_excess(one) for one in limited[-_MOST_MODELLED:]])

    def _correct(self, keys: Sequence[str]) -> None:
        """Puts the model's estimates into the place of the pooled ones.

        For a configuration far behind the default the measured mean is kept: the model is not
        trusted there. One that is not in the model, because it is old and hardly raced, is not
        taken for better than all that are in it.
        """
        assert self._speed is not None  # it was made for this
        means, sds = self._speed.measured()
        highest = float(means[: len(keys)].max())
        modelled = set(keys)
        for key, one in self.estimates.items():
            if one.mean > highest and key not in modelled:
                self.estimates[key] = one._replace(mean=highest)
        for key, mean, sd in zip(keys, means.tolist(), sds.tolist(), strict=False):
            if self.estimates[key].raw > FAR_BEHIND:
                self.estimates[key] = self.estimates[key]._replace(mean=mean, error=sd)

    def _model(self, seen: Sequence[tuple[Arm, float, float]]) -> Surrogate:
        """A model of what was seen: arms, values and their standard errors."""
        ordered = np.array([dimension.is_ordered for dimension in self._space.dimensions])
        arms, values, errors = zip(*seen, strict=True)
        new = [arm for arm in arms if arm.key not in self._places]
        places = self._at([self._space.config(arm) for arm in new])
        self._places.update(zip((arm.key for arm in new), places, strict=True))
        at = np.stack([self._places[arm.key] for arm in arms])
        return Surrogate.fit(at, ordered, np.array(values), np.array(errors))

    def _at(self, configs: Sequence[Config]) -> Floats:
        """Configurations as the model wants them: see `Surrogate.fit`."""
        dimensions = self._space.dimensions
        at = np.full((len(configs), len(dimensions)), np.nan)
        for row, config in enumerate(configs):
            point = self._space.encode(config)
            for column, dimension in enumerate(dimensions):
                if dimension.name in point:
                    most = max(1, len(dimension.values) - 1) if dimension.is_ordered else 1
                    at[row, column] = point[dimension.name] / most
        return at


def _excess(record: Samples) -> tuple[Arm, float, float]:
    """How far a configuration is above the memory limit, as the model wants it."""
    scatter = _EXCESS_ERROR / math.sqrt(len(record.excesses))
    return record.arm, float(np.mean(record.excesses)), scatter


def _modelled(estimates: dict[str, Estimate]) -> list[str]:
    """The configurations that the model is made of, in the order in which they were measured.

    Those that raced most, and the newest. To take the best would be to take the lucky ones.
    """
    keys = list(estimates)
    if len(keys) <= _MOST_MODELLED:
        return keys
    raced = sorted(reversed(keys), key=lambda key: -estimates[key].pairs)[: _MOST_MODELLED // 2]
    wanted = set(raced)
    others = [key for key in keys if key not in wanted]
    wanted.update(others[-(_MOST_MODELLED - len(raced)) :])
    return [key for key in keys if key in wanted]
