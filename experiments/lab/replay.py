"""Measuring without processes: a landscape says how fast an arm is, a noise what one would see.

For tests and for simulating thousands of studies: no clock but a virtual one, no files, and the
same seed gives the same numbers. The noise has the three parts that real turns have:
one that all arms of a round share, one of the process, which turns cannot average away, and one of
the turn; it is drawn from a model or resampled from recorded A/A blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from hztune.blocks import Arm, Block, Outcome, Role, Status, Turn
from hztune.measure import Accounting, Executor
from hztune.sparse.grid import Floats

_BASE_RATE = 1e6


@dataclass(frozen=True, slots=True)
class Truth:
    """How an arm really is.

    Attributes:
        log_ratio: Logarithm of its speed over the speed of the default.
        status: Anything but "ok": it fails so, every time.
        rss_kb: Peak resident memory, KiB.
    """

    log_ratio: float = 0.0
    status: Status = "ok"
    rss_kb: int = 100_000


Landscape = Callable[[Arm], Truth]
"""How each arm really is; it must answer the same for the same arm."""


class NoiseSource(Protocol):
    """What measuring adds to the truth."""

    def draw(self, rng: Generator, rounds: int, arms: int) -> Floats:
        """Returns the deviations of log speed in one block of fresh processes, (rounds, arms)."""


@dataclass(frozen=True, slots=True)
class ModelNoise:
    """Noise from a model.

    Attributes:
        within: Standard deviation of a turn's log speed within its process.
        between: Standard deviation of a process's mean log speed.
        common: Standard deviation of what all turns of a round share.
        drift: Standard deviation of the step that log speed makes from round to round.
        outlier_share: Share of turns that are far slower.
        outlier_log: Mean slowdown of such a turn, in log speed (exponentially distributed).
        tail: Degrees of freedom of Student's t that turns follow; infinite: normal.
    """

    within: float = 0.03
    between: float = 0.01
    common: float = 0.05
    drift: float = 0.0
    outlier_share: float = 0.0
    outlier_log: float = 0.5
    tail: float = math.inf

    def draw(self, rng: Generator, rounds: int, arms: int) -> Floats:
        """Draws every part independently."""
        shape = (rounds, arms)
        turns: Floats = self._standard(rng, shape) * self.within
        turns += rng.normal(0.0, self.between, arms)
        turns += rng.normal(0.0, self.common, (rounds, 1))
        turns += np.cumsum(rng.normal(0.0, self.drift, (rounds, 1)), axis=0)
        outliers = rng.random(shape) < self.outlier_share
        turns -= outliers * rng.exponential(self.outlier_log, shape)
        return turns

    def _standard(self, rng: Generator, shape: tuple[int, int]) -> Floats:
        """Returns deviates of unit variance."""
        values: Floats = (
            rng.standard_normal(shape)
            if math.isinf(self.tail)
            else rng.standard_t(self.tail, shape) * math.sqrt((self.tail - 2.0) / self.tail)
        )
        return values


class RecordedNoise:
    """Noise resampled from blocks in which every arm was the same (A/A)."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        """Takes the recording apart: shared by a round, of a process, of a turn.

        Raises:
            ValueError: There is no block with at least two arms and two rounds.
        """
        self._common: list[Floats] = []
        self._own: list[Floats] = []
        offsets: list[float] = []
        for block in blocks:
            logs = _log_rates(block)
            if logs is None:
                continue
            logs = logs - logs.mean()
            common = logs.mean(axis=1)
            own = logs - common[:, None]
            # A mean over k arms takes 1/k of the variance of each with it: give it back.
            own *= math.sqrt(own.shape[1] / (own.shape[1] - 1))
            offsets.extend(own.mean(axis=0))
            self._common.append(common)
            self._own.extend(column - column.mean() for column in own.T)
        if not offsets:
            raise ValueError("the recording has no block with two arms and two rounds")
        self._offsets = np.array(offsets)

    def draw(self, rng: Generator, rounds: int, arms: int) -> Floats:
        """Draws stretches of recorded rounds, so that what follows each other stays together."""
        common = _stretch(rng, self._common[rng.integers(len(self._common))], rounds)
        chosen = rng.integers(len(self._own), size=arms)
        own: Floats = np.stack(
            [_stretch(rng, self._own[which], rounds) for which in chosen], axis=1
        )
        offsets: Floats = rng.choice(self._offsets, arms)
        return common[:, None] + own + offsets


class VirtualClock:
    """A clock that goes on only when something is measured."""

    def __init__(self) -> None:
        """Starts at zero."""
        self._now_s = 0.0

    def __call__(self) -> float:
        """Returns the seconds since the start."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Lets time pass."""
        self._now_s += seconds


class ReplayExecutor(Executor):
    """An executor whose answers are drawn."""

    def __init__(
        self,
        landscape: Landscape,
        noise: NoiseSource | None = None,
        *,
        seed: int,
        clock: VirtualClock | None = None,
        turn_ms: float = 20.0,
        skip_ms: float = 2.0,
        warmup_ms: float = 100.0,
        start_ms: float = 30.0,
        rss_scatter: float = 0.0,
    ) -> None:
        """Makes the executor; the times say what a block would take, as `measure.turns` has them.

        Args:
            landscape: How each arm really is.
            noise: None: a `ModelNoise`.
            seed: Of everything that is drawn; a block's numbers depend on it and on its pair.
            clock: What goes on while a block is measured.
            turn_ms: Length of a turn.
            skip_ms: Uncounted start of each turn.
            warmup_ms: Warm-up of each process.
            start_ms: What starting and ending a process takes.
            rss_scatter: Standard deviation of the log peak memory of equal processes.
        """
        self.clock = clock or VirtualClock()
        self._landscape = landscape
        self._noise: NoiseSource = noise or ModelNoise()
        self._seed = seed
        self._turn_s = turn_ms * 1e-3
        self._counted_ns = round((turn_ms - skip_ms) * 1e6)
        self._warmup_s = warmup_ms * 1e-3
        self._start_s = start_ms * 1e-3
        self._rss_scatter = rss_scatter

    def cost(self, arms: int, rounds: int) -> float:
        """Returns the seconds that a block takes."""
        return arms * (self._start_s + self._warmup_s + rounds * self._turn_s)

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        """Draws a block; a failing arm takes its start and its warm-up, but no turn."""
        rng = np.random.default_rng([self._seed, number])
        truths = [self._seen_memory(self._landscape(arm), number, i) for i, arm in enumerate(arms)]
        logs = self._noise.draw(rng, rounds, len(arms))
        logs += [truth.log_ratio for truth in truths]
        ops = np.exp(logs) * (_BASE_RATE * self._counted_ns * 1e-9)
        order = rng.permuted(np.tile(np.arange(len(arms)), (rounds, 1)), axis=1)
        start_ns = round(self.clock() * 1e9)
        outcomes = tuple(
            self._outcome(arm, truth, ops[:, index], order[:, index], len(arms), start_ns)
            for index, (arm, truth) in enumerate(zip(arms, truths, strict=True))
        )
        self._account(outcomes, rounds)
        return Block(number, role, outcomes)

    def _seen_memory(self, truth: Truth, number: int, index: int) -> Truth:
        """Returns the truth with the peak memory that one process of it shows."""
        if not self._rss_scatter:
            return truth
        rng = np.random.default_rng([self._seed, number, 1 + index])
        factor = math.exp(rng.normal(0.0, self._rss_scatter))
        return replace(truth, rss_kb=max(1, round(truth.rss_kb * factor)))

    def _outcome(
        self, arm: Arm, truth: Truth, ops: Floats, positions: NDArray[np.int64], arms: int, at: int
    ) -> Outcome:
        """Returns the outcome of one arm."""
        if truth.status != "ok":
            return Outcome(arm, truth.status, f"the landscape says {truth.status}")
        turn_ns = round(self._turn_s * 1e9)
        drawn = [int(position) for position in positions]
        turns = tuple(
            Turn(i, position, at + (i * arms + position) * turn_ns, self._counted_ns, count)
            for i, (position, count) in enumerate(zip(drawn, ops.tolist(), strict=True))
        )
        rate = float(ops.mean()) / (self._counted_ns * 1e-9)
        return Outcome(arm, "ok", "", rate, turns, truth.rss_kb, truth.rss_kb // 2)

    def _account(self, outcomes: Sequence[Outcome], rounds: int) -> None:
        """Lets the time of a block pass."""
        turns = sum(len(outcome.turns) for outcome in outcomes)
        wall_s = len(outcomes) * (self._start_s + self._warmup_s) + turns * self._turn_s
        measured_s = turns * self._counted_ns * 1e-9
        warmup_s = wall_s - measured_s - len(outcomes) * self._start_s
        self._accounting += Accounting(measured_s, warmup_s, wall_s, turns)
        self.clock.advance(wall_s)


def _log_rates(block: Block) -> Floats | None:
    """Returns log speeds, (rounds, arms), of the rounds in which no turn was disturbed."""
    if len(block.outcomes) < 2 or not all(outcome.ok for outcome in block.outcomes):
        return None
    rates = [
        {turn.round: turn.rate for turn in outcome.turns if not turn.disturbed}
        for outcome in block.outcomes
    ]
    shared = sorted(set.intersection(*map(set, rates)))
    if len(shared) < 2:
        return None
    return np.log([[each[number] for each in rates] for number in shared])


def _stretch(rng: Generator, series: Floats, length: int) -> Floats:
    """Returns `length` values of a series from a random index on, going round at its end."""
    start = rng.integers(len(series))
    values: Floats = series[(start + np.arange(length)) % len(series)]
    return values
