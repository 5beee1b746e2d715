"""What the tests share: builds of the core outside the tree, and hztune as a process.

A build is kept between runs (CMake rebuilds only what changed) in $XDG_CACHE_HOME/hztune-tests, one
directory for each checkout and set of definitions; several test runs at once take turns on a lock.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from hztune import artifacts

# Simulated studies give the same numbers on every CPU: else OpenBLAS sums by the kind of CPU.
os.environ["OPENBLAS_CORETYPE"] = "Haswell"

ROOT = Path(__file__).parents[1]
SHIPPED = (
    "hz_static", "hz_shared", "hz_prefixed", "hz_deepbind", "hz_agent", "hz-bench", "hz-turns",
    "hz-launch", "hz-alternate", "hz_recorder", "hz-record", "hz-trace",
)  # fmt: skip
"""What is installed: the targets of the core without its tests."""

QUICK = {"CMAKE_BUILD_TYPE": "Quick", "HZ_WERROR": "ON"}
"""Definitions of a build whose speed does not matter: it is not optimized."""

OPTIONAL = {
    "git": ("git", "bin/git"),
    "hyperfine": ("hyperfine", "bin/hyperfine"),
    "libjemalloc2": ("jemalloc", "lib/*/libjemalloc.so.2"),
    "libmimalloc2.0": ("mimalloc", "lib/*/libmimalloc.so.2"),
    "libmimalloc-dev": ("mimalloc", "lib/*/libmimalloc.so"),
    "libtbbmalloc2": ("tbb", "lib/*/libtbbmalloc_proxy.so.2"),
    "libtcmalloc-minimal4": ("tcmalloc", "lib/*/libtcmalloc_minimal.so.4"),
    "php-cli": ("php", "bin/php"),
    "pkg-config": ("pkg", "bin/pkg-config"),
    "postgresql": ("postgresql", "lib/postgresql/*/bin/initdb"),
    "redis-server": ("redis", "bin/redis-server"),
    "relacy-dev": ("relacy", "include/relacy"),
    "sqlite3": ("sqlite3", "bin/sqlite3"),
    "strace": ("strace", "bin/strace"),
    "systemd": ("systemd", "bin/systemd-analyze"),
    "valgrind": ("valgrind", "bin/valgrind"),
    "xz-utils": ("xz", "bin/xz"),
}
"""A package of README's test command: a word by which tests name it, and a file below /usr."""

BUILD_DEADLINE_S = 600
RUN_DEADLINE_S = 120

_NUMBERS = count()

Build = Callable[..., Path]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def finished(
    words: Sequence[object], deadline_s: float = RUN_DEADLINE_S, **options: Any
) -> subprocess.CompletedProcess[str]:
    """A command that has ended, with what it wrote."""
    return subprocess.run(
        [str(word) for word in words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=deadline_s,
        **options,
    )


def until(holds: Callable[[], Any], deadline_s: float = RUN_DEADLINE_S) -> Any:
    """What `holds` gives as soon as it is true; what it gave last where it is not in time."""
    deadline = time.monotonic() + deadline_s
    while not (found := holds()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def pytest_sessionstart() -> None:
    """Stops where the installed hztune has another table of parameters than this tree."""
    installed = artifacts.include_dir() / "hz" / "params.def"
    if installed.read_bytes() != (ROOT / "core/include/hz/params.def").read_bytes():
        pytest.exit(
            "core/include/hz/params.def is not what hztune was installed with: "
            "run pip install --editable '.[test]' again",
            returncode=1,
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Iterator[pytest.TestReport]:
    """Skips a test that fails and names what is not installed here; where all is, none is."""
    report: pytest.TestReport = yield
    if report.failed:
        text = f"{item.nodeid}\n{inspect.getsource(item.function)}\n{report.longreprtext}"
        words = set(re.split(r"[\W_]+", text.lower()))
        lacking = [package for word, package in _not_installed() if {word, f"lib{word}"} & words]
        if lacking:
            why = f"it fails without {', '.join(lacking)}: apt-get install it"
            report.outcome, report.longrepr = "skipped", (str(item.path), item.location[1], why)
    return report


@cache
def _not_installed() -> list[tuple[str, str]]:
    """The word and the package of what some tests need and is missing."""
    return [
        (word, package)
        for package, (word, file) in OPTIONAL.items()
        if not any(Path("/usr").glob(file))
    ]


@pytest.fixture(autouse=True, scope="session")
def _heeded_interrupts() -> None:
    """Lets tests interrupt what they start, also where a shell started them all with `&`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the history of the tests away from the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("session")))
        yield


@pytest.fixture(autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory for each test, which no other one has written to; it need not exist."""
    base = tmp_path_factory.getbasetemp() / "state"
    folder = base / str(next(_NUMBERS))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def plain_environment() -> dict[str, str]:
    """The environment without anything that would configure hz or load an allocator."""
    return {k: v for k, v in os.environ.items() if not k.startswith("HZ_") and k != "LD_PRELOAD"}


@pytest.fixture(scope="session")
def build_core() -> Build:
    """Builds core/ with some definitions and returns the build directory.

    `build_core(HZ_FROZEN="ON")`, or `build_core(source=COPY)` for a copy of the tree. With
    `targets=["hz_shared"]` nothing else is built.
    """
    return lambda source=ROOT, targets=(), **defines: built(source / "core", defines, targets)


@pytest.fixture(scope="session")
def build_tuner() -> Build:
    """Builds tuner/, which is core/ and `_core`; give the directory as HZTUNE_CORE to a process."""
    return lambda source=ROOT, targets=(), **defines: built(
        source / "tuner", {"Python_EXECUTABLE": sys.executable, **defines}, targets
    )


@pytest.fixture(scope="session")
def as_it_stands(build_core: Build) -> Build:
    """Builds some targets of the core as it stands, or all, every warning an error.

    It is one build for all tests, so that what is in several targets is compiled once.
    """
    return lambda *targets: build_core(targets=targets, HZ_WERROR="ON", HZ_BUILD_TESTS="ON")


@pytest.fixture(scope="session")
def core_build(as_it_stands: Build) -> Path:
    """The core as it stands."""
    return as_it_stands(*SHIPPED)


@pytest.fixture(scope="session")
def core_tests(as_it_stands: Build) -> Path:
    """The same build with the C tests."""
    return as_it_stands()


@pytest.fixture
def hztune(core_build: Path, tmp_path: Path) -> Run:
    """Runs hztune in a process of its own, in an empty directory, on the core as it stands."""

    def run(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        own = {**os.environ, "HZTUNE_CORE": str(core_build), "NO_COLOR": "1", **variables}
        return finished([sys.executable, "-m", "hztune", *words], env=own, cwd=tmp_path)

    return run


@pytest.fixture
def hztune_here(
    core_build: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Run:
    """The same in the process of the tests, for what is answered without another program.

    A process takes 0.3 s to start, and 1 s where it imports all that a study needs.
    """

    def replace(*command: object) -> None:
        raise AssertionError(f"the process of the tests would become {command}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HZTUNE_CORE", str(core_build))
    monkeypatch.setenv("NO_COLOR", "1")
    for name in ("execv", "execve"):
        monkeypatch.setattr(os, name, replace)

    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        from hztune.cli import status_of

        capfd.readouterr()
        status = status_of([*map(str, words)])
        return subprocess.CompletedProcess(words, status, *capfd.readouterr())

    return run


def built(source: Path, defines: dict[str, str], targets: Sequence[str] = ()) -> Path:
    """Builds a tree of CMake with some definitions and returns the build directory."""
    identity = "\n".join(
        [str(source), sys.executable, "Ninja", *sorted(f"{k}={v}" for k, v in defines.items())]
    )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hztune-tests"
    build = cache / f"{source.name}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    build.mkdir(parents=True, exist_ok=True)
    with build.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        definitions = [f"-D{key}={value}" for key, value in defines.items()]
        _run("cmake", "-G", "Ninja", "-S", source, "-B", build, *definitions)
        processes = len(os.sched_getaffinity(0))
        only = [f"--target={target}" for target in targets]
        _run("cmake", "--build", build, "--parallel", processes, *only)
    return build


def _run(*command: object) -> None:
    done = finished(command, BUILD_DEADLINE_S)
    if done.returncode != 0:
        raise RuntimeError(f"{done.args}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
