"""The gate for CI: how often it errs and how often it tells, what it says, and what it writes.

Run as a program, it prints the table that gate.py quotes:
PYTHONPATH=experiments python -m tests.tuner.test_gate [COMPARISONS]
"""

from __future__ import annotations

import csv
import io
import math
import sys
from collections import Counter
from dataclasses import dataclass, replace
from xml.etree import ElementTree

import numpy as np
import pytest
from lab.replay import ModelNoise, ReplayExecutor, Truth, VirtualClock

from hztune.blocks import Arm
from hztune.comparing import comparison, table
from hztune.comparing.comparison import Comparison
from hztune.comparing.conduct import carry_out
from hztune.comparing.contenders import Contender
from hztune.comparing.gate import Gate, Horizon, is_settled_by_failure, whole
from hztune.comparing.match import LEAST_PAIRS, OVERTIME_S, Effort, play
from hztune.errors import OutOfTime
from hztune.progress import Reporter
from hztune.stats.intervals import all_of, planned_looks
from hztune.workload import WorkloadSpec

from .conftest import Listener, Stopped, row

MARGIN = "2%"
AT_MARGIN = math.log(0.98)
SIDES = (Contender("old", Arm("a")), Contender("new", Arm("b")))
SEED = 20261124

NOISES = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "Student's t, 3 degrees": lambda rng, n: rng.standard_t(3.0, n) / math.sqrt(3.0),
    "one pair in 20 five SD off": lambda rng, n: (
        rng.standard_normal(n) + 5.0 * (rng.random(n) < 0.05) * rng.choice([-1.0, 1.0], n)
    ),
}


@dataclass(frozen=True)
class Case:
    """A comparison, many times over."""

    loss: float  # the true log ratio of speed, new to base
    scatter: float  # standard deviation of a pair's log ratio
    planned: int  # pairs
    ends_at: int = 0  # pairs at which the clock ends it; 0: it does not
    rows: int = 1  # that share the error of "worse"


def played(case, noise, rng):
    """The answer of one comparison, and the pairs that it took: as a row looks."""
    gate = Gate(MARGIN, rows=case.rows)
    until = case.ends_at or case.planned
    logs = case.loss + case.scatter * noise(rng, until)
    for pairs in range(LEAST_PAIRS, until + 1):
        is_last = pairs == until < case.planned
        if pairs in planned_looks(case.planned) or is_last:
            tested = {"speed": logs[:pairs].tolist()}
            (found,) = gate.judge(tested, Horizon(case.planned))
            if found.answer == "open" and is_last:
                (found,) = gate.judge(tested, Horizon(case.planned, is_last=True))
            if found.answer != "open":
                return found.answer, pairs
    return "open", until


def shares(case, noise, times):
    """How often each answer is given, and the mean number of pairs."""
    rng = np.random.default_rng(SEED)
    found = [played(case, noise, rng) for _ in range(times)]
    counts = Counter(answer for answer, _ in found)
    return {name: count / times for name, count in counts.items()}, sum(n for _, n in found) / times


TIMES = 1000
SURE = 0.025 + 3.0 * math.sqrt(0.025 * 0.975 / TIMES)
"""What a share of at most 2.5 % stays below in so many comparisons."""


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("planned", "ends_at"), [(12, 0), (30, 0), (30, 17), (5, 0)])
def test_no_wrong_answer_is_frequent_at_the_margin(noise, planned, ends_at):
    found, _ = shares(Case(AT_MARGIN, 0.03, planned, ends_at), NOISES[noise], TIMES)
    assert found.get("yes", 0.0) <= SURE, (SEED, found)
    assert found.get("no", 0.0) <= SURE, (SEED, found)


FREQUENT = [
    (Case(0.0, 0.03, 30), {"no": (0.0, 0.002)}),
    (Case(0.0, 0.02, 30), {"yes": (0.99, 1.0)}),
    (Case(2.0 * AT_MARGIN, 0.03, 30), {"no": (0.9, 1.0), "yes": (0.0, 0.0)}),
    (Case(0.0, 0.1, 6), {"open": (0.9, 1.0)}),
    (Case(AT_MARGIN, 0.03, 30, rows=10), {"no": (0.0, SURE / 10)}),
]


@pytest.mark.parametrize(("case", "shares_of"), FREQUENT)
def test_answers_are_as_frequent_as_said(case, shares_of):
    found, pairs = shares(case, NOISES["normal"], TIMES)
    for answer, (least, most) in shares_of.items():
        assert least <= found.get(answer, 0.0) <= most, (SEED, found)
    assert pairs < 25 or case.loss or case.scatter > 0.02, "what is quiet ends before the plan does"


# ---- a row under a gate --------------------------------------------------------------------------


def landscape(loss=0.0, **truth):
    """The new one loses that much; `truth` says more of it."""
    new = Truth(log_ratio=math.log1p(-loss), **truth)
    return lambda arm: new if arm.allocator == "b" else Truth()


def compared(truth, noise=None, *, budget_s=60.0, rows=1, gate=None):
    """A comparison of which everything was drawn."""
    gate = gate or Gate(MARGIN, rows=rows)
    specs = [WorkloadSpec("larson", "", (), threads + 1) for threads in range(rows)]
    clock = VirtualClock()
    measured = play(
        specs,
        SIDES,
        Effort(None, budget_s, gate, clock),
        lambda spec: ReplayExecutor(truth, noise, seed=SEED, clock=clock),
        Reporter(),
    )
    record = Comparison(SIDES, {}, {"hztune": "0.1.0"}, (), {"seed": 1.0}, gate)
    return replace(record, rows=tuple(measured))


QUIET = ModelNoise(within=0.01, between=0.005)


@pytest.mark.parametrize("gate", [None, Gate(MARGIN)], ids=["a ratio", "a gate"])
@pytest.mark.parametrize(("run_s", "pairs"), [(1.0, 4), (5.5, 2), (12.0, 1), (40.0, 0)])
def test_a_row_keeps_to_its_budget_or_says_so(run_s, pairs, gate):
    listener, clock = Listener(), VirtualClock()
    executor = ReplayExecutor(
        landscape(), QUIET, seed=SEED, clock=clock, turn_ms=1e3 * run_s, warmup_ms=0, start_ms=0
    )
    specs = [WorkloadSpec.from_text("larson", (), 2)]
    plan = Effort(LEAST_PAIRS, 25.0, gate, clock)
    (found,) = play(specs, SIDES, plan, lambda spec: executor, listener)
    assert len(found.blocks) == pairs
    assert clock() <= plan.budget_s + OVERTIME_S
    said = [line for line in listener.lines if "the budget is too small" in line]
    assert len(said) == (pairs < LEAST_PAIRS)
    assert (found.enough_s >= 2 * LEAST_PAIRS * run_s) == bool(said)


@pytest.mark.parametrize("gate", [None, Gate(MARGIN)], ids=["a ratio", "a gate"])
def test_what_was_measured_before_a_block_was_ended_is_told(gate):
    executor = ReplayExecutor(landscape(), QUIET, seed=SEED)
    found = carry_out(
        Comparison(SIDES, {}, {}, gate=gate),
        [WorkloadSpec.from_text("larson", (), 2)],
        Effort(LEAST_PAIRS, 60.0, gate),
        lambda spec: Stopped(executor, 2, OutOfTime("the budget is used up")),
        Reporter(),
    )
    assert not found.stopped
    assert [(len(row.blocks), row.enough_s > 0.0) for row in found.rows] == [(2, True)]
    assert "[" in table.text(found.standings) if gate is None else found.answers[0].pairs == 2
    assert whole(found.answers) == "not enough data"


def test_a_contender_that_fails_now_and_then_is_not_called_worse():
    truths = landscape(0.0), landscape(status="crash")
    good, bad = (row(ReplayExecutor(each, QUIET, seed=SEED), SIDES, 4)[0] for each in truths)
    assert not is_settled_by_failure([bad] * 2)
    assert Gate(MARGIN).rule("row", [bad] * 2, Horizon(6)).answer == "not enough data"
    for blocks, answer in (([bad] * 3, "worse"), ([good, good, bad], "not enough data")):
        assert is_settled_by_failure(blocks)
        assert Gate(MARGIN).rule("row", blocks, Horizon(6)).answer == answer


ANSWERS = {
    "crashing": (landscape(status="crash"), "worse"),
    "not as asked": (landscape(status="wrong_allocator"), "not enough data"),
    "a base that crashes": (
        lambda arm: Truth(status="crash" if arm.allocator == "a" else "ok"), "not enough data",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
def test_a_row_has_the_answer_that_its_contenders_deserve(case):
    truth, answer = ANSWERS[case]
    (found,) = compared(truth, QUIET).answers
    assert found.answer == answer, found


def test_a_row_that_takes_no_time_ends_after_the_least_pairs():
    executor = Stopped(ReplayExecutor(lambda arm: Truth(status="failed"), seed=SEED), dearer=0.0)
    plan, spec = Effort(None, 10.0, Gate(MARGIN)), WorkloadSpec("larson", "", (), 1)
    (found,) = play([spec], SIDES, plan, lambda spec: executor, Reporter())
    assert found.horizon.planned == LEAST_PAIRS
    assert 0 < len(found.blocks) <= LEAST_PAIRS


def test_a_row_ends_at_the_first_look_that_has_an_answer_which_the_table_shows():
    record = compared(landscape(0.2), QUIET)
    (found,) = record.answers
    assert found.pairs < found.planned and found.pairs in planned_looks(found.planned)
    speed = record.standings[0].of("new").speed
    seen = found.interval("speed")
    assert (speed.low, speed.high) == pytest.approx((seen.low, seen.high), abs=1e-6)


def test_pairs_are_planned_by_the_time_and_an_open_answer_says_how_much_more_would_tell():
    noisy = ModelNoise(between=0.5)
    short, long = (compared(landscape(), noisy, budget_s=s).answers[0] for s in (4.0, 20.0))
    assert LEAST_PAIRS <= short.planned < long.planned
    assert short.answer == long.answer == "not enough data"
    (found,) = compared(landscape(), ModelNoise(between=0.03), budget_s=10.0).answers
    assert found.answer == "not enough data"
    assert "times the time (--budget) would decide" in found.why


def test_one_row_that_is_worse_makes_the_whole_worse():
    rulings = compared(landscape(), QUIET, rows=2).answers
    worse = compared(landscape(0.2), QUIET).answers
    assert whole(rulings) == "no worse"
    assert whole([*rulings, *worse]) == "worse"
    assert whole([*rulings, rulings[0]._replace(answer="not enough data")]) == "not enough data"


MEMORY = [
    (0.0, 100_000, "no worse", "peak memory greater by more than 5%"),
    (0.0, 108_000, "worse", "the whole 95 % interval has peak memory greater by more than 5%"),
    (0.1, 100_000, "worse", "the whole 95 % interval has a loss of more than"),
    (0.0, 90_000, "no worse", "excludes a loss"),
]


@pytest.mark.parametrize(("slower", "kib", "answer", "named"), MEMORY)
def test_memory_is_one_more_question_and_the_answer_names_what_failed(
    slower, kib, answer, named, monkeypatch
):
    gate, said = Gate(MARGIN, "5%"), list[str]()
    monkeypatch.setattr(Reporter, "say", lambda _, line: said.append(line))
    (found,) = compared(landscape(slower, rss_kb=kib), QUIET, gate=gate).answers
    assert (found.answer, named in found.why) == (answer, True), found
    worse = {line.split()[4] for line in said if line.endswith(": worse")}
    assert worse == ({"speed" if slower else "rss"} if answer == "worse" else set())


@pytest.mark.parametrize("tested", [("rss",), ("rss", "kept"), ("speed", "rss", "kept")])
@pytest.mark.parametrize(
    ("ratio", "most"), [(1.05, {"yes": SURE, "no": SURE}), (1.0, {"no": 0.002})]
)
def test_however_much_is_asked_of_a_row_wrong_answers_are_as_rare(tested, ratio, most):
    rng, gate, counts = np.random.default_rng(SEED), Gate("2%", "5%"), Counter[str]()
    lost = {"speed": AT_MARGIN if ratio > 1.0 else 0.0, "rss": math.log(ratio)}
    for _ in range(TIMES):
        logs = {of: lost.get(of, lost["rss"]) + 0.02 * rng.standard_normal(30) for of in tested}
        for pairs in planned_looks(30):
            at = {of: each[:pairs].tolist() for of, each in logs.items()}
            found = all_of(each.answer for each in gate.judge(at, Horizon(30)))
            counts[found] += 1
            if found != "open":
                break
    assert all(counts[answer] / TIMES <= share for answer, share in most.items())


# ---- what is written -----------------------------------------------------------------------------


def test_a_record_under_a_gate_reads_back(tmp_path):
    text = comparison.dumps(compared(landscape(0.1), QUIET))
    path = tmp_path / "record.json"
    path.write_text(text)
    assert comparison.dumps(comparison.load(path)) == text


FORMS = [
    (0.0, QUIET, "", "no worse"),
    (0.2, QUIET, "failure", "worse"),
    (0.0, ModelNoise(between=0.5), "skipped", "not enough data"),
]


@pytest.mark.parametrize(("loss", "noise", "child", "answer"), FORMS)
def test_every_form_has_the_answer_of_each_row(loss, noise, child, answer):
    found = compared(landscape(loss), noise, rows=2)
    labels = ["larson T=1", "larson T=2"]
    root = ElementTree.fromstring(table.junit(found))
    assert [case.get("name") for case in root.iter("testcase")] == labels
    two = {kind: 2 * (kind == child) for kind in ("failure", "skipped")}
    assert {kind: len(root.findall(f".//{kind}")) for kind in two} == two
    counts = [int(root.get(name)) for name in ("tests", "failures", "skipped", "errors")]
    assert counts == [2, two["failure"], two["skipped"], 0]
    lines = list(csv.DictReader(io.StringIO(table.csv_text(found))))
    told = [(line["row"], line["contender"], line["answer"]) for line in lines]
    assert told == [(row, *side) for row in labels for side in (("old", ""), ("new", answer))]
    low, ratio, high = (float(lines[1][name]) for name in ("ci_low", "ratio", "ci_high"))
    assert low < ratio < high and (abs(ratio - 1.0 + loss) < 0.02 or noise is not QUIET)
    page = table.text(found.standings, found.answers, markdown=True).splitlines()
    assert page[0] == f"### new against old: {answer}"
    assert len({line.count("|") for line in page if line.startswith("|")}) == 1
    assert "larson T=2" in page[-1] and answer in page[-1]
    assert table.text(found.standings, found.answers).splitlines()[-1] == answer


def test_a_gate_that_is_interrupted_says_of_each_row_that_it_was_not_measured():
    (whole_row, row) = compared(landscape(), QUIET, rows=2).rows
    found = compared(landscape(), QUIET)
    cut = replace(row, blocks=row.blocks[:3], is_cut=True)
    for rows in ((whole_row, cut), (cut,)):
        each = replace(found, rows=rows, missing=("larson T=4",))
        assert whole(each.answers) == "not enough data"
        root = ElementTree.fromstring(table.junit(each))
        assert (root.get("tests"), root.get("skipped")) == (str(len(rows) + 1), "2")
        told = [case.get("message") for case in root.iter("skipped")]
        why = ["it was interrupted after 3 pairs", "it was not measured"]
        assert told == [f"not enough data: {reason}" for reason in why]


def test_every_file_can_be_read_whatever_a_program_is_called(tmp_path):
    found = compared(landscape(status="crash"), QUIET)
    odd = replace(SIDES[1], name="<\x1b[31m&\"'\udce9\x9b\u202e\U0001f600")
    found = replace(found, contenders=(SIDES[0], odd))
    assert ElementTree.fromstring(table.junit(found)).find(".//failure") is not None
    table.write(found, tmp_path / "figures.csv", "csv")
    text = (tmp_path / "figures.csv").read_text(encoding="utf-8")
    assert "<?[31m&" in text and "'???\U0001f600" in text


def report(times):
    """Prints how often each answer is given."""
    print(f"{times} comparisons each, margin {MARGIN}, seed {SEED}\n")
    print("| noise | SD of a pair | pairs | lost | no worse | worse | pairs needed |")
    print("|---|---|---|---|---|---|---|")
    for noise, draw in NOISES.items():
        for scatter, planned in ((0.01, 12), (0.02, 30), (0.03, 30), (0.05, 30), (0.05, 100)):
            for lost in (0.0, 0.01, 0.02, 0.04):
                found, pairs = shares(Case(math.log1p(-lost), scatter, planned), draw, times)
                cells = [f"{100 * found.get(name, 0.0):.1f} %" for name in ("yes", "no")]
                words = [noise, f"{scatter}", f"{planned}", f"{100 * lost:g} %", *cells]
                print("| " + " | ".join([*words, f"{pairs:.0f}"]) + " |", flush=True)


if __name__ == "__main__":
    report(int(sys.argv[1]) if len(sys.argv) > 1 else TIMES)
