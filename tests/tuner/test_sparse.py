"""The sparse model and its sampler, in plain Optuna studies: no other part of hztune takes part."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from hztune.sparse import (
    BLOCK,
    EXCESS,
    VARIANCE,
    Axis,
    Measurement,
    SparseModel,
    SparseSampler,
    model,
    screening_step,
)
from hztune.sparse.grid import FAR, UNCHANGED

SPACE: dict[str, BaseDistribution] = {
    **{f"size{number}": IntDistribution(0, 7) for number in range(7)},
    "pages": CategoricalDistribution(["off", "on", "never"]),
    "lock": CategoricalDistribution(["mutex", "spin"]),
}
DEFAULTS: dict[str, Any] = {
    **{f"size{number}": 3 for number in range(7)},
    "pages": "off",
    "lock": "mutex",
}
Truth = Callable[[Mapping[str, Any]], float]
NOISE = 0.04


def nothing(params: Mapping[str, Any]) -> float:
    return 0.0


def huge_pages(params: Mapping[str, Any]) -> float:
    """One parameter helps, and two do harm."""
    gain = 0.08 if params["pages"] == "on" else 0.0
    return gain - 0.5 * (params["size1"] == 0) - 0.1 * (params["size2"] >= 6)


def far_end(params: Mapping[str, Any]) -> float:
    """One value helps, which all others of its parameter say nothing of."""
    return 0.2 if params["size0"] == 7 else 0.0


def far_end_beside_cliffs(params: Mapping[str, Any]) -> float:
    """The same where ends of three other parameters halve the speed, or worse."""
    harm = 0.7 * ((params["size1"] == 7) + (params["size2"] == 0)) + 2.0 * (params["size3"] == 7)
    return far_end(params) - harm


def studied(
    truth: Truth, blocks: int, seed: int, **options: Any
) -> tuple[optuna.Study, SparseSampler]:
    """A study of some blocks of six trials that share the error of one control."""
    rng = np.random.default_rng(seed)
    sampler = SparseSampler(DEFAULTS, seed=seed, space=SPACE, **options)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for block in range(blocks):
        control = rng.normal(0.0, NOISE / math.sqrt(2.0))
        trials = [study.ask(SPACE) for _ in range(6)]
        for trial in trials:
            trial.set_user_attr(BLOCK, block)
            trial.set_user_attr(VARIANCE, NOISE**2)
            own = rng.normal(0.0, NOISE / math.sqrt(2.0))
            study.tell(trial, truth(trial.params) + own - control)
    return study, sampler


def likely(study: optuna.Study, sampler: SparseSampler) -> dict[str, float]:
    """How likely each parameter matters."""
    known = sampler.known(study)
    names = [axis.name for axis in known.axes]
    return dict(zip(names, known.models[0].matters().tolist(), strict=True))


# ---- the sampler ---------------------------------------------------------------------------------


def test_the_one_parameter_that_helps_is_found_in_sixty_noisy_trials() -> None:
    found = 0
    for seed in range(5):
        chances = likely(*studied(huge_pages, 10, seed))
        found += chances["pages"] > 0.8
    assert found >= 4


@pytest.mark.parametrize("truth", [far_end, far_end_beside_cliffs])
def test_an_end_that_helps_alone_is_found_in_sixty_noisy_trials(truth: Truth) -> None:
    found = 0
    for seed in range(3):
        study, sampler = studied(truth, 10, seed)
        known = sampler.known(study)
        means, _ = known.models[0].measured
        best = known.grid.params(known.modelled[int(np.argmax(means))])
        found += best["size0"] == 7
    assert found >= 2


def test_without_its_far_parts_the_screening_stays_a_step_from_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SparseSampler, "ends", 0.0)
    monkeypatch.setattr(SparseSampler, "anywhere", 0.0)
    study = optuna.create_study(direction="maximize")
    found = SparseSampler(DEFAULTS, seed=1, space=SPACE).suggest(study, 12)
    step = screening_step(8)
    assert {each["size0"] for each in found} <= {3 - step, 3, 3 + step}
    assert len({each["size0"] for each in found}) > 1


def test_eigenvalues_that_do_not_converge_end_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """LAPACK refuses a finite matrix now and then; a study of hours must not end by it."""
    wanted = model._square_root(np.diag([4.0, 1.0]))

    def refuse(matrix: Any) -> Any:
        raise np.linalg.LinAlgError("Eigenvalues did not converge")

    monkeypatch.setattr(np.linalg, "eigh", refuse)
    found = model._square_root(np.diag([4.0, 1.0]))
    assert found @ found.T == pytest.approx(wanted @ wanted.T)


def test_a_block_holds_no_configuration_twice_nor_the_defaults() -> None:
    study, sampler = studied(huge_pages, 5, 4)
    found = [tuple(sorted(each.items())) for each in sampler.suggest(study, 6)]
    assert len({*found}) == 6
    assert tuple(sorted(DEFAULTS.items())) not in found


def test_the_same_seed_and_trials_give_the_same_proposals() -> None:
    one, other = (studied(huge_pages, 4, 6) for _ in range(2))
    assert one[1].suggest(one[0], 6) == other[1].suggest(other[0], 6)
    third = studied(huge_pages, 4, 7)
    assert one[1].suggest(one[0], 6) != third[1].suggest(third[0], 6)


def test_only_what_is_legal_is_proposed_in_the_form_that_is_meant() -> None:
    def legal(params: dict[str, Any]) -> dict[str, Any] | None:
        if params["lock"] == "spin":
            return None
        return {**params, "size6": DEFAULTS["size6"]}

    study, _ = studied(huge_pages, 6, 9, legal=legal)
    assert all(trial.params["lock"] == "mutex" for trial in study.trials)
    assert all(trial.params["size6"] == 3 for trial in study.trials)


def test_a_configuration_that_failed_is_not_proposed_again_and_its_parameter_hardly() -> None:
    sampler = SparseSampler(DEFAULTS, seed=1, space=SPACE)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for block in range(10):
        for trial in [study.ask(SPACE) for _ in range(6)]:
            trial.set_user_attr(BLOCK, block)
            if trial.params["lock"] == "spin":
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, 0.0)
    failed = [t for t in study.trials if t.state == optuna.trial.TrialState.FAIL]
    assert len({tuple(sorted(t.params.items())) for t in failed}) == len(failed)
    assert len(failed) < 10


def test_what_breaks_a_limit_is_avoided_however_fast_it_is() -> None:
    sampler = SparseSampler(DEFAULTS, seed=2, space=SPACE)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for block in range(12):
        for trial in [study.ask(SPACE) for _ in range(6)]:
            greedy = trial.params["pages"] == "on"
            trial.set_user_attr(BLOCK, block)
            trial.set_user_attr(EXCESS, 0.2 if greedy else -0.1)
            study.tell(trial, 0.3 if greedy else 0.0)
    late = study.trials[36:]
    assert sum(trial.params["pages"] == "on" for trial in late) < 0.1 * len(late)


def test_two_objectives_are_both_sought() -> None:
    sampler = SparseSampler(DEFAULTS, seed=3, space=SPACE)
    study = optuna.create_study(directions=["maximize", "maximize"], sampler=sampler)
    for block in range(12):
        for trial in [study.ask(SPACE) for _ in range(6)]:
            trial.set_user_attr(BLOCK, block)
            trial.set_user_attr(VARIANCE, [0.02**2, 0.01**2])
            fast = 0.1 * (trial.params["pages"] == "on")
            small = 0.2 * (trial.params["size0"] <= 1)
            study.tell(trial, [fast - small, small - fast])
    late = study.trials[36:]
    assert sum(trial.params["pages"] == "on" for trial in late) > 0.15 * len(late)
    assert sum(trial.params["size0"] <= 1 for trial in late) > 0.15 * len(late)


@pytest.mark.parametrize(
    ("space", "defaults", "error"),
    [
        ({"x": FloatDistribution(0.0, 1.0)}, {"x": 0.5}, "legal are categories and whole numbers"),
        ({"x": IntDistribution(0, 1000)}, {"x": 0}, "at most 64"),
        ({"x": IntDistribution(0, 3)}, {}, "'x' has no default"),
    ],
)
def test_a_space_that_is_not_a_grid_with_defaults_is_refused(
    space: dict[str, BaseDistribution], defaults: dict[str, Any], error: str
) -> None:
    sampler = SparseSampler(defaults, space=space)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    with pytest.raises(ValueError, match=error):
        study.ask(space)


def test_it_works_in_optunas_own_loop() -> None:
    def objective(trial: optuna.Trial) -> float:
        size = trial.suggest_int("size", 0, 7)
        return 0.1 if trial.suggest_categorical("pages", ["off", "on"]) == "on" else -0.01 * size

    sampler = SparseSampler({"size": 0, "pages": "off"}, seed=1)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(objective, n_trials=20)
    assert study.best_params["pages"] == "on"


# ---- the model -----------------------------------------------------------------------------------

AXES = tuple(Axis(f"p{number}", 4, 0, True) for number in range(5))


def only(axis: int, level: int = 3) -> tuple[int, ...]:
    return tuple(level if place == axis else UNCHANGED for place in range(len(AXES)))


def fitted(rows: list[tuple[int, ...]], seen: list[Measurement]) -> SparseModel:
    return SparseModel(AXES, np.array(rows, dtype=np.int64), seen)


def test_the_best_of_many_equals_is_not_believed() -> None:
    rng = np.random.default_rng(1)
    rows = [only(axis, level) for axis in range(5) for level in (1, 2, 3)]
    seen = [Measurement(n, n // 5, rng.normal(0.0, 0.05), 0.05**2) for n in range(15)]
    mean, _ = fitted(rows, seen).measured
    assert mean.max() < 0.5 * max(one.log_ratio for one in seen)


def test_the_error_of_a_blocks_control_is_nobodys_gain() -> None:
    """Six that all read +10 % in one block had a slow control; six in six blocks are faster."""
    rows = [only(axis) for axis in range(5)]
    together = [Measurement(n, 0, 0.1, 0.05**2) for n in range(5)]
    apart = [Measurement(n, n, 0.1, 0.05**2) for n in range(5)]
    assert fitted(rows, together).measured[0].mean() < fitted(rows, apart).measured[0].mean()


def test_two_in_one_block_are_known_better_beside_each_other() -> None:
    rows = [only(0), only(1)]
    seen = [Measurement(n, block, 0.1 * n, 0.05**2) for block in range(4) for n in range(2)]
    model = fitted(rows, seen)
    lead, error = model.lead(1, np.array(rows, dtype=np.int64))
    assert lead[1] == pytest.approx(0.0, abs=1e-9) and error[1] < 1e-4
    assert error[0] < math.hypot(*model.measured[1])


def test_what_is_far_behind_says_little_of_its_other_parameters() -> None:
    """One parameter's loss hides what another one brings."""
    rows = [only(0), (3, 3, UNCHANGED, UNCHANGED, UNCHANGED)]
    seen = [Measurement(n, block, (0.1, FAR)[n], 0.03**2) for block in range(4) for n in range(2)]
    mean, _ = fitted(rows, seen).measured
    assert mean[0] > 0.07


def test_intervals_of_the_model_hold_the_truth() -> None:
    rng = np.random.default_rng(5)
    held = total = 0
    for _ in range(20):
        effects = {0: rng.normal(0.0, 0.08)}
        rows = [only(axis, level) for axis in range(5) for level in (1, 3)]
        truth = np.array([effects.get(n // 2, 0.0) for n in range(10)])
        seen = []
        for block in range(6):
            control = rng.normal(0.0, 0.03)
            for n in rng.permutation(10)[:5].tolist():
                value = truth[n] + rng.normal(0.0, 0.03) - control
                seen.append(Measurement(n, block, value, 2 * 0.03**2))
        used = sorted({one.config for one in seen})
        place = {n: at for at, n in enumerate(used)}
        moved = [Measurement(place[o.config], o.block, o.log_ratio, o.variance) for o in seen]
        mean, error = fitted([rows[n] for n in used], moved).measured
        held += int(np.sum(np.abs(mean - truth[used]) <= 1.96 * error + 1e-12))
        total += len(used)
    assert held / total > 0.93
