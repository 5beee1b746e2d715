"""The gate for CI: how often it errs and how often it tells, what it says, and what it writes.

Run as a program, it prints the table that gate.py quotes:
python -m tests.tuner.test_gate [COMPARISONS]
"""

from __future__ import annotations

import csv
import io
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.random import Generator

from hztune.blocks import Arm, Block
from hztune.compare import comparison, exchange, table
from hztune.compare.comparison import Comparison
from hztune.compare.contenders import Contender
from hztune.compare.gate import Answer, Gate, Horizon, is_look
from hztune.compare.match import LEAST_PAIRS, Effort, play
from hztune.errors import UsageError
from hztune.lab.replay import Landscape, ModelNoise, ReplayExecutor, Truth
from hztune.progress import Quiet
from hztune.workload import WorkloadSpec

MARGIN = "2%"
AT_MARGIN = math.log(0.98)
SIDES = (Contender("old", Arm("a")), Contender("new", Arm("b")))
SEED = 20261124

Draw = Callable[[Generator, int], "np.ndarray[tuple[int], np.dtype[np.float64]]"]

NOISES: dict[str, Draw] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "Student's t, 3 degrees": lambda rng, n: rng.standard_t(3.0, n) / math.sqrt(3.0),
    "one pair in 20 five SD off": lambda rng, n: (
        rng.standard_normal(n) + 5.0 * (rng.random(n) < 0.05) * rng.choice([-1.0, 1.0], n)
    ),
}


@dataclass(frozen=True)
class Case:
    """A comparison, many times over.

    Attributes:
        loss: The true log ratio of speed, new to base.
        scatter: Standard deviation of a pair's log ratio.
        planned: Pairs.
        ends_at: Pairs at which the clock ends it; 0: it does not.
        rows: Rows that share the error of "worse".
    """

    loss: float
    scatter: float
    planned: int
    ends_at: int = 0
    rows: int = 1


def played(case: Case, noise: Draw, rng: Generator) -> tuple[Answer, int]:
    """The answer of one comparison, and the pairs that it took: as GatedRow looks."""
    gate = Gate.parse(MARGIN, case.rows)
    until = case.ends_at or case.planned
    logs = case.loss + case.scatter * noise(rng, until)
    for pairs in range(LEAST_PAIRS, until + 1):
        is_last = pairs == until < case.planned
        if is_look(pairs, case.planned) or is_last:
            answer, _ = gate.judge(logs[:pairs].tolist(), Horizon(case.planned))
            if answer == "not enough data" and is_last:
                answer, _ = gate.judge(logs[:pairs].tolist(), Horizon(case.planned, is_last=True))
            if answer != "not enough data":
                return answer, pairs
    return "not enough data", until


def shares(case: Case, noise: Draw, times: int) -> tuple[dict[str, float], float]:
    """How often each answer is given, and the mean number of pairs."""
    rng = np.random.default_rng(SEED)
    found = [played(case, noise, rng) for _ in range(times)]
    counts = Counter(answer for answer, _ in found)
    return {name: count / times for name, count in counts.items()}, sum(n for _, n in found) / times


TIMES = 2000
SURE = 0.025 + 3.0 * math.sqrt(0.025 * 0.975 / TIMES)
"""What a share of at most 2.5 % stays below in so many comparisons."""


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("planned", "ends_at"), [(12, 0), (30, 0), (30, 17), (5, 0)])
def test_neither_wrong_answer_is_frequent_where_just_the_margin_is_lost(
    noise: str, planned: int, ends_at: int
) -> None:
    found, _ = shares(Case(AT_MARGIN, 0.03, planned, ends_at), NOISES[noise], TIMES)
    assert found.get("no worse", 0.0) <= SURE, (SEED, found)
    assert found.get("worse", 0.0) <= SURE, (SEED, found)


def test_what_loses_nothing_is_next_to_never_called_worse() -> None:
    found, _ = shares(Case(0.0, 0.03, 30), NOISES["normal"], TIMES)
    assert found.get("worse", 0.0) <= 0.002, (SEED, found)


def test_what_loses_nothing_passes_where_pairs_scatter_little_and_sooner_than_planned() -> None:
    found, pairs = shares(Case(0.0, 0.02, 30), NOISES["normal"], TIMES)
    assert found["no worse"] >= 0.99 and pairs < 25, (SEED, found, pairs)


def test_what_loses_twice_the_margin_is_found_out() -> None:
    found, _ = shares(Case(2.0 * AT_MARGIN, 0.03, 30), NOISES["normal"], TIMES)
    assert found["worse"] >= 0.9 and found.get("no worse", 0.0) == 0.0, (SEED, found)


def test_few_pairs_that_scatter_are_not_enough_data() -> None:
    found, _ = shares(Case(0.0, 0.1, 6), NOISES["normal"], TIMES)
    assert found["not enough data"] >= 0.9, (SEED, found)


def test_of_ten_rows_that_lose_just_the_margin_few_comparisons_call_one_worse() -> None:
    found, _ = shares(Case(AT_MARGIN, 0.03, 30, rows=10), NOISES["normal"], TIMES)
    assert 1.0 - (1.0 - found.get("worse", 0.0)) ** 10 <= SURE, (SEED, found)


def report(times: int) -> None:
    """Prints how often each answer is given."""
    print(f"{times} comparisons each, margin {MARGIN}, seed {SEED}\n")
    print("| noise | SD of a pair | pairs | lost | no worse | worse | pairs needed |")
    print("|---|---|---|---|---|---|---|")
    for noise, draw in NOISES.items():
        for scatter, planned in ((0.01, 12), (0.02, 30), (0.03, 30), (0.05, 30), (0.05, 100)):
            for lost in (0.0, 0.01, 0.02, 0.04):
                found, pairs = shares(Case(math.log1p(-lost), scatter, planned), draw, times)
                cells = [f"{100 * found.get(name, 0.0):.1f} %" for name in ("no worse", "worse")]
                words = [noise, f"{scatter}", f"{planned}", f"{100 * lost:g} %", *cells]
                print("| " + " | ".join([*words, f"{pairs:.0f}"]) + " |", flush=True)


if __name__ == "__main__":
    report(int(sys.argv[1]) if len(sys.argv) > 1 else TIMES)
