"""What processes counted is told per operation, over all fresh pairs."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from hztune.blocks import Arm, Block, Outcome
from hztune.study.counters import FAULTS, WHOLE, CounterChange, counter_changes, fresh_outcomes
from hztune.study.ledger import Ledger

MIB = 1 << 20
DEFAULT, TUNED = Arm("hz"), Arm.of("hz", {"depot_lock": "spin"})


def process(arm, ops=0, faults=0, **counters):
    """A process that counted; without `ops` nothing is known of it but its counters."""
    facts = {"ops": ops, FAULTS: faults} if ops else {}
    return Outcome(arm, "ok", ops_per_s=1.0, counters=counters, facts=facts)


def changes(*pairs):
    """What some pairs show: counter, figures, unit."""
    return [(each.counter, *each.shown, each.unit) for each in counter_changes(pairs)]


# ---- words ---------------------------------------------------------------------------------------


def test_every_counter_of_the_core_has_words_of_its_own(root):
    table = (root / "core" / "include" / "hz" / "stats.def").read_text()
    counters = re.findall(r"^HZ_STAT\((\w+),", table, re.M)
    words = {CounterChange(name, 1, 2).noun for name in (*counters, FAULTS)}
    assert len(words) == len(counters) + 1 and not words & {*counters, FAULTS}
    assert {*counters} >= WHOLE


def test_a_faster_process_that_counts_as_often_per_operation_did_nothing_else():
    (faster,) = counter_changes([(process(DEFAULT, 10, refills=1), process(TUNED, 30, refills=3))])
    assert faster.size == pytest.approx(0.0)


# ---- figures -------------------------------------------------------------------------------------


GOOD = (process(DEFAULT, refills=500), process(TUNED, refills=100))
RATE, PROCESS = "per 1000 operations", "per process"
TOLD: dict[str, tuple[list[tuple[Outcome, Outcome]], list[tuple[str, float, float, str]]]] = {
    "the median of all pairs": (
        [
            (process(DEFAULT, 1000, refills=count), process(TUNED, 2000, refills=4 * count))
            for count in (10, 500, 20)
        ],
        [("refills", 20, 40, RATE)],
    ),
    "memory": (
        [(process(DEFAULT, 1000, purged_bytes=3 * MIB), process(TUNED, 1000, purged_bytes=MIB))],
        [("purged_bytes", 3 * MIB, MIB, f"bytes {RATE}")],
    ),
    "a counter of the whole process": (
        [(process(DEFAULT, 1000, heaps_born=9), process(TUNED, 1000, heaps_born=3))],
        [("heaps_born", 9, 3, PROCESS)],
    ),
    "operations are not known": ([GOOD], [("refills", 500, 100, PROCESS)]),
    "a failed pair does not count": (
        [GOOD, (process(DEFAULT, refills=9), replace(GOOD[1], status="crash"))],
        [("refills", 500, 100, PROCESS)],
    ),
    "the greatest change first": (
        [(process(DEFAULT, a=1000, b=1000, c=5), process(TUNED, a=900, b=10, c=5))],
        [("b", 1000, 10, PROCESS), ("a", 1000, 900, PROCESS)],
    ),
}


@pytest.mark.parametrize("case", TOLD)
def test_what_pairs_counted_is_told(case):
    pairs, lines = TOLD[case]
    assert changes(*pairs) == lines


def test_only_fresh_pairs_of_the_arm_are_looked_at():
    arms = {"search": TUNED, "confirm": Arm.of("hz", {"thp": "on"}), "panel": TUNED}
    blocks = [
        Block(number, role, (process(DEFAULT), process(arm)))
        for number, (role, arm) in enumerate([*arms.items(), ("confirm", TUNED)])
    ]
    assert fresh_outcomes(Ledger.of(blocks), TUNED) == [blocks[-1].outcomes]
