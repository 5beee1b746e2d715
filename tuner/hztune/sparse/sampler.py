"""A sampler for Optuna that looks for the few parameters that matter, in noisy blocks.

A trial is one measurement of one configuration, so that a configuration that is measured again is
another trial with the same parameters. Its value is the log ratio to the control (above 0 is
better); the attribute BLOCK tells which trials were measured beside each other, with one control in
common, and VARIANCE how noisy the value is. What to measure next is drawn by top-two Thompson
sampling (Russo, Operations Research 68, 2020): one possible landscape is drawn from the model, and
its best configuration is measured, be it new or not.

With two objectives the landscape of each is drawn, and the best is sought in a random direction
between them (Knowles, ParEGO, IEEE Trans. Evol. Comput. 10, 2006).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from hztune.sparse.features import UNCHANGED, Axis, Floats, Levels
from hztune.sparse.model import Measurement, SparseModel

BLOCK, VARIANCE, EXCESS = "block", "variance", "excess"
"""Attributes of a trial: its block; the variance of its value; how far it breaks a limit, in log
units, where there is one (above 0: it does)."""

ODDS = 0.15
"""How likely a parameter matters of which nothing is known."""

PRICE = 0.002
"""Log ratio that a parameter must promise: a configuration that changes less is the better one."""

FAR = -0.35
"""Log ratio below which it does not matter how slow a configuration is."""

_USUAL_VARIANCE = 0.04**2
_FAILURE_VARIANCE = 0.1**2
_EXCESS_VARIANCE = 0.02**2
_EXCESS_PRICE = 10.0
"""Log speed that a configuration must promise for each log unit above the limit."""

_SCREENED = 16
"""Changes of every parameter before the model alone decides."""

_SCREENED_TOGETHER = 5
"""Parameters that one configuration of the screening changes, but no more than half of all. Each
measurement then tells of several parameters, and where the next one changes the others, each is
compared with as many that leave it alone (a factorial design; Box & Hunter, Technometrics 3, 1961).
"""

_LOST = -0.05
"""Log ratio below which, a standard error above what is predicted, a level is not screened: it is
slow, or what it was measured with failed."""

_RANDOM = 48
"""Configurations far from all others among the proposals."""

_MOST_CHANGED = 3
_INCUMBENTS = 4
_MOST_MODELLED = 120
"""Configurations that the model is made of: it costs their cube."""

Params = dict[str, Any]
Row = tuple[int, ...]


@dataclass(frozen=True)
class Known:
    """What the trials of a study say.

    Attributes:
        axes: The parameters.
        rows: Every configuration that was measured, in order of its first measurement.
        models: One for each objective; empty before anything was measured.
        excess: The model of how far the limit is broken; None without one.
        failed: Configurations that failed.
        open: Configurations that are being measured.
        trials: How many have ended with a value or a failure.
    """

    axes: tuple[Axis, ...]
    rows: tuple[Row, ...]
    models: tuple[SparseModel, ...]
    excess: SparseModel | None
    failed: frozenset[Row]
    open: frozenset[Row]
    trials: int

    @cached_property
    def modelled(self) -> list[Row]:
        """The configurations of the model, in its order."""
        return [tuple(row) for row in self.models[0].levels.tolist()] if self.models else []


class SparseSampler(BaseSampler):
    """Proposes what differs from the defaults in few parameters."""

    def __init__(
        self,
        defaults: Mapping[str, Any],
        *,
        seed: int = 0,
        odds: Mapping[str, float] | None = None,
        legal: Callable[[Params], Params | None] | None = None,
        variances: Callable[[FrozenTrial], Sequence[float]] | None = None,
        is_control: bool = True,
        space: Mapping[str, BaseDistribution] | None = None,
    ) -> None:
        """Makes the sampler.

        Args:
            defaults: The value of each parameter that changes nothing.
            seed: Of every draw.
            odds: How likely each parameter matters, before anything is measured; ODDS without.
            legal: Makes of a proposal the configuration that is meant, or None where it is not
                legal; None: all are.
            variances: Says how noisy the values of a trial are; None: its attribute VARIANCE does.
            is_control: Whether the defaults are what all is compared with.
            space: The parameters, for a study whose trials are asked without distributions.
        """
        self._defaults, self._seed, self._odds = dict(defaults), seed, dict(odds or {})
        self._legal, self._is_control = legal, is_control
        self._variances = variances or _stated_variances
        self._space = dict(space or {})
        self._canonical: dict[Row, Row | None] = {}
        self._known: tuple[int, Known] | None = None
        self._rows: dict[int, Row] = {}

    # ---- Optuna's interface ----------------------------------------------------------------------

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All parameters that were given, or that a trial had so far."""
        if not self._space:
            for each in study.get_trials(deepcopy=False):
                self._space |= each.distributions
        return dict(self._space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> Params:
        """One configuration, see `suggest`; nothing while no parameter is known."""
        if not search_space:
            return {}
        found = self.suggest(study, 1)
        return found[0] if found else {name: self._defaults[name] for name in search_space}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """The default: what the sampler was not told of stays as it is."""
        return self._defaults[param_name]

    # ---- what else it can be asked ---------------------------------------------------------------

    def suggest(
        self, study: Study, count: int, *, fresh: int | None = None, out: Collection[Row] = ()
    ) -> list[Params]:
        """What to measure in the next block, each configuration once.

        Args:
            study: Whose trials are known.
            count: Most configurations that are wanted.
            fresh: Most of them that were not measured before; None: any number.
            out: Rows (see `row`) that are not to be measured.
        """
        known = self.known(study)
        rng = np.random.default_rng(self._mixed(known.trials, len(known.open)))
        left = count if fresh is None else min(fresh, count)
        banned = {*known.open, *known.failed, *out, (UNCHANGED,) * len(known.axes)}
        aims = len(study.directions) + (known.excess is not None)
        slots = int(count / aims + rng.random())
        chosen = self._screening(known, rng, banned, min(left, slots))
        if known.models:
            chosen += self._drawn(known, rng, banned | {*chosen}, count, left, chosen)
        elif len(chosen) < left:
            chosen += self._some(known, rng, banned | {*chosen}, left - len(chosen))
        return [self.params(known.axes, row) for row in chosen]

    def outlook(self, study: Study, draws: int) -> Floats:
        """What new configurations may come to, those that `suggest` would choose from.

        Args:
            study: Whose trials are known.
            draws: Landscapes that are drawn from the models.

        Returns:
            The value of each configuration in each landscape, less PRICE for each parameter that it
            changes where the objective is the first one; shape (objectives, draws, configurations),
            without any configuration while nothing was measured.
        """
        known = self.known(study)
        rng = np.random.default_rng(self._mixed(known.trials))
        rows = self._proposals(known, rng) if known.models else []
        levels = np.array(rows, dtype=np.int64).reshape(len(rows), len(known.axes))
        price = PRICE * (levels != UNCHANGED).sum(axis=1)
        found = []
        for n, model in enumerate(known.models):
            features = model.features(levels)
            drawn = [model.draw(rng, levels, features)[1] for _ in range(draws)]
            found.append(np.array(drawn) - price * (n == 0))
        return np.array(found).reshape(len(found), draws, len(rows))

    def known(self, study: Study) -> Known:
        """What the trials say by now; the models are kept until more are finished."""
        trials = study.get_trials(deepcopy=False)
        finished = sum(trial.state.is_finished() for trial in trials)
        if self._known is None or self._known[0] != finished:
            self._known = finished, self._learn(study, trials)
        asked = {self.row(t.params) for t in trials if t.state == TrialState.RUNNING}
        return replace(self._known[1], open=frozenset(asked))

    def axes(self) -> tuple[Axis, ...]:
        """The parameters as the model sees them.

        Raises:
            ValueError: One has more values than can be told apart, or no default.
        """
        return tuple(self._axis(name, each) for name, each in self._space.items())

    def row(self, params: Mapping[str, Any]) -> Row:
        """A configuration as level numbers; what it leaves out, or leaves alone, is UNCHANGED."""
        return tuple(
            UNCHANGED
            if params.get(name, self._defaults[name]) == self._defaults[name]
            else _level(each, params[name])
            for name, each in self._space.items()
        )

    def params(self, axes: Sequence[Axis], row: Row) -> Params:
        """The values of all parameters in a configuration."""
        return {
            axis.name: self._defaults[axis.name]
            if level == UNCHANGED
            else _value(self._space[axis.name], level)
            for axis, level in zip(axes, row, strict=True)
        }

    # ---- learning --------------------------------------------------------------------------------

    def _learn(self, study: Study, trials: Sequence[FrozenTrial]) -> Known:
        axes = self.axes()
        failed = sorted({self._row_of(t) for t in trials if t.state == TrialState.FAIL})
        done = [t for t in trials if t.state == TrialState.COMPLETE]
        done.sort(key=self._place)  # a study that is read back may have been told in another order
        rows = [self._row_of(t) for t in done]
        order = [*dict.fromkeys(rows)]
        modelled = _modelled(rows)
        numbers = {row: number for number, row in enumerate(dict.fromkeys([*modelled, *failed]))}
        levels = np.array([*numbers], dtype=np.int64).reshape(len(numbers), len(axes))
        models = []
        if modelled:
            for objective in range(len(study.directions)):
                seen = [
                    _measurement(numbers[row], t, objective, self._variances(t)[objective])
                    for row, t in zip(rows, done, strict=True)
                    if row in numbers
                ]
                lost = [
                    Measurement(numbers[row], -1 - place, FAR, _FAILURE_VARIANCE)
                    for place, row in enumerate(failed)
                    if objective == 0 and row in numbers
                ]
                models.append(SparseModel(axes, levels, seen + lost, is_control=self._is_control))
        limited = [
            Measurement(numbers[row], number, t.user_attrs[EXCESS], _EXCESS_VARIANCE)
            for number, (row, t) in enumerate(zip(rows, done, strict=True))
            if row in numbers and EXCESS in t.user_attrs
        ]
        excess = SparseModel(axes, levels, limited, is_control=False) if limited else None
        return Known(
            axes,
            tuple(order),
            tuple(models),
            excess,
            frozenset(failed),
            frozenset(),
            len(done) + len(failed),
        )

    def _place(self, trial: FrozenTrial) -> tuple[int, Row]:
        return trial.user_attrs.get(BLOCK, trial.number), self._row_of(trial)

    def _row_of(self, trial: FrozenTrial) -> Row:
        """The row of a finished trial, whose parameters change no more."""
        if trial.number not in self._rows:
            self._rows[trial.number] = self.row(trial.params)
        return self._rows[trial.number]

    def _axis(self, name: str, each: BaseDistribution) -> Axis:
        if name not in self._defaults:
            raise ValueError(f"{name!r} has no default; name it in `defaults`")
        count = _count(name, each)
        default = _level_or_none(each, self._defaults[name])
        odds = min(0.95, max(0.005, self._odds.get(name, ODDS)))
        return Axis(name, count, default, isinstance(each, IntDistribution), odds)

    # ---- choosing --------------------------------------------------------------------------------

    def _screening(
        self,
        known: Known,
        rng: np.random.Generator,
        banned: Collection[Row],
        most: int,
    ) -> list[Row]:
        """Configurations that each change those parameters that were changed least."""
        times = np.zeros(len(known.axes))
        for row in (*known.rows, *known.open):
            times += np.array(row) != UNCHANGED
        together = min(_SCREENED_TOGETHER, max(1, len(times) // 2))
        levels = self._worth_screening(known)
        found: list[Row] = []
        for _ in range(4 * most):
            if len(found) == most or times.min(initial=_SCREENED) >= _SCREENED:
                break
            due = times + 0.5 * rng.random(len(times))
            picked = np.argsort(due, kind="stable")[:together]
            changed = [UNCHANGED] * len(known.axes)
            for axis in picked.tolist():
                changed[axis] = _moderate(known.axes[axis], levels[axis], rng)
            times[picked] += 1.0
            meant = self._meant(known.axes, tuple(changed))
            if meant is not None and meant not in {*known.rows, *banned, *found}:
                found.append(meant)
        return found

    def _worth_screening(self, known: Known) -> list[list[int]]:
        """Of each parameter, the levels but the default that are not known to be bad.

        They are slow, or break the limit; where the defaults break it, by more than they do.
        """
        bare = (UNCHANGED,) * len(known.axes)
        found = [[v for v in range(axis.count) if v != axis.default] for axis in known.axes]
        for axis, levels in enumerate(found):
            rows = np.array([(*bare[:axis], level, *bare[axis + 1 :]) for level in levels])
            is_good = np.full(len(levels), True)
            if levels and known.models:
                mean, error = known.models[0].expected(rows)
                is_good = mean + error > _LOST
            if levels and known.excess is not None:
                (most,), _ = known.excess.expected(np.array([bare]))
                above, unsure = known.excess.expected(rows)
                is_good &= above - unsure <= max(0.0, most)
            found[axis] = [v for v, good in zip(levels, is_good, strict=True) if good]
        return found

    def _some(
        self, known: Known, rng: np.random.Generator, banned: Collection[Row], most: int
    ) -> list[Row]:
        """Random sparse configurations: nothing is known yet."""
        found: list[Row] = []
        for row in self._random(known.axes, rng, 8 * most):
            meant = self._meant(known.axes, row)
            if meant is not None and meant not in banned and meant not in found:
                found.append(meant)
        return found[:most]

    def _drawn(
        self,
        known: Known,
        rng: np.random.Generator,
        banned: Collection[Row],
        count: int,
        fresh: int,
        first: Sequence[Row],
    ) -> list[Row]:
        """The best of one drawn landscape after another; every other time but the leader's."""
        measured, proposals = known.modelled, self._proposals(known, rng)
        everything = [*measured, *proposals]
        lengths = (np.array(everything) != UNCHANGED).sum(axis=1)
        levels = np.array(proposals, dtype=np.int64).reshape(len(proposals), len(known.axes))
        taken, left, found = {*banned}, fresh - len(first), []
        seen = {*known.rows}
        out = np.array([row in taken for row in everything])
        features = [model.features(levels) for model in known.models]
        excess = self._excess(known, levels)
        for _ in range(count - len(first)):
            worth = _landscape(known, rng, levels, features) - excess - PRICE * lengths
            worth[out] = -np.inf
            if left <= 0:
                worth[len(measured) :] = -np.inf
            for place in np.argsort(-worth)[:_RANDOM].tolist():
                if worth[place] == -np.inf:
                    break
                out[place] = True
                is_new = place >= len(measured)
                meant = self._meant(known.axes, everything[place]) if is_new else everything[place]
                if meant is None or meant in taken or (is_new and meant in seen):
                    continue
                left -= is_new
                taken.add(meant)
                found.append(meant)
                break
        return found

    def _excess(self, known: Known, levels: Levels) -> Floats:
        """What the limit costs every configuration, the measured ones first."""
        if known.excess is None:
            return np.zeros(len(known.modelled) + len(levels))
        both = zip(known.excess.measured(), known.excess.expected(levels), strict=True)
        above, unsure = (np.concatenate(each) for each in both)
        price: Floats = _EXCESS_PRICE * np.maximum(0.0, above - unsure)
        return price

    def _proposals(self, known: Known, rng: np.random.Generator) -> list[Row]:
        """One change away from the best, from the default, and some that are anywhere."""
        bases = self._incumbents(known)
        rows: dict[Row, None] = {}
        for base in bases:
            for axis, each in enumerate(known.axes):
                for level in range(UNCHANGED, each.count):
                    if level not in (base[axis], each.default):
                        moved = (*base[:axis], level, *base[axis + 1 :])
                        rows[moved] = None
        rows.update(dict.fromkeys(self._random(known.axes, rng, _RANDOM)))
        measured = {*known.modelled}
        return [row for row in rows if row not in measured]

    def _incumbents(self, known: Known) -> list[Row]:
        """The default, and the configurations that promise most in any objective."""
        found = {(UNCHANGED,) * len(known.axes): None}
        measured = known.modelled
        lengths = (np.array(measured) != UNCHANGED).sum(axis=1)
        for model in known.models:
            order = np.argsort(PRICE * lengths - model.measured()[0])
            found.update(dict.fromkeys(measured[place] for place in order[:_INCUMBENTS].tolist()))
        return [*found]

    def _random(self, axes: Sequence[Axis], rng: np.random.Generator, count: int) -> list[Row]:
        """Configurations that change one to _MOST_CHANGED parameters to any level."""
        found = []
        for _ in range(count):
            row = [UNCHANGED] * len(axes)
            changed = rng.permutation(len(axes))[: rng.integers(1, _MOST_CHANGED + 1)]
            for axis in changed.tolist():
                level = int(rng.integers(axes[axis].count))
                row[axis] = UNCHANGED if level == axes[axis].default else level
            found.append(tuple(row))
        return found

    def _meant(self, axes: Sequence[Axis], row: Row) -> Row | None:
        """The row of the configuration that is meant; None where it is not legal."""
        if self._legal is None:
            return row
        if row not in self._canonical:
            params = self._legal(self.params(axes, row))
            self._canonical[row] = None if params is None else self.row(params)
        return self._canonical[row]

    def _mixed(self, trials: int, asked: int = 0) -> int:
        """A seed that is the same for the same study and number of trials, and for no other."""
        digest = hashlib.sha256(f"{self._seed}:{trials}:{asked}".encode()).digest()
        return int.from_bytes(digest[:8], "little")


def _landscape(
    known: Known, rng: np.random.Generator, levels: Levels, features: Sequence[Floats]
) -> Floats:
    """What every configuration is worth in one possible landscape, the measured ones first."""
    both = zip(known.models, features, strict=True)
    drawn = [np.concatenate(model.draw(rng, levels, each)) for model, each in both]
    return drawn[0] if len(drawn) == 1 else _in_some_direction(drawn, rng)


def _stated_variances(trial: FrozenTrial) -> Sequence[float]:
    """What the attribute VARIANCE says: a number for each objective, or one for all."""
    stated = trial.user_attrs.get(VARIANCE, _USUAL_VARIANCE)
    return [stated] * len(trial.values) if isinstance(stated, float) else stated


def _measurement(config: int, trial: FrozenTrial, objective: int, variance: float) -> Measurement:
    """What a trial says of one objective."""
    value = max(FAR, trial.values[objective]) if objective == 0 else trial.values[objective]
    block = trial.user_attrs.get(BLOCK, -1 - trial.number)
    return Measurement(config, block, value, variance)


def _in_some_direction(drawn: Sequence[Floats], rng: np.random.Generator) -> Floats:
    """Two objectives as one: the worse of the two after a random weighting (Tchebycheff).

    One draw in three looks at an end alone.
    """
    share = float(rng.choice([0.0, 1.0, *rng.random(4)]))
    spans = [max(1e-3, float(np.quantile(each, 0.98) - np.quantile(each, 0.5))) for each in drawn]
    best = [float(each.max()) for each in drawn]
    short = [(top - each) / span for each, top, span in zip(drawn, best, spans, strict=True)]
    one, other = share * short[0], (1.0 - share) * short[1]
    worst: Floats = -np.maximum(one, other) - 0.05 * (short[0] + short[1])
    return worst * min(spans)


def _modelled(rows: Sequence[Row]) -> list[Row]:
    """The configurations that the model is made of, in the order of their first measurement.

    Those that were measured most, and the newest. To take the best would be to take the lucky ones.
    """
    times: dict[Row, int] = {}
    for row in rows:
        times[row] = times.get(row, 0) + 1
    keys = [*times]
    if len(keys) <= _MOST_MODELLED:
        return keys
    wanted = {*sorted(reversed(keys), key=lambda row: -times[row])[: _MOST_MODELLED // 2]}
    others = [row for row in keys if row not in wanted]
    wanted.update(others[len(others) - (_MOST_MODELLED - len(wanted)) :])
    return [row for row in keys if row in wanted]


def _moderate(axis: Axis, levels: Sequence[int], rng: np.random.Generator) -> int:
    """One of some levels, none of them the default: not far from it; of words any of them."""
    if not levels:
        return UNCHANGED
    if not axis.is_ordered or axis.default is None:
        return int(rng.choice(levels))
    step = max(1, axis.count // 4)
    near = [each for each in (axis.default - step, axis.default + step) if each in levels]
    return int(rng.choice(near or levels))


def _count(name: str, each: BaseDistribution) -> int:
    if isinstance(each, CategoricalDistribution):
        return len(each.choices)
    if isinstance(each, IntDistribution) and not each.log:
        count = (each.high - each.low) // each.step + 1
        if count <= 64:
            return count
    raise ValueError(f"{name!r} is {each}; legal are categories and whole numbers, at most 64")


def _value(each: BaseDistribution, level: int) -> Any:
    if isinstance(each, CategoricalDistribution):
        return each.choices[level]
    assert isinstance(each, IntDistribution)  # _count saw to it
    return each.low + level * each.step


def _level(each: BaseDistribution, value: Any) -> int:
    if isinstance(each, CategoricalDistribution):
        return each.choices.index(value)
    assert isinstance(each, IntDistribution)  # _count saw to it
    return int((value - each.low) // each.step)


def _level_or_none(each: BaseDistribution, value: Any) -> int | None:
    """The level of a value; None where it is none of them."""
    if isinstance(each, CategoricalDistribution):
        return each.choices.index(value) if value in each.choices else None
    assert isinstance(each, IntDistribution)  # _count saw to it
    is_one = isinstance(value, int) and each.low <= value <= each.high
    return (value - each.low) // each.step if is_one else None
