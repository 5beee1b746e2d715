"""Programs and servers of the user's on the command line: understood, refused, measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hztune.blocks import Arm, Block, Outcome, Turn
from hztune.cli import status_of, with_command
from hztune.machine import Machine
from hztune.measure.program import Program
from hztune.progress import Quiet
from hztune.store import Nowhere
from hztune.store.log import LocalStudy
from hztune.tune.request import Task, TuneRequest, understand
from hztune.tune.session import _story, executor_of
from hztune.workload import WorkloadSpec

from .conftest import tell

PYTHON = str(Path(sys.executable).resolve())
GREEDY = [PYTHON, "-I", "-S", "-c", "blocks = [bytearray(4096) for _ in range(4000)]"]
SERVER = ["--server", "redis-server --port 1", "--load", "true"]


class Hztune:
    """The command, run in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str, status: int = 0) -> str:
        """What it prints; where it is refused, why."""
        assert status_of(with_command([*words])) == status
        out, error = self._capsys.readouterr()
        return error if status == 2 else out


@pytest.fixture
def hztune(capsys: pytest.CaptureFixture[str]) -> Hztune:
    return Hztune(capsys)


def test_the_plan_names_all_allocators_and_how_to_get_the_others(hztune: Hztune) -> None:
    plan = hztune("--dry-run", "--", *GREEDY)
    assert "allocators: glibc " in plan
    for name in ("jemalloc", "mimalloc", "tcmalloc", "hz"):
        assert f"{name} " in plan.split("not installed")[0]
    assert "rpmalloc (no Debian package)" in plan
    assert "  jemalloc.dirty_decay_ms: " in plan


def test_a_workload_is_tuned_for_hz_unless_others_are_named(hztune: Hztune) -> None:
    words = ("--dry-run", "--workload", "remote", "--threads", "2")
    assert "allocator: hz " in hztune(*words)
    chosen = hztune(*words, "--allocator", "tcmalloc,hz")
    assert "allocators: tcmalloc 2.10, hz " in chosen
    assert "glibc" not in chosen


REFUSED: dict[str, tuple[list[str], str]] = {
    "a static program": (["--", "/sbin/ldconfig"], "static program"),
    "no program of that name": (["--", "no-such-program"], "no program 'no-such-program'"),
    "a server and a program": ([*SERVER, "--ready-port", "1", "--", "true"], "one of them"),
    "a wait for no server": (["--ready-timeout", "9", "--", "true"], "--server COMMAND"),
    "a server without load": (["--server", "redis-server", "--ready-port", "1"], "--load"),
    "a server that cannot say it is ready": (SERVER, "--ready COMMAND or --ready-port N"),
    "load without a server": (["--load", "true", "--", "true"], "need --server"),
    "half a quotation": (["--server", "'redis", "--load", "x", "--ready", "x"], "cannot be read"),
    "two metrics": (["--metric-regex", "(1)", "--metric-cmd", "cat", "--", "true"], "exclude"),
    "an expression without a group": (["--metric-regex", "1", "--", "true"], "with a group"),
    "a goal that only workloads have": (["--objective", "p99", "--", "true"], "--metric-regex"),
    "a space for all allocators": (["--space", "hz", "--", "true"], "--space is for one"),
    "an allocator that is missing": (
        ["--allocator", "rpmalloc,hz", "--", "true"],
        "rpmalloc is not",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused_with_the_reason(hztune: Hztune, name: str) -> None:
    words, reason = REFUSED[name]
    assert reason in hztune("--dry-run", *words, status=2)


def test_metric_and_settings_tell_studies_apart(
    hztune: Hztune, monkeypatch: pytest.MonkeyPatch
) -> None:
    def identity(*words: str) -> dict[str, str]:
        seen: list[Task] = []
        monkeypatch.setattr("hztune.tune.session.plan", lambda task: seen.append(task) or [])
        hztune("--dry-run", *words, "--", "true")
        return seen[0].identity

    plain = identity()
    assert identity("--metric-regex", "(1)") != identity("--metric-regex", "(2)") != plain
    assert identity("--warmup", "3") == plain
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    assert identity() != plain


@pytest.mark.parametrize("run_s", [0.1, 10.0])
def test_a_resumed_study_has_used_the_time_that_its_runs_took(run_s: float, tmp_path: Path) -> None:
    request = TuneRequest(program=Program(("true",)), budget_s=1000 * run_s, out=tmp_path)
    task, machine, run_ns = understand(request), Machine.here(), round(1e9 * run_s)
    with LocalStudy(tmp_path, task.identity, machine) as store:
        for pair in range(450):
            runs = [Turn(0, at, (2 * pair + at) * run_ns, run_ns, 1.0) for at in range(2)]
            outcomes = tuple(Outcome(Arm("none"), "ok", "", 1 / run_s, (run,)) for run in runs)
            tell(store, Block(pair, "aa", outcomes))
        executor = executor_of(request, machine, store)
        bench = _story(task, executor, store, Quiet(), lambda: False, None).bench
    assert bench.budget.spent_s == pytest.approx(900 * run_s + task.judged_s)
    assert bench.executor.cost(2, 1) == pytest.approx(2 * run_s)


@pytest.mark.slow
def test_a_workload_by_its_p99_is_measured_as_one_over_nanoseconds_of_a_call() -> None:
    request = TuneRequest(WorkloadSpec.from_text("lifo", threads=1).by("p99"))
    executor = executor_of(request, Machine.here(), Nowhere())
    block = executor.measure([Arm("hz"), Arm("hz")], role="aa", rounds=1, number=0)
    rates = [turn.rate for outcome in block.outcomes for turn in outcome.turns]
    assert rates
    assert all(1e-9 < rate < 1.0 for rate in rates)
