"""The end of what a study prints: what was proved, what could have been, what to type next."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from hztune.cli.tune import print_result
from hztune.profile import Claim
from hztune.result import Account, Result
from hztune.result.summary import summary_lines
from hztune.study.counters import CounterChange

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


SEEN = {"glibc": 1.09, "hz": 1.31, "tbb": "crash"}
LINES = {
    "what a search finds": (
        {},
        "noise floor: 5.2 %; a parameter that gains 17.4 % is found and proved nine times in ten; "
        "a larger --budget finds smaller gains",
    ),
    "allocators with their scatter": (
        {"as_they_come": SEEN, "seen_within": {"glibc": 0.12, "hz": 0.10}},
        "with their defaults, in the search: glibc 1.09x ± 12.7 %, hz 1.31x ± 10.5 %, tbb crash",
    ),
    "an interval that may be too narrow": (
        {"follow_on": 0.62},
        "fresh pairs are like those before them (correlation 0.62): the gain changed with time, "
        "and its interval may be too narrow; `hztune verify` asks again",
    ),
    "waiting and failures": (
        {"waited_s": 12.4, "wall_s": 60.0, "failures": {"hang": 2, "crash": 1}},
        "searched: 25 configurations in 1:00, 12 s of it waiting; failures: 1 crash, 2 hang",
    ),
}


@pytest.mark.parametrize("what", LINES)
def test_a_summary_tells_of_the_search_in_a_line_each(what, make_result):
    changes, line = LINES[what]
    made = make_result("improved")
    plain = summary_lines(made)
    told = summary_lines(replace(made, account=replace(made.account, **changes)))
    assert line in told and (line in plain) == (not changes)


def test_the_last_of_at_most_fifteen_lines_are_commands_that_a_shell_takes_as_they_are(
    make_result, capsys
):
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
