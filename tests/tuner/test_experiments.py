"""Experiments: a question in a file, its results row by row, a report that trusts no number.

Those of this repository: their results hold, and no question of theirs is missing.
"""

from __future__ import annotations

import json
import math
import os
import re
import runpy
import sys
from dataclasses import replace
from functools import cache
from importlib import import_module
from math import factorial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from lab import chart, definition
from lab.definition import INSTRUCTIONS
from lab.findings import NOT_MEASURED, _amount, examine
from lab.replay import ModelNoise, ReplayExecutor, Truth
from lab.run import RESULTS, UNFINISHED, run

from hztune import allocator, params, process
from hztune.allocator import loaded_program
from hztune.blocks import Arm
from hztune.errors import UsageError
from hztune.progress import Reporter
from hztune.study.limits import LossLimit

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
name = "what is not here"
arm = "snmalloc"
"""
README = "# Shards\n\n## Finding\n\nFour shards are\n1.25 times as fast.\n\nMore words.\n"


def truth(arm):
    """Sharding is what matters here; memory goes the other way."""
    return Truth(math.log(1.25), rss_kb=80_000) if "shards" in arm.config else Truth()


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


def ran(folder, *, stop_at="", resume=False, listener=None):
    """What a run on replayed measurements came to, and its rows; the user may stop it at one."""
    rows, noise = [], ModelNoise(within=0.01, between=0.0)

    def made(spec):
        if spec.label == stop_at:
            raise KeyboardInterrupt
        rows.append(spec.label)
        return Counting(truth, noise, seed=1)

    how = {"resume": resume, "executors": lambda contenders, machine, seed: made}
    return run(definition.load(folder), listener or Reporter(), **how), rows


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
    done, _ = ran(folder, listener=listener)
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
    done, _ = ran(folder, stop_at="larson T=1")
    assert (done.stopped, len(done.record.rows), done.rows) == (True, 2, 4)
    assert done.path == folder / UNFINISHED and done.path.exists()
    assert (folder / RESULTS).read_text() == "what was published before"
    done, rows = ran(folder, resume=True)
    assert (rows, len(done.record.rows)) == (["larson T=1", "larson T=2"], 4)
    assert report(folder).problems == ()
    before = (folder / RESULTS).read_bytes()
    done, rows = ran(folder, resume=True)
    assert (rows, done.stopped, len(done.record.rows)) == ([], False, 4)
    assert (folder / RESULTS).read_bytes() == before


def test_rows_of_other_contenders_are_never_mixed_in(folder):
    ran(folder, stop_at="larson T=1")
    edited(folder, "{ shards = 4 }", "{ shards = 8 }")
    with pytest.raises(UsageError, match="sharded changed"):
        ran(folder, resume=True)
    ran(folder)
    edited(folder, "{ shards = 8 }", "{ shards = 2 }")
    _, rows = ran(folder, resume=True)
    assert len(rows) == 4 and report(folder).problems == ()


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


# ---- those of this repository --------------------------------------------------------------------


STATS = EXPERIMENTS.parent / "core" / "include" / "hz" / "stats.def"
MODEL = runpy.run_path(str(EXPERIMENTS / "scale" / "model.py"))
Station, solved = MODEL["Station"], MODEL["solved"]


def committed():
    return [definition.load(path) for path in definition.find(["all"])]


def test_the_committed_results_are_what_their_samples_give():
    found = {each.name: examine(each).problems for each in committed()}
    assert found == dict.fromkeys(found, ())


def test_a_page_names_the_processor_that_its_results_are_of():
    for path in EXPERIMENTS.glob("*/results.json"):
        cpu = (json.loads(path.read_text()).get("machine") or {}).get("cpu", "")
        named = re.findall("EPYC|Xeon", path.with_name("README.md").read_text())
        assert not (cpu and named) or any(each in cpu for each in named), path


def test_the_committed_picture_is_what_the_samples_give():
    peers = examine(definition.load(EXPERIMENTS / "peers"))
    again = "python experiments/report.py peers --plot experiments/peers/peers.svg"
    assert chart.draw(peers.standings) == (EXPERIMENTS / "peers" / "peers.svg").read_text(), again


def test_experiments_ask_for_counters_that_exist_and_legal_configurations():
    counted = {*re.findall(r"HZ_STAT\((\w+)", STATS.read_text())}
    assert len(counted) > 30
    for each in committed():
        asked = {name for value in each.file.value for name in (value.count, value.per or "ops")}
        assert asked <= counted | {"ops", "minor_faults", "rss_idle_kb"}, each.name
        for side in each.sides:
            if side.build or side.arm.allocator == "hz":
                params.check(side.arm.config)


def test_the_curves_of_servers_are_drawn_from_what_is_kept(monkeypatch):
    folder = EXPERIMENTS / "production"
    monkeypatch.syspath_prepend(folder)
    drawn = import_module("curves").picture
    kept = sorted(folder.glob("*.json"))
    assert {each.stem for each in kept} >= {"redis", "web"}
    again = "python experiments/production/curves.py"
    for each in kept:
        assert drawn(each) + "\n" == each.with_suffix(".svg").read_text(), again


@pytest.mark.parametrize("threads", [2, 5, 20])
def test_one_lock_is_the_machine_repairman(threads):
    """P(all think) = 1 / sum of N! / (N - n)! (D/Z)^n; the lock is in use otherwise."""
    demand, think = 10.0, 100.0
    weights = [
        factorial(threads) / factorial(threads - n) * (demand / think) ** n
        for n in range(threads + 1)
    ]
    answer = solved([Station("lock", demand)], think, threads)
    assert dict(answer.used)["lock"] == pytest.approx(1 - 1 / sum(weights))


# ---- about the engine ----------------------------------------------------------------------------


ENGINE = EXPERIMENTS / "engine"
LANDSCAPES = sorted(ENGINE.glob("landscape-*.json"))
assert LANDSCAPES, f"{ENGINE} holds no landscape"
PARTS = ("odd", "rivals")
"""What the programs use, and is none itself."""

SCRIPTS = sorted(path.stem for path in ENGINE.glob("*.py") if path.stem not in PARTS)
BUDGET_S = 60.0


@pytest.fixture
def engine(monkeypatch):
    """Imports one of the experiments' programs as it would be when it is started."""
    monkeypatch.syspath_prepend(str(ENGINE))
    return import_module


class Nearest(NamedTuple):
    """Says of every configuration what was measured at the recorded one that is nearest to it."""

    where: np.ndarray
    level: np.ndarray
    error: np.ndarray

    def predict(self, where):
        gaps = ((where[:, None] - self.where) ** 2).sum(axis=2)
        return self.level[gaps.argmin(axis=1)]


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_program_says_how_it_is_used(name, engine, monkeypatch, capsys):
    module = engine(name)
    monkeypatch.setattr(sys, "argv", [str(module.__file__), "--help"])
    with pytest.raises(SystemExit, match=r"^0$"):
        module.main()
    assert capsys.readouterr().out.startswith("usage: ")


@pytest.mark.parametrize("path", LANDSCAPES[:2], ids=lambda path: path.stem)
def test_a_recorded_landscape_can_be_searched_for_ever(path, engine, monkeypatch):
    regret = engine("regret")
    monkeypatch.setattr(regret, "fitted", Nearest)
    surface = regret.Surface.read(path)
    found = json.loads(path.read_text())
    space = surface.space
    assert {name: space.full({})[name] for name in found["defaults"]} == found["defaults"]
    assert surface(space.control).log_ratio == 0.0
    for name in ("hztune", "random search"):
        arm = regret.TUNERS[name](surface, 1, BUDGET_S)
        assert space.contains(arm.config)
        assert surface(arm).log_ratio <= surface.best()


LOSS_ROW = re.compile(r"^ *\| (0\.\d+) \| (\d+) \|(( \d+ % \|)+)$", re.MULTILINE)
LOSS_TABLE = [
    (float(row[1]), int(row[2]), [int(each) / 100 for each in re.findall(r"\d+(?= %)", row[3])])
    for row in LOSS_ROW.finditer(LossLimit.__doc__ or "")
]


@pytest.mark.parametrize(("deviation", "pairs", "shares"), LOSS_TABLE)
def test_what_is_said_of_max_loss_is_what_the_judging_code_shows(deviation, pairs, shares, engine):
    losses, proofs = engine("losses"), 250
    assert [(row, count) for row, count, _ in LOSS_TABLE] == [*losses.ROWS]
    found = losses.shares(deviation, pairs, proofs)
    for said, seen in zip(shares, found, strict=True):
        error = math.sqrt(max(said * (1.0 - said), 0.01) / proofs)
        assert abs(seen - said) <= 3.5 * error + 0.005


# ---- many whole studies --------------------------------------------------------------------------


RECORDINGS = sorted(ENGINE.glob("noise-*.json"))
assert RECORDINGS, f"{ENGINE} holds no recorded noise"
STUDIES = 4


def many(studies, numbers, sources=RECORDINGS, budget_s=180.0, gain=1.0):
    """What studies came to, by the name of their noise."""
    told = (studies.study_number(n, sources, budget_s, gain, studies.WINNER) for n in numbers)
    return studies.added(told)


@pytest.mark.slow
def test_equals_are_not_claimed_gains_are_found_and_intervals_cover(engine):
    studies = engine("studies")
    total = studies.summed(many(studies, range(STUDIES)).values())
    assert total["studies"] == STUDIES
    assert total["finalists"] >= STUDIES  # or nothing was put to the proof
    assert total["false_claims"] <= 1  # at the design's 0.8 %, two of 4 come once in 2600
    assert total["misplaced"] <= 1
    assert total["covered"] >= 0.95 * total["intervals"]
    assert total["emitted_covered"] >= 0.95 * total["emitted"]
    assert total["found"] >= 1  # about a half of gains as small as the least: none once in 16
    assert total["useless"] <= 0.2 * total["carried"]  # 1 in 30 of many studies


@pytest.mark.slow
def test_every_odd_noise_brings_hardly_a_false_claim(engine):
    studies = engine("studies")
    noises = [*studies.odd.ODD]
    found = many(studies, range(len(noises)), noises, 60.0, gain=0.0)
    assert [*found] == sorted(noises)
    assert sum(counts["false_claims"] for counts in found.values()) <= 1


# ---- real programs -------------------------------------------------------------------------------


sys.path.insert(0, str(EXPERIMENTS / "programs"))
CASES = import_module("cases")
RUN = import_module("run")
EVERY = (*CASES.CASES, *CASES.COMPARED)
PROGRAMS = list({case.command: case for case in reversed(EVERY) if case.command}.values())
OPTIONAL = (
    *("lua", "ruby", "node", "z3", "clang", "memcached", "nginx", "postgres"),
    *(case.name for case in CASES.COMPARED),
)  # fmt: skip
"""Cases whose programs README's test command does not install: tested where they are."""

INSTALLED = cache(allocator.states)
"""To ask all of them takes half a second."""

CLOCK = re.compile(r"^[A-Z]+ *=.*$", re.M)
"""What barnes prints of the time."""


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """What the commands need, built once."""
    folder = tmp_path_factory.mktemp("programs")
    CASES.build(folder, PROGRAMS, functions=1, pigeons=6)
    return folder


def require(case):
    """Sees to it that a case's programs are installed, or skips where they need not be."""
    lacking = CASES.missing(case)
    if lacking and case.name in OPTIONAL:
        pytest.skip("; ".join(lacking))
    assert lacking == []


@pytest.mark.parametrize("case", PROGRAMS, ids=[case.name for case in PROGRAMS])
def test_a_program_says_the_same_on_hz(case, work, core_build):
    require(case)
    said = []
    for variables in ({}, {"LD_PRELOAD": str(core_build / "libhz.so"), "HZ_STRICT": "1"}):
        own = {**os.environ, **dict(case.variables), **variables}
        done = process.run(case.words(work, case.short), env=own, deadline_s=60)
        assert done.ok, done.describe()
        said.append(CLOCK.sub("", done.stdout))
    assert said[0] == said[1]
    assert said[0].strip() or case.name in ("gcc", "clang", "espresso")


@pytest.mark.parametrize("case", CASES.CASES, ids=[case.name for case in CASES.CASES])
def test_hztune_takes_the_options_of_a_case(case, work, hztune_here, monkeypatch):
    require(case)
    monkeypatch.setattr(allocator, "states", INSTALLED)
    _, _, _, *line = RUN.study(case, work, "20s", case.allocator, Path("out"))
    at = line.index("--json")
    done = hztune_here(*line[:at], "--dry-run", *line[at + 1 :])
    assert (done.returncode, done.stderr) == (0, "")


def test_redis_is_said_to_bring_its_own_allocator():
    (said,) = loaded_program.inspect("redis-server").remarks
    assert "is linked with jemalloc: unchanged, it runs on that, not on glibc" in said
