"""What the report says in words, and how text becomes markup."""

from __future__ import annotations

import math

import pytest

from hztune.report import words


@pytest.mark.parametrize(
    ("ops", "told"),
    [(0.3, 1), (1.0, 1), (4.9, 2), (7e6, 5_000_000), (999999999.9999998, 1_000_000_000)],
)
def test_a_count_of_operations_is_rounded_to_what_reads_well(ops: float, told: int) -> None:
    assert words.round_ops(ops) == told


@pytest.mark.parametrize(
    ("ratio", "told"),
    [(1.16, "+16.0\u00a0%"), (0.5, "-50.0\u00a0%"), (2.9, "+190.0\u00a0%"), (13.66, "13.7x")],
)
def test_a_change_is_told_in_percent_and_far_above_as_a_factor(ratio: float, told: str) -> None:
    assert words.change(math.log(ratio)) == told
