"""The model of a landscape, on simulated ones: what is true is known, and so is the noise."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hztune.stats import Surrogate

NUMBERS, WORDS, STEPS = 12, 6, 6
ORDERED = np.array([True] * NUMBERS + [False] * WORDS)
NOISE = 0.04

Floats = NDArray[np.float64]


def drawn(rng: np.random.Generator, count: int) -> Floats:
    """Random configurations: numbers on a grid, words by their codes."""
    numbers = rng.integers(0, STEPS, (count, NUMBERS)) / (STEPS - 1)
    return np.hstack([numbers, rng.integers(0, 3, (count, WORDS)).astype(float)])


def truth(at: Floats) -> Floats:
    """Some parameters matter, one only with a word; most do nothing."""
    value: Floats = 0.08 * np.sin(3 * at[:, 0]) - 0.1 * at[:, 1] + 0.05 * (at[:, NUMBERS] == 1)
    return value + 0.06 * at[:, 0] * (at[:, NUMBERS + 1] == 2)


def fitted(seed: int, count: int = 150) -> tuple[Surrogate, Floats, Floats]:
    """A model of noisy values, with where they were measured and the values."""
    rng = np.random.default_rng(seed)
    at = drawn(rng, count)
    values = truth(at) + rng.normal(0.0, NOISE, count)
    return Surrogate.fit(at, ORDERED, values, np.full(count, NOISE)), at, values


def error(found: Floats, true: Floats) -> float:
    """The root of the mean square of what is wrong."""
    return float(np.sqrt(np.mean((found - true) ** 2)))


@pytest.mark.parametrize("seed", range(3))
def test_neighbours_take_half_of_the_noise_from_what_was_measured(seed: int) -> None:
    model, at, values = fitted(seed)
    assert error(model.measured()[0], truth(at)) < 0.6 * error(values, truth(at))


@pytest.mark.parametrize("seed", range(3))
def test_what_was_not_measured_is_foreseen_better_than_by_the_mean(seed: int) -> None:
    model, _, values = fitted(seed)
    elsewhere = drawn(np.random.default_rng(100 + seed), 500)
    blind = error(np.full(500, values.mean()), truth(elsewhere))
    assert error(model.elsewhere(elsewhere)[0], truth(elsewhere)) < 0.6 * blind


def test_its_errors_are_as_large_as_it_says() -> None:
    strayed = []
    for seed in range(8):
        model, at, _ = fitted(seed)
        mean, sd = model.measured()
        strayed.append((mean - truth(at)) / sd)
    assert 0.8 < np.std(np.concatenate(strayed)) < 1.3


def test_of_pure_noise_it_believes_nothing() -> None:
    rng = np.random.default_rng(5)
    at = drawn(rng, 150)
    values = rng.normal(0.0, NOISE, 150)
    model = Surrogate.fit(at, ORDERED, values, np.full(150, NOISE))
    assert np.ptp(model.measured()[0]) < 0.5 * np.ptp(values)


def test_a_configuration_that_stands_out_by_itself_stays_out() -> None:
    rng = np.random.default_rng(6)
    at = drawn(rng, 100)
    values, errors = rng.normal(0.0, 0.01, 100), np.full(100, 0.01)
    values[40] = 0.3
    mean, _ = Surrogate.fit(at, ORDERED, values, errors).measured()
    assert mean[40] > 0.2
    assert np.delete(mean, 40).max() < 0.1


def test_a_parameter_that_means_nothing_somewhere_is_no_obstacle() -> None:
    rng = np.random.default_rng(7)
    at = drawn(rng, 120)
    at[at[:, NUMBERS] != 1, 3] = np.nan  # number 3 only means something beside a certain word
    values = truth(at) + np.where(np.isnan(at[:, 3]), 0.0, 0.2 * np.nan_to_num(at[:, 3]))
    model = Surrogate.fit(at, ORDERED, values, np.full(120, 0.01))
    pair = at[[0, 0]]
    pair[:, NUMBERS], pair[:, 3] = 1.0, (0.0, 1.0)
    low, high = model.elsewhere(pair)[0]
    assert 0.12 < high - low < 0.28


def test_equal_values_are_no_trouble() -> None:
    at = drawn(np.random.default_rng(8), 20)
    mean, sd = Surrogate.fit(at, ORDERED, np.zeros(20), np.full(20, NOISE)).measured()
    assert np.allclose(mean, 0.0)
    assert np.isfinite(sd).all()
