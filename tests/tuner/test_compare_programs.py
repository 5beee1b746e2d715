"""Programs, servers and builds of one's own side by side, several in one study, and a gate for CI.

The programs here print the number that is measured, so that no test depends on a time.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from lab.replay import ModelNoise, ReplayExecutor, Truth

from hztune import api, profile
from hztune.blocks import Arm
from hztune.cli import status_of
from hztune.compare import comparison
from hztune.compare.contenders import COMMAND, FileIdentity
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.measure.executors import executor_for, program_identity
from hztune.measure.program import Program
from hztune.profile import AllocatorId, Profile
from hztune.result import Decision, claim_of
from hztune.store.log import recording
from hztune.study.ledger import Ledger
from hztune.tune.conclusion import profile_of
from hztune.tune.request import understand
from hztune.verify import claim

from .conftest import processes_naming

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Prints = Callable[..., Path]

ROOT = Path(__file__).parents[2]
SPEED = ["--metric-regex", r"speed=([0-9.]+)"]
SHORT = ["--warmup", "0", "--budget", "2s", "--pairs", "4", "--out", "kept"]


@pytest.fixture
def prints(tmp_path: Path) -> Prints:
    """Makes a program that prints a speed."""

    def make(name: str, speed: float) -> Path:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\necho speed={speed}\n")
        path.chmod(0o755)
        return path

    return make


def json_of(done: subprocess.CompletedProcess[str], folder: Path) -> comparison.Comparison:
    """The record that was printed; it holds what its samples give."""
    path = folder / "printed.json"
    path.write_text(done.stdout)
    found, wrong = comparison.load(path)
    assert wrong == []
    return found


# ---- side by side --------------------------------------------------------------------------------


def test_a_program_is_compared_and_its_words_are_kept_for_its_user_alone(
    hztune: Run, prints: Prints, tmp_path: Path
) -> None:
    program = prints("program", 5.0)
    words = ["none", "none", "--json", *SHORT, *SPEED, "--", program, "--token=SECRET"]
    done = hztune("compare", *words)
    assert done.returncode == 0, done.stderr
    found = json_of(done, tmp_path)
    (standing,) = found.standings
    assert (standing.label, [each.ops_per_s for each in standing.all]) == ("program", [5.0, 5.0])
    assert dict(found.asked) == {"seed": 1, "budget_s": 2.0, "pairs": 4}
    kept = tmp_path / "kept"
    assert (kept / "comparison.json").read_text() == done.stdout
    rows = map(json.loads, recording(kept).lines)
    assert len([row for row in rows if row["kind"] == "turn"]) >= 8
    told = [path for path in kept.iterdir() if b"SECRET" in path.read_bytes()]
    assert [(path.name, path.stat().st_mode & 0o77) for path in told] == [("comparison.args", 0)]
    again = hztune("compare", "--resume", "--out", kept, "--json")
    assert json.loads(again.stdout)["rows"] == json.loads(done.stdout)["rows"]


def test_a_profile_for_an_allocator_inside_takes_part(
    make_profile: Callable[..., Profile], tmp_path: Path
) -> None:
    identity = AllocatorId("inside:_rjem_jemalloc", "5.3.0", "", "c" * 64)
    path = tmp_path / "frames.json"
    profile.save(make_profile({"narenas": 2}, allocator=identity, cautions=()), path)
    (side,) = api.contenders([str(path)])
    assert (side.name, side.inside) == ("frames", identity.as_installed())
    prepared = FileIdentity([side], program_identity(Program(("true",)), [identity.as_installed()]))
    made = prepared.prepare(side.arm)
    assert isinstance(made, dict) and "narenas:2" in made["_RJEM_MALLOC_CONF"]


SERVER = """
import socket, sys
server = socket.create_server(("localhost", int(sys.argv[2])))
while True:
    connection, _ = server.accept()
    connection.sendall(f"speed={sys.argv[1]}".encode())
    connection.close()
"""
LOAD = """
import socket, sys
with socket.create_connection(("localhost", int(sys.argv[1]))) as connection:
    print(connection.recv(99).decode())
"""


@pytest.mark.slow
def test_two_servers_are_compared_on_one_port(hztune: Run, tmp_path: Path) -> None:
    code, load = tmp_path / "server.py", tmp_path / "load.py"
    code.write_text(SERVER)
    load.write_text(LOAD)
    with socket.create_server(("localhost", 0)) as server:
        port = str(server.getsockname()[1])
    python = f"{shlex.quote(sys.executable)} -I -S"
    served = ["--server", f"{{}} {port}", "--ready-port", port, "--load", f"{python} {load} {port}"]
    sides = [f"OLD={python} {code} 10", f"NEW={python} {code} 8"]
    by_runs = ["--by", "runs"]  # by turns the time of so short a load would correct what it says
    done = hztune("compare", *sides, *served, *by_runs, *SHORT, *SPEED, "--json")
    assert done.returncode == 0, done.stderr
    speed = json_of(done, tmp_path).standings[0].of("NEW").speed
    assert speed is not None and speed.ratio[0] == pytest.approx(0.8)
    assert processes_naming(str(code)) == []


# ---- the gate ------------------------------------------------------------------------------------


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> dict[str, Truth]:
    """How the contenders of a program really are, by name; nothing real is measured."""
    truths: dict[str, Truth] = {}
    landscape = lambda arm: truths.get(arm.allocator.removeprefix(COMMAND), Truth())  # noqa: E731
    noise = ModelNoise(within=0.01, between=0.002)
    executor = lambda *_, **__: ReplayExecutor(landscape, noise, seed=1)  # noqa: E731
    monkeypatch.setattr("hztune.compare.conduct.executor_for", executor)
    return truths


def test_two_builds_are_compared_on_the_same_arguments(
    hztune_here: Run, simulated: dict[str, Truth], tmp_path: Path
) -> None:
    simulated["NEW"] = Truth(math.log(0.9))
    rows = ["--command", "one={} 1", "--command", "two={} 2"]
    done = hztune_here("compare", "OLD=true", "NEW=false", *rows, *SHORT, "--json")
    assert done.returncode == 0, done.stderr
    found = json_of(done, tmp_path)
    assert [each.label for each in found.standings] == ["one", "two"]
    speeds = [each.of("NEW").speed for each in found.standings]
    assert [each and each.ratio[0] for each in speeds] == pytest.approx([0.9, 0.9], rel=0.02)
    assert all(each.sha256 for each in found.contenders)


CASES = {
    "equal": ({}, 0, "no worse", None),
    "slower": ({"NEW": Truth(-0.1)}, 4, "worse", "failure"),
    "crashing": ({"NEW": Truth(status="crash")}, 4, "worse", "failure"),
    "a base that never runs": ({"OLD": Truth(status="hang")}, 1, "not enough data", "skipped"),
}


@pytest.mark.parametrize(("truths", "status", "answer", "child"), CASES.values(), ids=CASES.keys())
def test_the_status_and_every_file_give_the_answer(
    hztune_here: Run,
    simulated: dict[str, Truth],
    tmp_path: Path,
    truths: dict[str, Truth],
    status: int,
    answer: str,
    child: str | None,
) -> None:
    simulated.update(truths)
    forms = ["--markdown", "--junit", "gate.xml", "--csv", "gate.csv"]
    asked = ["--no-worse", "2%", *SHORT, *forms]
    done = hztune_here("compare", "OLD=true", "NEW=true", *asked, "--", "{}", "program")
    assert done.returncode == status, done.stderr
    assert ("nothing could be compared: OLD never ran (hang" in done.stderr) == (status == 1)
    assert done.stdout.startswith(f"### NEW against OLD: {answer}\n")
    case = ElementTree.parse(tmp_path / "gate.xml").find(".//testcase")
    assert case is not None
    assert [each.tag for each in case if each.tag != "system-out"] == ([child] if child else [])
    with (tmp_path / "gate.csv").open() as file:
        assert [line["answer"] for line in csv.DictReader(file)] == ["", answer]
    stored = json.loads((tmp_path / "kept" / "comparison.json").read_text())
    assert [each["answer"] for each in stored["gate"]["rows"].values()] == [answer]


def test_what_was_measured_before_hztune_was_killed_is_on_the_disk(
    hztune: Run, prints: Prints, tmp_path: Path
) -> None:
    program = prints("program", 5.0)
    kill = """test $(grep -c '"kind":"turn"' kept/samples.jsonl) -lt 2 || kill -9 $PPID"""
    asked = ["--no-worse", "2%", *SHORT, "--by", "runs", *SPEED, "--prepare", kill]
    done = hztune("compare", "none", "none", *asked, "--", program)
    assert done.returncode == -9, "the log never held two turns while hztune ran"
    kinds = [json.loads(line)["kind"] for line in recording(tmp_path / "kept").lines]
    assert kinds.count("turn") == 2


WORKFLOW = re.compile(r"```yaml\n(on: pull_request.*?)```", re.S)
STEP = re.compile(r"- name: ([^\n]*)\n(?:(?! {6}- )[^\n]*\n)*? {8}run: \|\n((?: {10}[^\n]*\n)+)")


def git(folder: Path, *words: str) -> None:
    author = ["-c", "user.name=Test", "-c", "user.email=test@localhost"]
    subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True)


def checked_out(tmp_path: Path, speed: float) -> Path:
    """A repository as a pull request has it: `main` prints 10, what is merged prints `speed`."""
    origin, clone = tmp_path / "origin", tmp_path / "work" / "clone"
    origin.mkdir()
    (origin / "Makefile").write_text("program: program.c\n\t$(CC) -O2 -o $@ $<\n")
    source = '#include <stdio.h>\nint main(void) {{ puts("requests/s: {}"); return 0; }}\n'
    (origin / "program.c").write_text(source.format(10.0))
    git(origin, "init", "--initial-branch", "main")
    git(origin, "add", ".")
    git(origin, "commit", "-m", "base")
    git(tmp_path, "clone", str(origin), str(clone))
    git(clone, "switch", "--create", "new")
    (clone / "program.c").write_text(source.format(speed))
    git(clone, "commit", "--allow-empty", "-a", "-m", "new")
    return clone


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize(("speed", "status"), [(10.0, 0), (8.0, 4)], ids=["equal", "slower"])
def test_the_documented_workflow_answers_step_by_step(
    core_build: Path, tmp_path: Path, speed: float, status: int
) -> None:
    clone, summary, shims = checked_out(tmp_path, speed), tmp_path / "summary", tmp_path / "bin"
    shims.mkdir()
    shim = shims / "hztune"
    shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m hztune "$@"\n')
    shim.chmod(0o755)
    environment = {
        **os.environ,
        "HZTUNE_CORE": str(core_build),
        "PATH": f"{shims}:{os.environ['PATH']}",
        "GITHUB_BASE_REF": "main",
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    found = WORKFLOW.search((ROOT / "tuner" / "README.md").read_text())
    assert found is not None
    scripts = {name: re.sub(r"(?m)^ {10}", "", text) for name, text in STEP.findall(found[1])}
    assert [*scripts] == ["Install hztune", "Build the base and the new one", "Compare"]
    assert "--budget 3m" in scripts["Compare"]
    scripts["Compare"] = scripts["Compare"].replace("--budget 3m", "--budget 2s")
    ends = [
        subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=clone, env=environment, capture_output=True, text=True, timeout=120,
        )
        for name, script in scripts.items() if name != "Install hztune"
    ]  # fmt: skip
    assert [end.returncode for end in ends] == [0, status], [end.stderr for end in ends]
    assert summary.read_text().startswith("### NEW against BASE: ")
    for name in ("junit.xml", "figures.csv", "comparison.json", "samples.jsonl"):
        assert (clone / "speed" / name).is_file()


# ---- several commands in one study ---------------------------------------------------------------

COMMANDS = ("small=true 1", "large=true 2")


def test_several_commands_are_one_target_with_a_limit_for_each() -> None:
    request = api.request(program=api.named_programs(COMMANDS), allocator="glibc", budget="60s")
    task = understand(request)
    assert (request.label, request.name) == ("small, large", "small+large")
    assert task.max_loss is not None and task.max_loss.workloads == ("small", "large")
    assert dict(task.limits)["max_loss"] == "5%"
    other = api.named_programs(("small=true 1", "large=true 3"))
    changed = understand(api.request(program=other, allocator="glibc", budget="60s"))
    assert task.identity["workload"] != changed.identity["workload"]


def test_a_block_of_several_commands_has_a_part_for_each_and_names_one_that_fails() -> None:
    programs = api.named_programs(("good=true", "bad=false"), warmup=0)
    executor = executor_for(programs, seed=1, machine=Machine.here())
    block = executor.measure([Arm("none"), Arm("none")], role="search", rounds=1, number=0)
    assert [[part.ok for part in each.parts] for each in block.outcomes] == [[True, False]] * 2
    assert block.control.detail.startswith("on bad: ")


def test_a_profile_names_each_command_with_its_term_and_reads_back(tmp_path: Path) -> None:
    programs = api.named_programs(COMMANDS)
    task = understand(api.request(program=programs, allocator="glibc", term_days=30))
    decision = Decision(Arm("glibc"), claim_of("wall_s", "no_gain", None), None, (), "nothing")
    made = profile_of(task, Machine.here(), decision, Ledger())
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


# ---- what is refused -----------------------------------------------------------------------------

BAD = r"""
compare none glibc | there is nothing to measure
compare none glibc -- | no program after --
compare none glibc sort | put -- before it
compare none glibc -- no-such-program | no program 'no-such-
compare none glibc -- /sbin/ldconfig | static program
compare none -- true | two contenders
compare none glibc -w larson -- true | exclude each other
compare none glibc --command a=true -- true | exclude each
compare none glibc --threads 2 -- true | --threads and --param
tune -- | no program after --
tune -w larson -- | no program after --
tune -w larson --by turns | --by is for a program
tune -w larson --metric-regex (x) | --metric-regex is for a program
tune --server '' | --server is empty
tune --no-worse 2% -- true | '--no-worse': it belongs to hztune compare (
compare none glibc --server 'true {port}' --load ' ' | --load is empty
compare none glibc --server 'absent {port}' --load 'true {port}' | no program 'absent'
compare none glibc --server 'true {port}' | --server needs --load
compare none glibc --load true -- true | need --server
tune --server 'true {port}' --load true | --load 'true' has not
tune --server true --load 'true {port}' | --server has not
tune --server true --load true | write {port}
compare none glibc --metric-regex x -- true | a group
compare none glibc --metric-regex '(' -- true | no regular
compare none glibc --metric-regex '(x)' --metric-cmd y -- true | exclude each other
compare none glibc --lower-is-better -- true | needs --metric-regex
compare none glibc --csv absent/x.csv -- true | --csv 'absent/x.csv': there is no folder 'absent'
compare none glibc --csv there -- true | is a folder
compare none glibc --csv /dev/full -- true | not a regular file
compare none glibc --out '' -- true | --out is empty
tune --out '' -- true | --out is
compare none glibc -- 'sleep 1' | write its words apart
compare none glibc -- A=1 true | env A=1 PROGRAM
compare none glibc --command 'a=true | true' | has '|', and no shell
compare none glibc --server 'true {port} &' --load 'true {port}' | has '&', and no shell reads it
compare 'true > x' B=true -- {} | the contender 'true > x' has '>', and no shell reads it
compare 'A & B=true' B=true -- {} | the name of a contender 'A & B': legal is 1 to 40 letters
compare none glibc --command true | legal is NAME=
compare none glibc --command a= | --command a= is empty
compare none glibc --command "a='x" | cannot be read
compare none glibc --command a=true --command a=false | gives the name 'a' twice
compare none glibc -- {} | no program 'none'; where the program
compare A=true A=false -- {} | two contenders are called 'A'
compare true false --command a={} --command b=true | must begin every --command or none
compare none glibc none --no-worse 2% -- true | there are 3; give the base
compare none glibc --no-worse '' -- true | --no-worse is empty
compare none glibc --junit x.xml -- true | --no-worse 2%
compare none glibc --json --markdown -- true | exclude each other
compare none glibc --no-worse 2% --pairs 2 -- true | legal is a whole number
compare none glibc --out there -- true | choose another
compare none glibc --resume --out absent -- true | no comparison to resume in 'absent'
compare none glibc --resume -- true | give it with --out DIR
tune -- {} | stands for the contenders
tune --command a=true --workload larson | not for a program of your own
tune --command a=true --server x --load y --ready-port 1 | exclude each other
"""


@pytest.mark.parametrize("line", BAD.strip().splitlines())
def test_a_bad_command_line_gets_its_sentence_and_writes_nothing(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, said = line.rsplit(" | ", 1)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "samples.jsonl").touch()
    assert status_of(shlex.split(words)) == 2
    out, error = capsys.readouterr()
    assert out == "" and said in error and error.count("\n") == 1, error
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
