"""Comparisons on simulated noise: contenders, rows, estimates, the record, and going on with it."""

import contextlib
import json
import math
import re
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest
from lab.replay import ModelNoise, ReplayExecutor, Truth

from hztune import profile
from hztune.blocks import CPU_TIME, Arm, Block, Outcome
from hztune.cli import compare as cli_compare
from hztune.comparing import comparison, conduct, table
from hztune.comparing import contenders as field
from hztune.comparing.comparison import Comparison
from hztune.comparing.contenders import Contender, FileIdentity
from hztune.comparing.gate import geometric_mean, standings
from hztune.comparing.match import LEAST_PAIRS, Effort, Measured
from hztune.errors import HztuneError, UsageError
from hztune.measure import Remembered
from hztune.measure.identity import Fault
from hztune.progress import Reporter
from hztune.stats.intervals import Interval, fixed_interval
from hztune.stats.noise import pooled_mean
from hztune.store.log import recording
from hztune.workload import WorkloadSpec

from .conftest import Kept, row

SPEED = {"a": 1.0, "b": 0.5, "c": 0.8}
SIDES = tuple(Contender(name, Arm(name)) for name in SPEED)
SILENT = ModelNoise(within=0.0, between=0.0, common=0.05)
CREATED = "2026-01-31T12:00:00Z"
SPECS = [WorkloadSpec("larson", "", (), threads) for threads in (2, 8)]


def as_named(arm):
    """How the contenders really are; memory goes with speed."""
    speed = SPEED[arm.allocator]
    return Truth(math.log(speed), rss_kb=round(102400 * speed))


def failing(*names):
    return lambda arm: Truth(status="crash") if arm.allocator in names else as_named(arm)


def measured(landscape=as_named, noise=SILENT):
    """A record with two rows."""
    blocks = (row(ReplayExecutor(landscape, noise, seed=seed), SIDES, 6) for seed in range(2))
    rows = tuple(Measured(*each, CREATED) for each in zip(SPECS, blocks, strict=True))
    return Comparison(SIDES, {"cpu": "Test CPU"}, {"hztune": "0.1.0"}, rows)


# ---- estimates -----------------------------------------------------------------------------------


def test_ratios_are_to_the_first_contender_which_is_set_against_the_best_of_the_others():
    (found, _) = measured().standings
    ratios = [each.speed.ratio[0] for each in found.all if each.speed]
    assert ratios == pytest.approx([1.0, 0.5, 0.8], rel=1e-5)
    assert [each.rss_mb for each in found.all] == pytest.approx([100.0, 50.0, 80.0], rel=1e-3)
    assert found.best == "c"
    assert found.lead.ratio[0] == pytest.approx(1.25, rel=1e-5)
    assert found.lead.low <= found.lead.estimate <= found.lead.high


def test_a_contender_that_fails_keeps_its_place_and_without_the_control_is_no_ratio():
    (found, _) = measured(failing("c")).standings
    assert found.of("c").speed is None and len(found.of("c").failures) == 6
    assert found.best == "b"
    assert "crash" in table.text([found]) and "crash" in table.text([found], markdown=True)
    (found, _) = measured(failing("a")).standings
    assert [each.speed for each in found.all] == [None, None, None]
    assert (found.best, found.lead) == ("", None)


def test_the_mean_of_several_rows_covers_as_often_as_it_says():
    rng = np.random.default_rng(7)
    truths = np.array([0.1, -0.2, 0.4])
    hits = 0
    for _ in range(400):
        draws = truths[:, None] + rng.normal(0.0, [[0.02], [0.1], [0.3]], (3, 6))
        mean = pooled_mean([fixed_interval(each) for each in draws])
        hits += mean.low <= truths.mean() <= mean.high
    assert hits >= 0.92 * 400
    assert geometric_mean([]) is geometric_mean([Interval(0.1, -math.inf, math.inf, 1)]) is None
    agreed = pooled_mean([Interval(0.2, 0.2, 0.2, 6), Interval(0.4, 0.4, 0.4, 6)])
    assert (agreed.low, agreed.estimate, agreed.high) == pytest.approx((0.3, 0.3, 0.3))


# ---- measuring -----------------------------------------------------------------------------------


def test_more_time_gives_more_turns_and_not_more_pairs():
    short, long = (row(ReplayExecutor(as_named, seed=1), SIDES, 6, each) for each in (15.0, 30.0))
    assert [block.number for block in short] == [block.number for block in long] == [*range(6)]
    assert len(long[0].control.turns) > len(short[0].control.turns)
    assert len(row(ReplayExecutor(as_named, seed=1), SIDES, 6, 1.0)) == LEAST_PAIRS
    assert len(row(ReplayExecutor(failing("a"), seed=1), SIDES, 6)) == 2, "its control never runs"


class Noting(ReplayExecutor):
    """Notes the blocks that are measured and their rounds; programs are longer than is foreseen."""

    def __init__(self, run_s=0.0):
        super().__init__(as_named, SILENT, seed=1)
        self.run_s, self.measured, self.asked = run_s, [], []

    def cost(self, arms, rounds):
        known = self.run_s if self.asked else self.run_s / 12.0
        return arms * rounds * known if self.run_s else super().cost(arms, rounds)

    def measure(self, arms, *, role, rounds, number):
        self.measured.append(number)
        self.asked.append(rounds)
        return super().measure(arms, role=role, rounds=rounds, number=number)


def test_a_program_of_unknown_duration_is_run_once_at_first():
    executor = Noting(12.0)
    row(executor, SIDES, 4, 4 * 12 * 2.5 * len(SIDES))
    assert executor.asked[0] == 1 < max(executor.asked)


@pytest.mark.parametrize(("pairs", "budget_s"), [(0, 60), (3, 60), (101, 60), (6, 0.5), (6, 1e9)])
def test_a_plan_that_cannot_be_kept_is_refused(pairs, budget_s):
    with pytest.raises(UsageError, match="legal is"):
        Effort(pairs, budget_s)


# ---- going on ------------------------------------------------------------------------------------


def interrupted():
    """The user presses Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


def interrupted_deaf():
    """What Python runs then swallows it."""
    with contextlib.suppress(KeyboardInterrupt):
        interrupted()


class Session:
    """Simulated sessions of one comparison; a session ends at one of its blocks, as if killed."""

    def __init__(self, out, monkeypatch):
        self.out, self.measured, self.ends_at, self.patched = out, [], -1, monkeypatch
        self.end = sys.exit
        monkeypatch.setattr(conduct, "executor_for", self._executor)

    def _executor(self, specs, sink, **_):
        session, (spec,) = self, specs

        class Ending(Kept):
            def measure(self, *args, **more):
                if len(session.measured) == session.ends_at:
                    session.end()
                session.measured.append((spec.label, more["number"]))
                return super().measure(*args, **more)

        return Ending(ReplayExecutor(as_named, SILENT, seed=spec.threads), sink)

    def go_on(self, gate=None, ends_at=-1, rows=SPECS, **changes):
        """One session; None: it was killed."""
        self.measured, self.ends_at = [], ends_at
        asked = {"pairs": 4, "budget": 60.0, "seed": 1, "no_worse": gate, **changes}
        self.patched.setattr(conduct, "parse", lambda *_, **how: SIDES[:2])
        self.patched.setattr(conduct, "specs_of", lambda *_: rows)
        is_there = (self.out / "samples.jsonl").exists()
        with contextlib.suppress(SystemExit):
            return conduct.compare(
                ["a", "b"], "larson", **asked, out=self.out, reporter=Reporter(), resume=is_there
            )
        return None


@pytest.fixture
def session(tmp_path, monkeypatch):
    return Session(tmp_path, monkeypatch)


@pytest.mark.parametrize("gate", [None, "50%"], ids=["ratios", "a gate"])
@pytest.mark.parametrize("ends_at", [0, 3, 6])
def test_a_killed_one_measures_no_pair_twice(session, ends_at, gate):
    assert session.go_on(gate, ends_at) is None
    before, seen = session.measured, recording(session.out).blocks
    assert len(seen) == len(before) == ends_at
    found = session.go_on(gate)
    assert found is not None and [each.spec for each in found.rows] == SPECS
    assert not {*before} & {*session.measured}
    assert recording(session.out).blocks[:ends_at] == seen
    if gate is None:
        assert [len(each.blocks) for each in found.rows] == [4, 4]
        every = {(spec.label, number) for spec in SPECS for number in range(4)}
        assert {*before, *session.measured} == every
    text = (session.out / "comparison.json").read_text()
    assert text == comparison.dumps(found)
    again = session.go_on(gate)  # of one that is complete nothing is measured
    assert (again and comparison.dumps(again), session.measured) == (text, [])


CHANGED = {
    "seed: 1 there, 2 here": {"seed": 2},
    "gate: nothing there, --no-worse 2% here": {"gate": "2%"},
    "budget_s: 60 there, 3 here": {"budget": 3.0},
    "rows: larson T=2, larson T=8 there, larson T=2 here": {"rows": SPECS[:1]},
    "sum of the rows": {"rows": [SPECS[0], replace(SPECS[1], steady=False)]},
}


def test_another_comparison_is_not_gone_on_with(session):
    session.go_on(ends_at=2)
    before = recording(session.out).lines
    for said, changed in CHANGED.items():
        with pytest.raises(UsageError, match=re.escape(said)):
            session.go_on(**changed)
    assert recording(session.out).lines == before


def test_the_time_of_the_blocks_that_are_there_is_spent_and_others_are_measured_anew():
    whole, rest = row(Noting(), SIDES, 6), Noting()
    resumed = Remembered(rest, whole)
    assert row(resumed, SIDES, 6) == whole and rest.measured == []
    measured_s = sum(turn.counted_ns for b in whole for o in b.outcomes for turn in o.turns) * 1e-9
    assert resumed.accounting.measured_s == pytest.approx(measured_s)
    assert resumed.accounting.wall_s > measured_s
    arms = [side.arm for side in reversed(SIDES)]
    Remembered(rest, whole).measure(arms, role="explore", rounds=4, number=0)
    assert rest.measured == [0]


INTERRUPTIONS = {
    "early": (interrupted, 2, ["2 pairs of larson T=2", "larson T=8"]),
    "early, deaf": (interrupted_deaf, 2, ["3 pairs of larson T=2", "larson T=8"]),
    "with pairs enough": (interrupted, 11, ["5 pairs of larson T=8"]),
}


@pytest.mark.parametrize(("end", "ends_at", "left"), INTERRUPTIONS.values(), ids=INTERRUPTIONS)
def test_an_interrupted_comparison_tells_what_is_left_and_kept(session, end, ends_at, left):
    session.end = end
    found = session.go_on(pairs=6, budget=240.0, ends_at=ends_at)
    assert found.stopped
    assert [*(row.words for row in found.rows if row.is_cut), *found.missing] == left
    kept = len(recording(session.out).blocks)
    again = session.go_on(pairs=6, budget=240.0)
    assert again is not None and [len(row.blocks) for row in again.rows] == [6, 6]
    assert len(session.measured) == 12 - kept


# ---- the record ----------------------------------------------------------------------------------


BROKEN = {
    "a turn without operations": lambda r: r["blocks"][0][0]["turns"][0].pop(),
    "a turn of no time": lambda r: r["blocks"][0][0]["turns"][0].__setitem__(0, 0),
    "a block without a contender": lambda r: r["blocks"][0].pop(),
    "a count too many": lambda r: r["blocks"][0][0].update(counters=[1]),
    "samples of another row": lambda r: r.update(row="larson T=3"),
    "a field that is unknown": lambda r: r.update(more=1),
    "a field that is missing": lambda r: r.pop("standings"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_record_or_one_of_another_version_is_refused(name, tmp_path):
    document = json.loads(comparison.dumps(measured(failing("b"), ModelNoise())))
    BROKEN[name](document["rows"][0])
    (tmp_path / "record.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match="no comparison as this version of hztune writes it"):
        comparison.load(tmp_path / "record.json")


def test_a_record_never_says_where_a_library_was(tmp_path):
    library = tmp_path / "liballoc.so"
    library.write_bytes(b"\x7fELF")
    sides = tuple(field.from_file(name, library) for name in ("own", "own2"))
    why = f"malloc comes from {library}, not {library}x"
    failed = tuple(Outcome(side.arm, "wrong_allocator", why) for side in sides)
    rows = (Measured(SPECS[0], (Block(0, "explore", failed),), CREATED),)
    text = comparison.dumps(Comparison(sides, {}, {}, rows))
    assert str(tmp_path) not in text
    assert "malloc comes from liballoc.so" in text and sides[0].sha256 in text


# ---- what takes part -----------------------------------------------------------------------------


def test_words_of_a_command_line_become_contenders(make_profile, tmp_path):
    tuned = tmp_path / "study" / "profile.json"
    tuned.parent.mkdir()
    profile.save(make_profile(), tuned)
    found = field.parse(["default", "glibc", "hz:shards=4,thp=on", str(tuned), "default"])
    names = "default glibc hz:shards=4,thp=on study default#2"
    assert [each.name for each in found] == names.split()
    assert found[0].arm == Arm("hz") and found[1].arm == Arm("glibc")
    assert found[2].arm.config == {"shards": 4, "thp": "on"}
    assert found[3].arm == Arm.of("hz", make_profile().params)


def test_a_library_in_a_file_is_proved_by_the_file(tmp_path):
    library = tmp_path / "liballoc.so"
    library.write_bytes(b"")
    side = field.from_file("own", library)
    proof = FileIdentity([side])
    assert proof.prepare(side.arm) == {"LD_PRELOAD": str(library)}
    assert proof.judge(side.arm, str(library), "") is None
    for arm in (side.arm, Arm("hz")):  # and what is installed by its adapter
        wrong = proof.judge(arm, "/usr/lib/libc.so.6", "")
        assert isinstance(wrong, Fault) and wrong.status == "wrong_allocator"


def test_a_parameter_goes_to_the_workloads_that_have_it_and_a_row_is_measured_once():
    specs = conduct.specs_of("larson,remote@main,larson", "2,8", ["remote=90"])
    rows = "larson T=2, larson T=8, remote@main remote=90 T=2, remote@main remote=90 T=8"
    assert [spec.label for spec in specs] == rows.split(", ")


# ---- what is printed -----------------------------------------------------------------------------


def test_what_is_shown_beside_a_ratio_is_what_the_ratio_says():
    rates = ((1.0, 1.0), (4.0, 8.0), (1.0, 2.0))
    blocks = [
        Block(n, "explore", (
            Outcome(Arm("none"), "ok", ops_per_s=one, facts={CPU_TIME: 90_000}),
            Outcome(Arm("hz"), "ok", ops_per_s=other, facts={CPU_TIME: 60_000}),
        ))
        for n, (one, other) in enumerate(rates)
    ]  # fmt: skip
    row = standings("app", ["none", "hz"], blocks, amount="seconds")
    assert math.exp(row.all[1].speed.estimate) == pytest.approx(2 ** (2 / 3), rel=1e-5)
    plain = table.text([row])
    assert "1.000 s" in plain and "629.96 ms" in plain, "the median of hz alone is 500 ms"
    assert plain.endswith("CPU 60.00 ms (0.67 [0.67, 0.67])")
    assert "others" not in plain


# ---- the command ---------------------------------------------------------------------------------


FAILED = {
    (0, 3, 6): (6, "not enough data: larson T=2: b failed in 3 of 6 pairs (failed: exit 1); "
                   "larson T=2: c failed in each of 6 pairs (failed: exit 1); start each by"),
    (5, 5, 0): (6, "not enough data: larson T=2: a failed in 5 of 6 pairs (failed: exit 1); "),
    (6, 0, 0): (1, "nothing could be compared: a never ran (failed: exit 1)"),
    None: (130, "interrupted with 1 of 3 rows finished, and 3 pairs of larson T=8 saved; "),
}  # fmt: skip


@pytest.mark.parametrize("failures", FAILED, ids=str)
def test_a_comparison_that_tells_too_little_is_no_success(failures):
    (status, said), (first, second) = FAILED[failures], measured().rows
    cut = replace(second, blocks=second.blocks[:3], is_cut=True)
    found = replace(measured(), rows=(first, cut), missing=("fifo T=1",))
    if failures:
        found = with_failures(failures)
    with pytest.raises(HztuneError) as refused:
        cli_compare._require_answers(found, "", "go on")
    assert (refused.value.exit_status, str(refused.value)[: len(said)]) == (status, said)
    cli_compare._require_answers(with_failures((0, 0, 2)), "", "go on")


def with_failures(most):
    """A record of which each contender failed in its first pairs."""
    record, late_s = measured(), 36.0 * (most[0] == 6)  # the first alone had too few pairs, too
    blocks = tuple(
        replace(block, outcomes=tuple(
            Outcome(outcome.arm, "failed", "exit 1") if block.number < failed else outcome
            for outcome, failed in zip(block.outcomes, most, strict=True)
        ))
        for block in record.rows[0].blocks
    )  # fmt: skip
    return replace(record, rows=(replace(record.rows[0], blocks=blocks, enough_s=late_s),))


@pytest.mark.slow
def test_real_allocators_are_compared_and_proved(hztune, core_build, tmp_path):
    own = tmp_path / "libown.so"
    own.write_bytes((core_build / "libhz.so").read_bytes())
    words = ["--workload", "lifo", "--threads", "1", "--budget", "1s", "--pairs", "4"]
    done = hztune("compare", "default", "glibc", f"own={own}", *words, "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "glibc" in done.stdout
    (standing,) = comparison.load(tmp_path / "out" / "comparison.json").standings
    assert [each.failures for each in standing.all] == [(), (), ()]
    assert "refills" in standing.of("default").counters
    assert set(standing.of("glibc").counters) == {"ops", "minor_faults"}
    assert all(each.speed and each.rss_mb > 0 for each in standing.all)
