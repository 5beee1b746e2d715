"""A claim is measured again and judged; a running process is held against a profile."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from lab.replay import ReplayExecutor, Truth
from msgspec import structs

from hztune import allocator, cli, doctor, profile
from hztune.blocks import Arm
from hztune.errors import UsageError
from hztune.profile import AllocatorId, Claim, MemoryClaim, Objective, WorkloadId
from hztune.study.limits import MemoryLimit
from hztune.verifying.claim import Promise, measure
from hztune.verifying.running import examine
from hztune.workload import WorkloadSpec

from .conftest import SIMULATED, bench_of

CLAIMED = Claim("ops_per_s", 1.14, 1.10, 1.20, 8, "improved")
TUNED = Arm.of("hz", {"magazine_cap": 512, "depot_lock": "spin"})


def truth(log_ratio, rss=1.0, status="ok"):
    """A landscape in which the tuned arm differs from the control."""
    tuned = Truth(log_ratio, status, round(100_000 * rss))
    return lambda arm: tuned if arm == TUNED else Truth()


# ---- a claim -------------------------------------------------------------------------------------

LESS = Claim("ops_per_s", 0.9, 0.85, 0.95, 8, "within_limit")
SMALL = Claim("ops_per_s", 0.95, 0.92, 0.98, 12, "less_memory", MemoryClaim(0.7, 0.68, 0.72))
KEPT, LIMITED = {"max_rss": "0.7x"}, {"max_rss": "1.10x"}


CLAIMS = [
    # what is claimed within which limits, the true gain, memory and end, what is said, and why
    (CLAIMED, {}, 0.131, 1.0, "ok", "holds", "the gain is there, and as large as was claimed"),
    (CLAIMED, {}, 0.7, 1.0, "ok", "holds", "the gain is there"),
    (CLAIMED, {}, 0.095, 1.0, "ok", "holds", "above 1.049x, half of the claimed 1.100x"),
    (CLAIMED, {}, 0.03, 1.0, "ok", "does not hold", "smaller than was claimed"),
    (CLAIMED, {}, 0.0, 1.0, "ok", "does not hold", "no such gain"),
    (CLAIMED, {}, -0.3, 1.0, "ok", "does not hold", "slower than the control"),
    (CLAIMED, {}, 0.131, 1.0, "crash", "does not hold", "crash"),
    (CLAIMED, LIMITED, 0.131, 1.3, "ok", "does not hold", "more than 1.10x of peak memory"),
    (CLAIMED, LIMITED, 0.131, 1.05, "ok", "holds", "as large as was claimed"),
    (LESS, KEPT, -0.1, 0.6, "ok", "holds", "the memory limit is kept"),
    (LESS, KEPT, -0.1, 0.8, "ok", "does not hold", "more than 0.7x of peak memory"),
    (LESS, KEPT, -0.5, 0.6, "ok", "does not hold", "it is slower"),
    (SMALL, {}, -0.04, 0.7, "ok", "holds", "it takes less memory, as much less as was"),
    (SMALL, {}, -0.04, 0.85, "ok", "does not hold", "it saves less memory than was claimed"),
    (SMALL, {}, -0.04, 1.0, "ok", "does not hold", "it saves less memory than was claimed"),
    (SMALL, {}, -0.5, 0.7, "ok", "does not hold", "it is slower"),
]


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_holds_where_all_of_it_is_true(claim, make_profile):
    claimed, limits, log_ratio, rss, status, answer, why = claim
    made = make_profile(claim=claimed, objective=Objective("ops_per_s", limits))
    promise, landscape = Promise.of(made), truth(log_ratio, rss, status)
    finding = measure(promise, bench_of(landscape, SIMULATED, budget_s=60.0, limit=promise.limit))
    assert finding.answer == answer and why in finding.why, finding
    assert status != "ok" or finding.rss_ratio == pytest.approx(rss)


def test_a_configuration_that_fails_now_and_then_is_not_called_one_that_does_not_run(make_profile):
    ends = iter(["ok", "crash", *["ok"] * 100])
    seen = lambda arm: Truth(0.131, next(ends) if arm == TUNED else "ok")  # noqa: E731
    promise = Promise.of(make_profile(claim=CLAIMED, objective=Objective("ops_per_s", {})))
    finding = measure(promise, bench_of(seen, SIMULATED, budget_s=60.0))
    assert (finding.answer, "failed in 1 of" in finding.why) == ("cannot tell", True), finding


@pytest.mark.parametrize("budget_s", [0.5, 1.0])
def test_an_answer_that_had_too_few_pairs_says_how_much_time_has_enough(budget_s, make_profile):
    claim = Promise.of(make_profile(claim=CLAIMED, objective=Objective("ops_per_s", {})))
    finding = measure(claim, bench_of(truth(0.131), SIMULATED, budget_s=budget_s))
    assert finding.answer == "cannot tell"
    said = re.search(r"too few pairs \((\d)\); 4 are the least: give --budget (\d+)s", finding.why)
    assert said and (finding.interval is not None) == (int(said[1]) > 1)
    again = measure(claim, bench_of(truth(0.131), SIMULATED, budget_s=int(said[2])))
    assert again.interval is not None


def test_true_claims_hold_and_false_ones_do_not_in_nearly_all_of_many_runs(make_profile):
    claim = Promise.of(make_profile(claim=CLAIMED, objective=Objective("ops_per_s", {})))
    wrong = 0
    for seed in range(30):
        for log_ratio, lie in ((0.131, "does not hold"), (0.0, "holds")):
            bench = bench_of(truth(log_ratio), SIMULATED, seed=seed)
            wrong += measure(claim, bench).answer == lie
    assert wrong <= 3, "of 60 answers, with an error of 2.5 % each at most"


def test_the_control_is_what_the_ratio_is_to(make_profile):
    own = Promise.of(make_profile(objective=Objective("ops_per_s", {})))
    unchanged = Promise.of(make_profile(objective=Objective("wall_s", {}, "none")))
    assert (own.control, unchanged.control) == (Arm("hz"), Arm("none"))
    assert own.limit is None
    limited = make_profile(objective=Objective("ops_per_s", {"max_rss": "1.10x"}))
    assert Promise.of(limited).limit == MemoryLimit.of("1.10x")


# ---- the command ---------------------------------------------------------------------------------


@pytest.fixture
def here(made_here):
    """A profile that claims far too much, made on this machine with this library."""
    claim = Claim("ops_per_s", 60.0, 50.0, 70.0, 8, "improved")
    lifo = WorkloadId("bench", "lifo", "", {})
    return structs.replace(made_here, workload=lifo, threads=1, claim=claim)


def of_program(made, *words):
    """The profile as one that was made for a program."""
    known = WorkloadId("program", Path(words[0]).name, "", {}, profile.hash_of_words(words))
    return structs.replace(made, workload=known, threads=0, objective=Objective("wall_s", {}))


def saved(made, folder):
    profile.save(made, folder / "profile.json")
    return folder / "profile.json"


@pytest.fixture
def simulated(monkeypatch):
    """What is asked for; it is measured without a gain."""
    asked = []

    def executor_for(specs, *_, **__):
        asked.extend(specs)
        return ReplayExecutor(truth(0.0), SIMULATED, seed=1)

    monkeypatch.setattr("hztune.verifying.claim.executor_for", executor_for)
    return asked


def test_a_workload_is_measured_as_the_profile_has_it(here, tmp_path, simulated, capsys):
    remote = WorkloadId("bench", "remote", "medium", {"remote": 70})
    path = saved(structs.replace(here, workload=remote, threads=3), tmp_path)
    assert cli.status_of(["verify", str(path), "--json", "--quiet"]) == 4
    assert simulated == [WorkloadSpec.from_text("remote@medium", ["remote=70"], 3)]
    held = json.loads(capsys.readouterr().out)
    assert held["answer"] == "does not hold"
    assert held["here"]["ci_high"] < 50 and held["here"]["pairs"] >= 6
    assert held["claimed"] == {"ratio": 60.0, "ci_low": 50.0, "ci_high": 70.0, "pairs": 8}


COMMANDS = [
    (["--", "sleep", "1"], 0),
    (["--", "sleep", "2"], 1),
    (["--server", "sleep 1", "--load", "true", "--ready", "true"], 0),
    (["--server", "sleep 2", "--load", "true", "--ready", "true"], 1),
]


@pytest.mark.parametrize(("words", "warnings"), COMMANDS)
def test_a_program_is_measured_when_its_command_is_given_again_with_a_warning_if_it_is_another(
    words, warnings, here, tmp_path, hztune_here, simulated
):
    path = saved(of_program(here, "sleep", "1"), tmp_path)
    done = hztune_here("verify", path, "--quiet", *words)
    assert done.returncode == 4
    assert done.stderr.count("warning: the command is not the one") == warnings
    assert "the claim does not hold" in done.stdout
    assert "here:    1." in done.stdout or "here:    0." in done.stdout
    assert "claimed: 60.000x, 95 % interval [50.000, 70.000], 8 pairs" in done.stdout


@pytest.mark.parametrize("verdict", ["no_gain", "infeasible", "interrupted"])
def test_without_a_claim_there_is_nothing_to_verify(verdict, here, tmp_path, hztune_here):
    claimed = structs.replace(CLAIMED, verdict=verdict)
    done = hztune_here("verify", saved(structs.replace(here, claim=claimed, params={}), tmp_path))
    said = f"nothing to verify: the verdict of the profile is {verdict}"
    assert done.returncode == 0 and said in done.stdout


def test_what_does_not_fit_the_profile_is_refused(here, tmp_path, hztune_here):
    bench = saved(here, tmp_path)
    (tmp_path / "program").mkdir()
    run = saved(of_program(here, "sleep", "1"), tmp_path / "program")
    for words, said in (
        ([bench, "--", "true"], "made for the workload lifo"),
        ([run], "made for the program sleep: give its command again"),
        ([run, "--metric-regex", "(1)", "--", "sleep", "1"], "one of wall_s"),
        ([run, "--", "no-such-program"], "no-such-program"),
        ([bench, "true"], "is no command of hztune"),
        ([bench, "--pid", "1", "--", "true"], "exclude each other"),
        ([bench, "--budget", "soon"], "legal is a number with s"),
    ):
        done = hztune_here("verify", *words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert said in done.stderr.splitlines()[-1]


# ---- elsewhere -----------------------------------------------------------------------------------


def test_another_version_or_build_of_the_allocator_is_named(make_profile):
    same = allocator.Installed("jemalloc", "5.3.0", "libjemalloc.so.2", Path(), "a" * 64, "")
    identity = AllocatorId("jemalloc", "5.3.0", "libjemalloc.so.2", "a" * 64)
    tuned = make_profile({}, allocator=identity)
    assert doctor.changed_library(tuned, same) == ()
    (version,) = doctor.changed_library(tuned, replace(same, version="5.3.1", sha256="b" * 64))
    assert "another version of jemalloc: 5.3.0 there, 5.3.1 here" in version
    (build,) = doctor.changed_library(tuned, replace(same, sha256="b" * 64))
    assert "another build of jemalloc 5.3.0: aaaaaaaaaaaa there, bbbbbbbbbbbb here" in build


def test_a_profile_of_another_place_is_measured_with_a_warning_that_names_it(
    here, tmp_path, hztune_here, simulated
):
    machine = structs.replace(here.machine, cores=4096, thp="elsewhere")
    library = structs.replace(here.allocator, version="0.0.1")
    path = saved(structs.replace(here, machine=machine, allocator=library), tmp_path)
    named = ["number of CPUs: 4096 there", "transparent huge pages: elsewhere there"]
    named += ["version of hz: 0.0.1 there"]
    done = hztune_here("verify", path, "--quiet")
    assert (done.returncode, done.stderr.count("\n")) == (4, 3)
    assert all(name in done.stderr for name in named)
    assert hztune_here("verify", path, "--strict").returncode == 5


# ---- a running process ---------------------------------------------------------------------------

CONFIGS = {
    "glibc": {"arena_max": 2, "tcache_count": 64},
    "jemalloc": {"narenas": 3, "dirty_decay_ms": 500, "narenas_ratio": 8},
    "mimalloc": {"purge_delay": 7, "eager_commit": "0"},
    "tcmalloc": {"max_total_thread_cache_bytes": 1 << 24, "transfer_num_obj": 64},
    "hz": {"magazine_cap": 512, "depot_lock": "spin"},
}
EFFECTIVE = {"tcmalloc": {"max_total_thread_cache_bytes"}}
CHANGED = {"arena_max": 9, "narenas": 9, "purge_delay": 9, "magazine_cap": 256}


@pytest.fixture
def examined(compiled, running, here, make_profile):
    """An idle process with a configuration and further variables, held against CONFIGS[name]."""

    def look(name, config=None, **more):
        found = allocator.get(name).installed()
        variables = allocator.get(name).environment(config or CONFIGS[name], found)
        with running(compiled("idle"), {**variables, **more}) as pid:
            return examine(make_profile(CONFIGS[name], allocator=AllocatorId.of(found)), pid)

    return look


@pytest.mark.parametrize("name", CONFIGS)
def test_a_process_under_a_profile_has_it_in_effect_and_a_changed_parameter_is_named(
    name, examined
):
    report = examined(name)
    assert report.in_effect and report.remarks == (), report
    assert {row.name: row.found for row in report.rows} == CONFIGS[name]
    effective = {row.name for row in report.rows if row.evidence == "effective"}
    assert effective >= EFFECTIVE.get(name, set())
    assert {row.evidence for row in report.rows} <= {"effective", "requested"}
    knob = next(iter(CONFIGS[name]))
    other = {**CONFIGS[name], knob: CHANGED.get(knob, 1 << 20)}
    report = examined(name, other)
    assert any(fault.startswith(f"{knob} is {other[knob]} (") for fault in report.faults)


OTHERS = {**dict.fromkeys(CONFIGS, ""), "glibc": "libjemalloc.so.2"}


@pytest.mark.parametrize(("name", "preload"), OTHERS.items())
def test_a_process_without_the_allocator_has_nothing_in_effect(name, preload, examined):
    report = examined(name, LD_PRELOAD=preload)
    (fault,) = report.faults
    there = "jemalloc" if preload else "glibc"
    assert "malloc comes from" in fault and f"({there}), not from {name}" in fault
    assert report.rows == ()


ADDED = [
    ("glibc", "MALLOC_CHECK_", "3"),
    ("mimalloc", "mimalloc_page_reset", "1"),
    ("hz", "HZ_THP", "on"),
    ("tcmalloc", "TCMALLOC_HEAP_LIMIT_MB", "64"),
]


@pytest.mark.parametrize(("name", "variable", "value"), ADDED)
def test_a_variable_that_somebody_else_added_is_named(name, variable, value, examined):
    report = examined(name, **{variable: value})
    assert f"{variable} is set, and the profile does not set it" in report.faults


def test_the_command_says_it_in_words_and_as_status(here, tmp_path, compiled, hztune_here, running):
    path, idle = saved(here, tmp_path), compiled("idle")
    assert here.params == CONFIGS["hz"]
    variables = allocator.get("hz").environment(here.params, allocator.get("hz").installed())
    with running(idle, variables) as pid:
        good = hztune_here("verify", path, "--pid", str(pid))
        as_json = hztune_here("verify", path, "--pid", str(pid), "--json")
    with running(idle, {**variables, "HZ_MAGAZINE_CAP": "128"}) as pid:
        bad = hztune_here("verify", path, "--pid", str(pid))
    with running(idle, {"LD_PRELOAD": "libjemalloc.so.2"}) as pid:
        unchanged = structs.replace(here, params={}, allocator=AllocatorId("none", "", "", ""))
        assert examine(unchanged, pid).in_effect, "whatever it runs on"
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.endswith("the profile is in effect\n")
    assert "magazine_cap  512  (requested)" in good.stdout
    assert json.loads(as_json.stdout)["in_effect"] is True
    assert bad.returncode == 1
    assert "magazine_cap is 128 (requested); the profile says 512" in bad.stdout
    assert bad.stdout.endswith("the profile is not in effect\n")


def test_a_process_that_is_not_there_or_may_not_be_seen_is_refused(
    here, tmp_path, hztune_here, monkeypatch
):
    path = saved(here, tmp_path)
    absent = hztune_here("verify", path, "--pid", str(2**22 + 1))
    assert (absent.returncode, absent.stdout) == (2, "")
    assert absent.stderr == f"hztune: there is no process {2**22 + 1}, or its program is gone\n"
    assert hztune_here("verify", path, "--pid", "0").returncode == 2
    refused = Mock(side_effect=PermissionError(13, "Permission denied"))
    monkeypatch.setattr("hztune.allocator.live.ProcessMemory.of", refused)
    with pytest.raises(UsageError, match="may not be looked at: run as its user"):
        examine(here, os.getpid())
