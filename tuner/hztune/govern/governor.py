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

from hztune.errors import UsageError
from hztune.govern.context import LASTED_S, Context
from hztune.govern.learner import SURPRISE, Judgement, Learner
from hztune.govern.observe import Observation
from hztune.govern.policy import Policy

ActionKind = Literal[Judgement, "switched", "trying", "relief"]

_WASHED = 0.25  # share of an epoch that is not counted
_LEAST = 0.5  # share of an epoch that a shorter one must have to count: its context has ended
_SAVED_S = 600.0  # seconds of exploring that may be saved, times the share
_SETTLED = 3  # epochs of the best known setting, after which another trial may begin
_SHORTEST = 0.2  # share of an epoch below which a trial waits
_SHORTENED, _LENGTHENED = 0.75, 1.1  # the epochs of a context, where one was too short, or counted
_MINUTE_S, _MOST_LOST = 60.0, 100  # epochs that a minute may have
_RELIEVED = 0.9  # of the limit, below which the last arm is left again
_LEAST_CPUS = 1e-5  # less cannot be told from none


class Action(NamedTuple):
    """What was done, and why; `told` has what was expected, or what came."""

    at_s: float
    what: ActionKind
    context: str
    arm: str
    told: str


class Epoch(NamedTuple):
    cost: float  # CPUs, with memory at its price; for each request a second where they are counted
    figure: float | None  # more is better


class _Trial(NamedTuple):
    challenger: int
    length_s: float  # of each epoch
    is_entry: bool  # whether its epochs begin with their context
    left: deque[int]  # arms whose epochs are still to come
    seen: dict[int, Epoch]


@dataclass
class _Open:
    """An epoch that runs."""

    context: str
    arm: int
    began: Observation
    length_s: float
    trial: _Trial | None  # that it belongs to, or that has led to this relief
    looks: list[Observation] = field(default_factory=list)  # counted ones


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
        # with a longer one nothing could ever be tried
        longest_s = policy.most_loss * _MINUTE_S / SURPRISE / _SHORTEST
        if policy.figure.is_given and policy.epoch_s > longest_s:
            raise UsageError(f"epoch_s must be at most {longest_s:.3g} under this brakes.most_loss")
        self._policy, self._arms, self._learner = policy, arms, learner
        self._context, self._rng, self._note = context, rng, note
        self.told_context = "steady"  # at the last look that saw the figure
        self._open: _Open | None = None
        self._trials: dict[tuple[str, bool], _Trial] = {}  # by context, and whether it begins there
        self._shares: dict[str, float] = {}  # of an epoch, for trials in contexts that are brief
        self._credit_s = 0.0  # a load is watched before anything is tried
        self._most_credit_s = max(policy.explored * _SAVED_S, policy.epoch_s)
        self._lost = deque[tuple[float, float]](maxlen=_MOST_LOST)  # end, log loss times seconds
        self._is_relieved = False
        self._rested = 0  # epochs of the best known setting since a trial, or the context's begin

    def look(self, sight: Observation) -> int:
        """The arm that is to be in effect from now on."""
        now = self._open
        is_blind = self._policy.figure.is_given and sight.work is None and sight.figure is None
        if not is_blind:
            self.told_context = self._context(sight)
        context = self.told_context
        if sight.memory_bytes > self._policy.limit_bytes * (_RELIEVED if self._is_relieved else 1):
            self._is_relieved, self._rested = True, 0
            self._trials.clear()
            if now is not None:
                self._close(now, sight.at_s - now.began.at_s)
            return self._begin(context, len(self._arms) - 1, sight, now.trial if now else None)
        if now is None:
            return 0 if is_blind else self._next(context, sight, is_entry=False)
        passed_s = sight.at_s - now.began.at_s
        if passed_s < now.length_s and (is_blind or self._is_relieved):
            return now.arm
        self._is_relieved = False
        if is_blind:
            self._close(now, passed_s)
            return self._begin(context, self._learner.favoured(context), sight, None)
        if passed_s >= _WASHED * now.length_s:
            now.looks.append(sight)
        is_braked = now.trial is not None and sight.pressure > self._policy.brakes.most_pressure
        if context == now.context and passed_s < now.length_s and not is_braked:
            return now.arm
        last_s = sight.at_s - LASTED_S * (context != now.context)  # the end of it was seen late
        now.looks = [each for each in now.looks if each.at_s <= last_s]
        if is_braked:
            self._trials.clear()
        self._close(now, passed_s)
        return self._next(context, sight, is_entry=context != now.context)

    # ---- epochs ----------------------------------------------------------------------------------

    def _next(self, context: str, sight: Observation, *, is_entry: bool) -> int:
        self._rested = 0 if is_entry else self._rested + 1
        trial = None
        is_calm = sight.pressure <= self._policy.brakes.most_pressure
        if is_calm and (is_entry or self._rested > _SETTLED):
            pending = self._trials.get((context, is_entry))
            trial = pending or self._new_trial(context, sight.at_s, is_entry)
        if trial is None:
            return self._begin(context, self._learner.favoured(context), sight, None)
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
        trial = _Trial(chosen, length_s, is_entry, deque(both), {})
        self._trials[context, is_entry] = trial
        return trial

    def _affordable_s(self, context: str, arm: int, at_s: float) -> float:
        """How long an arm may be tried: no minute is to lose more of the figure than it may."""
        most_s = self._policy.epoch_s * self._shares.get(context, 1.0)
        if not self._policy.figure.is_given:
            return most_s
        lost = sum(lost for ended_s, lost in self._lost if ended_s >= at_s - _MINUTE_S)
        left = self._policy.most_loss * _MINUTE_S - lost
        feared = self._learner.feared(context, arm)
        return min(most_s, left / feared if feared > 0.0 else math.inf)

    def _begin(self, context: str, arm: int, sight: Observation, trial: _Trial | None) -> int:
        if arm != (self._open.arm if self._open is not None else 0):
            what: ActionKind = "switched"
            told = "probably better there; not proved"
            if self._is_relieved:
                what, told = "relief", f"beyond {self._policy.limit}"
            elif trial is not None and arm == trial.challenger:
                what, told = "trying", f"for {trial.length_s:.0f} s"
            elif arm == self._learner.best(context):
                told = "the best known there"
            self._note(Action(sight.at_s, what, context, self._arms[arm], told))
        usual_s = trial.length_s if trial else self._policy.epoch_s
        # relief lasts, as else it would come and go
        length_s = _SETTLED * self._policy.epoch_s if self._is_relieved else usual_s
        self._open = _Open(context, arm, sight, length_s, trial)
        return arm

    def _close(self, now: _Open, passed_s: float) -> None:
        seen, trial = self._epoch_of(now), now.trial
        is_spent = trial is not None and now.arm != self._learner.best(now.context)
        saved_s = (self._policy.explored - is_spent) * passed_s
        self._credit_s = min(self._credit_s + saved_s, self._most_credit_s)
        kept = self._trials.get((now.context, trial.is_entry)) if trial else None
        if is_spent and (seen is None or kept is None):
            lost = self._learner.feared(now.context, now.arm) * passed_s
            self._lost.append((now.began.at_s + passed_s, lost))
        if kept is None:
            return  # there is none, or a brake or relief has ended it
        share = self._shares.get(now.context, 1.0)
        if seen is None:
            del self._trials[now.context, kept.is_entry]
            if kept.is_entry:
                self._shares[now.context] = max(_SHORTEST, _SHORTENED * share)
            return
        self._shares[now.context] = min(1.0, _LENGTHENED * share)
        kept.seen[kept.left.popleft()] = seen
        if not kept.left:
            del self._trials[now.context, kept.is_entry]
            self._judge(now, kept)

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
            figure = fmean(known) ** (-1 if self._policy.figure.lower_is_better else 1)
        return Epoch(cost, figure)

    def _judge(self, now: _Open, trial: _Trial) -> None:
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
        if judged != "trial":  # another one is beside what was the best
            self._trials.pop((context, not trial.is_entry), None)
        low, high = (math.exp(each) for each in compared.interval())
        told = (
            f"beside {self._arms[best]}: expected {math.exp(expected.mean):.2f}x of its cost, came "
            f"{math.exp(cost):.2f}x"
            + (f", figure {math.exp(-loss):.3f}x" if loss is not None else "")
            + f"; [{low:.2f}, {high:.2f}] after pair {len(compared.costs)}"
        )
        self._note(Action(now.looks[-1].at_s, judged, context, self._arms[arm], told))
