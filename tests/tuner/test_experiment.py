"""Experiments: a question in a file, its results row by row, and a report that trusts no number."""

from __future__ import annotations

import json
import math
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lab import definition
from lab.definition import INSTRUCTIONS
from lab.findings import NOT_MEASURED, _amount, examine
from lab.replay import ModelNoise, ReplayExecutor, Truth
from lab.run import RESULTS, UNFINISHED, run

from hztune.blocks import Arm
from hztune.errors import UsageError
from hztune.progress import Reporter

from .conftest import Listener

EXPERIMENTS = Path(__file__).parents[2] / "experiments"

TOML = """
schema = 1
question = "Is one shard enough?"
budget_s = 60
pairs = 5
[[arm]]
name = "default"
allocator = "hz"
[[arm]]
name = "sharded"
allocator = "hz"
params = { shards = 4 }
[[arm]]
allocator = "snmalloc"
if_installed = true
[[row]]
workload = ["lifo", "larson"]
threads = [1, 2]
[[value]]
name = "refills a flush"
count = "refills"
per = "flushes"
times = 10
[[figure]]
name = "four shards"
arm = "sharded"
[[figure]]
name = "memory of one"
arm = "default"
over = "sharded"
rows = "larson *"
of = "memory"
[[figure]]
name = "the winner"
arm = "best"
[[figure]]
name = "refills"
arm = "sharded"
of = "refills a flush"
[[figure]]
name = "who is not here"
arm = "snmalloc"
"""
README = "# Shards\n\n## Finding\n\nFour shards are\n1.25 times as fast.\n\nMore words.\n"


def truth(arm):
    """Sharding is what matters here; memory goes the other way."""
    return Truth(math.log(1.25), rss_kb=80_000) if "shards" in arm.config else Truth()


class Bench:
    """Makes replaying executors, and remembers for which rows; the user may stop one of them."""

    def __init__(self, stop_at=""):
        self.stop_at, self.rows = stop_at, []

    def __call__(self, contenders, machine, seed):
        def make(spec):
            if spec.label == self.stop_at:
                raise KeyboardInterrupt
            self.rows.append(spec.label)
            return Counting(truth, ModelNoise(within=0.01, between=0.0), seed=seed)

        return make


class Counting(ReplayExecutor):
    """A replay in which hz counts: with more shards the more."""

    def measure(self, arms, *, role, rounds, number):
        block = super().measure(arms, role=role, rounds=rounds, number=number)
        return replace(block, outcomes=tuple(map(self._counted, block.outcomes)))

    def _counted(self, outcome):
        refills = 12 if outcome.arm.params else 6
        return replace(outcome, counters={"refills": refills, "flushes": 4, "purges": 3})


@pytest.fixture
def folder(tmp_path):
    """An experiment that has not been measured."""
    path = tmp_path / "shards"
    path.mkdir()
    (path / "experiment.toml").write_text(TOML)
    (path / "README.md").write_text(README)
    return path


def ran(folder, bench=None, *, resume=False):
    return run(definition.load(folder), Reporter(), resume=resume, executors=bench or Bench())


def report(folder):
    return examine(definition.load(folder))


@pytest.fixture
def script(monkeypatch, capsys):
    """Runs experiments/run.py or report.py in this process; gives what it prints."""

    def start(name, *words):
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(str(EXPERIMENTS / f"{name}.py"))["main"]()
        return capsys.readouterr().out

    return start


def edited(folder, old, new, name="experiment.toml"):
    path = folder / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


# ---- the definition ------------------------------------------------------------------------------


REFUSED = {  # by what is said, what is changed to what
    "pairs is 1": ("pairs = 5", "pairs = 1"),
    "arm 'default' stands twice": ('name = "sharded"', 'name = "default"'),
    "did you mean lifo": ('"lifo"', '"lfio"'),
    "row 'lifo T=1' stands twice": ('"lifo", "larson"', '"lifo", "lifo"'),
    "arm is 'shrded'": ('arm = "sharded"', 'arm = "shrded"'),
    "speed.*memory.*refills a flush": ('of = "memory"', 'of = "beauty"'),
    "no row is called like": ('rows = "larson *"', 'rows = "lason *"'),
    "figure 'four shards' stands twice": ('name = "the winner"', 'name = "four shards"'),
    "frozen": ('allocator = "hz"', 'allocator = "hz"\nbuild = "golden"'),
    "only hz has builds": ('allocator = "snmalloc"', 'allocator = "snmalloc"\nbuild = "frozen"'),
    "profile is": ("params = { shards = 4 }", 'profile = "../l.json"'),
    "instructions are counted with one": ("[1, 2]", "[2]", "schema", "instructions = true\nschema"),
    "wx": ("[1, 2]", "1\nparams = { wx = 1 }"),
    "control": ('name = "default"', 'name = "default"\nif_installed = true'),
    "program.0. is '/bin/true'": ('workload = ["lifo", "larson"]', "program = ['/bin/true']"),
    "a workload with its threads": ('workload = ["lifo", "larson"]', "program = 'lua'"),
    "is no TOML": ("schema = 1", "schema = "),
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_definition_that_is_wrong_is_refused(said, folder):
    for old, new in zip(REFUSED[said][::2], REFUSED[said][1::2], strict=True):
        edited(folder, old, new)
    with pytest.raises(UsageError, match=said) as refusal:
        definition.load(folder)
    assert "experiment.toml" in str(refusal.value)


# ---- running ------------------------------------------------------------------------------------


def test_a_run_leaves_results_that_the_report_confirms(folder):
    assert report(folder).finding == NOT_MEASURED
    listener = Listener()
    done = run(definition.load(folder), listener, executors=Bench())
    assert (done.stopped, done.path) == (False, folder / RESULTS)
    assert [each.name for each in done.record.contenders] == ["default", "sharded"]
    assert any("left out: snmalloc is not installed" in line for line in listener.lines)
    assert not (folder / UNFINISHED).exists()
    found = report(folder)
    assert (found.problems, found.finding) == ((), "Four shards are 1.25 times as fast.")
    for row in found.standings:
        assert row.of("default").counters == {"refills": 6.0, "flushes": 4.0}, "what was asked for"
    speed, memory, winner, refills, absent = found.figures
    assert speed.interval.ratio[0] == pytest.approx(1.25, rel=0.02)
    assert speed.text.startswith("1.2") and speed.text.endswith("] speed")
    assert memory.interval.ratio[0] == pytest.approx(1.25, rel=1e-3)
    assert (winner.name, winner.interval) == ("the winner (sharded, the best of 1)", speed.interval)
    assert (refills.text, refills.interval) == ("15 -> 30 refills a flush", None)
    assert absent.text == "-"


def test_a_run_that_was_stopped_keeps_old_results_and_is_resumed(folder):
    (folder / RESULTS).write_text("what was published before")
    done = ran(folder, Bench(stop_at="larson T=1"))
    assert (done.stopped, len(done.record.rows), done.rows) == (True, 2, 4)
    assert done.path == folder / UNFINISHED and done.path.exists()
    assert (folder / RESULTS).read_text() == "what was published before"
    done = ran(folder, bench := Bench(), resume=True)
    assert (bench.rows, len(done.record.rows)) == (["larson T=1", "larson T=2"], 4)
    assert report(folder).problems == ()
    before = (folder / RESULTS).read_bytes()
    done = ran(folder, bench := Bench(), resume=True)
    assert (bench.rows, done.stopped, len(done.record.rows)) == ([], False, 4)
    assert (folder / RESULTS).read_bytes() == before


def test_rows_of_other_contenders_are_never_mixed_in(folder):
    ran(folder, Bench(stop_at="larson T=1"))
    edited(folder, "{ shards = 4 }", "{ shards = 8 }")
    with pytest.raises(UsageError, match="sharded changed"):
        ran(folder, resume=True)
    ran(folder)
    edited(folder, "{ shards = 8 }", "{ shards = 2 }")
    ran(folder, bench := Bench(), resume=True)
    assert len(bench.rows) == 4 and report(folder).problems == ()


# ---- the report ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_real_experiment_builds_counts_and_confirms(folder, script):
    edited(folder, "pairs = 5", "pairs = 4\ninstructions = true")
    edited(folder, "params = { shards = 4 }", 'build = "uncounted"')
    edited(folder, '["lifo", "larson"]\nthreads = [1, 2]', '"lifo"\nthreads = 1')
    edited(folder, '[[arm]]\nallocator = "snmalloc"\nif_installed = true\n', "")
    edited(folder, 'per = "flushes"', 'per = "ops"')
    path = folder / "experiment.toml"
    path.write_text(path.read_text().partition("[[figure]]")[0])
    script("run", folder, "--budget", "3s")
    found = report(folder)
    assert found.problems == ()
    shipped, silent = found.standings[0].all
    assert (shipped.failures, silent.failures) == ((), ())
    assert shipped.counters["refills"] > 0 and "refills" not in silent.counters
    each = [_amount(INSTRUCTIONS, one) for one in (shipped, silent)]
    assert each[0] and each[1] and abs(each[0] - each[1]) < 10
    table = script("report", folder, "--rows")
    assert "| row | arm | refills a flush | instructions |" in table
    document = json.loads((folder / RESULTS).read_text())
    document["rows"][0]["blocks"][0][0]["counters"][-2] += 100_000
    (folder / RESULTS).write_text(json.dumps(document))
    (problem,) = report(folder).problems
    assert "callgrind_instructions is" in problem


# ---- replayed measurements -----------------------------------------------------------------------


def test_the_model_has_the_variances_that_it_was_given_and_draws_by_seed_and_number():
    noise = ModelNoise(within=0.03, between=0.05, common=0.1)

    def logs(seed, number):
        """Log rates of two equal arms, (arms, rounds)."""
        player = ReplayExecutor(lambda arm: Truth(), noise, seed=seed)
        block = player.measure([Arm("hz")] * 2, role="aa", rounds=10, number=number)
        return np.log([[turn.rate for turn in outcome.turns] for outcome in block.outcomes])

    differences = np.array([np.subtract(*logs(1, number)) for number in range(2000)])
    within = differences.var(axis=1, ddof=1).mean()
    assert within == pytest.approx(2 * 0.03**2, rel=0.05)
    assert differences.mean(axis=1).var() == pytest.approx(2 * 0.05**2 + within / 10, rel=0.1)
    assert (logs(1, 3) == logs(1, 3)).all() and (logs(1, 3) != logs(2, 3)).any()
