"""What a study prints: while it runs; what was proved and counted, and what to type next."""

import io
import math
import re
import shlex
from dataclasses import replace

import pytest

from hztune import machine
from hztune.blocks import Arm, Block, Outcome
from hztune.cli.tune import print_result
from hztune.profile import Claim
from hztune.progress import Plain, StudyStatus, reporter
from hztune.result import Account, Result
from hztune.result.kept import FAULTS, WHOLE, CounterChange, counter_changes, fresh_outcomes
from hztune.result.summary import summary_lines
from hztune.study.ledger import Ledger

from .conftest import bench_of, flat

ACCOUNT = Account(
    why="on fresh pairs", failures={}, attempts=(), noise_floor=0.052, detectable=0.113,
    findable=0.174, wall_s=60.0, measured_share=0.9, warmup_share=0.2, turns=100, disturbed=1,
    changes=(
        CounterChange("spans_made", 1200, 330, 12.0, 3.0),
        CounterChange("minor_faults", 900, 300, 9.0, 3.0),
        CounterChange("refills", 1000, 1010, 10.0, 10.1),
    ),
    rss_ratio=1.2,
    as_they_come={},
)  # fmt: skip


@pytest.fixture
def make_result(make_profile, tmp_path):
    """The result of a study that ended with a verdict, in a directory whose name has a blank."""

    def make(verdict):
        claim = Claim("ops_per_s", 1.093, 1.07, 1.116, 26, verdict)
        return Result(make_profile(claim=claim), ACCOUNT, folder=tmp_path / "my results")

    return make


def printed(result, capsys):
    print_result(result, as_json=False)
    return capsys.readouterr().out.splitlines()


CAME = {"glibc": 1.09, "hz": 1.31, "tbb": "crash"}
SEEN = {"as_they_come": CAME, "seen_within": {"glibc": 0.12, "hz": 0.10}}
# waiting and failures
WAITING = {"waited_s": 12.4, "wall_s": 60.0, "failures": {"hang": 2, "crash": 1}}
LINES = {
    "noise floor: 5.2 %; a parameter that gains 17.4 % is found and proved nine times in ten; "
    "a larger --budget finds smaller gains": {},
    "with their defaults, in the search: glibc 1.09x ± 12.7 %, hz 1.31x ± 10.5 %, tbb crash": SEEN,
    "fresh pairs are like those before them (correlation 0.62): the gain changed with time, "
    "and its interval may be too narrow; `hztune verify` asks again": {"follow_on": 0.62},
    "searched: 25 configurations in 1:00, 12 s of it waiting; failures: 1 crash, 2 hang": WAITING,
}


@pytest.mark.parametrize(("line", "changes"), LINES.items())
def test_a_summary_tells_of_the_search_in_a_line_each(line, changes, make_result):
    made = make_result("improved")
    plain = summary_lines(made)
    told = summary_lines(replace(made, account=replace(made.account, **changes)))
    assert line in told and (line in plain) == (not changes)


def test_the_last_of_at_most_fifteen_lines_are_commands_for_a_shell(make_result, capsys):
    result = make_result("improved")
    lines = printed(replace(result, account=replace(ACCOUNT, waited_s=12.4)), capsys)
    assert len(lines) <= 15
    use, other = lines[-2:]
    path = str(result.folder and result.folder / "profile.json")
    run = ["hztune", "run", path, "--", "./your-program"]
    assert shlex.split(use.removeprefix("use it:")) == run
    assert shlex.split(other.removeprefix("or:")) == ["hztune", "export", path, "--format", "env"]


@pytest.mark.parametrize("verdict", ["no_gain", "infeasible", "interrupted"])
def test_where_nothing_is_claimed_nothing_is_offered_for_use(verdict, make_result, capsys):
    assert printed(make_result(verdict), capsys)[-1].startswith("results: ")


# ---- counters ------------------------------------------------------------------------------------


MIB = 1 << 20
DEFAULT, TUNED = Arm("hz"), Arm.of("hz", {"depot_lock": "spin"})


def process(arm, ops=0, faults=0, **counters):
    """A process that counted; without `ops` nothing is known of it but its counters."""
    facts = {"ops": ops, FAULTS: faults} if ops else {}
    return Outcome(arm, "ok", ops_per_s=1.0, counters=counters, facts=facts)


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
TOLD = {
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


@pytest.mark.parametrize(("pairs", "lines"), TOLD.values(), ids=TOLD)
def test_what_pairs_counted_is_told(pairs, lines):
    found = counter_changes(pairs)
    assert [(each.counter, *each.shown, each.unit) for each in found] == lines


def test_only_fresh_pairs_of_the_arm_are_looked_at():
    arms = {"search": TUNED, "confirm": Arm.of("hz", {"thp": "on"}), "panel": TUNED}
    blocks = [
        Block(number, role, (process(DEFAULT), process(arm)))
        for number, (role, arm) in enumerate([*arms.items(), ("confirm", TUNED)])
    ]
    assert fresh_outcomes(Ledger.of(blocks), TUNED) == [blocks[-1].outcomes]


# ---- while it runs -------------------------------------------------------------------------------


STATUS = StudyStatus("search", 12, 1, math.log(1.1), 0.02, math.log(1.03), 75.0)
PARTS = ("search", "12 configurations (1 failed)", "+10.0 % ± 2.0 %", "floor 3.0 %", "1:15 left")


def test_a_status_tells_trial_best_interval_floor_and_time_left_where_they_are_known():
    assert all(part in STATUS.line() for part in PARTS)
    proving = replace(STATUS, subject="finalist 1", pairs=3, planned=8)
    assert "pair 3 of 8  finalist 1: +10.0 % ± 2.0 %" in proving.line()
    line = StudyStatus("calibrate", 0, 0, 0.0, math.inf, 0.0, 80.0).line()
    assert "best so far -" in line and "noise floor ?" in line
    assert "inf" not in line and "inf" not in replace(STATUS, error=math.inf).line()


def test_a_log_gets_a_status_only_when_it_is_due_or_the_phase_changes():
    stream = io.StringIO()
    shown = Plain(stream, every_s=10.0)
    for left in (75.0, 74.0, 66.0, 64.0):
        shown.update(replace(STATUS, left_s=left))
    shown.update(replace(STATUS, phase="confirm", left_s=63.0))
    shown.say("calibrated \x1b[1.0, 2.0]")
    lines = stream.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["search", "search", "confirm", "calibrated"]
    assert "1:04 left" in lines[1]
    assert all(line.isprintable() for line in lines)


def test_a_terminal_keeps_what_is_said_above_one_line_that_is_cleared_at_the_end():
    stream = io.StringIO()
    stream.isatty = lambda: True
    with reporter(quiet=False, stream=stream) as shown:
        shown.update(STATUS)
        shown.say("finalist 1: lock=spin \x1b[1m")
    cleared = "\r\x1b[K"
    _, status, said, end = stream.getvalue().split(cleared)
    assert "12 configurations" in status and len(status) < 80 and end == ""
    assert said == f"finalist 1: lock=spin ?[1m\n{status}"


def test_that_another_hztune_measures_is_said_where_nothing_else_is():
    stream = io.StringIO()
    with reporter(quiet=True, stream=stream) as shown:
        bench = bench_of(flat)
        bench.reporter = shown
        shown.say("no progress")
        machine.waiting.tell()
    assert "another hztune measures" in stream.getvalue()
    assert "no progress" not in stream.getvalue()
