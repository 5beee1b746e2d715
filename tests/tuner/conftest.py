"""What the tests of the tuner share: a profile, a small space, a simulated study, programs."""

import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from lab.replay import ModelNoise, ReplayExecutor, Truth, VirtualClock
from msgspec import structs

from hztune import allocator, api
from hztune.allocator import probe
from hztune.blocks import Block
from hztune.comparing.match import Effort, play
from hztune.machine import Machine
from hztune.measure import Around, disturbance, launch
from hztune.params import Param
from hztune.profile import AllocatorId, Claim, MachineId, Objective, Profile, SearchInfo, WorkloadId
from hztune.progress import Reporter
from hztune.space import load
from hztune.store import Evidence, Plan, Sink
from hztune.study.bench import Budget, Workbench
from hztune.study.ledger import Ledger
from hztune.tuning import session
from hztune.workload import WorkloadSpec

SIMULATED = ModelNoise(within=0.02, between=0.005, common=0.05)
"""Noise of the studies that `simulate` lets tests carry out."""

QUIET = ModelNoise(within=0.03, between=0.01, common=0.1)
USUAL = ModelNoise(within=0.12, between=0.05, common=0.1, drift=0.02, tail=4, outlier_share=0.01)
MACHINE = Machine("CPU 3000", 2, None, "6.1", "glibc 2.36", 4096, "madvise", "", "", 24, None)
TWO_KNOBS = 'schema = 1\nallocator = "hz"\n[parameters.depot_lock]\n[parameters.decay_ms]\n'
"""A space of hz in which one parameter is a word, the other a number."""

PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
ONE_KNOB = 'schema = 1\nallocator = "hz"\n[parameters.depot_lock]\n'


def _proc_files(name, read=Path.read_bytes):
    """What /proc/PID/name says of every other process, but of those that end meanwhile."""
    for pid in {*filter(str.isdigit, os.listdir("/proc"))} - {str(os.getpid())}:
        with suppress(OSError):
            yield int(pid), read(Path("/proc", pid, name))


def processes_naming(word):
    """Living processes that have `word` in their command line, but for this one."""
    return [pid for pid, words in _proc_files("cmdline") if word.encode() in words]


def processes_in(folder):
    """Living processes whose working directory it is, but for this one."""
    return [pid for pid, at in _proc_files("cwd", os.readlink) if at == str(folder)]


def put(root, files):
    """Writes files below a folder that stands for /, scripts as programs; returns that."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if text.startswith("#!"):
            path.chmod(0o755)
    return root


def zombies():
    """Children of this process that have ended and that were not waited for."""
    stats = ((pid, stat.rpartition(b") ")[2].split()) for pid, stat in _proc_files("stat"))
    own = str(os.getpid()).encode()
    return [pid for pid, (state, parent, *_) in stats if (state, parent) == (b"Z", own)]


def resident_kb():
    """Memory that this process has now: its peak would hide what came after it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def tell(sink, block):
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

    def measure(self, arms, *, role, rounds, number):
        block = self.inner.measure(arms, role=role, rounds=rounds, number=number)
        tell(self.sink, block)
        return block


def row(executor, sides, pairs, budget_s=60.0):
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

    def cost(self, arms, rounds):
        return self.dearer * self.inner.cost(arms, rounds)

    def measure(self, arms, *, role, rounds, number):
        if len(self.seen) >= self.left:
            raise self.error
        self.seen.append(self.inner.measure(arms, role=role, rounds=rounds, number=number))
        return self.seen[-1]


def flat(arm):
    return Truth()


def spin_wins(gain=0.2, knob="lock"):
    """A landscape in which the spin lock is the only thing that matters."""
    return lambda arm: Truth(gain if arm.config.get(knob) == "spin" else 0.0)


def bench_of(
    landscape, noise=None, *, budget_s=90.0, seed=1, limit=None, ledger=None, **of_executor
):
    """A bench that measures a landscape on a virtual clock, and tells a listener."""
    clock = VirtualClock()
    executor = ReplayExecutor(landscape, noise, seed=seed, clock=clock, **of_executor)
    return Workbench(executor, ledger or Ledger(limit), Budget(clock, budget_s), Listener())


TUNED = {
    "hz": ("0.1.0", "libhz.so", {"magazine_cap": 512, "depot_lock": "spin"}),
    "glibc": ("2.36", "", {"arena_max": 2, "tcache_count": 64}),
    "jemalloc": ("5.3.0", "libjemalloc.so.2", {"narenas": 2, "background_thread": "true"}),
    "mimalloc": ("2.0.9", "libmimalloc.so.2.0", {"purge_delay": 0}),
    "tcmalloc": (
        "2.10", "libtcmalloc_minimal.so.4",
        {"max_total_thread_cache_bytes": 1 << 24, "release_rate_percent": 10},
    ),
    "tbb": ("2021.8.0", "libtbbmalloc_proxy.so.2", {}),
}  # fmt: skip
"""Of an allocator, as Debian 12 has it, version and library, and a configuration."""


@pytest.fixture(scope="session")
def make_profile():
    """Makes a profile that is valid; `make_profile(params={...}, threads=8)` changes fields."""

    def make(params=None, *, of="hz", **changes):
        version, soname, config = TUNED[of]
        system = ("6.1.0", "glibc 2.36", 4096, "madvise")
        profile = Profile(
            allocator=AllocatorId(of, version, soname, "a" * 64),
            params=config if params is None else params,
            workload=WorkloadId("bench", "remote", "main", {"remote": 50}),
            threads=32,
            machine=MachineId("Test CPU (R) 3.0GHz", 2, 1.5, *system),
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


def number(name, default, low, high, scale="pow2", auto=False):
    """A knob that is a number."""
    return Param(name, default, f"the {name}", low, high, scale, may_be_auto=auto)


def words(name, *choices):
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
def toy_space(tmp_path_factory):
    """A small space over those knobs."""
    path = tmp_path_factory.mktemp("toy") / "toy.toml"
    path.write_text(TOY_SPACE)
    return load(path, TOY_PARAMS, check=lambda config: None)


class Listener(Reporter):
    """A reporter that remembers what it was told."""

    def __init__(self):
        self.lines, self.statuses = [], []

    def say(self, line):
        self.lines.append(line)

    def update(self, status):
        self.statuses.append(status)


@pytest.fixture(autouse=True, scope="session")
def _probes_are_asked_once():
    """Each is a process; what it says depends on nothing else than what it is given."""
    ask = probe.ask
    answer = cache(lambda code, given, own: ask(code, dict(given)))

    def ask_once(code, given):
        return answer(code, tuple(given.items()), tuple(map(os.environ.get, probe._KEPT)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "ask", ask_once)
        yield


@pytest.fixture
def simulate(monkeypatch):
    """Lets whole requests measure a landscape on a virtual clock, which `simulate` gives."""

    def simulated(landscape, noise=SIMULATED, *, rss_scatter=0.0, around=lambda inner, _: inner):
        clock = VirtualClock()
        inner = ReplayExecutor(landscape, noise, seed=1, clock=clock, rss_scatter=rss_scatter)

        def executor_of(asked, machine, sink, *more):
            return Kept(around(inner, asked), sink)

        monkeypatch.setattr(session, "executor_of", executor_of)
        monkeypatch.setattr(session, "system_clock", clock)
        return clock

    return simulated


@pytest.fixture
def carry_out(tmp_path):
    """Carries out a request in a small space; the results go to `out`."""

    def carried_out(space, *workload, reporter=None, **asked):
        (tmp_path / "space.toml").write_text(space)
        place = {"space": str(tmp_path / "space.toml"), "out": tmp_path / "out"}
        return api.tune(api.request(*workload, **place, **asked), reporter=reporter)

    return carried_out


@pytest.fixture
def quiet_machine(monkeypatch):
    """Lets nothing that the machine does meanwhile disturb a run, so that none is repeated."""
    monkeypatch.setattr(disturbance, "causes", lambda *of_turn: "")


@pytest.fixture(scope="session")
def audited():
    """Gives the events that Python audits while it is entered, each with its arguments."""
    heard = []

    def hear(*event):
        for events in heard:
            events.append(event)

    @contextmanager
    def listen():
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

    def __call__(self, name, source=idle, *flags):
        out = self.folder / name
        command = ["cc", "-x", "c", "-", "-o", str(out), "-x", "none", *map(str, flags)]
        subprocess.run(command, input=source, text=True, check=True, timeout=60)
        return out


@pytest.fixture
def compiled(tmp_path):
    """Compiles C source to a file; `compiled("name", source, *flags)`."""
    return Compiler(tmp_path)


@pytest.fixture(scope="session")
def running():
    """Runs an idle program with some more variables; gives the number of its process."""

    @contextmanager
    def run(program, variables, **options):
        child = subprocess.Popen([program], env={**os.environ, **variables}, **PIPES, **options)
        try:
            assert child.stdout.read(1) == b"x"
            yield child.pid
        finally:
            child.communicate(b"\n", timeout=30)

    return run


@pytest.fixture
def started():
    """Starts a program and waits until it says "ready"; what was started ends with the test."""
    programs = []

    def start(words, **variables):
        programs.append(subprocess.Popen(words, env=variables, text=True, **PIPES))
        assert programs[-1].stdout.readline() == "ready\n"
        return programs[-1]

    yield start
    for program in programs:
        program.kill()
        program.communicate(timeout=60)


@pytest.fixture(params=["hyperfine", "hz-launch"])
def clock(request, monkeypatch):
    """Both ways of timing; hyperfine is a package that the tests need."""
    if request.param == "hz-launch":
        monkeypatch.setattr(launch, "hyperfine", lambda: None)
    else:
        assert launch.hyperfine(), "install hyperfine: apt-get install hyperfine"
    before = set(os.listdir("/proc/self/fd"))
    yield request.param
    assert set(os.listdir("/proc/self/fd")) == before
