"""What processes counted is told in words, per operation, over all fresh pairs."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hztune.blocks import Arm, Block, Outcome
from hztune.store.log import LocalStudy, recording
from hztune.study.counters import (
    FAULTS,
    WHOLE,
    CounterChange,
    counter_changes,
    fresh_outcomes,
)
from hztune.study.ledger import Ledger

from .conftest import tell
from .test_samples import IDENTITY, MACHINE, block

MIB = 1 << 20
DEFAULT, TUNED = Arm("hz"), Arm.of("hz", {"depot_lock": "spin"})


def process(arm: Arm, ops: int = 0, faults: int = 0, **counters: int) -> Outcome:
    """A process that counted; without `ops` nothing is known of it but its counters."""
    facts = {"ops": ops, FAULTS: faults} if ops else {}
    return Outcome(arm, "ok", ops_per_s=1.0, counters=counters, facts=facts)


def pair(before: Outcome, after: Outcome) -> tuple[Outcome, Outcome]:
    return before, after


def only(*pairs: tuple[Outcome, Outcome]) -> CounterChange:
    """The one change that some pairs show."""
    (change,) = counter_changes(pairs)
    return change


# ---- words ---------------------------------------------------------------------------------------


def test_every_counter_of_the_core_has_words_of_its_own(root: Path) -> None:
    table = (root / "core" / "include" / "hz" / "stats.def").read_text()
    counters = re.findall(r"^HZ_STAT\((\w+),", table, re.M)
    words = {CounterChange(name, 1, 2).noun for name in (*counters, FAULTS)}
    assert len(words) == len(counters) + 1 and not words & {*counters, FAULTS}
    assert {*counters} >= WHOLE


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (CounterChange("spans_made", 1200, 330, 12.0, 3.0),
         "fewer spans made: 12 -> 3 per 1000 operations"),
        (CounterChange(FAULTS, 300, 1200, 3.0, 12.0),
         "more page faults: 3 -> 12 per 1000 operations"),
        (CounterChange("huge_page_bytes", 0, 286 * MIB),
         "more memory in requests for huge pages: 0 -> 286 MiB"),
        (CounterChange("purged_bytes", 3 * MIB, 300, 2048.0, 512.0),
         "less memory returned to the system: 2 -> 0.5 KiB per 1000 operations"),
        (CounterChange("lock_contended", 900, 300, 0.003, 0.001),
         "fewer waits for a lock: 3 -> 1 per million operations"),
        (CounterChange("heaps_born", 33, 9000),
         "more thread heaps made: 33 -> 9,000 per process"),
        (CounterChange("of_a_later_core", 1, 9000), "more of_a_later_core: 1 -> 9,000 per process"),
    ],
)  # fmt: skip
def test_a_change_is_told_in_one_line(change: CounterChange, line: str) -> None:
    assert change.text == line


def test_a_faster_process_that_counts_as_often_per_operation_did_nothing_else() -> None:
    change = only(
        pair(process(DEFAULT, 10_000, refills=1000), process(TUNED, 30_000, refills=3000))
    )
    assert change.size == pytest.approx(0.0)


# ---- figures -------------------------------------------------------------------------------------


def test_a_counter_is_its_median_over_all_fresh_pairs() -> None:
    pairs = [
        pair(process(DEFAULT, 1000, refills=count), process(TUNED, 2000, refills=4 * count))
        for count in (10, 500, 20)
    ]
    assert only(*pairs) == CounterChange("refills", 20, 80, 20.0, 40.0)


def test_without_known_operations_the_counts_of_a_process_are_told() -> None:
    change = only(pair(process(DEFAULT, refills=500), process(TUNED, refills=100)))
    assert change.text == "fewer refills of empty magazines: 500 -> 100 per process"


def test_an_allocator_that_counts_nothing_has_its_page_faults() -> None:
    change = only(pair(process(DEFAULT, 1000, 800), process(TUNED, 1000, 100)))
    assert change.text == "fewer page faults: 800 -> 100 per 1000 operations"


def test_a_pair_of_which_one_failed_does_not_count() -> None:
    good = pair(process(DEFAULT, refills=500), process(TUNED, refills=100))
    bad = pair(process(DEFAULT, refills=9), replace(process(TUNED, refills=9), status="crash"))
    assert counter_changes([good, bad]) == counter_changes([good])
    assert counter_changes([bad]) == ()


def test_the_greatest_change_comes_first() -> None:
    before = process(DEFAULT, refills=1000, purges=1000, flushes=5)
    after = process(TUNED, refills=900, purges=10, flushes=5)
    assert [each.counter for each in counter_changes([(before, after)])] == ["purges", "refills"]


def test_only_fresh_pairs_of_the_arm_are_looked_at() -> None:
    def measured(number: int, role: str, arm: Arm) -> Block:
        return Block(number, role, (process(DEFAULT), process(arm)))  # type: ignore[arg-type]

    other = Arm.of("hz", {"thp": "on"})
    blocks = [measured(0, "search", TUNED), measured(1, "confirm", other)]
    fresh = measured(2, "confirm", TUNED)
    assert fresh_outcomes(Ledger.of([*blocks, fresh]), TUNED) == [fresh.outcomes]


# ---- stored --------------------------------------------------------------------------------------


def test_what_is_known_of_a_process_is_stored_with_its_sample(tmp_path: Path) -> None:
    one = block(0)
    known = tuple(replace(each, facts={"ops": 9, FAULTS: 4}) for each in one.outcomes)
    with LocalStudy(tmp_path, IDENTITY, MACHINE) as study:
        tell(study, replace(one, outcomes=known))
    (back,) = recording(tmp_path).blocks
    assert [each.facts for each in back.outcomes] == [{"ops": 9, FAULTS: 4}] * len(known)


def test_a_change_comes_back_from_json() -> None:
    change = CounterChange("spans_made", 1200, 330, 12.0, 3.0)
    assert CounterChange(**json.loads(json.dumps(asdict(change)))) == change
