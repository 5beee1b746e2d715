"""The end of what a study prints: what was proved, what could have been, what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hztune.cli.tune import print_result
from hztune.profile import Claim, Profile, Verdict
from hztune.result import Account, Result
from hztune.result.summary import summary_json, summary_lines
from hztune.study.counters import CounterChange

MakeProfile = Callable[..., Profile]
MakeResult = Callable[..., Result]

ACCOUNT = Account(
    why="on fresh pairs",
    failures={},
    attempts=(),
    noise_floor=0.052,
    detectable=0.113,
    findable=0.174,
    wall_s=60.0,
    measured_share=0.9,
    warmup_share=0.2,
    turns=100,
    disturbed=1,
    changes=(
        CounterChange("spans_made", 1200, 330, 12.0, 3.0),
        CounterChange("minor_faults", 900, 300, 9.0, 3.0),
        CounterChange("refills", 1000, 1010, 10.0, 10.1),
    ),
    rss_ratio=1.2,
    idle_ratio=None,
    as_they_come={},
)


@pytest.fixture
def make_result(make_profile: MakeProfile, tmp_path: Path) -> MakeResult:
    """The result of a study that ended with a verdict, in a directory whose name has a blank."""

    def make(verdict: Verdict) -> Result:
        claim = Claim("ops_per_s", 1.093, 1.07, 1.116, 26, verdict)
        return Result(make_profile(claim=claim), ACCOUNT, folder=tmp_path / "my results")

    return make


def printed(result: Result, capsys: pytest.CaptureFixture[str]) -> list[str]:
    print_result(result, as_json=False)
    return capsys.readouterr().out.splitlines()


def test_a_summary_says_what_this_budget_finds(make_result: MakeResult) -> None:
    made = make_result("improved")
    assert (
        "noise floor: 5.2 %; a parameter that gains 17.4 % is found and proved nine times in ten; "
        "a larger --budget finds smaller gains"
    ) in summary_lines(made)
    proof = replace(made, account=replace(made.account, findable=None))
    assert "noise floor: 5.2 %; a gain of 11.3 % is proved three times in four" in summary_lines(
        proof
    )


def test_a_summary_has_at_most_fifteen_lines_and_one_tells_of_the_waiting(
    make_result: MakeResult, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_result("improved")
    waited = replace(made, account=replace(made.account, waited_s=12.4))
    lines = printed(waited, capsys)
    assert len(lines) <= 15
    assert len([line for line in lines if ", 12 s of it waiting" in line]) == 1


def test_what_the_search_saw_of_an_allocator_has_its_scatter(make_result: MakeResult) -> None:
    made = make_result("improved")
    seen = {"glibc": 1.09, "hz": 1.31, "tbb": "crash"}
    before, after = (
        replace(made, account=replace(made.account, as_they_come=seen, seen_within=within))
        for within in ({}, {"glibc": 0.12, "hz": 0.10})
    )
    assert (
        "with their defaults, in the search: glibc 1.09x ± 12.7 %, hz 1.31x ± 10.5 %, tbb crash"
    ) in summary_lines(after)
    assert "with their defaults, in the search: glibc 1.09x, hz 1.31x, tbb crash" in summary_lines(
        before
    )
    assert summary_json(after)["seen_within"] == {"glibc": 0.12, "hz": 0.10}


def test_an_interval_that_may_be_too_narrow_is_told(make_result: MakeResult) -> None:
    made = make_result("improved")
    assert not any("like those before them" in line for line in summary_lines(made))
    unsteady = replace(made, account=replace(made.account, follow_on=0.62))
    assert (
        "fresh pairs are like those before them (correlation 0.62): the gain changed with time, "
        "and its interval may be too narrow; `hztune verify` asks again"
    ) in summary_lines(unsteady)


def test_the_counters_of_the_json_are_those_of_the_allocator_by_name(
    make_result: MakeResult,
) -> None:
    told = summary_json(make_result("improved"))
    assert told["counters"] == {"spans_made": (1200, 330), "refills": (1000, 1010)}
    assert [each["counter"] for each in told["changes"]] == [
        "spans_made",
        "minor_faults",
        "refills",
    ]


def test_the_last_lines_are_commands_that_a_shell_takes_as_they_are(
    make_result: MakeResult, capsys: pytest.CaptureFixture[str]
) -> None:
    result = make_result("improved")
    use, other = printed(result, capsys)[-2:]
    path = str(result.folder and result.folder / "profile.json")
    assert shlex.split(use.removeprefix("use it:")) == [
        "hztune",
        "run",
        path,
        "--",
        "./your-program",
    ]
    assert shlex.split(other.removeprefix("or:")) == ["hztune", "export", path, "--format", "env"]


@pytest.mark.parametrize("verdict", ["no_gain", "infeasible", "interrupted"])
def test_where_nothing_is_claimed_nothing_is_offered_for_use(
    verdict: Verdict, make_result: MakeResult, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(make_result(verdict), capsys)[-1].startswith("results: ")
