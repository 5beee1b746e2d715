"""The sparse sampler in the hands of a hostile user: wrong studies, wrong trials, wrong spaces."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import optuna
import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    IntDistribution,
)
from optuna.trial import TrialState

from hztune.sparse import BLOCK, EXCESS, VARIANCE, SparseSampler, sampler
from hztune.sparse.grid import Told
from hztune.sparse.sampler import Known

SPACE: dict[str, BaseDistribution] = {
    "size": IntDistribution(0, 7),
    "pages": CategoricalDistribution(["off", "on"]),
}
DEFAULTS: dict[str, Any] = {"size": 3, "pages": "off"}
Objective = Callable[[optuna.Trial], float]


def begun(**options: Any) -> optuna.Study:
    return optuna.create_study(direction="maximize", sampler=SparseSampler(DEFAULTS, **options))


def told(study: optuna.Study, value: float, **attributes: Any) -> None:
    """Adds a trial of another origin."""
    made = optuna.create_trial(
        params={**DEFAULTS, "size": 1 + len(study.trials)},
        distributions=SPACE,
        value=value,
        user_attrs=attributes,
    )
    study.add_trial(made)


def known(study: optuna.Study) -> Known:
    assert isinstance(study.sampler, SparseSampler)
    return study.sampler.known(study)


def seen(study: optuna.Study, name: str) -> set[Any]:
    return {trial.params[name] for trial in study.trials if name in trial.params}


# ---- what trials tell ----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1, [0.01], [1], 1e-300])
def test_a_variance_is_a_number_or_one_for_each_objective(value: object) -> None:
    study = begun()
    for _ in range(3):
        told(study, 0.1, **{VARIANCE: value})
    assert study.ask(SPACE).params


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        *((VARIANCE, v, "a number above 0, or one for each objective") for v in (0.0, -1.0, "0.1")),
        *((VARIANCE, v, "a number above 0") for v in (None, [], [0.1, 0.1], {"x": 1}, math.nan)),
        *((BLOCK, v, "a whole number") for v in ("one", 1.5, None, [1])),
        *((EXCESS, v, "the log ratio to the limit") for v in ("much", None, math.nan, math.inf)),
    ],
)
def test_an_attribute_of_a_wrong_kind_is_refused_with_its_trial(
    name: str, value: object, legal: str
) -> None:
    study = begun()
    told(study, 0.1)
    told(study, 0.1, **{name: value})
    with pytest.raises(ValueError, match=f"attribute '{name}' of trial 1 is .*legal is {legal}"):
        study.ask(SPACE)


@pytest.mark.parametrize("value", [math.inf, 1e300, 123456.0])
def test_operations_per_second_are_no_log_ratio(value: float) -> None:
    study = begun()
    told(study, value)
    with pytest.raises(ValueError, match=r"trial 0 has the value .*log ratio to the control"):
        study.ask(SPACE)


def test_a_failure_shares_no_block_with_a_trial_that_names_none() -> None:
    """It did: the control of both seemed to be one."""
    alone = Told.of(optuna.create_trial(value=0.1), None)
    lost = sampler._measurements([(0, alone)], 0, [1])
    assert len({measurement.block for measurement in lost}) == 2


def test_hundreds_of_failures_do_not_make_the_model_large() -> None:
    study = begun()
    wide = {f"p{number}": IntDistribution(0, 7) for number in range(3)}
    study.sampler = SparseSampler(dict.fromkeys(wide, 0), space=wide)
    for number in range(300):
        digits = {f"p{place}": number // 8**place % 8 for place in range(3)}
        state = TrialState.FAIL if number else TrialState.COMPLETE
        value = None if number else 0.0
        study.add_trial(
            optuna.create_trial(params=digits, distributions=wide, value=value, state=state)
        )
    found = known(study)
    assert len(found.failed) == 299
    assert len(found.modelled) == 1 + sampler._MOST_MODELLED


# ---- studies -------------------------------------------------------------------------------------


@pytest.mark.parametrize("directions", [["minimize"], ["maximize", "minimize"], ["maximize"] * 3])
def test_a_study_that_minimizes_or_has_three_objectives_is_refused(directions: list[str]) -> None:
    study = optuna.create_study(directions=directions, sampler=SparseSampler(DEFAULTS))
    with pytest.raises(ValueError, match="legal are one or two, each 'maximize'"):
        study.ask(SPACE)


def test_a_sampler_serves_one_study() -> None:
    shared = SparseSampler(DEFAULTS)
    optuna.create_study(direction="maximize", sampler=shared, study_name="one").ask(SPACE)
    other = optuna.create_study(direction="maximize", sampler=shared, study_name="other")
    with pytest.raises(ValueError, match=r"the study is 'other'.*learned of 'one'.*each study"):
        other.ask(SPACE)


# ---- spaces --------------------------------------------------------------------------------------


def optimized(objective: Objective, trials: int, defaults: Mapping[str, Any]) -> optuna.Study:
    study = optuna.create_study(direction="maximize", sampler=SparseSampler(defaults, seed=1))
    study.optimize(objective, n_trials=trials)
    return study


def test_a_parameter_that_comes_later_is_tried_too() -> None:
    def objective(trial: optuna.Trial) -> float:
        trial.suggest_int("size", 0, 3)
        if trial.number > 2:
            trial.suggest_int("late", 0, 3)
        return 0.0

    assert len(seen(optimized(objective, 20, {"size": 0, "late": 0}), "late")) > 2


def test_a_trial_that_is_half_asked_hides_no_parameter() -> None:
    """Two threads: one sees the other's trial with the first of its parameters only."""
    study = optuna.create_study(direction="maximize", sampler=SparseSampler(DEFAULTS))
    half = study.ask()
    half.suggest_int("size", 0, 7)
    other = study.ask()
    other.suggest_int("size", 0, 7)
    for trial in (half, other):
        trial.suggest_categorical("pages", ["off", "on"])
        study.tell(trial, 0.0)
    for _ in range(6):
        study.tell(study.ask(SPACE), 0.0)
    assert seen(study, "pages") == {"off", "on"}


@pytest.mark.parametrize(
    ("each", "default", "error"),
    [
        (CategoricalDistribution(list(range(1000))), 0, "'x' is 1000 categories; legal are .*64"),
        (IntDistribution(1, 64, log=True), 1, r"'x' is .*legal are .*equal steps \(no log\)"),
        (IntDistribution(0, 7), 99, "the default of 'x' is 99; legal is IntDistribution"),
        (IntDistribution(0, 30, step=10), 15, "the default of 'x' is 15; legal is"),
        (IntDistribution(0, 7), "three", "the default of 'x' is 'three'; legal is"),
        (IntDistribution(0, 7), None, "the default of 'x' is None; legal is"),
        (CategoricalDistribution(["a", "b"]), "c", "the default of 'x' is 'c'; legal is"),
    ],
)
def test_a_default_that_is_no_value_of_its_parameter_is_refused(
    each: BaseDistribution, default: object, error: str
) -> None:
    study = optuna.create_study(direction="maximize", sampler=SparseSampler({"x": default}))
    with pytest.raises(ValueError, match=error):
        study.ask({"x": each})


@pytest.mark.parametrize(
    ("legal", "error"),
    [
        (lambda params: None, "`legal` refuses the defaults, and all else"),
        (lambda params: {"size": 55}, "`legal` makes {'size': 55} of .*'size' is 55; legal is"),
        (lambda params: True, "`legal` makes True of"),
    ],
)
def test_a_rule_that_allows_nothing_or_answers_nonsense_is_refused(
    legal: Callable[[dict[str, Any]], Any], error: str
) -> None:
    study = begun(legal=legal, space=SPACE)
    with pytest.raises(ValueError, match=error):
        study.ask(SPACE)
