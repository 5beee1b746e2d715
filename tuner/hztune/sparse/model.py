"""What parameters do, learned from noisy blocks: few of them matter, and few pairs of them.

The log ratio of a configuration to the default is a sum of effects of the parameters that it
changes, of some pairs of them, and of its own. Most effects are exactly 0 (spike and slab; George &
McCulloch, J. Am. Stat. Assoc. 88, 1993): a *reading* names the groups of features that have one,
and the model is the average over the likely readings (Madigan & Raftery, J. Am. Stat. Assoc. 89,
1994), which a search over readings of growing size finds. All arms of a block are compared with the
same process of the control, so that they share its error: differences within a block are known
better than the distance to the control.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from hztune.sparse.grid import Axis, Floats, Groups, Levels

SLABS = (0.04, 0.2)  # standard deviations of fine and of coarse effects, log units

_SLAB_SHARES = (0.7, 0.3)
_PAIR_ODDS = 0.02  # how likely two parameters have an effect beyond the sum

MOST_OWN = 0.01  # standard deviation of what is a configuration's own, log units, at most

_LEAST_OWN = 0.001
_OWN_OF_NOISE = 0.25
"""The same in standard deviations of a measurement: measured finely, as memory, less is left beside
the parameters."""

_FAR = -0.1
"""From this log ratio on, a configuration says less and less of what its parameters do elsewhere:
what one of them costs hides what the others bring."""

_OWN_OF_FAR = 0.5  # standard deviation of its own effect for each log unit below _FAR

_MOST_GROUPS = 5  # groups of a reading, at most

_BEAM = 6  # readings of each size that are extended

_UNLIKELY = 7.0  # how far below the best reading, in logarithms, one is left out

_MOST_READINGS = 60
_CENTRE_SD = 0.5  # standard deviation of the distance between two allocators' defaults, log units


@dataclass(frozen=True, slots=True)
class Measurement:
    config: int  # number of the configuration, a row of the levels
    block: int  # what tells its block from others
    log_ratio: float  # against the control of the block; above 0 is better
    variance: float  # of `log_ratio`; half of it is the control's, which the block shares


_Groups = tuple[tuple[int, int], ...]  # groups with the number of their slab, in order


@dataclass(frozen=True)
class _Reading:
    weight: float  # how likely it is; those of all readings add up to 1
    groups: tuple[int, ...]  # the groups that have an effect
    columns: NDArray[np.int64]  # their features
    mean: Floats  # of the effects of these features
    root: Floats  # a square root of their covariance, (features, features)


class SparseModel:
    """What is believed of configurations after some, the rows of `levels`, were measured."""

    def __init__(
        self,
        axes: Sequence[Axis],
        levels: Levels,
        measurements: Sequence[Measurement],
        *,
        is_control: bool = True,
    ) -> None:
        """`levels`: each configuration once, shape (configurations, axes); each has a measurement.

        `is_control`: whether what changes nothing is the control; else that distance is estimated.
        """
        _one_thread()
        self.levels = levels
        self._groups = Groups.of(axes, levels, _PAIR_ODDS)
        self._has_centre = not is_control
        features = self.features(levels)
        precision, pulled = _information(measurements, len(levels))
        configs = np.array([each.config for each in measurements])
        values = np.array([each.log_ratio for each in measurements])
        times = np.bincount(configs, minlength=len(levels))
        plain = np.bincount(configs, values, len(levels)) / np.maximum(1.0, times)
        noise = math.sqrt(float(np.median([each.variance for each in measurements])))
        self._usual_own = min(MOST_OWN, max(_LEAST_OWN, _OWN_OF_NOISE * noise))
        own = self._usual_own + _OWN_OF_FAR * np.maximum(0.0, _FAR - plain)
        own[~(levels >= 0).any(axis=1)] = 1e-6  # what changes nothing has nothing of its own
        variances = own**2
        damped = np.linalg.inv(np.eye(len(levels)) + precision * variances[None, :])
        inner = damped @ precision
        inner = 0.5 * (inner + inner.T)
        pulled = damped @ pulled
        # how far the own effect of a configuration follows what was measured
        pulls = variances[:, None] * inner
        # covariance of the own effects, when those of the parameters are known
        self._own_left: Floats = np.diag(variances) - pulls * variances[None, :]
        # what the measurements themselves say of the configurations, beside the features
        self._kept: Floats = variances * pulled
        # the features, less what the measurements themselves explain of them
        self._moved: Floats = features - pulls @ features
        # what the features are known by, (features, features) and (features,)
        self._precision: Floats = features.T @ inner @ features
        self._sums: Floats = features.T @ pulled
        self._centre = [] if is_control else [len(self._sums) - 1]
        self._readings = self._read()
        self._weights: Floats = np.array([reading.weight for reading in self._readings])

    def expected(self, levels: Levels) -> tuple[Floats, Floats]:
        """Means and standard errors of configurations that were not measured, (configurations,)."""
        features = self.features(levels)
        changed = (levels >= 0).any(axis=1)
        return self._average(
            features, np.zeros(len(levels)), np.where(changed, self._usual_own**2, 0.0)
        )

    @cached_property
    def measured(self) -> tuple[Floats, Floats]:
        """Means and standard errors of the measured configurations, (configurations,)."""
        return self._average(self._moved, self._kept, np.maximum(np.diag(self._own_left), 0.0))

    def lead(self, best: int, others: Levels) -> tuple[Floats, Floats]:
        """How far a measured configuration is ahead of others, with standard errors.

        Two of one block are known better beside each other. `best`: row in `levels`; `others`: any.
        """
        places = {row: place for place, row in enumerate(map(tuple, self.levels.tolist()))}
        known = [places.get(row, -1) for row in map(tuple, others.tolist())]
        is_known, at = np.array(known) >= 0, np.maximum(known, 0)
        moved = np.where(is_known[:, None], self._moved[at], self.features(others))
        kept = np.where(is_known, self._kept[at], 0.0)
        own = self._own_left
        rest = np.where(
            is_known,
            own[best, best] + own[at, at] - 2.0 * own[best, at],
            own[best, best] + self._usual_own**2,
        )
        mean, error = self._average(
            self._moved[best] - moved, self._kept[best] - kept, np.maximum(rest, 0.0)
        )
        return mean, error

    def draw(
        self, rng: np.random.Generator, others: Levels, features: Floats
    ) -> tuple[Floats, Floats]:
        """One landscape out of those that are possible, by how likely they are.

        Returns what the measured configurations come to in it, and what `others`, which were not
        measured and whose `features` are given, do.
        """
        reading = self._readings[rng.choice(len(self._readings), p=self._weights)]
        effects = reading.mean + reading.root @ rng.standard_normal(len(reading.mean))
        here = self._kept + self._moved[:, reading.columns] @ effects
        here = here + self._own_root @ rng.standard_normal(len(here))
        elsewhere = features[:, reading.columns] @ effects
        changed = (others >= 0).any(axis=1)
        return here, elsewhere + changed * self._usual_own * rng.standard_normal(len(others))

    def matters(self) -> Floats:
        """How likely each axis has an effect, alone or in a pair; shape (axes,)."""
        likely = np.zeros(len(self._groups.factors))
        for reading in self._readings:
            axes = {axis for group in reading.groups for axis in self._groups.parents[group]}
            likely[sorted(axes)] += reading.weight
        return likely

    # ---- the posterior ---------------------------------------------------------------------------

    @cached_property
    def _own_root(self) -> Floats:
        return _square_root(0.5 * (self._own_left + self._own_left.T))

    def _average(self, features: Floats, base: Floats, rest: Floats) -> tuple[Floats, Floats]:
        means, spreads = [], []
        for reading in self._readings:
            own = features[:, reading.columns]
            means.append(base + own @ reading.mean)
            spreads.append(np.sum((own @ reading.root) ** 2, axis=1))
        every, spread = np.array(means), np.array(spreads)
        mean = self._weights @ every
        variance = self._weights @ (spread + (every - mean) ** 2) + rest
        return mean, np.sqrt(np.maximum(variance, 1e-12))

    def features(self, levels: Levels) -> Floats:
        """The features of configurations; the distance of the defaults is the last one."""
        made = self._groups.features(levels)
        if self._has_centre:
            made = np.concatenate([made, np.ones((len(made), 1))], axis=1)
        return made

    # ---- readings --------------------------------------------------------------------------------

    def _read(self) -> tuple[_Reading, ...]:
        """The likely readings; each is found by adding one group to a likely smaller one."""
        found: dict[_Groups, float] = {(): 0.0}
        beam: list[_Groups] = [()]
        for _ in range(_MOST_GROUPS):
            grown: dict[_Groups, float] = {}
            for reading in beam:
                grown.update(self._extended(reading, found[reading]))
            found.update(grown)
            if not grown or max(grown.values()) < max(found.values()) - _UNLIKELY:
                break
            beam = sorted(grown, key=lambda each: -grown[each])[:_BEAM]
        best = max(found.values())
        likely = sorted(found, key=lambda each: -found[each])[:_MOST_READINGS]
        likely = [key for key in likely if found[key] > best - _UNLIKELY]
        total = math.fsum(math.exp(found[key] - best) for key in likely)
        return tuple(self._reading(key, math.exp(found[key] - best) / total) for key in likely)

    def _extended(self, chosen: _Groups, score: float) -> dict[_Groups, float]:
        """Every choice with one group more, and its logarithmic score.

        Of a pair at least one parameter has to have an effect by itself.
        """
        columns, mean, covariance = self._posterior(chosen)
        known = self._precision
        inner = known - known[:, columns] @ covariance @ known[columns]
        pulled = self._sums - known[:, columns] @ mean
        index = self._groups.columns
        values, vectors = np.linalg.eigh(inner[index[:, :, None], index[:, None, :]])
        values = np.maximum(values, 0.0)
        squares = np.einsum("gij,gi->gj", vectors, pulled[index]) ** 2
        has = {group for group, _ in chosen}
        axes = {axis for group in has for axis in self._groups.parents[group]}
        found: dict[_Groups, float] = {}
        for slab, (size, share) in enumerate(zip(SLABS, _SLAB_SHARES, strict=True)):
            spread = size**2
            gains = 0.5 * np.sum(
                spread * squares / (1.0 + spread * values) - np.log1p(spread * values), axis=1
            )
            gains += self._groups.log_odds + math.log(share) + score
            for group, gain in enumerate(gains.tolist()):
                parents = self._groups.parents[group]
                is_orphan = len(parents) > 1 and not axes & {*parents}
                if group not in has and not is_orphan:
                    found[tuple(sorted((*chosen, (group, slab))))] = gain
        return found

    def _reading(self, chosen: _Groups, weight: float) -> _Reading:
        columns, mean, covariance = self._posterior(chosen)
        root = _square_root(covariance)
        return _Reading(weight, tuple(group for group, _ in chosen), columns, mean, root)

    def _posterior(self, chosen: _Groups) -> tuple[NDArray[np.int64], Floats, Floats]:
        """The features of a choice, the means of their effects and the covariance of these."""
        parts = [self._groups.columns[group] for group, _ in chosen]
        sizes = [SLABS[slab] for group, slab in chosen for _ in self._groups.columns[group]]
        columns = np.concatenate([*parts, np.array(self._centre, dtype=np.int64)]).astype(np.int64)
        prior = np.array([*sizes, *([_CENTRE_SD] * len(self._centre))]) ** 2
        inner = self._precision[np.ix_(columns, columns)]
        covariance = np.asarray(np.linalg.inv(np.diag(1.0 / prior) + inner), dtype=np.float64)
        return columns, covariance @ self._sums[columns], covariance


@cache
def _one_thread() -> None:
    """Makes numpy's linear algebra use one thread from now on.

    Several are no faster for a hundred rows; beside other work an inverse takes 70 ms instead of 1.
    """
    threadpool_limits(limits=1, user_api="blas")


def _square_root(covariance: Floats) -> Floats:
    """A matrix that times its transpose is the covariance; (size, size).

    `eigh` fails in one study of thousands; the singular values of a covariance are the same.
    """
    try:
        values, vectors = np.linalg.eigh(covariance)
    except np.linalg.LinAlgError:
        vectors, values, _ = np.linalg.svd(0.5 * (covariance + covariance.T))
    root: Floats = vectors * np.sqrt(np.maximum(values, 0.0))
    return root


def _information(measurements: Sequence[Measurement], count: int) -> tuple[Floats, Floats]:
    """What all blocks say of the configurations: precision (count, count) and weighted sums.

    Within a block the error of the control is common to all: the inverse of D + c 11' is
    D^-1 - D^-1 1 1' D^-1 c / (1 + c 1' D^-1 1) (Sherman & Morrison, 1950).
    """
    precision, pulled = np.zeros((count, count)), np.zeros(count)
    blocks: dict[int, list[Measurement]] = {}
    for each in measurements:
        blocks.setdefault(each.block, []).append(each)
    for block in blocks.values():
        rows = np.array([each.config for each in block])
        values = np.array([each.log_ratio for each in block])
        weights = np.array([2.0 / each.variance for each in block])
        common = 1.0 / (float(np.mean(weights)) + float(weights.sum()))
        inner = np.diag(weights) - common * np.outer(weights, weights)
        np.add.at(precision, (rows[:, None], rows[None, :]), inner)
        np.add.at(pulled, rows, inner @ values)
    return precision, pulled
