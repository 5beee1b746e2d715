"""Programs, servers and builds of one's own side by side, several in one study, and a gate for CI.

The programs here print the number that is measured, so that no test depends on a time.
"""

import json
import math
import os
import re
import shlex
import shutil
import sys

import pytest
import yaml
from lab.replay import ModelNoise, ReplayExecutor, Truth
from tests.conftest import finished

from hztune import api, profile
from hztune.blocks import Arm
from hztune.comparing import comparison
from hztune.comparing.contenders import COMMAND, FileIdentity
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.profile import AllocatorId
from hztune.result import Decision
from hztune.store.log import recording
from hztune.study.ledger import Ledger
from hztune.tuning.request import understand
from hztune.tuning.session import profile_of
from hztune.verifying import claim

from .conftest import put

SPEED = ["--metric-regex", r"speed=([0-9.]+)"]
SHORT = ["--warmup", "0", "--budget", "2s", "--pairs", "4", "--out", "kept"]


# ---- side by side --------------------------------------------------------------------------------


def test_the_words_of_a_program_are_kept_for_its_user_alone(hztune_here, tmp_path):
    program, kept = tmp_path / "program", tmp_path / "kept"
    put(tmp_path, {"program": "#!/bin/sh\necho speed=5\n"})
    words = ["none", "none", "--json", *SHORT, *SPEED, "--", program, "--token=SECRET"]
    done = hztune_here("compare", *words)
    assert done.returncode == 0, done.stderr
    found = comparison.load(kept / "comparison.json")
    (standing,) = found.standings
    assert standing.label == "program"
    assert [each.ops_per_s for each in standing.all] == pytest.approx([5.0, 5.0])
    assert dict(found.asked) == {"seed": 1, "budget_s": 2.0, "pairs": 4}
    assert (kept / "comparison.json").read_text() == done.stdout
    rows = map(json.loads, recording(kept).lines)
    assert len([row for row in rows if row["kind"] == "turn"]) >= 8
    told = [path for path in kept.iterdir() if b"SECRET" in path.read_bytes()]
    assert [(path.name, path.stat().st_mode & 0o77) for path in told] == [("comparison.args", 0)]
    again = hztune_here("compare", "--resume", "--out", kept, "--json")
    assert json.loads(again.stdout)["rows"] == json.loads(done.stdout)["rows"]


def test_a_profile_of_one_inside_takes_part(make_profile, tmp_path):
    identity = AllocatorId("inside:_rjem_jemalloc", "5.3.0", "", "c" * 64)
    path = tmp_path / "frames.json"
    profile.save(make_profile({"narenas": 2}, allocator=identity, cautions=()), path)
    (side,) = api.contenders([str(path)])
    assert (side.name, side.inside) == ("frames", identity.as_installed())
    prepared = FileIdentity([side], "true", [identity.as_installed()])
    made = prepared.prepare(side.arm)
    assert isinstance(made, dict) and "narenas:2" in made["_RJEM_MALLOC_CONF"]


# ---- the gate ------------------------------------------------------------------------------------


@pytest.fixture
def simulated(monkeypatch):
    """How the contenders of a program really are, by name; nothing real is measured."""
    truths = {}
    landscape = lambda arm: truths.get(arm.allocator.removeprefix(COMMAND), Truth())  # noqa: E731
    noise = ModelNoise(within=0.01, between=0.002)
    executor = lambda *_, **__: ReplayExecutor(landscape, noise, seed=1)  # noqa: E731
    monkeypatch.setattr("hztune.comparing.conduct.executor_for", executor)
    return truths


def test_two_builds_are_compared_on_the_same_arguments(hztune_here, simulated, tmp_path):
    simulated["NEW"] = Truth(math.log(0.9))
    rows = ["--command", "one={} 1", "--command", "two={} 2"]
    done = hztune_here("compare", "OLD=true", "NEW=false", *rows, *SHORT)
    assert done.returncode == 0, done.stderr
    found = comparison.load(tmp_path / "kept" / "comparison.json")
    assert [each.label for each in found.standings] == ["one", "two"]
    speeds = [each.of("NEW").speed for each in found.standings]
    assert [each and each.ratio[0] for each in speeds] == pytest.approx([0.9, 0.9], rel=0.02)
    assert all(each.sha256 for each in found.contenders)


CASES = {
    "equal": ({}, 0, "no worse"),
    "slower": ({"NEW": Truth(-0.1)}, 4, "worse"),
    "crashing": ({"NEW": Truth(status="crash")}, 4, "worse"),
    "a base that never runs": ({"OLD": Truth(status="hang")}, 1, "not enough data"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_status_and_every_file_give_the_answer(hztune_here, simulated, tmp_path, case):
    truths, status, answer = CASES[case]
    simulated.update(truths)
    forms = ["--markdown", "--junit", "gate.xml", "--csv", "gate.csv"]
    asked = ["--no-worse", "2%", *SHORT, *forms]
    done = hztune_here("compare", "OLD=true", "NEW=true", *asked, "--", "{}", "program")
    assert done.returncode == status, done.stderr
    assert ("nothing could be compared: OLD never ran (hang" in done.stderr) == (status == 1)
    assert done.stdout.startswith(f"### NEW against OLD: {answer}\n")
    assert ("<failure" in (tmp_path / "gate.xml").read_text()) == (answer == "worse")
    assert answer in (tmp_path / "gate.csv").read_text()
    stored = json.loads((tmp_path / "kept" / "comparison.json").read_text())
    assert [each["answer"] for each in stored["gate"]["rows"].values()] == [answer]


def checked_out(folder):
    """A repository as a pull request has it: `main` prints 10, what is merged prints 8."""
    author = ["-c", "user.name=Test", "-c", "user.email=test@localhost"]
    source = '#include <stdio.h>\nint main(void) {{ puts("requests/s: {}"); return 0; }}\n'
    put(folder, {"Makefile": "program: program.c\n\t$(CC) -O2 -o $@ $<\n"})
    for rate, words in ((10.0, "init --initial-branch main"), (8.0, "switch --create new")):
        put(folder, {"program.c": source.format(rate)})
        for each in (words, "add .", "commit -m text", "update-ref refs/remotes/origin/main main"):
            finished(["git", *author, *each.split()], cwd=folder, check=True)
    return folder


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_steps_of_the_documented_workflow_find_a_slower_build(core_build, root, tmp_path):
    """All but the installation; of the action, as the runner gives it the workflow's inputs."""
    clone, summary = checked_out(tmp_path / "work" / "clone"), tmp_path / "summary"
    python = shlex.quote(sys.executable)
    shim = f'#!/bin/sh\n[ "$STATUS" ] && exit "$STATUS"\nexec {python} -m hztune "$@"\n'
    put(tmp_path, {"hztune/bin/hztune": shim})
    environment = {
        **os.environ,
        "HZTUNE_CORE": str(core_build),
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_BASE_REF": "main",
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    workflow, action = (
        yaml.safe_load((root / ".github" / name).read_text())
        for name in ("examples/gate.yml", "actions/gate/action.yml")
    )
    _, build, gate, upload = workflow["jobs"]["speed"]["steps"]
    inputs = {name: each.get("default") for name, each in action["inputs"].items()}
    assert gate["with"].keys() <= inputs.keys() and upload["with"]["path"] == inputs["out"]
    inputs |= {**gate["with"], "budget": "2s"}
    install, compare = action["runs"]["steps"]
    assert "pip" in install["run"] and "${{" not in install["run"] + compare["run"]
    given = {
        name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: inputs[found[1]], text)
        for name, text in compare["env"].items()
    }

    def end(step, **changed):
        words = ["bash", "-e", "-o", "pipefail", "-c", step["run"]]
        return finished(words, cwd=clone, env=environment | given | changed).returncode

    assert [end(build), end(compare)] == [0, 4]
    too_little = {"BASE": "sleep 1", "NEW": "sleep 1", "METRIC": ""}
    assert end(compare, OUT="failed", UNDECIDED="fail", **too_little) == 6
    assert end(compare, STATUS="6") == 0, "by default it passes"
    assert summary.read_text().startswith("### NEW against BASE: ")
    for name in ("junit.xml", "figures.csv", "comparison.json", "samples.jsonl"):
        assert (clone / inputs["out"] / name).is_file()


# ---- several commands in one study ---------------------------------------------------------------


def test_a_profile_names_each_command_with_its_term_and_reads_back(tmp_path):
    programs = api.named_programs(("small=true 1", "large=true 2"))
    task = understand(api.request(program=programs, allocator="glibc", term_days=30))
    decision = Decision(Arm("glibc"), "no_gain", None, None, (), "nothing")
    made = profile_of(task, Machine.here(), decision, Ledger(), "2026-01-01T00:00:00Z")
    profile.save(made, tmp_path / "profile.json")
    found = profile.load(tmp_path / "profile.json")
    assert [share.workload.name for share in found.shares] == ["small", "large"]
    assert found.term_days == 30
    assert api.differences(found, programs=programs) == []
    other = api.named_programs(("large=true 3", "small=true 1"))
    assert api.differences(found, programs=other) == [
        "the command large is not the one that the profile was made for"
    ]
    with pytest.raises(UsageError, match=r"--command small='\.\.\.' --command large="):
        claim.targets(found, api.named_programs(("small=true",)))
