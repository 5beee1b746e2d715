"""What the tests of the tuner share: a profile, a small space, a simulated study, programs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from lab.replay import Landscape, ModelNoise, NoiseSource, ReplayExecutor, Truth, VirtualClock
from msgspec import structs

from hztune import allocator, api
from hztune.allocator import probe
from hztune.blocks import Arm, Block, Role
from hztune.comparing.contenders import Contender
from hztune.comparing.match import Effort, play
from hztune.machine import Machine
from hztune.measure import Around, Executor, disturbance, launch
from hztune.params import Param, Scale, Value
from hztune.profile import AllocatorId, Claim, MachineId, Objective, Profile, SearchInfo, WorkloadId
from hztune.progress import Reporter, StudyStatus
from hztune.result import Result
from hztune.space import Space, load
from hztune.store import Evidence, Plan, Sink
from hztune.study.bench import Budget, Workbench
from hztune.study.ledger import Ledger
from hztune.study.limits import MemoryLimit
from hztune.tuning import session
from hztune.workload import WorkloadSpec

SIMULATED = ModelNoise(within=0.02, between=0.005, common=0.05)
"""Noise of the studies that `simulate` lets tests carry out."""

QUIET = ModelNoise(within=0.03, between=0.01, common=0.1)
USUAL = ModelNoise(within=0.12, between=0.05, common=0.1, drift=0.02, tail=4, outlier_share=0.01)
MACHINE = Machine("CPU 3000", 2, None, "6.1", "glibc 2.36", 4096, "madvise", "", "", 24, None)
TWO_KNOBS = 'schema = 1\nallocator = "hz"\n[parameters.depot_lock]\n[parameters.decay_ms]\n'
"""A space of hz in which one parameter is a word, the other a number."""

ONE_KNOB = 'schema = 1\nallocator = "hz"\n[parameters.depot_lock]\n'


def _proc_files(
    name: str, read: Callable[[Path], Any] = Path.read_bytes
) -> Iterator[tuple[int, Any]]:
    """What /proc/PID/name says of every other process, but of those that end meanwhile."""
    for pid in {*filter(str.isdigit, os.listdir("/proc"))} - {str(os.getpid())}:
        with suppress(OSError):
            yield int(pid), read(Path("/proc", pid, name))


def processes_naming(word: str) -> list[int]:
    """Living processes that have `word` in their command line, but for this one."""
    return [pid for pid, words in _proc_files("cmdline") if word.encode() in words]


def processes_in(folder: Path) -> list[int]:
    """Living processes whose working directory it is, but for this one."""
    return [pid for pid, at in _proc_files("cwd", os.readlink) if at == str(folder)]


def put(root: Path, files: Mapping[str, str]) -> Path:
    """Writes files below a folder that stands for /, scripts as programs; returns that."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if text.startswith("#!"):
            path.chmod(0o755)
    return root


def zombies() -> list[int]:
    """Children of this process that have ended and that were not waited for."""
    stats = ((pid, stat.rpartition(b") ")[2].split()) for pid, stat in _proc_files("stat"))
    own = str(os.getpid()).encode()
    return [pid for pid, (state, parent, *_) in stats if (state, parent) == (b"Z", own)]


def resident_kb() -> int:
    """Memory that this process has now: its peak would hide what came after it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def tell(sink: Sink, block: Block) -> None:
    """Tells a sink what an executor of processes would tell it of a block."""
    rounds = max(len(outcome.turns) for outcome in block.outcomes)
    sink.begin(Plan(block.number, block.role, tuple(o.arm for o in block.outcomes), rounds))
    for index, outcome in enumerate(block.outcomes):
        for turn in outcome.turns:
            sink.turn(index, 100 + index, turn, Evidence(rss_kb=5000))
    for index, outcome in enumerate(block.outcomes):
        sink.outcome(index, 100 + index, outcome)
    sink.end()


@dataclass
class Kept(Around):
    """An executor whose blocks are told to a sink, as a real one does."""

    sink: Sink

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        block = self.inner.measure(arms, role=role, rounds=rounds, number=number)
        tell(self.sink, block)
        return block


def row(
    executor: Executor, sides: Sequence[Contender], pairs: int, budget_s: float = 60.0
) -> tuple[Block, ...]:
    """The blocks of one row of a comparison."""
    spec = WorkloadSpec("larson", "", (), 2)
    (found,) = play([spec], sides, Effort(pairs, budget_s), lambda spec: executor, Reporter())
    return found.blocks


@dataclass
class Stopped(Around):
    """An executor that notes its blocks, takes them for longer than they are, and is stopped."""

    left: int = sys.maxsize
    error: type[BaseException] | BaseException = KeyboardInterrupt
    dearer: float = 1.0
    seen: list[Block] = field(default_factory=list)

    def cost(self, arms: int, rounds: int) -> float:
        return self.dearer * self.inner.cost(arms, rounds)

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        if len(self.seen) >= self.left:
            raise self.error
        self.seen.append(self.inner.measure(arms, role=role, rounds=rounds, number=number))
        return self.seen[-1]


def flat(arm: Arm) -> Truth:
    return Truth()


def spin_wins(gain: float = 0.2, knob: str = "lock") -> Landscape:
    """A landscape in which the spin lock is the only thing that matters."""
    return lambda arm: Truth(gain if arm.config.get(knob) == "spin" else 0.0)


def bench_of(
    landscape: Landscape,
    noise: NoiseSource | None = None,
    *,
    budget_s: float = 90.0,
    seed: int = 1,
    limit: MemoryLimit | None = None,
    ledger: Ledger | None = None,
    **of_executor: float,
) -> Workbench:
    """A bench that measures a landscape on a virtual clock, and tells a listener."""
    clock = VirtualClock()
    executor = ReplayExecutor(landscape, noise, seed=seed, clock=clock, **of_executor)
    return Workbench(executor, ledger or Ledger(limit), Budget(clock, budget_s), Listener())


TUNED: dict[str, tuple[AllocatorId, dict[str, Value]]] = {
    "hz": (
        AllocatorId("hz", "0.1.0", "libhz.so", "a" * 64),
        {"magazine_cap": 512, "depot_lock": "spin"},
    ),
    "glibc": (AllocatorId("glibc", "2.36", "", "c" * 64), {"arena_max": 2, "tcache_count": 64}),
    "jemalloc": (
        AllocatorId("jemalloc", "5.3.0", "libjemalloc.so.2", "c" * 64),
        {"narenas": 2, "background_thread": "true"},
    ),
    "mimalloc": (
        AllocatorId("mimalloc", "2.0.9", "libmimalloc.so.2.0", "c" * 64),
        {"purge_delay": 0},
    ),
    "tcmalloc": (
        AllocatorId("tcmalloc", "2.10", "libtcmalloc_minimal.so.4", "c" * 64),
        {"max_total_thread_cache_bytes": 1 << 24, "release_rate_percent": 10},
    ),
    "tbb": (AllocatorId("tbb", "2021.8.0", "libtbbmalloc_proxy.so.2", "c" * 64), {}),
}
"""An allocator, as Debian 12 has it, and a configuration."""


@pytest.fixture(scope="session")
def make_profile() -> Callable[..., Profile]:
    """Makes a profile that is valid; `make_profile(params={...}, threads=8)` changes fields."""

    def make(
        params: dict[str, Value] | None = None, *, of: str = "hz", **changes: object
    ) -> Profile:
        identity, config = TUNED[of]
        profile = Profile(
            allocator=identity,
            params=config if params is None else params,
            workload=WorkloadId("bench", "remote", "main", {"remote": 50}),
            threads=32,
            machine=MachineId(
                "Test CPU (R) 3.0GHz", 2, 1.5, "6.1.0", "glibc 2.36", 4096, "madvise"
            ),
            objective=Objective("ops_per_s", {"max_rss": "1.10x"}),
            claim=Claim("ops_per_s", 1.14, 1.1, 1.2, 8, "improved"),
            search=SearchInfo("tpe", 7, 90.0, 25, "b" * 64),
            versions={"hztune": "0.1.0"},
            created="2026-01-31T12:00:00Z",
        )
        return structs.replace(profile, **changes)

    return make


@pytest.fixture
def made_here(make_profile, core_build, monkeypatch) -> Profile:
    """A profile that was made on this machine, with this library."""
    monkeypatch.setenv("HZTUNE_CORE", str(core_build))
    return make_profile(
        allocator=AllocatorId.of(allocator.get("hz").installed()),
        machine=MachineId.of(Machine.here()),
        objective=Objective("ops_per_s", {}),
    )


TOY_SPACE = """
schema = 1
allocator = "hz"
forbid = [{ rule = "cap * shards > 2048", why = "too much memory" }]
preset = [{ name = "sharded", why = "threads meet less often", set = { shards = 4 } }]
[parameters]
cap = {}
batch = {}
shards = {}
ring = { when = "shards > 1" }
delay = {}
lock = {}
pages = {}
"""


def number(
    name: str, default: Value, low: int, high: int, scale: Scale = "pow2", auto: bool = False
) -> Param:
    """A knob that is a number."""
    return Param(name, default, f"the {name}", low, high, scale, may_be_auto=auto)


def words(name: str, *choices: str) -> Param:
    """A knob that is a word; the first one is the default."""
    return Param(name, choices[0], name, high=len(choices) - 1, choices=choices)


TOY_PARAMS = (
    number("cap", 256, 8, 1024),
    number("batch", 32, 4, 256),
    number("shards", "auto", 1, 16, auto=True),
    number("ring", 64, 16, 1024),
    number("delay", 100, 0, 10000, "log"),
    words("lock", "mutex", "spin", "lockfree"),
    words("pages", "off", "on"),
)
"""Knobs of every kind."""


@pytest.fixture(scope="session")
def toy_space(tmp_path_factory) -> Space:
    """A small space over those knobs."""
    path = tmp_path_factory.mktemp("toy") / "toy.toml"
    path.write_text(TOY_SPACE)
    return load(path, TOY_PARAMS, check=lambda config: None)


class Listener(Reporter):
    """A reporter that remembers what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.statuses: list[StudyStatus] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def update(self, status: StudyStatus) -> None:
        self.statuses.append(status)


@pytest.fixture(autouse=True, scope="session")
def _probes_are_asked_once() -> Iterator[None]:
    """Each is a process; what it says depends on nothing else than what it is given."""
    ask = probe.ask
    answer = cache(lambda code, given, own: ask(code, dict(given)))

    def ask_once(code: str, given: Mapping[str, str]) -> Any:
        return answer(code, tuple(given.items()), tuple(map(os.environ.get, probe._KEPT)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "ask", ask_once)
        yield


@pytest.fixture
def simulate(monkeypatch) -> Callable[..., VirtualClock]:
    """Lets whole requests measure a landscape on a virtual clock, which `simulate` gives."""

    def simulated(
        landscape: Landscape,
        noise: ModelNoise = SIMULATED,
        *,
        rss_scatter: float = 0.0,
        around: Callable[..., Executor] = lambda inner, asked: inner,
    ) -> VirtualClock:
        clock = VirtualClock()
        inner = ReplayExecutor(landscape, noise, seed=1, clock=clock, rss_scatter=rss_scatter)
        monkeypatch.setattr(
            session,
            "executor_of",
            lambda asked, machine, sink, *more: Kept(around(inner, asked), sink),
        )
        monkeypatch.setattr(session, "system_clock", clock)
        return clock

    return simulated


@pytest.fixture
def carry_out(tmp_path) -> Callable[..., Result]:
    """Carries out a request in a small space; the results go to `out`."""

    def carried_out(
        space: str, *workload: str, reporter: Reporter | None = None, **asked: Any
    ) -> Result:
        (tmp_path / "space.toml").write_text(space)
        place = {"space": str(tmp_path / "space.toml"), "out": tmp_path / "out"}
        return api.tune(api.request(*workload, **place, **asked), reporter=reporter)

    return carried_out


@pytest.fixture
def quiet_machine(monkeypatch):
    """Lets nothing that the machine does meanwhile disturb a run, so that none is repeated."""
    monkeypatch.setattr(disturbance, "causes", lambda *of_turn: "")


@pytest.fixture(scope="session")
def audited() -> Callable[[], AbstractContextManager[list[Any]]]:
    """Gives the events that Python audits while it is entered, each with its arguments."""
    heard = list[list[Any]]()

    def hear(*event: Any) -> None:
        for events in heard:
            events.append(event)

    @contextmanager
    def listen() -> Iterator[list[Any]]:
        heard.append([])
        try:
            yield heard[0]
        finally:
            heard.clear()

    sys.addaudithook(hear)  # it stays, and does nothing from then on
    return listen


@dataclass(frozen=True)
class Compiler:
    """Compiles C source to a file in `folder`.

    Attributes:
        idle: A program that says when it has started, and then waits on its standard input.
    """

    folder: Path
    idle = """
#include <unistd.h>
int main(void) { char c; return write(1, "x", 1) + read(0, &c, 1) != 2; }
"""

    def __call__(self, name: str, source: str = idle, *flags: str | Path) -> Path:
        out = self.folder / name
        command = ["cc", "-x", "c", "-", "-o", str(out), "-x", "none", *map(str, flags)]
        subprocess.run(command, input=source, text=True, check=True, timeout=60)
        return out


@pytest.fixture
def compiled(tmp_path) -> Compiler:
    """Compiles C source to a file; `compiled("name", source, *flags)`."""
    return Compiler(tmp_path)


@pytest.fixture(scope="session")
def running() -> Callable[..., AbstractContextManager[int]]:
    """Runs an idle program with some more variables; gives the number of its process."""

    @contextmanager
    def run(program: Path, variables: Mapping[str, str], **options: Any) -> Iterator[int]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        child = subprocess.Popen([program], env={**os.environ, **variables}, **pipes, **options)
        try:
            assert child.stdout.read(1) == b"x"
            yield child.pid
        finally:
            child.communicate(b"\n", timeout=30)

    return run


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a program and waits until it says "ready"; what was started ends with the test."""
    programs = []

    def start(words: Sequence[str | Path], **variables: str) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        programs.append(subprocess.Popen(words, env=variables, text=True, **pipes))
        assert programs[-1].stdout.readline() == "ready\n"
        return programs[-1]

    yield start
    for program in programs:
        program.kill()
        program.communicate(timeout=60)


@pytest.fixture(params=["hyperfine", "hz-launch"])
def clock(request, monkeypatch) -> Iterator[str]:
    """Both ways of timing; hyperfine is a package that the tests need."""
    if request.param == "hz-launch":
        monkeypatch.setattr(launch, "hyperfine", lambda: None)
    else:
        assert launch.hyperfine(), "install hyperfine: apt-get install hyperfine"
    before = set(os.listdir("/proc/self/fd"))
    yield request.param
    assert set(os.listdir("/proc/self/fd")) == before
