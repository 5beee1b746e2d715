"""What to set now: decided at each look, from what was seen so far.

Time is cut into epochs of one setting in one context. The beginning of an epoch is not counted, as
the setting before still shows (wash-out), and an epoch ends with its context. A trial is a pair of
epochs of one context that began alike: both where the context began, or both where the best known
setting had shown itself for some epochs. Else the second one would find the memory as the first one
left it. Between them the best known setting is used.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean
from typing import Literal, NamedTuple

from hztune.govern.context import LASTED_S, Context
from hztune.govern.learner import Judgement, Learner
from hztune.govern.observe import Observation
from hztune.govern.policy import Policy

ActionKind = Literal[Judgement, "switched", "relief"]

_WASHED = 0.25  # share of an epoch that is not counted
_LEAST = 0.5  # share of an epoch that a shorter one must have to count: its context has ended
_SAVED_S = 600.0  # seconds of exploring that may be saved, times the share
_SETTLED = 3  # epochs of the best known setting, after which another trial may begin
_SHORTEST = 0.2  # share of an epoch below which a trial waits
_MINUTE_S = 60.0
_RELIEVED = 0.9  # of the limit, below which the leanest setting is left again
_LEAST_CPUS = 1e-5  # less cannot be told from none


class Action(NamedTuple):
    """What was done, and why; `told` has what was expected, or what came."""

    at_s: float
    what: ActionKind
    context: str
    arm: str
    told: str


class Epoch(NamedTuple):
    """What a stretch of one setting showed."""

    seconds: float
    cost: float  # CPUs, with memory at its price; for each request a second where they are counted
    figure: float | None  # more is better
    mib: float


@dataclass
class _Open:
    """An epoch that runs."""

    context: str
    arm: int
    began: Observation
    length_s: float
    challenger: int | None  # of the trial that it belongs to
    looks: list[Observation] = field(default_factory=list)  # counted ones


class _Trial(NamedTuple):
    challenger: int
    length_s: float  # of each epoch
    is_entry: bool  # whether its epochs begin with their context
    left: deque[int]  # arms whose epochs are still to come
    seen: dict[int, Epoch]


class Governor:
    def __init__(
        self,
        policy: Policy,
        arms: Sequence[str],
        learner: Learner,
        context: Context,
        rng: Random,
        note: Callable[[Action], None],
    ) -> None:
        self._policy, self._arms, self._learner = policy, arms, learner
        self._context, self._rng, self._note = context, rng, note
        self.told_context = "steady"  # at the last look that saw the figure
        self._open: _Open | None = None
        self._trials: dict[str, _Trial] = {}
        self._credit_s = policy.explored * _SAVED_S
        self._most_credit_s = max(self._credit_s, policy.epoch_s)
        self._lost: deque[tuple[float, float]] = deque()  # end of an epoch, log loss times seconds
        self._leanest: dict[int, float] = {}  # least MiB seen of each arm
        self._is_relieved = False
        self._rested = 0  # epochs of the best known setting since a trial, or the context's begin

    def look(self, sight: Observation) -> int:
        """The arm that is to be in effect from now on."""
        now = self._open
        is_blind = self._policy.figure.is_given and sight.work is None and sight.figure is None
        if not is_blind:
            self.told_context = self._context(sight)
        context = self.told_context
        if self._is_over_limit(sight):
            return self._begin(context, self._relief(), sight)
        if is_blind:
            return now.arm if now is not None else 0
        if now is None or self._is_relieved:
            self._is_relieved = False
            return self._next(context, sight, is_entry=False)
        passed_s = sight.at_s - now.began.at_s
        if passed_s >= _WASHED * now.length_s:
            now.looks.append(sight)
        is_braked = (
            now.challenger is not None and sight.pressure > self._policy.brakes.most_pressure
        )
        if context == now.context and passed_s < now.length_s and not is_braked:
            return now.arm
        if is_braked:
            self._trials.pop(now.context, None)
        else:
            if context != now.context:  # the end of it was seen late
                now.looks = [each for each in now.looks if each.at_s < sight.at_s - LASTED_S]
            self._close(now, passed_s)
        return self._next(context, sight, is_entry=context != now.context)

    # ---- epochs ----------------------------------------------------------------------------------

    def _next(self, context: str, sight: Observation, *, is_entry: bool) -> int:
        self._rested = 0 if is_entry else self._rested + 1
        trial = None
        is_calm = sight.pressure <= self._policy.brakes.most_pressure
        if is_calm and (is_entry or self._rested > _SETTLED):
            trial = self._trials.get(context) or self._new_trial(context, sight.at_s, is_entry)
        if trial is None or trial.is_entry != is_entry:
            return self._begin(context, self._learner.favoured(context), sight)
        self._rested = 0
        return self._begin(context, trial.left[0], sight, trial)

    def _new_trial(self, context: str, at_s: float, is_entry: bool) -> _Trial | None:
        if self._credit_s < self._policy.epoch_s:
            return None
        chosen = self._learner.challenger(context)
        length_s = self._affordable_s(context, chosen, at_s) if chosen is not None else 0.0
        if chosen is None or length_s < _SHORTEST * self._policy.epoch_s:
            return None
        both = [self._learner.best(context), chosen]
        self._rng.shuffle(both)
        self._trials[context] = _Trial(chosen, length_s, is_entry, deque(both), {})
        return self._trials[context]

    def _affordable_s(self, context: str, arm: int, at_s: float) -> float:
        """How long an arm may be tried: no minute is to lose more of the figure than it may."""
        if not self._policy.figure.is_given:
            return self._policy.epoch_s
        while self._lost and self._lost[0][0] < at_s - _MINUTE_S:
            self._lost.popleft()
        left = self._policy.most_loss * _MINUTE_S - sum(lost for _, lost in self._lost)
        feared = self._learner.feared(context, arm)
        return min(self._policy.epoch_s, left / feared if feared > 0.0 else math.inf)

    def _begin(
        self, context: str, arm: int, sight: Observation, trial: _Trial | None = None
    ) -> int:
        before = self._open
        was = before.arm if before is not None else 0
        if arm != was and self._is_relieved:
            self._say(sight.at_s, "relief", context, arm, f"beyond {self._policy.limit}")
        elif arm != was and trial is None:
            is_proved = arm == self._learner.best(context)
            told = "the best known there" if is_proved else "probably better there; not proved"
            self._say(sight.at_s, "switched", context, arm, told)
        length_s = trial.length_s if trial else self._policy.epoch_s
        self._open = _Open(context, arm, sight, length_s, trial.challenger if trial else None)
        return arm

    def _close(self, now: _Open, passed_s: float) -> None:
        seen = self._epoch_of(now)
        saved_s = self._policy.explored * passed_s
        if now.arm != self._learner.best(now.context):
            saved_s -= passed_s * self._learner.belief(now.context, now.arm).risk
        self._credit_s = min(self._credit_s + saved_s, self._most_credit_s)
        if seen is None:
            return
        self._leanest[now.arm] = min(seen.mib, self._leanest.get(now.arm, math.inf))
        trial = self._trials.get(now.context)
        if now.challenger is None or trial is None:
            return
        trial.seen[trial.left.popleft()] = seen
        if not trial.left:
            del self._trials[now.context]
            self._judge(now, trial)

    def _epoch_of(self, now: _Open) -> Epoch | None:
        """What was counted of an epoch; None: it was too short, or nothing was done."""
        if len(now.looks) < 2:
            return None
        first, last = now.looks[0], now.looks[-1]
        seconds = last.at_s - first.at_s
        if seconds < _LEAST * (1.0 - _WASHED) * now.length_s:
            return None
        mib = fmean(each.memory_bytes for each in now.looks) / 2**20
        cpus = max(_LEAST_CPUS, (last.cpu_s - first.cpu_s) / seconds)
        cost, figure = self._policy.cost(cpus, mib), None
        if last.work is not None and first.work is not None and now.context != "idle":
            figure = (last.work - first.work) / seconds
            if figure <= 0.0:
                return None
            cost /= figure
        known = [each.figure for each in now.looks if each.figure is not None]
        if known and min(known) > 0.0:
            lower = self._policy.figure.lower_is_better
            figure = fmean(known) ** (-1 if lower else 1)
        return Epoch(seconds, cost, figure, mib)

    def _judge(self, now: _Open, trial: _Trial) -> None:
        """Enters a pair, and says what was expected and what came."""
        context, arm = now.context, trial.challenger
        best = self._learner.best(context)
        expected = self._learner.belief(context, arm)
        one, other = trial.seen[best], trial.seen[arm]
        cost, loss = math.log(other.cost / one.cost), None
        if one.figure and other.figure:
            loss = math.log(one.figure / other.figure)
            self._lost.append((now.looks[-1].at_s, max(0.0, loss) * now.length_s))
        compared = self._learner.comparison(context, arm)
        judged = self._learner.add(context, arm, cost, loss)
        low, high = (math.exp(each) for each in compared.interval())
        told = (
            f"beside {self._arms[best]}: expected {math.exp(expected.mean):.2f}x of its cost, came "
            f"{math.exp(cost):.2f}x"
            + (f", figure {math.exp(-loss):.3f}x" if loss is not None else "")
            + f"; [{low:.2f}, {high:.2f}] after {len(compared.costs)} pairs"
        )
        self._say(now.looks[-1].at_s, judged, context, arm, told)

    # ---- memory ----------------------------------------------------------------------------------

    def _is_over_limit(self, sight: Observation) -> bool:
        share = _RELIEVED if self._is_relieved else 1.0
        return sight.memory_bytes > share * self._policy.limit_bytes

    def _relief(self) -> int:
        """The last arm that the policy names until it was seen; then the leanest."""
        self._is_relieved = True
        self._trials.clear()
        tried = {arm: mib for arm, mib in self._leanest.items() if arm}
        last = len(self._arms) - 1
        return min(tried, key=tried.__getitem__) if last in tried else last

    def _say(self, at_s: float, what: ActionKind, context: str, arm: int, told: str) -> None:
        self._note(Action(at_s, what, context, self._arms[arm], told))
