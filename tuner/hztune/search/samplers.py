"""Optuna's samplers by name: the sparse one of hztune, Optuna's own, and the user's."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler, TPESampler

from hztune.arguments import SPARSE
from hztune.errors import UsageError

OTHERS: Mapping[str, Callable[[int], BaseSampler]] = {
    "tpe": lambda seed: TPESampler(seed=seed, multivariate=True, constant_liar=True),
    "random": lambda seed: RandomSampler(seed=seed),
    "cmaes": lambda seed: CmaEsSampler(seed=seed),
}
"""By name, what makes it from a seed."""


def sampler_named(name: str, seed: int) -> BaseSampler | None:
    """A sampler by its name, or of the user's as "module:Class"; None: the sparse one.

    A class of the user's is called with `seed=`, and gets every trial by Optuna's `ask` and `tell`.

    Raises:
        UsageError: There is none of that name, or it is no sampler.
    """
    if name == SPARSE:
        return None
    if name in OTHERS:
        return OTHERS[name](seed)
    module, _, kind = name.partition(":")
    legal = f"legal are {', '.join([SPARSE, *OTHERS])}, or module:Class of your own"
    if not kind:
        raise UsageError(f"--sampler is {name!r}; {legal}")
    try:
        made = getattr(importlib.import_module(module), kind)(seed=seed)
    except (ImportError, AttributeError, TypeError) as error:
        raise UsageError(f"--sampler {name!r} cannot be made ({error}); {legal}") from None
    if not isinstance(made, BaseSampler):
        raise UsageError(f"--sampler {name!r} is no optuna.samplers.BaseSampler; {legal}")
    return made
