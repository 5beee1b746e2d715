"""Programs and servers of the user's on the command line: understood, refused, measured."""

from __future__ import annotations

import pytest

from hztune.blocks import Arm, Block, Outcome, Turn
from hztune.machine import Machine
from hztune.measure.program import Program
from hztune.progress import Reporter
from hztune.store.log import LocalStudy
from hztune.tuning.request import TuneRequest, understand
from hztune.tuning.session import _story, executor_of

from .conftest import tell


def test_a_workload_is_tuned_for_hz_unless_others_are_named(hztune_here):
    words = ("tune", "--dry-run", "--workload", "remote", "--threads", "2")
    assert "allocator: hz " in hztune_here(*words).stdout
    chosen = hztune_here(*words, "--allocator", "tcmalloc,hz").stdout
    assert "allocators: tcmalloc 2.10, hz " in chosen
    assert "glibc" not in chosen


def test_metric_and_settings_tell_studies_apart(hztune_here, monkeypatch):
    def identity(*words):
        seen = []
        monkeypatch.setattr("hztune.tuning.session.plan", lambda task: seen.append(task) or [])
        hztune_here("tune", "--dry-run", *words, "--", "true")
        return seen[0].identity

    plain = identity()
    assert identity("--metric-regex", "(1)") != identity("--metric-regex", "(2)") != plain
    assert identity("--warmup", "3") == plain
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    assert identity() != plain


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
