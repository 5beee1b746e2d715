"""Odd truths and odd noise: what `studies.py --odd` and `--truth` tell studies of.

Odd noise is of processes: each one that is started is off by something for its whole life, which
turns cannot average away. It comes on top of quiet turns.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.random import Generator

from hztune.blocks import Arm
from hztune.params import Value

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lab.replay import Landscape, ModelNoise, Truth, VirtualClock

QUIET = ModelNoise(within=0.06, between=0.01, common=0.05)

Level = tuple[str, Value]
Levels = list[Level]
"""The values of one parameter on one side of its default."""


# ---- truths --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interplay:
    """A truth in which parameters add something by themselves and something together.

    Attributes:
        effects: What each level adds, log ratio.
        together: What two levels add beside that.
        failing: Share of the configurations that fail.
        turning_s: When all of it turns into its opposite; infinite: never.
        clock: What tells the time.
    """

    effects: Mapping[Level, float]
    together: Mapping[frozenset[Level], float] = field(default_factory=dict)
    failing: float = 0.0
    turning_s: float = math.inf
    clock: VirtualClock = field(default_factory=VirtualClock)

    def __call__(self, arm: Arm) -> Truth:
        """How an arm is now."""
        if arm.params and _share_of(arm) < self.failing:
            return Truth(status="crash")
        has = {*arm.params}
        both = sum(gain for pair, gain in self.together.items() if pair <= has)
        gain = both + sum(self.effects.get(one, 0.0) for one in has)
        return Truth(-gain if self.clock() > self.turning_s else gain)

    @property
    def has_gain(self) -> bool:
        """Whether anything is faster than the default in the end."""
        return math.isinf(self.turning_s)


def _share_of(arm: Arm) -> float:
    """A number from 0 to 1 that is an arm's own."""
    return hashlib.sha256(arm.key.encode()).digest()[0] / 256.0


def _pairs(one: Levels, other: Levels, gain: float) -> dict[frozenset[Level], float]:
    return {frozenset((a, b)): gain for a in one for b in other}


def _all(gain: float, *levels: Levels) -> dict[Level, float]:
    return {each: gain for one in levels for each in one}


TRUTHS: dict[str, Callable[[Levels, Levels, float, VirtualClock, float], Interplay]] = {
    "twins": lambda a, b, gain, *_: Interplay(_all(gain, a, b), _pairs(a, b, -gain)),
    "only-together": lambda a, b, gain, *_: Interplay({}, _pairs(a, b, gain)),
    "cancel": lambda a, b, gain, *_: Interplay(_all(gain, a, b), _pairs(a, b, -2.0 * gain)),
    "half-fail": lambda a, _, gain, *__: Interplay(_all(gain, a), failing=0.5),
    "turns": lambda a, _, gain, clock, half_s: Interplay(
        _all(gain, a), turning_s=half_s, clock=clock
    ),
}
"""Of two parameters: one of two suffices, one is nothing without the other, each undoes the other;
and of one: in half of all configurations it fails, in the second half of the study it hurts."""


# ---- noise ---------------------------------------------------------------------------------------


class Process:
    """What each process is off by."""

    def __init__(self, seed: int, clock: VirtualClock, budget_s: float) -> None:
        """Begins a study."""
        self.rng: Generator = np.random.default_rng([seed, 20])
        self._part = lambda: clock() / budget_s
        self._last: dict[Arm, float] = {}

    def tails(self, arm: Arm) -> float:
        """Student's t with 3 degrees of freedom."""
        return 0.02 * float(self.rng.standard_t(3.0))

    def far(self, arm: Arm) -> float:
        """One pair in fifty is off by a factor of 3."""
        return -math.log(3.0) * (self.rng.random() < 0.01)

    def two_speeds(self, arm: Arm) -> float:
        """Half of all processes are 20 % slower."""
        return -0.2 * (self.rng.random() < 0.5)

    def rarely_slow(self, arm: Arm) -> float:
        """One process in ten is 20 % slower."""
        return -0.2 * (self.rng.random() < 0.1)

    def noisier(self, arm: Arm) -> float:
        """The machine becomes five times noisier in the course of the study."""
        return self.rng.normal(0.0, 0.01 + 0.04 * min(1.0, self._part()))

    def uneven(self, arm: Arm) -> float:
        """Configurations scatter by one to five times as much as the default."""
        return self.rng.normal(0.0, 0.01 * (1.0 + 4.0 * _share_of(arm) * bool(arm.params)))

    def lasting(self, arm: Arm) -> float:
        """What a process is off by, the next one of the same configuration is by half as much."""
        self._last[arm] = 0.5 * self._last.get(arm, 0.0) + self.rng.normal(0.0, 0.02)
        return self._last[arm]


ODD: dict[str, Callable[[Process, Arm], float]] = {
    "quiet": lambda process, arm: 0.0,
    "tails": Process.tails,
    "far": Process.far,
    "two-speeds": Process.two_speeds,
    "rarely-slow": Process.rarely_slow,
    "noisier": Process.noisier,
    "uneven": Process.uneven,
    "lasting": Process.lasting,
}


def shown(
    landscape: Landscape, noise: str, seed: int, clock: VirtualClock, budget_s: float
) -> Landscape:
    """What processes show of a truth: asked once for each."""
    process, off_by = Process(seed, clock, budget_s), ODD[noise]

    def one(arm: Arm) -> Truth:
        truth = landscape(arm)
        return replace(truth, log_ratio=truth.log_ratio + off_by(process, arm))

    return one
