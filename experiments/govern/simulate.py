"""The governor on simulated processes: what it costs, what it claims, and what a minute loses.

simulate.py                        an hour of the planted process, 40 times
simulate.py --named                the policy names lean for idle, keep for bursts
simulate.py --equal --runs 200     settings without any effect
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pool
from random import Random
from statistics import fmean, quantiles
from typing import NamedTuple

from hztune.govern.context import ByLoad
from hztune.govern.governor import Action, Governor
from hztune.govern.learner import Belief, Learner, ucb
from hztune.govern.observe import Observation
from hztune.govern.policy import FigureSource, Policy, PolicyArm

LOOK_S = 0.5
MINUTE = round(60 / LOOK_S)
ARMS = ("start", "lean", "keep")
NAMED = {"idle": 1, "burst": 2}
CPUS = 0.8  # that the process has: in a burst it is bound by them
CPU_PER_REQUEST = 1e-4
PEAK_MIB = 2500.0
PHASE_S = 20.0  # mean
PHASES = {"burst": (8000.0, PEAK_MIB), "steady": (2000.0, 300.0), "idle": (20.0, 100.0)}
"""Requests a second, and MiB that are live."""

EFFECTS = {
    ("start", "burst"): (1.0, 0.2, 10.0), ("start", "steady"): (1.0, 0.5, 20.0),
    ("start", "idle"): (1.0, 0.8, 60.0),
    ("lean", "burst"): (1.35, 0.05, 1.0), ("lean", "steady"): (1.06, 0.05, 1.0),
    ("lean", "idle"): (1.0, 0.05, 1.0),
    ("keep", "burst"): (0.82, 0.3, 20.0), ("keep", "steady"): (0.97, 1.0, 60.0),
    ("keep", "idle"): (1.0, 1.0, 600.0),
}  # fmt: skip
"""Factor of the CPU time; what is held beyond the live, of the peak; seconds until that."""

BEST = {"burst": "keep", "steady": "lean", "idle": "lean"}  # known afterwards


def thompson(beliefs: Sequence[Belief], rng: Random) -> int | None:
    """The one that is best in a landscape drawn from what is believed (Thompson, 1933)."""
    drawn = [rng.gauss(*each) for each in beliefs]
    best = min(drawn, default=0.0)
    return drawn.index(best) if best < -0.01 else None


class Step(NamedTuple):
    phase: str
    cost: float  # CPU seconds, with memory at its price
    work: float


@dataclass
class Planted:
    """A process with phases of random lengths, drift and slow times."""

    rng: Random
    is_equal: bool = False  # whether no arm has an effect
    phase: str = "steady"
    left_s: float = PHASE_S
    at_s: float = 0.0
    cpu_s: float = 0.0
    work: float = 0.0
    mib: float = 300.0
    drift: float = 0.0
    slow: float = 0.0

    def step(self, arm: str) -> tuple[Observation, Step]:
        """One look further; the random numbers are the same under any arm."""
        rng = self.rng
        self.left_s -= LOOK_S
        if self.left_s <= 0.0:
            self.phase = rng.choice([each for each in PHASES if each != self.phase])
            self.left_s = max(5.0, rng.expovariate(1.0 / PHASE_S))
        self.drift += rng.gauss(0.0, 0.003) - 0.001 * self.drift
        self.slow = rng.choice((0.0, 0.0, 0.0, 0.2)) if rng.random() < 0.02 else self.slow
        rate, live = PHASES[self.phase]
        factor, beyond, settles_s = EFFECTS["start" if self.is_equal else arm, self.phase]
        rate *= math.exp(rng.gauss(0.0, 0.05))
        noise = math.exp(rng.gauss(0.0, 0.03) + self.drift + self.slow)
        each = CPU_PER_REQUEST * factor * noise
        rate = min(rate, CPUS / each)
        target = live + beyond * PEAK_MIB
        falls = (target - self.mib) * -math.expm1(-LOOK_S / settles_s)
        self.mib += falls if self.mib > target else min(target - self.mib, 500.0 * LOOK_S)
        self.at_s += LOOK_S
        self.cpu_s += rate * each * LOOK_S
        self.work += rate * LOOK_S
        cost = (rate * each + self.mib / 1024.0 / 8.0) * LOOK_S
        seen = Observation(self.at_s, self.cpu_s, int(self.mib * 2**20), self.work)
        return seen, Step(self.phase, cost, rate * LOOK_S)


def planted_policy() -> Policy:
    arms = tuple(PolicyArm(name, {"hz": {"decay_ms": at}}) for at, name in enumerate(ARMS[1:]))
    work = FigureSource(log="x", regex="(x)", counts_work=True)
    return Policy(doc="planted", arms=arms, epoch_s=3.0, figure=work)


def governed(
    seed: int, seconds: float, choose: str, *, is_named: bool, is_equal: bool = False
) -> tuple[list[Step], list[Action]]:
    """A governed process."""
    rng, actions, policy = Random(seed), list[Action](), planted_policy()
    learner = Learner(
        ARMS, error=policy.error, most_loss=policy.most_loss, rng=rng,
        first=NAMED if is_named else {}, choose={"thompson": thompson, "ucb": ucb}[choose],
    )  # fmt: skip
    made = Governor(policy, ARMS, learner, ByLoad(), rng, actions.append)
    process, steps = Planted(Random(seed + 10_000), is_equal), list[Step]()
    seen, _ = process.step(ARMS[0])
    while process.at_s < seconds:
        seen, step = process.step(ARMS[made.look(seen)])
        steps.append(step)
    return steps, actions


def fixed(seed: int, seconds: float, arms: dict[str, str]) -> list[Step]:
    """The same process with one arm for each phase, known beforehand."""
    process, steps = Planted(Random(seed + 10_000)), list[Step]()
    process.step(ARMS[0])
    while process.at_s < seconds:
        steps.append(process.step(arms.get(process.phase, ""))[1])
    return steps


def total(steps: Sequence[Step], wanted: Sequence[Step]) -> float:
    """The cost for the work of another run: one that is bound by its CPUs does more or less."""
    found = 0.0
    for phase in PHASES:
        cost, work = (sum(s[at] for s in steps if s.phase == phase) for at in (1, 2))
        asked = sum(s.work for s in wanted if s.phase == phase)
        found += cost * (asked / work if work and phase != "idle" else 1.0)
    return found


class Run(NamedTuple):
    over_best: float  # cost over that of the best arm of each phase
    over_fixed: float  # cost over that of the best arm for all phases
    least_minute: float  # of the work, over the start's: the loss in parts of a usual minute
    adopted_s: float  # when the last arm was adopted


def planted(seed: int, seconds: float, choose: str, is_named: bool) -> Run:
    steps, actions = governed(seed, seconds, choose, is_named=is_named)
    of = {arm: fixed(seed, seconds, dict.fromkeys(PHASES, arm)) for arm in ARMS}
    start = of["start"]
    cost, best = total(steps, start), total(fixed(seed, seconds, BEST), start)
    usual = sum(step.work for step in start) / len(start) * MINUTE
    lost = [one.work - other.work for one, other in zip(steps, start, strict=True)]
    minutes = [sum(lost[at : at + MINUTE]) for at in range(0, len(lost) - MINUTE, MINUTE // 4)]
    adopted = [action.at_s for action in actions if action.what == "adopted"]
    least = min(total(each, start) for each in of.values())
    return Run(cost / best, cost / least, 1.0 + min(minutes) / usual, max(adopted, default=0.0))


def claims(seed: int, seconds: float) -> int:
    _, actions = governed(seed, seconds, "ucb", is_named=False, is_equal=True)
    return sum(action.what == "adopted" for action in actions)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--equal", action="store_true")
    parser.add_argument("--named", action="store_true")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--choose", default="ucb")
    asked = parser.parse_args()
    with Pool() as pool:
        if asked.equal:
            found = pool.map(partial(claims, seconds=asked.seconds), range(asked.runs))
            print(f"{sum(map(bool, found))} of {asked.runs} processes with a claim")
            return
        run = partial(planted, seconds=asked.seconds, choose=asked.choose, is_named=asked.named)
        runs = pool.map(run, range(asked.runs))
    for name, values in zip(Run._fields, zip(*runs, strict=True), strict=True):
        tenths = quantiles(values, n=10)
        print(f"{name}: mean {fmean(values):.3f}, tenths {tenths[0]:.3f} and {tenths[-1]:.3f}")


if __name__ == "__main__":
    main()
