"""A model of a landscape: what the configurations measured so far say about all others.

The log ratio of a configuration is modelled as a sum of random effects: a smooth one of each
parameter by itself, one of all parameters together, and one of its own; noise comes on top. How
large each kind of effect is, is estimated from the data (some steps of REML). So what a few noisy
pairs say of one configuration is corrected by everything that was measured around it, and the one
that was merely lucky does not lead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

Floats = NDArray[np.float64]

_REACH = 0.35
"""Part of a parameter's range over which its effect stays alike."""

_JOINT_REACH = 1.0
"""The same for all parameters together, in each direction."""

_JOINT_UNLIKE = 0.5
"""Likeness of two configurations that differ in one word."""

_ROUNDS = 6
"""Steps towards the likeliest variances; to stop early is to doubt that one explains everything."""

_LEAST = 1e-8


@dataclass(frozen=True)
class Surrogate:
    """A fitted model; see `fit`.

    Attributes:
        sizes: Variance of each kind of effect: of every parameter, of all together, of its own.
    """

    sizes: Floats
    _at: Floats
    _ordered: NDArray[np.bool_]
    _shared: Floats
    _centre: float
    _inverse: Floats
    _weights: Floats

    @classmethod
    def fit(
        cls,
        at: Floats,
        ordered: NDArray[np.bool_],
        values: Floats,
        errors: Floats,
    ) -> Surrogate:
        """Fits the model.

        The variance components are found by the minorise-maximise steps of Zhou et al., MM
        Algorithms for Variance Components Models, J. Comput. Graph. Stat. 28 (2019): each step can
        only raise the likelihood, and no component becomes negative.

        Args:
            at: Where it was measured, shape (configurations, parameters): 0 to 1 for a number, any
                code for a word, NaN where a parameter means nothing.
            ordered: Whether a parameter is a number, shape (parameters,).
            values: Measured log ratios, shape (configurations,).
            errors: Their standard errors, shape (configurations,).
        """
        _one_thread()
        kinds = np.concatenate([_likeness(at, at, ordered), np.eye(len(at))[None]])
        flat = kinds.reshape(len(kinds), -1)
        noise = np.diag(np.maximum(errors, 1e-4) ** 2)
        spread = max(float(np.var(values)) - float(np.mean(errors**2)), 0.1 * float(np.var(values)))
        sizes = np.full(len(kinds), max(spread, _LEAST) / len(kinds))
        for _ in range(_ROUNDS):
            inverse, centre = _solved((sizes @ flat).reshape(noise.shape) + noise, values)
            centred = inverse @ (values - centre)
            pulled = kinds @ centred @ centred
            trace = flat @ _projected(inverse).ravel()
            step = np.maximum(pulled, 0.0) / np.maximum(trace, _LEAST)
            says_something = trace > _LEAST * float(np.trace(inverse))
            sizes = np.where(says_something, np.maximum(sizes * np.sqrt(step), _LEAST), sizes)
        shared = (sizes @ flat).reshape(noise.shape)
        inverse, centre = _solved(shared + noise, values)
        return cls(sizes, at, ordered, shared, centre, inverse, inverse @ (values - centre))

    def measured(self) -> tuple[Floats, Floats]:
        """What the measured configurations truly come to: means and their standard errors."""
        return self._known(self._shared)

    def elsewhere(self, at: Floats) -> tuple[Floats, Floats]:
        """What other configurations come to: means and their standard errors."""
        kinds = _likeness(at, self._at, self._ordered)  # what is another's own says nothing
        return self._known(np.tensordot(self.sizes[:-1], kinds, 1))

    def _known(self, shared: Floats) -> tuple[Floats, Floats]:
        ones = self._inverse.sum(axis=0)
        left = self.sizes.sum() - np.sum(shared @ self._inverse * shared, axis=1)
        left += (1.0 - shared @ ones) ** 2 / ones.sum()  # the common mean is not known either
        return self._centre + shared @ self._weights, np.sqrt(np.maximum(left, _LEAST))


@cache
def _one_thread() -> None:
    """Makes numpy's linear algebra use one thread from now on.

    For a hundred rows several are no faster, and where something else is running they wait for
    each other: an inverse then takes 70 ms instead of 1.
    """
    threadpool_limits(limits=1, user_api="blas")


def _likeness(a: Floats, b: Floats, ordered: NDArray[np.bool_]) -> Floats:
    """How alike configurations are, shape (parameters + 1, len(a), len(b)).

    One layer for each parameter, and one for all together. A parameter has few different values, so
    that their likeness is looked up.
    """
    layers = np.ones((len(ordered) + 1, len(a), len(b)))
    for column, is_number in enumerate(ordered):
        values, places = np.unique(
            np.concatenate([a[:, column], b[:, column]]), return_inverse=True
        )
        here = np.ix_(places[: len(a)], places[len(a) :])
        own, joint = _alike(values, is_number)
        layers[column] = own[here]
        layers[-1] *= joint[here]
    return layers


def _alike(values: Floats, is_number: bool) -> tuple[Floats, Floats]:
    """How alike each two values of a parameter are, by itself and for the whole.

    NaN, where it means nothing, is like itself only.
    """
    gap = np.abs(values[:, None] - values[None, :])
    same = np.eye(len(values))
    if not is_number:
        return same, np.maximum(same, _JOINT_UNLIKE)
    far = np.isnan(gap)
    own = np.where(far, same, np.exp(-0.5 * (gap / _REACH) ** 2))
    joint = np.where(far, _JOINT_UNLIKE, np.exp(-0.5 * (gap / _JOINT_REACH) ** 2))
    return own, np.maximum(joint, same)


def _solved(variance: Floats, values: Floats) -> tuple[Floats, float]:
    """The inverse of a variance, and the mean of the values that it gives weights to."""
    inverse: Floats = np.asarray(np.linalg.inv(variance), dtype=np.float64)
    ones = inverse.sum(axis=0)
    return inverse, float(ones @ values / ones.sum())


def _projected(inverse: Floats) -> Floats:
    """The inverse less what the common mean takes of it (REML)."""
    ones = inverse.sum(axis=0)
    projected: Floats = inverse - np.outer(ones, ones) / ones.sum()
    return projected
