"""The real programs of experiments/programs: each says the same under every allocator."""

from __future__ import annotations

import importlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hztune import allocator, artifacts, process
from hztune.allocator import loaded_program

EXPERIMENT = Path(__file__).parents[2] / "experiments" / "programs"


sys.path.insert(0, str(EXPERIMENT))
CASES = importlib.import_module("cases")
RUN = importlib.import_module("run")
EVERY = (*CASES.CASES, *CASES.COMPARED)
PROGRAMS = list({case.command: case for case in reversed(EVERY) if case.command}.values())
(REDIS,) = [case for case in CASES.CASES if case.name == "redis"]
OPTIONAL = (
    *("lua", "ruby", "node", "z3", "clang", "memcached", "nginx", "postgres"),
    *(case.name for case in CASES.COMPARED),
)  # fmt: skip
"""Cases whose programs README's test command does not install: tested where they are."""

CLOCK = re.compile(r"^[A-Z]+ *=.*$", re.M)
"""What barnes prints of the time."""

ALLOCATORS = ("glibc", "jemalloc", "mimalloc", "tcmalloc", "hz", "tbb")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands need, built once."""
    folder = tmp_path_factory.mktemp("programs")
    CASES.build(folder, PROGRAMS, functions=1, pigeons=6)
    return folder


def require(case: Any) -> None:
    """Sees to it that a case's programs are installed, or skips where they need not be."""
    lacking = CASES.missing(case)
    if lacking and case.name in OPTIONAL:
        pytest.skip("; ".join(lacking))
    assert lacking == []


def output(case: Any, work: Path, environment: dict[str, str]) -> str:
    """What a short run of a case prints."""
    require(case)
    done = process.run(
        case.words(work, case.short),
        env={**os.environ, **dict(case.variables), **environment},
        deadline_s=60,
    )
    assert done.ok, done.describe()
    return CLOCK.sub("", done.stdout)


@pytest.mark.parametrize("case", PROGRAMS, ids=[case.name for case in PROGRAMS])
def test_a_program_says_the_same_under_every_allocator(
    case: Any, work: Path, core_build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HZTUNE_CORE", str(core_build))
    said = output(case, work, {})
    assert said.strip() or case.name in ("gcc", "clang", "espresso")
    for name in ALLOCATORS:
        adapter = allocator.get(name)
        assert output(case, work, adapter.environment({}, adapter.installed())) == said, name


SERVE = """
$1 > /dev/null & server=$!
until redis-cli -p {port} ping > /dev/null 2>&1; do kill -0 $server || exit 1; sleep 0.01; done
env -u LD_PRELOAD $2 && kill $server && wait $server
"""


def test_redis_answers_under_every_allocator(
    work: Path, core_build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HZTUNE_CORE", str(core_build))
    assert CASES.missing(REDIS) == []
    told = REDIS.told(work, REDIS.short)
    server, load = (told[told.index(f"--{of}") + 1] for of in ("server", "load"))
    for name in ALLOCATORS:
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = str(free.getsockname()[1])
        script = SERVE.replace("$1", server).replace("$2", load).replace("{port}", port)
        adapter = allocator.get(name)
        environment = {**os.environ, **adapter.environment({}, adapter.installed())}
        done = process.run(["/bin/sh", "-c", script], env=environment, deadline_s=60)
        assert done.ok, f"{name}: {done.describe()} {done.stderr}"
        for command in ("SET", "HSET"):  # a load that takes no millisecond has a rate of "inf"
            rate = rf"\b{command}: (inf|[0-9.]+) requests per second"
            assert re.search(rate, done.stdout), f"{name}: {done.stdout}"


def test_every_library_that_can_replace_malloc_here_takes_part() -> None:
    found = {each.name for each in allocator.available()}
    assert set(ALLOCATORS) <= found, "install what README's test command names"


# ---- why each of them is here --------------------------------------------------------------------


def faults(work: Path, name: str, **variables: str) -> tuple[int, int]:
    """Page faults and peak memory (KiB) of a program, as hz-launch counts them."""
    (case,) = [case for case in PROGRAMS if case.name == name]
    done = process.run(
        [str(artifacts.launch()), "--", *case.words(work, case.size)],
        env={**os.environ, **variables},
        deadline_s=60,
    )
    told = json.loads(done.stdout.splitlines()[-1])
    return told["minor_faults"], told["rss_peak_kb"]


def test_large_buffers_are_faulted_in_again_and_again_unless_glibc_keeps_them(
    work: Path, core_build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HZTUNE_CORE", str(core_build))
    adapter = allocator.get("glibc")
    kept = {"mmap_threshold": 1 << 30, "trim_threshold": 1 << 30}
    environment = adapter.environment(kept, adapter.installed())
    default, _ = faults(work, "large-buffers")
    tuned, _ = faults(work, "large-buffers", **environment)
    assert tuned < default / 2


def test_one_arena_takes_less_than_the_limit_of_the_possible_case(
    work: Path, core_build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HZTUNE_CORE", str(core_build))
    adapter = allocator.get("glibc")
    environment = adapter.environment({"arena_max": 1}, adapter.installed())
    (case,) = [case for case in PROGRAMS if case.name == "memory-possible"]
    assert case.options == ("--max-rss", "0.7x")
    _, default = faults(work, "memory-possible")
    _, tuned = faults(work, "memory-possible", **environment)
    assert tuned < 0.7 * default


def test_redis_is_said_to_bring_its_own_allocator() -> None:
    (said,) = loaded_program.inspect("redis-server").remarks
    assert "is linked with jemalloc: unchanged, it runs on that, not on glibc" in said
    assert said in RUN.remarks(REDIS)


# ---- run.py --------------------------------------------------------------------------------------

SUMMARY = {"verdict": "no_gain", "ratio": None, "rss_ratio": 1.0, "params": {}, "out": "gone"}
Answer = Callable[..., "subprocess.CompletedProcess[str]"]


def answering(status: int, **summary: object) -> Answer:
    """Stands for hztune: leaves a profile, prints a summary and ends with a status."""

    def run(line: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        out = Path(line[line.index("--out") + 1])
        out.mkdir()
        (out / "profile.json").write_text('{"allocator": {"name": "glibc"}}')
        return subprocess.CompletedProcess(line, status, json.dumps({**SUMMARY, **summary}))

    return run


@pytest.mark.parametrize("status", [0, 3])
def test_a_case_leaves_its_summary_and_its_profile_and_no_path(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results.json"
    monkeypatch.setattr(RUN, "build", lambda work, cases: None)
    monkeypatch.setattr(RUN.subprocess, "run", answering(status))
    for name in ("xz", "large-buffers"):
        assert RUN.main(["--only", name, "--results", str(results), "--allocator", "glibc"]) == 0
    rows = json.loads(results.read_text())["cases"]
    assert [row["name"] for row in rows] == ["large-buffers", "xz"], "in the order of the cases"
    assert rows[1]["summary"]["verdict"] == "no_gain" and rows[1]["exit_status"] == status
    assert str(tmp_path) not in results.read_text() and "gone" not in results.read_text()


def test_a_study_that_failed_or_a_program_that_is_missing_is_said_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.json"
    monkeypatch.setattr(RUN, "build", lambda work, cases: None)
    monkeypatch.setattr(RUN.subprocess, "run", answering(1))
    assert RUN.main(["--only", "gcc", "--results", str(results)]) == 1
    assert "gcc: hztune ended with status 1" in capsys.readouterr().err
    monkeypatch.setattr(CASES.shutil, "which", lambda program: None)
    assert RUN.main(["--only", "redis", "--results", str(results)]) == 1
    assert "(Debian's package: redis-tools)" in capsys.readouterr().err
    assert not results.exists()


def test_a_study_in_which_an_allocator_never_ran_says_so_and_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.json"
    monkeypatch.setattr(RUN, "build", lambda work, cases: None)
    seen = {"glibc": 1.01, "tbb": "crash"}
    monkeypatch.setattr(RUN.subprocess, "run", answering(0, as_they_come=seen))
    assert RUN.main(["--only", "gcc", "--results", str(results)]) == 1
    assert "FAILED: tbb (crash)" in capsys.readouterr().out
    assert results.exists()


@pytest.mark.parametrize("name", ["dicts", *(case.name for case in CASES.CASES if case.options)])
def test_hztune_takes_the_options_of_a_case(
    name: str, work: Path, tmp_path: Path, core_build: Path
) -> None:
    (case,) = [case for case in CASES.CASES if case.name == name]
    require(case)
    line = RUN.study(case, work, "20s", case.allocator, tmp_path / "out")
    at = line.index("--json")
    done = subprocess.run(
        [*line[:at], "--dry-run", *line[at + 1 :]],
        env={**os.environ, "HZTUNE_CORE": str(core_build)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert not (tmp_path / "out").exists()
