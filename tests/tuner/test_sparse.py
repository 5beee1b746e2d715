"""The sparse model and its sampler, in plain Optuna studies: no other part of hztune takes part."""

from __future__ import annotations

import math

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from hztune.sparse import BLOCK, EXCESS, VARIANCE, Axis, Measurement, SparseModel, SparseSampler
from hztune.sparse.grid import FAR, UNCHANGED
from hztune.sparse.model import _square_root
from hztune.sparse.sampler import _MOST_MODELLED

SIZES = [f"size{number}" for number in range(7)]
SPACE = {
    **dict.fromkeys(SIZES, IntDistribution(0, 7)),
    "pages": CategoricalDistribution(["off", "on", "never"]),
    "lock": CategoricalDistribution(["mutex", "spin"]),
}
DEFAULTS = {**dict.fromkeys(SIZES, 3), "pages": "off", "lock": "mutex"}
NOISE = 0.04


def huge_pages(params):
    """One parameter helps, and two do harm."""
    gain = 0.08 if params["pages"] == "on" else 0.0
    return gain - 0.5 * (params["size1"] == 0) - 0.1 * (params["size2"] >= 6)


def far_end_beside_cliffs(params):
    """One value helps, and others of its parameter are silent; three other ends halve the speed."""
    harm = 0.7 * ((params["size1"] == 7) + (params["size2"] == 0)) + 2.0 * (params["size3"] == 7)
    return 0.2 * (params["size0"] == 7) - harm


def told(telling, blocks, seed, objectives=1, **options):
    """A study of some blocks of six trials."""
    own = SparseSampler(DEFAULTS, seed=seed, space=SPACE, **options)
    study = optuna.create_study(directions=["maximize"] * objectives, sampler=own)
    for block in range(blocks):
        for trial in [study.ask(SPACE) for _ in range(6)]:
            values, attributes = telling(trial.params)
            for name, value in {BLOCK: block, **attributes}.items():
                trial.set_user_attr(name, value)
            state = TrialState.FAIL if values is None else TrialState.COMPLETE
            study.tell(trial, values, state=state)
    return study


def studied(truth, blocks, seed, **options):
    """The same with noise: the trials of a block share the error of one control."""
    rng, shared, count = np.random.default_rng(seed), [0.0], [0]

    def telling(params):
        if count[0] % 6 == 0:
            shared[0] = rng.normal(0.0, NOISE / math.sqrt(2.0))
        count[0] += 1
        value = truth(params) + rng.normal(0.0, NOISE / math.sqrt(2.0)) - shared[0]
        return [value], {VARIANCE: NOISE**2}

    return told(telling, blocks, seed, **options)


def known(study):
    return study.sampler.known(study)


def late_share(study, holds):
    """The share of the trials of the second half of which something holds."""
    late = study.trials[len(study.trials) // 2 :]
    return sum(holds(trial.params) for trial in late) / len(late)


# ---- what is proposed ----------------------------------------------------------------------------


def test_the_one_parameter_that_helps_is_found_in_sixty_noisy_trials():
    for seed in range(5):
        now = known(studied(huge_pages, 10, seed))
        place = [axis.name for axis in now.axes].index("pages")
        assert now.models[0].matters()[place] > 0.8


def test_an_end_that_helps_alone_is_found_beside_cliffs_in_sixty_noisy_trials():
    found = 0
    for seed in range(3):
        now = known(studied(far_end_beside_cliffs, 10, seed))
        best = now.modelled[int(np.argmax(now.models[0].measured[0]))]
        found += now.grid.params(best)["size0"] == 7
    assert found >= 2


def test_a_block_holds_nothing_twice_nor_the_defaults_and_is_the_same_for_the_same_seed():
    one, again, other = (studied(huge_pages, 4, seed) for seed in (6, 6, 7))
    blocks = [each.sampler.suggest(each, 6) for each in (one, again, other)]
    found = {tuple(sorted(each.items())) for each in blocks[0]}
    assert len(found) == 6 and tuple(sorted(DEFAULTS.items())) not in found
    assert blocks[0] == blocks[1] != blocks[2]


def test_only_what_is_legal_is_proposed_in_the_form_that_is_meant():
    def legal(params):
        return None if params["lock"] == "spin" else {**params, "size6": DEFAULTS["size6"]}

    trials = studied(huge_pages, 6, 9, legal=legal).trials
    assert {(t.params["lock"], t.params["size6"]) for t in trials} == {("mutex", 3)}


def test_a_configuration_that_failed_is_not_proposed_again_and_its_parameter_hardly():
    study = told(lambda params: (None if params["lock"] == "spin" else [0.0], {}), 10, 1)
    failed = [tuple(sorted(t.params.items())) for t in study.trials if t.values is None]
    assert len({*failed}) == len(failed) < 10


def test_what_breaks_a_limit_is_avoided_however_fast_it_is():
    def telling(params):
        greedy = params["pages"] == "on"
        return [0.3 if greedy else 0.0], {EXCESS: 0.2 if greedy else -0.1}

    assert late_share(told(telling, 12, 2), lambda params: params["pages"] == "on") < 0.1


def test_two_objectives_are_both_sought():
    def telling(params):
        fast, small = 0.1 * (params["pages"] == "on"), 0.2 * (params["size0"] <= 1)
        return [fast - small, small - fast], {VARIANCE: [0.02**2, 0.01**2]}

    study = told(telling, 12, 3, objectives=2)
    assert late_share(study, lambda params: params["pages"] == "on") > 0.15
    assert late_share(study, lambda params: params["size0"] <= 1) > 0.15


def test_it_works_in_optunas_own_loop_and_tries_a_parameter_that_comes_later():
    def objective(trial):
        size = trial.suggest_int("size", 0, 7)
        if trial.number > 2:
            trial.suggest_int("late", 0, 3)
        return 0.1 if trial.suggest_categorical("pages", ["off", "on"]) == "on" else -0.01 * size

    own = SparseSampler({"size": 0, "pages": "off", "late": 0}, seed=1)
    study = optuna.create_study(direction="maximize", sampler=own)
    study.optimize(objective, n_trials=20)
    assert study.best_params["pages"] == "on"
    assert len({trial.params.get("late") for trial in study.trials}) > 2


def test_a_trial_that_is_half_asked_hides_no_parameter():
    """Two threads: one sees the other's trial with the first of its parameters only."""
    space = {name: SPACE[name] for name in ("size0", "pages")}
    study = optuna.create_study(direction="maximize", sampler=SparseSampler(DEFAULTS))
    both = [study.ask() for _ in range(2)]
    for trial in both:
        trial.suggest_int("size0", 0, 7)
    for trial in both:
        trial.suggest_categorical("pages", ["off", "on", "never"])
        study.tell(trial, 0.0)
    for _ in range(6):
        study.tell(study.ask(space), 0.0)
    assert len({trial.params["pages"] for trial in study.trials}) > 1


# ---- what is refused -----------------------------------------------------------------------------


BAD_SPACES = {
    "'x' is .*legal are categories and whole numbers": (FloatDistribution(0.0, 1.0), 0.5),
    "at most 64": (IntDistribution(0, 1000), 0),
    "'x' is 1000 categories; legal are .*64": (CategoricalDistribution(list(range(1000))), 0),
    r"'x' is .*equal steps \(no log\)": (IntDistribution(1, 64, log=True), 1),
    "the default of 'x' is 99; legal is IntDistribution": (IntDistribution(0, 7), 99),
    "the default of 'x' is 'c'; legal is": (CategoricalDistribution(["a", "b"]), "c"),
    "'y' has no default": (IntDistribution(0, 7), 0),
}


@pytest.mark.parametrize("error", BAD_SPACES)
def test_a_space_that_is_not_a_grid_with_defaults_is_refused(error):
    each, default = BAD_SPACES[error]
    study = optuna.create_study(direction="maximize", sampler=SparseSampler({"x": default}))
    with pytest.raises(ValueError, match=error):
        study.ask({error[1] if error.startswith("'y'") else "x": each})


@pytest.mark.parametrize("directions", [["minimize"], ["maximize", "minimize"], ["maximize"] * 3])
def test_a_study_that_minimizes_or_has_three_objectives_is_refused(directions):
    study = optuna.create_study(directions=directions, sampler=SparseSampler(DEFAULTS))
    with pytest.raises(ValueError, match="legal are one or two, each 'maximize'"):
        study.ask(SPACE)


def test_a_sampler_serves_one_study():
    shared = SparseSampler(DEFAULTS)
    one = optuna.create_study(direction="maximize", sampler=shared, study_name="one")
    other = optuna.create_study(direction="maximize", sampler=shared, study_name="other")
    one.ask(SPACE)
    with pytest.raises(ValueError, match=r"the study is 'other'.*learned of 'one'.*each study"):
        other.ask(SPACE)


def test_hundreds_of_failures_do_not_make_the_model_large():
    wide = {f"p{number}": IntDistribution(0, 7) for number in range(3)}
    own = SparseSampler(dict.fromkeys(wide, 0), space=wide)
    study = optuna.create_study(direction="maximize", sampler=own)
    for number in range(300):
        digits = {f"p{place}": number // 8**place % 8 for place in range(3)}
        end = {"state": TrialState.FAIL} if number else {"value": 0.0}
        study.add_trial(optuna.create_trial(params=digits, distributions=wide, **end))
    assert len(known(study).failed) == 299
    assert len(known(study).modelled) == 1 + _MOST_MODELLED


# ---- the model -----------------------------------------------------------------------------------

AXES = tuple(Axis(f"p{number}", 4, 0, True) for number in range(5))


def only(axis, level=3):
    return tuple(level if place == axis else UNCHANGED for place in range(len(AXES)))


def fitted(rows, seen):
    return SparseModel(AXES, np.array(rows, dtype=np.int64), seen)


def test_the_best_of_many_equals_is_not_believed():
    rng = np.random.default_rng(1)
    rows = [only(axis, level) for axis in range(5) for level in (1, 2, 3)]
    seen = [Measurement(n, n // 5, rng.normal(0.0, 0.05), 0.05**2) for n in range(15)]
    assert fitted(rows, seen).measured[0].max() < 0.5 * max(one.log_ratio for one in seen)


def test_the_error_of_a_blocks_control_is_nobodys_gain():
    """Five that all read +10 % in one block had a slow control; five in five blocks are faster."""
    rows = [only(axis) for axis in range(5)]
    together, apart = (
        fitted(rows, [Measurement(n, block * n, 0.1, 0.05**2) for n in range(5)]).measured[0].mean()
        for block in (0, 1)
    )
    assert together < apart


def test_two_in_one_block_are_known_better_beside_each_other():
    rows = [only(0), only(1)]
    seen = [Measurement(n, block, 0.1 * n, 0.05**2) for block in range(4) for n in range(2)]
    made = fitted(rows, seen)
    lead, error = made.lead(1, np.array(rows, dtype=np.int64))
    assert lead[1] == pytest.approx(0.0, abs=1e-9) and error[1] < 1e-4
    assert error[0] < math.hypot(*made.measured[1])


def test_what_is_far_behind_says_little_of_its_other_parameters():
    """One parameter's loss hides what another one brings."""
    rows = [only(0), (3, 3, UNCHANGED, UNCHANGED, UNCHANGED)]
    seen = [Measurement(n, block, (0.1, FAR)[n], 0.03**2) for block in range(4) for n in range(2)]
    assert fitted(rows, seen).measured[0][0] > 0.07


def test_intervals_of_the_model_hold_the_truth():
    rng, held = np.random.default_rng(5), []
    rows = [only(axis, level) for axis in range(5) for level in (1, 3)]
    for _ in range(20):
        truth = np.array([*[rng.normal(0.0, 0.08)] * 2, *[0.0] * 8])
        seen = []
        for block in range(6):
            control = rng.normal(0.0, 0.03)
            for n in rng.permutation(10)[:5].tolist():
                value = truth[n] + rng.normal(0.0, 0.03) - control
                seen.append(Measurement(n, block, value, 2 * 0.03**2))
        used = sorted({one.config for one in seen})
        moved = [Measurement(used.index(o.config), o.block, o.log_ratio, o.variance) for o in seen]
        mean, error = fitted([rows[n] for n in used], moved).measured
        held += (np.abs(mean - truth[used]) <= 1.96 * error + 1e-12).tolist()
    assert np.mean(held) > 0.93


def test_eigenvalues_that_do_not_converge_end_no_search(monkeypatch):
    """LAPACK refuses a finite matrix now and then; a study of hours must not end by it."""
    wanted = _square_root(np.diag([4.0, 1.0]))

    def refuse(matrix):
        raise np.linalg.LinAlgError("Eigenvalues did not converge")

    monkeypatch.setattr(np.linalg, "eigh", refuse)
    found = _square_root(np.diag([4.0, 1.0]))
    assert found @ found.T == pytest.approx(wanted @ wanted.T)
