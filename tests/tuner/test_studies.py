"""Verdicts hold: many whole studies on recorded noise, where the truth is known.

A short form of experiments/engine/studies.py. Its counts were seen to fail where looks are not
corrected for, where a proof counts what the search has seen, and where intervals are half as wide.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[2] / "experiments" / "engine"
RECORDINGS = sorted(ENGINE.glob("noise-*.json"))
assert RECORDINGS, f"{ENGINE} holds no recorded noise"
STUDIES = 4
BUDGET_S = 180.0


@pytest.fixture(scope="module")
def studies():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ENGINE)
        return importlib.import_module("studies")


def many(studies, numbers, sources=RECORDINGS, budget_s=BUDGET_S, gain=1.0):
    """What studies came to, by the name of their noise."""
    told = (studies.study_number(n, sources, budget_s, gain, studies.WINNER) for n in numbers)
    found = studies.added(told)
    return found


@pytest.mark.slow
def test_equals_are_not_claimed_gains_are_found_and_intervals_cover(studies):
    total = studies.summed(many(studies, range(STUDIES)).values())
    assert total["studies"] == STUDIES
    assert total["finalists"] >= STUDIES  # or nothing was put to the proof
    assert total["false_claims"] <= 1  # at the design's 0.8 %, two of 4 come once in 2600
    assert total["misplaced"] <= 1
    assert total["covered"] >= 0.95 * total["intervals"]
    assert total["emitted_covered"] >= 0.95 * total["emitted"]
    assert total["found"] >= 1  # about a half of gains as small as the least: none once in 16
    assert total["useless"] <= 0.2 * total["carried"]  # 1 in 30 of many studies


@pytest.mark.slow
def test_every_odd_noise_brings_hardly_a_false_claim(studies):
    noises = [*studies.odd.ODD]
    found = many(studies, range(len(noises)), noises, 60.0, gain=0.0)
    assert [*found] == sorted(noises)
    assert sum(counts["false_claims"] for counts in found.values()) <= 1
