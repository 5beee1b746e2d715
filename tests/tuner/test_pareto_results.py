"""A front leaves profiles that every command takes: session, summary, report, verify, errors."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from lab.replay import Landscape, Truth
from msgspec import structs

from hztune import cli, profile, report
from hztune.blocks import Arm
from hztune.cli.tune import print_result
from hztune.errors import UsageError
from hztune.profile import Claim, MemoryClaim
from hztune.progress import Quiet
from hztune.result import Result
from hztune.result.summary import summary_json, summary_lines
from hztune.tune.request import TuneRequest, understand
from hztune.tune.session import tune
from hztune.verify.claim import Promise, measure
from hztune.workload import WorkloadSpec

from .conftest import SIMULATED, TWO_KNOBS, MakeProfile, Simulate, bench_of, flat

SMALL = Claim("ops_per_s", 0.95, 0.92, 0.98, 12, "less_memory", MemoryClaim(0.7, 0.68, 0.72))


def spin_or_purge(arm: Arm) -> Truth:
    """The spin lock is fast and greedy; to purge at once saves memory and costs time."""
    speed, memory = (0.2, 0.2) if arm.config.get("depot_lock") == "spin" else (0.0, 0.0)
    if arm.config.get("decay_ms") == 0:
        speed, memory = speed - 0.1, memory - 0.4
    return Truth(speed, rss_kb=round(100_000 * math.exp(memory)))


@pytest.fixture
def tuned_on(simulate: Simulate, tmp_path: Path) -> Callable[..., Result]:
    """Carries out a request for a front on a landscape, or goes on with one in a folder."""

    def carry_out(landscape: Landscape, resume: bool = False) -> Result:
        simulate(landscape, rss_scatter=0.01)
        space = tmp_path / "two.toml"
        space.write_text(TWO_KNOBS)
        asked = TuneRequest(
            workload=WorkloadSpec.from_text("larson", (), 2),
            space=str(space),
            budget_s=300.0,
            out=tmp_path / "out",
            pareto="throughput,rss",
            resume=resume,
        )
        return tune(understand(asked), Quiet())

    return carry_out


def test_every_member_is_a_profile_of_its_own_from_the_fastest_to_the_least_memory(
    tuned_on: Callable[..., Result],
) -> None:
    """Summary and report tell of each; an ended front is told again with its files."""
    tuned = tuned_on(spin_or_purge)
    assert tuned.folder is not None
    files = sorted((tuned.folder / "front").iterdir())
    assert [path.name for path in files] == ["1.json", "2.json", "3.json"]
    results = [profile.load(path).claim for path in files]
    assert [result.verdict for result in results] == ["improved", "improved", "less_memory"]
    taken = [result.memory.ratio for result in results if result.memory]
    assert taken == sorted(taken, reverse=True) and len(taken) == 3
    assert profile.load(tuned.folder / "profile.json") == profile.load(files[0]) == tuned.profile

    held = json.loads(json.dumps(summary_json(tuned)))
    assert (held["verdict"], len(held["front"])) == ("improved", 3)
    first = held["front"][0]
    assert (first["file"], first["params"]["depot_lock"]) == ("front/1.json", "spin")
    assert first["ci_low"] > 1.0 and first["rss_low"] < 1.22 < first["rss_high"] * 1.01
    text = "\n".join(summary_lines(tuned))
    assert "verdict: improved (a front of 3 configurations, +2" in text
    assert "  front/3.json  less_memory: speed 0.9" in text

    page = report.render(tuned.folder)
    assert page.count('aria-label="Speed against the default by peak memory"') == 2
    assert page.count("front/2.json") >= 3
    assert "less memory is proved" in page and "peak memory" in page

    before = {path.name: path.read_text() for path in files}
    shutil.rmtree(tuned.folder / "front")
    assert tuned_on(flat, resume=True).front == tuned.front
    assert before == {path.name: path.read_text() for path in files}


def test_where_none_is_better_the_front_is_the_default_alone(
    tuned_on: Callable[..., Result],
) -> None:
    found = tuned_on(flat)
    assert (found.profile.claim.verdict, print_result(found, as_json=True)) == ("no_gain", 0)
    assert "the front is the default alone" in found.account.why
    assert found.folder is not None and not (found.folder / "front").exists()
    assert "No configuration is proved to be on the front" in report.render(found.folder)


HOSTILE: dict[str, tuple[object, str]] = {
    "no interval": ({"ratio": 0.7}, "result.memory: missing required field ci_low"),
    "no memory": (None, "no interval of memory is below 1"),
    "a word": ({"ratio": "small", "ci_low": 0.6, "ci_high": 0.8}, "result.memory.ratio is"),
    "ends that are crossed": ({"ratio": 0.7, "ci_low": 0.8, "ci_high": 0.6}, "lies outside"),
    "no saving": ({"ratio": 0.7, "ci_low": 0.6, "ci_high": 1.1}, "no interval of memory is below"),
    "a command": (
        {"ratio": 0.7, "ci_low": 0.6, "ci_high": 0.8, "run": "sh"},
        "result.memory: contains unknown field run",
    ),
}


@pytest.mark.parametrize(("memory", "said"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_memory_that_is_none_is_refused(
    memory: object, said: str, make_profile: MakeProfile
) -> None:
    made = make_profile(claim=SMALL)
    assert profile.parse(profile.dumps(made).encode()) == made
    held = json.loads(profile.dumps(made))
    held["result"]["memory"] = memory
    with pytest.raises(UsageError, match=said):
        profile.parse(json.dumps(held).encode())


@pytest.mark.parametrize(
    ("speed", "rss", "why"),
    [
        (0.96, 70_000, "it takes less memory, as much less as was claimed: below 0."),
        (0.96, 85_000, "it saves less memory than was claimed"),
        (0.96, 100_000, "it saves less memory than was claimed"),
        (0.60, 70_000, "it is slower"),
    ],
)
def test_a_claim_of_less_memory_holds_where_it_is_true(
    speed: float, rss: int, why: str, make_profile: MakeProfile
) -> None:
    made = make_profile(claim=SMALL)
    made = structs.replace(made, objective=structs.replace(made.objective, limits={}))
    tuned = Arm.of("hz", made.params)

    def landscape(arm: Arm) -> Truth:
        return Truth(math.log(speed), rss_kb=rss) if arm == tuned else Truth()

    found = measure(Promise.of(made), bench_of(landscape, SIMULATED, budget_s=60.0))
    assert found.answer == ("holds" if "as much less" in why else "does not hold")
    assert found.why.startswith(why)


@pytest.mark.parametrize("pareto", ["rss", "speed,rss", "throughput", "rss,throughput", "p99,rss"])
def test_other_objectives_are_refused_with_what_is_legal(pareto: str) -> None:
    asked = TuneRequest(workload=WorkloadSpec.from_text("larson", (), 2), pareto=pareto)
    with pytest.raises(UsageError, match=f"--pareto '{pareto}': legal is throughput,rss"):
        understand(asked)


def test_a_dry_run_says_that_a_front_is_sought(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["tune", "--workload", "larson", "--pareto", "throughput,rss", "--dry-run"]
    assert cli.status_of(asked) == 0
    said = capsys.readouterr().out
    assert "objectives: throughput,rss (a front)" in said
    assert "searched by 1:34, all members proved by 2:55" in said
