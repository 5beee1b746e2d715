"""What is asked of a study: which allocators, what tells it from others, what time it has used."""

import shutil
from dataclasses import replace

import pytest

from hztune import artifacts
from hztune.blocks import Arm, Block, Outcome, Turn
from hztune.machine import Machine
from hztune.measure.program import Program, described
from hztune.progress import Reporter
from hztune.quota import Quota
from hztune.rests import RestPlan
from hztune.store.log import LocalStudy
from hztune.tuning.request import TuneRequest, understand
from hztune.tuning.session import _story, executor_of
from hztune.workload import WorkloadSpec

from .conftest import TWO_KNOBS, tell

LARSON = WorkloadSpec.from_text("larson", threads=2)
REQUEST = TuneRequest(LARSON)


def test_a_workload_is_tuned_for_hz_unless_others_are_named(hztune_here):
    words = ("tune", "--dry-run", "--workload", "remote", "--threads", "2")
    assert "allocator: hz " in hztune_here(*words).stdout
    chosen = hztune_here(*words, "--allocator", "tcmalloc,hz").stdout
    assert "allocators: tcmalloc 2.10, hz " in chosen
    assert "glibc" not in chosen


# ---- samples are refused to a study of another identity (test_samples.py) ------------------------


LARGER = WorkloadSpec.from_text("larson", ["max_size=512"], 2)
OTHERS = {
    "workload": {"workload": WorkloadSpec.from_text("sh6", threads=2)},
    "parameter of the workload": {"workload": LARGER},
    "number of threads": {"workload": WorkloadSpec.from_text("larson", threads=3)},
    "objective": {"workload": LARSON.by("p99")},
    "container": {"workload": LARSON.within(Quota(1.0, None))},
    "rounds of rest": {"workload": LARSON.resting(RestPlan(2.0, 3))},
    "allocator": {"allocator": "glibc"},
    "search space": {"space": "./two.toml"},
    "memory limit": {"max_rss": "1.10x"},
    "seed": {"seed": 2},
    "target": {"workload": None, "program": Program(("/bin/echo", "one"))},
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_request_is_another_study(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.toml").write_text(TWO_KNOBS)
    assert understand(replace(REQUEST, **OTHERS[what])).identity != understand(REQUEST).identity


def test_metric_and_settings_tell_studies_apart(monkeypatch):
    def identity(**options):
        asked = TuneRequest(program=described(("true",), **options), allocator="hz,glibc")
        return understand(asked, look=False).identity

    plain = identity()
    assert identity(metric_regex="(1)") != identity(metric_regex="(2)") != plain
    assert identity(warmup=3) == plain
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    assert identity() != plain


@pytest.mark.parametrize("name", ["libhz.so", "hz-bench"])
def test_another_build_of_the_core_is_another_study(name, tmp_path, monkeypatch):
    before = understand(REQUEST).identity
    for file in (artifacts.library(), artifacts.bench(), artifacts.launch(), artifacts.turns()):
        (tmp_path / file.parent.name).mkdir(exist_ok=True)
        shutil.copy(file.resolve(), tmp_path / file.parent.name / file.name)
    changed = next(tmp_path.rglob(name))
    changed.write_bytes(changed.read_bytes() + b"\0")
    monkeypatch.setenv("HZTUNE_CORE", str(tmp_path))
    assert understand(REQUEST).identity != before


def test_a_program_that_was_built_anew_is_another_study(tmp_path):
    program, found = tmp_path / "program", []
    for built in ("/bin/echo", "/bin/cat"):
        shutil.copy(built, program)
        found.append(understand(TuneRequest(program=Program((str(program),)))).identity)
    assert found[0] != found[1]


# ---- resumed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("run_s", [0.1, 10.0])
def test_a_resumed_study_has_used_the_time_that_its_runs_took(run_s, tmp_path):
    request = TuneRequest(program=Program(("true",)), budget_s=1000 * run_s, out=tmp_path)
    task, machine, run_ns = understand(request), Machine.here(), round(1e9 * run_s)
    with LocalStudy(tmp_path, task.identity, machine) as store:
        for pair in range(450):
            runs = [Turn(0, at, (2 * pair + at) * run_ns, run_ns, 1.0) for at in range(2)]
            outcomes = tuple(Outcome(Arm("none"), "ok", "", 1 / run_s, (run,)) for run in runs)
            tell(store, Block(pair, "aa", outcomes))
        executor = executor_of(request, machine, store)
        bench = _story(task, executor, store, Reporter(), lambda: False, None).bench
    assert bench.budget.spent_s == pytest.approx(900 * run_s + task.judged_s)
    assert bench.executor.cost(2, 1) == pytest.approx(2 * run_s)
