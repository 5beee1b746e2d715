"""What is known of each setting in each context, and which one to try next.

Settings are compared in pairs of epochs of one context, the best known one and a challenger, in
random order. The choice of the challenger may be bold: it only decides where time is spent. Another
setting becomes the best known one only by `evidence`, whose errors over all contexts, challengers
and repetitions sum up to that of the policy. A brake needs less to go back to the start's.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean, median, variance
from typing import Literal, NamedTuple

from hztune.stats.intervals import has_won, lower_end, normal_tail, upper_end

_MOST_PAIRS = 200  # of one comparison: later ones would hardly tell more

_RECENT = 30  # pairs by which a challenger is chosen
_PRIOR_SD = 0.15  # log units: how far apart the costs of settings usually are
_USUAL_SD, _USUAL_DF = 0.1, 2.0  # scatter of a pair before any was seen, and what that is worth
_WORTH = 0.01  # log units: less is not worth a trial
SURPRISE = 0.3  # log units of the figure that a setting may lose which is hardly known
_USUAL_LOSS_SD = 0.05  # scatter of a figure's log ratio before any was seen, worth as much
_SURE = 2.0  # standard errors beyond which a loss is believed
_LEAST_FAVOURED, _FAVOURED_RISK = 3, 0.01
_LEAST_OF_START = 3  # pairs with the start's setting of what a policy names instead
_UCB_ERRORS = 1.5


AT_START = 0  # the arm with the process's own settings

Judgement = Literal["trial", "adopted", "barred"]


class Belief(NamedTuple):
    mean: float  # log cost of a challenger / the best known setting
    error: float

    @property
    def risk(self) -> float:
        """Probability that the challenger costs more."""
        return normal_tail(-self.mean / self.error)


Choose = Callable[[Sequence[Belief], Random], int | None]
"""Which of some challengers to try, None: none of them is worth it."""


def ucb(beliefs: Sequence[Belief], rng: Random) -> int | None:
    """The one that may be the best (upper confidence bounds)."""
    hoped = [each.mean - _UCB_ERRORS * each.error for each in beliefs]
    best = min(hoped, default=0.0)
    return hoped.index(best) if best < -_WORTH else None


@dataclass
class Contest:
    """A challenger beside the best known setting of a context, log ratios of pairs."""

    error: float  # of a claim that it is better
    costs: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # of the figure, above 0: it is worse

    def loses(self, most_loss: float) -> bool:
        return bool(self.losses) and median(self.losses) > most_loss

    def interval(self) -> tuple[float, float]:
        """Its ends: each errs with the probability of a claim."""
        return lower_end(self.costs, self.error), upper_end(self.costs, self.error)


class Learner:
    def __init__(
        self,
        arms: Sequence[str],
        *,
        error: float,
        most_loss: float,
        rng: Random,
        first: Mapping[str, int] | None = None,
        choose: Choose = ucb,
    ) -> None:
        """Knows nothing yet.

        Args:
            arms: Names; the first is the process's own start.
            error: Probability of any claim that is false.
            most_loss: Log units of the figure that a setting may lose.
            first: The arm that a policy names for a context: the best known one until another is.
        """
        self.arms, self._error, self._most_loss, self._rng = arms, error, most_loss, rng
        self._choose = choose
        self._best = dict(first or {})
        self._ranks: dict[str, int] = {}  # contexts in the order in which they were seen
        self._begun: dict[tuple[str, int], int] = defaultdict(int)  # comparisons of an arm
        self._running: dict[tuple[str, int], Contest] = {}
        self._recent: dict[tuple[str, int, int], deque[float]] = defaultdict(
            lambda: deque(maxlen=_RECENT)
        )
        self._barred: set[tuple[str, int]] = set()

    def best(self, context: str) -> int:
        return self._best.get(context, AT_START)

    def comparison(self, context: str, arm: int) -> Contest:
        key = context, arm
        if key not in self._running:
            rank = self._ranks.setdefault(context, len(self._ranks))
            part = self._error / ((rank + 1.0) * (rank + 2.0) * len(self.arms))
            self._running[key] = Contest(part * 0.5 ** (self._begun[key] + 1))
            self._begun[key] += 1
        return self._running[key]

    def belief(self, context: str, arm: int) -> Belief:
        seen = self._recent[context, self.best(context), arm]
        spread, df = _USUAL_SD**2, _USUAL_DF
        if len(seen) > 1:
            df += len(seen) - 1
            spread = (_USUAL_DF * spread + (len(seen) - 1) * variance(seen)) / df
        weight = len(seen) / spread + 1.0 / _PRIOR_SD**2
        return Belief(sum(seen) / spread / weight, math.sqrt(1.0 / weight))

    def challenger(self, context: str) -> int | None:
        """The arm that is to be tried in a context; None: none is worth it now."""
        best = self.best(context)
        others = [
            arm
            for arm in range(len(self.arms))
            if arm != best
            and (context, arm) not in self._barred
            and len(self.comparison(context, arm).costs) < _MOST_PAIRS
        ]
        if AT_START in others and len(self.comparison(context, AT_START).costs) < _LEAST_OF_START:
            return AT_START
        chosen = self._choose([self.belief(context, arm) for arm in others], self._rng)
        return None if chosen is None else others[chosen]

    def favoured(self, context: str) -> int:
        """The arm to use between trials: the best known, or one likely to be better, not proved."""
        best = self.best(context)
        likely = [
            (belief.mean, arm)
            for arm in range(len(self.arms))
            if arm != best and len(self._recent[context, best, arm]) >= _LEAST_FAVOURED
            and (context, arm) not in self._barred
            and (belief := self.belief(context, arm)).risk < _FAVOURED_RISK
            and not self.comparison(context, arm).loses(self._most_loss)
        ]  # fmt: skip
        return min(likely, default=(0.0, best))[1]

    def feared(self, context: str, arm: int) -> float:
        """Log units of the figure that an arm may lose, as far as it is known."""
        mean, error = self._loss(context, arm)
        return max(0.0, mean + error)

    def _loss(self, context: str, arm: int) -> tuple[float, float]:
        losses = self.comparison(context, arm).losses
        if len(losses) < 2:
            return 0.0, SURPRISE
        seen_df = len(losses) - 1
        spread = _USUAL_DF * _USUAL_LOSS_SD**2 + seen_df * variance(losses)
        return fmean(losses), math.sqrt(spread / (_USUAL_DF + seen_df) / len(losses))

    def add(self, context: str, arm: int, cost: float, loss: float | None) -> Judgement:
        """Enters the log ratios of a pair, challenger / best, and says what comes of it.

        "adopted": the challenger is the best from now on. "barred": it loses too much of the
        figure and is never tried there again, or, if it is the start's, the best does.
        """
        best, found = self.best(context), self.comparison(context, arm)
        found.costs.append(cost)
        self._recent[context, best, arm].append(cost)
        self._recent[context, arm, best].append(-cost)
        if loss is not None:
            found.losses.append(loss)
            mean, error = self._loss(context, arm)
            if mean - _SURE * error > self._most_loss:
                self._barred.add((context, arm))
                return "barred"
            if arm == AT_START and mean + _SURE * error < -self._most_loss:
                self._barred.add((context, best))
                self._adopt(context, arm)
                return "barred"
        is_cheaper = has_won([-each for each in found.costs], found.error)
        if not is_cheaper or found.loses(self._most_loss):
            return "trial"
        self._adopt(context, arm)
        return "adopted"

    def _adopt(self, context: str, arm: int) -> None:
        self._best[context] = arm
        for key in [key for key in self._running if key[0] == context]:
            del self._running[key]
