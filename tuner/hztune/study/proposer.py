"""Proposing: every measurement of the search is a trial of an Optuna study, one an allocator.

A configuration that is measured again is another trial: so a trial never has to change, and the
study of a search that goes on is made by telling it the blocks of its ledger. The parameters of a
trial are the indices of its configuration: one for each dimension of the space.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, Trial, TrialState

from hztune.arguments import SAMPLERS, SPARSE
from hztune.blocks import Arm, Block, Outcome
from hztune.errors import UsageError
from hztune.params import Value
from hztune.space import Dimension, Space
from hztune.sparse import BLOCK, EXCESS, SparseModel, SparseSampler
from hztune.sparse.grid import Floats, LevelRow, Params
from hztune.sparse.sampler import Known
from hztune.stats.ratios import pair_ratio, saving_ratio
from hztune.study.ledger import Ledger


def sampler_named(name: str, seed: int) -> BaseSampler | None:
    """A sampler by its name, or of the user's as "module:Class"; None: the sparse one.

    The user's is called with `seed=`, and gets every trial by Optuna's `ask` and `tell`.
    UsageError: there is none of that name, or it fails.
    """
    if name == SPARSE:
        return None
    module, _, own = name.partition(":")
    kind, settings = SAMPLERS.get(name, (own or name, {}))
    legal = f"legal are {', '.join([SPARSE, *SAMPLERS])}, or module:Class of your own"
    try:
        where = importlib.import_module(module if own else "optuna.samplers")
        two: list[BaseSampler] = [getattr(where, kind)(seed=seed, **settings) for _ in range(2)]
        study = optuna.create_study(sampler=two[1])  # some import what they need as late as this
        study.optimize(lambda trial: sum(trial.suggest_int(name, 0, 9) for name in "ab"), 12)
    except Exception as error:  # it may be the user's code
        told = f"{type(error).__name__}: {error}"
        raise UsageError(f"--sampler {name!r} cannot be used ({told}); {legal}") from None
    return two[0]


SPEED, MEMORY = "speed", "memory"

_ASKS = 20  # times that a foreign sampler is asked: it knows no rules of the space

_DRAWS = 64  # possible landscapes over which a promise is averaged

_MACHINE, _ROUNDS = "machine", "rounds"

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Proposer:
    def __init__(
        self,
        space: Space,
        ledger: Ledger,
        *,
        seed: int,
        objectives: Sequence[str] = (SPEED,),
        is_control: bool = True,
        sampler: BaseSampler | None = None,
    ) -> None:
        """`is_control`: whether the allocator's defaults are what all is compared with.

        `sampler`: proposes what is new; None: the sparse one, whose model judges in any case.
        """
        self._space, self._ledger, self._objectives = space, ledger, tuple(objectives)
        self._distributions = {d.name: _distribution(d) for d in space.dimensions}
        self.sampler = SparseSampler(
            space.indices({}),
            seed=seed,
            legal=self._meant,
            variances=self._variances,
            is_control=is_control,
            space=self._distributions,
        )
        self.is_control, self._is_own = is_control, sampler is None
        self.study = optuna.create_study(
            directions=["maximize"] * len(objectives), sampler=sampler or self.sampler
        )
        self._blocks = 0
        self._rejected: set[frozenset[tuple[str, Value]]] = set()
        self._open: dict[str, Trial] = {}
        self._level_rows: dict[str, LevelRow] = {}

    def suggest(
        self,
        count: int,
        *,
        fresh: int | None = None,
        out: Iterable[Arm] = (),
        pending: Iterable[Arm] = (),
    ) -> list[Arm]:
        """The arms of the next block, for which the study is asked.

        `count`, `fresh`: most arms, and most of them that were not measured before; None: any
        number. `out`: not to be measured. `pending`: being measured; what else was asked has ended.
        """
        self._catch_up()
        left = {arm.key for arm in pending}
        for key in [key for key in self._open if key not in left]:  # the user stopped
            self.study.tell(self._open.pop(key), state=TrialState.PRUNED)
        rows = {self.level_row(arm) for arm in out}
        if self._is_own:
            asks = self.sampler.prepare(self.study, count, fresh=fresh, out=rows)
            return [arm for _ in range(asks) if (arm := self._asked(rows)) is not None]
        new: list[Arm] = []
        most = count if fresh is None else min(count, fresh)
        for _ in range(_ASKS * most):
            if len(new) < most and (arm := self._asked(rows)) is not None:
                new.append(arm)
                rows.add(self.level_row(arm))
        known = self.sampler.suggest(self.study, count - len(new), fresh=0, out=rows)
        return [*new, *(self._space.arm(self._space.at(params)) for params in known)]

    def _asked(self, out: Collection[LevelRow]) -> Arm | None:
        """What the study proposes when it is asked; None: it is not to be measured."""
        trial = self.study.ask(self._distributions)
        config = self._space.at(trial.params)
        arm = None if self.is_refused(config) else self._space.arm(config)
        if arm is None or self.level_row(arm) in out or (not self._is_own and arm.is_default):
            self.study.tell(trial, state=TrialState.PRUNED)
            return None
        self._open[arm.key] = trial
        return arm

    def outlook(self) -> Floats:
        self._catch_up()
        return self.sampler.outlook(self.study, _DRAWS)

    def known(self) -> Known:
        self._catch_up()
        return self.sampler.known(self.study)

    def predictions(self, objective: str = SPEED) -> dict[LevelRow, tuple[float, float]]:
        """Mean and error of what is believed of every modelled configuration, by its row."""
        known = self.known()
        if not known.models:
            return {}
        means, errors = known.models[self._objectives.index(objective)].measured
        return dict(
            zip(known.modelled, zip(means.tolist(), errors.tolist(), strict=True), strict=True)
        )

    def model(self, objective: str = SPEED) -> SparseModel | None:
        models = self.known().models
        return models[self._objectives.index(objective)] if models else None

    def level_row(self, arm: Arm) -> LevelRow:
        if arm.key not in self._level_rows:
            self._level_rows[arm.key] = self.sampler.grid(self.study).level_row(
                self._space.indices(arm.config)
            )
        return self._level_rows[arm.key]

    def arm(self, row: LevelRow) -> Arm | None:
        config = self._space.at(self.sampler.grid(self.study).params(row))
        return None if self.is_refused(config) else self._space.arm(config)

    def is_refused(self, config: Mapping[str, Value]) -> bool:
        """Whether a configuration is not legal, or holds what the allocator refused to run with."""
        if self._space.objection(config):
            return True
        return any(refused <= config.items() for refused in self._rejected)

    # ---- telling ---------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        news = self._ledger.blocks[self._blocks :]
        self._blocks = len(self._ledger.blocks)
        for block in news:
            if block.role == "search" and block.control.ok:
                for outcome in block.outcomes[1:]:
                    if outcome.arm.allocator == self._space.allocator:
                        self._tell(block, outcome)

    def _tell(self, block: Block, outcome: Outcome) -> None:
        if outcome.status == "rejected":
            self._rejected.add(frozenset(outcome.arm.params))
            self.sampler.grid(self.study).forget_meant()
        values, attributes = self._values(block, outcome)
        if outcome.ok and values is None:
            return  # it says nothing of an objective
        trial = self._open.pop(outcome.arm.key, None)
        state = TrialState.COMPLETE if values else TrialState.FAIL
        if trial is None:
            # of a block that this study has not asked for
            self.study.add_trial(
                optuna.create_trial(
                    params=self._space.indices(outcome.arm.config),
                    distributions=self._distributions,
                    values=values,
                    user_attrs=attributes,
                    state=state,
                )
            )
            return
        for name, value in attributes.items():
            trial.set_user_attr(name, value)
        self.study.tell(trial, values, state=state)

    def _values(self, block: Block, outcome: Outcome) -> tuple[list[float] | None, dict[str, Any]]:
        if not outcome.ok:
            return None, {}
        speed = pair_ratio(block.control, outcome)
        found = {SPEED: speed, MEMORY: saving_ratio(block.control, outcome, self._ledger.memory)}
        wanted = [found[objective] for objective in self._objectives]
        known = [pair for pair in wanted if pair is not None]
        if speed is None or len(known) < len(wanted):
            return None, {}
        attributes = {BLOCK: block.number, _MACHINE: block.machine, _ROUNDS: speed.rounds}
        limit = self._ledger.limit
        excess = limit.excess_of(block.control, outcome) if limit is not None else None
        if excess is not None:
            attributes[EXCESS] = excess
        return [pair.log_ratio for pair in known], attributes

    def _variances(self, trial: FrozenTrial) -> tuple[float, ...]:
        machine, rounds = trial.user_attrs[_MACHINE], trial.user_attrs[_ROUNDS]
        each = {
            SPEED: self._ledger.noises().on(machine).of_pair(rounds),
            MEMORY: self._ledger.memory_noises().on(machine).of_pair(1),
        }
        return tuple(each[objective] for objective in self._objectives)

    def _meant(self, indices: Params) -> Params | None:
        """A proposal as it is meant; None where it is not legal."""
        config = self._space.at(indices)
        return None if self.is_refused(config) else self._space.indices(config)


def _distribution(dimension: Dimension) -> BaseDistribution:
    count = len(dimension.values)
    if dimension.is_ordered:
        return IntDistribution(0, count - 1)
    return CategoricalDistribution(range(count))
