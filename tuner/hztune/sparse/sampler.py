"""A sampler for Optuna that looks for the few parameters that matter, in noisy blocks.

A trial is one measurement of one configuration; measured again, it is another trial with the same
parameters. Its value is the log ratio to the control (above 0 is better); the attribute BLOCK tells
which trials were measured beside each other, with one control in common, and VARIANCE how noisy the
value is. What to measure next is drawn by top-two Thompson sampling (Russo, Operations Research 68,
2020): one possible landscape is drawn from the model, and its best configuration is measured, be it
new or not. With two objectives the landscape of each is drawn, and the best is sought in a random
direction between them (Knowles, ParEGO, IEEE Trans. Evol. Comput. 10, 2006).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from hztune.sparse.grid import (
    FAR,
    UNCHANGED,
    Axis,
    Floats,
    Grid,
    Legal,
    LevelRow,
    Params,
    Told,
    Variances,
    axis_of,
)
from hztune.sparse.model import Measurement, SparseModel

PRICE = 0.002
"""Log ratio that a parameter must promise: a configuration that changes less is the better one."""

_FAILURE_VARIANCE = 0.1**2
_EXCESS_VARIANCE = 0.02**2
_EXCESS_PRICE = 10.0  # log speed to promise for each log unit above the limit

_SCREENED = 16  # changes of every parameter before the model alone decides

_SCREENED_TOGETHER = 5
"""Parameters that one configuration of the screening changes, at most half of all: each measurement
tells of several, and each parameter is compared with as many that leave it alone (a factorial
design; Box & Hunter, Technometrics 3, 1961)."""

_LOST = -0.05
"""Log ratio below which, a standard error above what is predicted, a level is not screened: it is
slow, or what it was measured with failed."""

_RANDOM = 48  # configurations far from all others among the proposals

_MOST_CHANGED = 3
_INCUMBENTS = 4
_MOST_MODELLED = 120  # configurations of the model, and failures beside them: it costs their cube


@dataclass(frozen=True)
class Known:
    grid: Grid  # the parameters
    # every configuration that was measured, in order of its first measurement
    rows: tuple[LevelRow, ...]
    models: tuple[SparseModel, ...]  # one for each objective; empty before anything was measured
    excess: SparseModel | None  # the model of how far the limit is broken; None without one
    failed: frozenset[LevelRow]  # configurations that failed
    open: frozenset[LevelRow]  # configurations that are being measured
    trials: int  # how many have ended with a value or a failure

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.grid.axes

    @cached_property
    def modelled(self) -> list[LevelRow]:
        return [tuple(row) for row in self.models[0].levels.tolist()] if self.models else []


class SparseSampler(BaseSampler):
    """Proposes what differs from the defaults in few parameters.

    A parameter that the objective asks for in some branches only is tried there if `legal` gives it
    its default in all others: else its proposals change nothing. `ends` is the part of the changes
    of an ordered parameter in the screening that go to one of its ends: an effect that begins far
    out is seen there, but ends do harm more often, and what is far behind tells little of the other
    parameters. `anywhere` is the part that go to any level, as one may gain where its neighbours
    are alike. The others go `screening_step` levels from its default.
    """

    ends = 0.25
    anywhere = 0.25

    def __init__(
        self,
        defaults: Mapping[str, Any],
        *,
        seed: int = 0,
        legal: Legal | None = None,
        variances: Variances | None = None,
        is_control: bool = True,
        space: Mapping[str, BaseDistribution] | None = None,
    ) -> None:
        """`defaults`: the value of each parameter that changes nothing.

        `legal`: makes of a proposal the configuration that is meant, or None where it is not legal;
        None: all are. `variances`: says how noisy the values of a trial are; None: its attribute
        VARIANCE does. `is_control`: whether the defaults are what all is compared with. `space`:
        None: the parameters of the study's trials.
        """
        self._defaults, self._seed = dict(defaults), seed
        self._legal, self._is_control, self._variances = legal, is_control, variances
        self._space = None if space is None else dict(space)
        self._grid: Grid | None = None
        self._study = ""
        self._known: tuple[int, Known] | None = None
        self._prepared: list[Params] = []

    # ---- Optuna's interface ----------------------------------------------------------------------

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return dict(self.grid(study).space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> Params:
        """One configuration, see `suggest`; ValueError: not even the defaults are legal."""
        if not search_space:
            return {}
        if self._prepared:
            return self._prepared.pop(0)
        found = self.suggest(study, 1)
        grid = self.grid(study)
        if not found and grid.meant(grid.bare) is None:
            raise ValueError("`legal` refuses the defaults, and all else that could be proposed")
        return found[0] if found else grid.params(grid.bare)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """The default: what the sampler was not told of stays as it is."""
        self._bind(study)
        axis_of(param_name, param_distribution, self._defaults)
        return self._defaults[param_name]

    # ---- what else it can be asked ---------------------------------------------------------------

    def prepare(
        self, study: Study, count: int, *, fresh: int | None = None, out: Collection[LevelRow] = ()
    ) -> int:
        """Chooses the next block as `suggest` does; so many of the next trials get it, in order."""
        self._prepared = self.suggest(study, count, fresh=fresh, out=out)
        return len(self._prepared)

    def suggest(
        self, study: Study, count: int, *, fresh: int | None = None, out: Collection[LevelRow] = ()
    ) -> list[Params]:
        """What to measure in the next block, each configuration once.

        `count`, `fresh`: most configurations, and most of them that were not measured before; None:
        any number. `out`: rows (see `Grid.level_row`) that are not to be measured.
        """
        known = self.known(study)
        rng = np.random.default_rng(self._mixed(known.trials, len(known.open)))
        left = count if fresh is None else min(fresh, count)
        banned = {*known.open, *known.failed, *out, known.grid.bare}
        aims = len(study.directions) + (known.excess is not None)
        slots = int(count / aims + rng.random())
        chosen = self._screening(known, rng, banned, min(left, slots))
        if known.models:
            chosen += self._drawn(known, rng, banned | {*chosen}, count, left, chosen)
        elif len(chosen) < left:
            chosen += self._some(known, rng, banned | {*chosen}, left - len(chosen))
        return [known.grid.params(row) for row in chosen]

    def outlook(self, study: Study, draws: int) -> Floats:
        """What new configurations may come to, those that `suggest` would choose from.

        Values in `draws` landscapes, the first objective less PRICE for each changed parameter;
        shape (objectives, draws, configurations); no configuration while nothing was measured.
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
        grid, trials = self.grid(study), study.get_trials(deepcopy=False)
        told = (TrialState.COMPLETE, TrialState.FAIL)
        finished = sum(trial.state in told for trial in trials)
        held = self._known
        if held is None or held[0] != finished or held[1].grid is not grid:
            held = self._known = finished, self._learn(grid, trials)
        asked = {grid.level_row_of(t) for t in trials if t.state == TrialState.RUNNING}
        return replace(held[1], open=frozenset(row for row in asked if row is not None))

    def grid(self, study: Study) -> Grid:
        """The parameters of a study by now, and its configurations as rows.

        ValueError: as of `Grid`; the study is another one, or its objectives cannot be sought.
        """
        self._bind(study)
        grid, space = self._grid, self._space
        if space is None:
            space = {}
            for trial in study.get_trials(deepcopy=False):
                space |= trial.distributions
        if grid is None or (self._space is None and grid.space != space):
            grid = self._grid = Grid(space, self._defaults, self._legal)
        return grid

    def _bind(self, study: Study) -> None:
        self._study = self._study or study.study_name
        if study.study_name != self._study:
            raise ValueError(
                f"the study is {study.study_name!r}, and this sampler has learned of "
                f"{self._study!r}; make a sampler for each study"
            )
        if {*study.directions} != {StudyDirection.MAXIMIZE} or len(study.directions) > 2:
            raise ValueError(
                f"the study's directions are {[each.name.lower() for each in study.directions]}; "
                "legal are one or two, each 'maximize': "
                "a value is the log ratio to the control, and above 0 is better"
            )

    # ---- learning --------------------------------------------------------------------------------

    def _learn(self, grid: Grid, trials: Sequence[FrozenTrial]) -> Known:
        placed = [(row, trial) for trial in trials if (row := grid.level_row_of(trial)) is not None]
        failed = [row for row, trial in placed if trial.state == TrialState.FAIL]
        done = [
            (row, Told.of(trial, self._variances))
            for row, trial in placed
            if trial.state == TrialState.COMPLETE
        ]
        # A study that is read back may have been told in another order.
        done.sort(key=lambda each: (each[1].order, each[0]))
        modelled = _modelled([row for row, _ in done])
        lost = sorted({*failed[-_MOST_MODELLED:]})
        numbers = {row: number for number, row in enumerate(dict.fromkeys([*modelled, *lost]))}
        levels = np.array([*numbers], dtype=np.int64).reshape(len(numbers), len(grid.axes))
        known = [(numbers[row], told) for row, told in done if row in numbers]
        models = []
        for objective in range(len(done[0][1].values) if done else 0):
            failures = [numbers[row] for row in lost] if objective == 0 else []
            seen = _measurements(known, objective, failures)
            models.append(SparseModel(grid.axes, levels, seen, is_control=self._is_control))
        excesses = ((config, told.excess) for config, told in known)
        limited = [
            Measurement(config, number, excess, _EXCESS_VARIANCE)
            for number, (config, excess) in enumerate(excesses)
            if excess is not None
        ]
        return Known(
            grid,
            tuple(dict.fromkeys(row for row, _ in done)),
            tuple(models),
            SparseModel(grid.axes, levels, limited, is_control=False) if limited else None,
            frozenset(failed),
            frozenset(),
            len(done) + len({*failed}),
        )

    # ---- choosing --------------------------------------------------------------------------------

    def _screening(
        self,
        known: Known,
        rng: np.random.Generator,
        banned: Collection[LevelRow],
        most: int,
    ) -> list[LevelRow]:
        """Configurations that each change those parameters that were changed least."""
        times = np.zeros(len(known.axes))
        for row in (*known.rows, *known.open):
            times += np.array(row) != UNCHANGED
        together = min(_SCREENED_TOGETHER, max(1, len(times) // 2))
        levels = self._worth_screening(known)
        found: list[LevelRow] = []
        for _ in range(4 * most):
            if len(found) == most or times.min(initial=_SCREENED) >= _SCREENED:
                break
            due = times + 0.5 * rng.random(len(times))
            picked = np.argsort(due, kind="stable")[:together]
            changed = [UNCHANGED] * len(known.axes)
            for axis in picked.tolist():
                changed[axis] = self._telling(known.axes[axis], levels[axis], rng)
            times[picked] += 1.0
            meant = known.grid.meant(tuple(changed))
            if meant is not None and meant not in {*known.rows, *banned, *found}:
                found.append(meant)
        return found

    def _telling(self, axis: Axis, levels: Sequence[int], rng: np.random.Generator) -> int:
        """One of some levels, never the default: near it, at an end, or any; of words any."""
        if not levels:
            return UNCHANGED
        if not axis.is_ordered or axis.default is None:
            return int(rng.choice(levels))
        where, step = rng.random(), screening_step(axis.count)
        if where < self.ends:
            meant = {0, axis.count - 1}
        elif where < self.ends + self.anywhere:
            meant = {*levels}
        else:
            meant = {axis.default - step, axis.default + step}
        return int(rng.choice([each for each in levels if each in meant] or levels))

    def _worth_screening(self, known: Known) -> list[list[int]]:
        """Of each parameter, the levels but the default that are not known to be bad.

        They are slow, or break the limit; where the defaults break it, by more than they do.
        """
        bare = known.grid.bare
        found = [[v for v in range(axis.count) if v != axis.default] for axis in known.axes]
        rows = np.array(
            [
                (*bare[:axis], level, *bare[axis + 1 :])
                for axis, levels in enumerate(found)
                for level in levels
            ]
        )
        is_good = np.full(len(rows), True)
        if len(rows) and known.models:
            mean, error = known.models[0].expected(rows)
            is_good = mean + error > _LOST
        if len(rows) and known.excess is not None:
            (most,), _ = known.excess.expected(np.array([bare]))
            above, unsure = known.excess.expected(rows)
            is_good &= above - unsure <= max(0.0, most)
        good = iter(is_good.tolist())
        return [[level for level in levels if next(good)] for levels in found]

    def _some(
        self, known: Known, rng: np.random.Generator, banned: Collection[LevelRow], most: int
    ) -> list[LevelRow]:
        """Random sparse configurations: nothing is known yet."""
        found: list[LevelRow] = []
        for row in self._random(known.axes, rng, 8 * most):
            meant = known.grid.meant(row)
            if meant is not None and meant not in banned and meant not in found:
                found.append(meant)
        return found[:most]

    def _drawn(
        self,
        known: Known,
        rng: np.random.Generator,
        banned: Collection[LevelRow],
        count: int,
        fresh: int,
        first: Sequence[LevelRow],
    ) -> list[LevelRow]:
        """The best of one drawn landscape after another; every other time but the leader's."""
        measured, proposals = known.modelled, self._proposals(known, rng)
        everything = [*measured, *proposals]
        lengths = (np.array(everything) != UNCHANGED).sum(axis=1)
        levels = np.array(proposals, dtype=np.int64).reshape(len(proposals), len(known.axes))
        taken, left, found = {*banned}, fresh - len(first), []
        seen = {*known.rows}
        out = np.array([row in taken for row in everything])
        features = [model.features(levels) for model in known.models]
        excess = np.zeros(len(everything))
        if known.excess is not None:
            limited = zip(known.excess.measured, known.excess.expected(levels), strict=True)
            above, unsure = (np.concatenate(each) for each in limited)
            excess = _EXCESS_PRICE * np.maximum(0.0, above - unsure)
        for _ in range(count - len(first)):
            both = zip(known.models, features, strict=True)
            draws = [np.concatenate(model.draw(rng, levels, each)) for model, each in both]
            worth = draws[0] if len(draws) == 1 else _in_some_direction(draws, rng)
            worth = worth - excess - PRICE * lengths
            worth[out] = -np.inf
            if left <= 0:
                worth[len(measured) :] = -np.inf
            for place in np.argsort(-worth)[:_RANDOM].tolist():
                if worth[place] == -np.inf:
                    break
                out[place] = True
                is_new = place >= len(measured)
                meant = known.grid.meant(everything[place]) if is_new else everything[place]
                if meant is None or meant in taken or (is_new and meant in seen):
                    continue
                left -= is_new
                taken.add(meant)
                found.append(meant)
                break
        return found

    def _proposals(self, known: Known, rng: np.random.Generator) -> list[LevelRow]:
        """One change away from the best, from the default, and some that are anywhere."""
        bases = self._incumbents(known)
        rows: dict[LevelRow, None] = {}
        for base in bases:
            for axis, each in enumerate(known.axes):
                for level in range(UNCHANGED, each.count):
                    if level not in (base[axis], each.default):
                        moved = (*base[:axis], level, *base[axis + 1 :])
                        rows[moved] = None
        rows.update(dict.fromkeys(self._random(known.axes, rng, _RANDOM)))
        measured = {*known.modelled}
        return [row for row in rows if row not in measured]

    def _incumbents(self, known: Known) -> list[LevelRow]:
        """The default, and the configurations that promise most in any objective."""
        found = {(UNCHANGED,) * len(known.axes): None}
        measured = known.modelled
        lengths = (np.array(measured) != UNCHANGED).sum(axis=1)
        for model in known.models:
            order = np.argsort(PRICE * lengths - model.measured[0])
            found.update(dict.fromkeys(measured[place] for place in order[:_INCUMBENTS].tolist()))
        return [*found]

    def _random(self, axes: Sequence[Axis], rng: np.random.Generator, count: int) -> list[LevelRow]:
        found = []
        for _ in range(count):
            row = [UNCHANGED] * len(axes)
            changed = rng.permutation(len(axes))[: rng.integers(1, _MOST_CHANGED + 1)]
            for axis in changed.tolist():
                level = int(rng.integers(axes[axis].count))
                row[axis] = UNCHANGED if level == axes[axis].default else level
            found.append(tuple(row))
        return found

    def _mixed(self, trials: int, asked: int = 0) -> int:
        """A seed that is the same for the same study and number of trials, and for no other."""
        digest = hashlib.sha256(f"{self._seed}:{trials}:{asked}".encode()).digest()
        return int.from_bytes(digest[:8], "little")


def _measurements(
    known: Sequence[tuple[int, Told]], objective: int, failures: Sequence[int]
) -> list[Measurement]:
    """What trials say of one objective; one that failed is FAR, in a block of its own."""
    blocks: dict[tuple[str, int], int] = {}
    found = []
    for config, told in known:
        block = blocks.setdefault(told.block, len(blocks))
        value, variance = told.values[objective], told.variances[objective]
        found.append(Measurement(config, block, value, variance))
    own = enumerate(failures, len(blocks))
    return found + [Measurement(config, n, FAR, _FAILURE_VARIANCE) for n, config in own]


def _in_some_direction(drawn: Sequence[Floats], rng: np.random.Generator) -> Floats:
    """Two objectives as one: the worse one after a random weighting (Tchebycheff), or one alone."""
    share = float(rng.choice([0.0, 1.0, *rng.random(4)]))
    spans = [max(1e-3, float(np.quantile(each, 0.98) - np.quantile(each, 0.5))) for each in drawn]
    best = [float(each.max()) for each in drawn]
    short = [(top - each) / span for each, top, span in zip(drawn, best, spans, strict=True)]
    one, other = share * short[0], (1.0 - share) * short[1]
    worst: Floats = -np.maximum(one, other) - 0.05 * (short[0] + short[1])
    return worst * min(spans)


def _modelled(rows: Sequence[LevelRow]) -> list[LevelRow]:
    """Those measured most, and the newest, in order: the best would be the lucky ones."""
    times: dict[LevelRow, int] = {}
    for row in rows:
        times[row] = times.get(row, 0) + 1
    keys = [*times]
    if len(keys) <= _MOST_MODELLED:
        return keys
    wanted = {*sorted(reversed(keys), key=lambda row: -times[row])[: _MOST_MODELLED // 2]}
    others = [row for row in keys if row not in wanted]
    wanted.update(others[len(others) - (_MOST_MODELLED - len(wanted)) :])
    return [row for row in keys if row in wanted]


def screening_step(levels: int) -> int:
    """How far from its default an ordered parameter of so many levels is screened first."""
    return max(1, levels // 4)
