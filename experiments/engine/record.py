"""Records a landscape: how fast hz is in some hundred configurations of a workload or a program.

    python experiments/engine/record.py remote-8 [--configs 300] [--passes 2]
    python experiments/engine/record.py lua [--configs 100] [--for 170]
    python experiments/engine/record.py remote-8 --refine-only
    python experiments/engine/record.py remote-2 --noise-only [--busy]

Every configuration stands beside the default in `passes` blocks, each time with other neighbours.
The best of them are measured some more times, and what they were chosen by is left out: a landscape
must be known best where winners lie, and one that led by luck would stay its summit for ever.
landscape-NAME.json keeps the log ratio of each such pair and the memory; noise-NAME.json the turns
of A/A blocks, which simulations resample; `--busy` makes the machine work in bursts meanwhile.
About 300 configurations in twelve minutes; otherwise the machine must be quiet. Every block is kept
as soon as it is measured, in a folder beside the files: after an interruption, or the end of
`--for SECONDS`, the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from programs import examined, executor_of, program_of

from hztune.blocks import Arm, Block, Role
from hztune.machine import Machine
from hztune.measure import Around, Executor, Remembered
from hztune.measure.alternate import AlternateExecutor
from hztune.measure.executors import executor_for
from hztune.space import ConfigDict, Dimension, Space
from hztune.store import Evidence, Plan
from hztune.store.log import LocalStudy
from hztune.study.ledger import Ledger
from hztune.study.search import SLOTS
from hztune.tuning.candidates import TuneTarget, candidates
from hztune.workload import WorkloadSpec

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "programs"))

from cases import BY_NAME, environment, missing  # noqa: E402  # the table of programs

SPACE = HERE / "space.toml"
WORKLOADS = {
    "remote-2": ("remote", ["remote=50"], 2),
    "remote-8": ("remote@main", ["remote=50"], 8),
    "larson-4": ("larson", [], 4),
    "larson-32": ("larson", [], 32),
    "mstress-8": ("mstress", [], 8),
    "sh6-4": ("sh6", [], 4),
}
PROGRAMS = ("lua", "dicts")
"""Programs of experiments/programs, with one thread."""

ROUNDS = 16
RUNS = 3
ANYWHERE = 0.15
MOST_STEPS = 6
NOISE_BLOCKS, NOISE_ROUNDS, NOISE_RUNS = 12, 48, 6
BEST, AGAIN = 48, 6
"""Configurations that are measured again, and how often."""


def recorded_space(threads: int) -> Space:
    """The space of the landscapes, for a workload of so many threads."""
    return candidates(["hz"], str(SPACE), TuneTarget(threads)).space


def defaults(space: Space) -> ConfigDict:
    """The default of each parameter that a landscape is of: what its log ratios are to."""
    full = space.full({})
    return {dimension.name: full[dimension.name] for dimension in space.dimensions}


def drawn(space: Space, count: int, seed: int) -> list[Arm]:
    """Different configurations: the presets, then some steps from the default, some anywhere.

    Nine in ten of those drawn evenly over the space are far slower than the default: they would
    say little of the region in which a winner lies.
    """
    rng = random.Random(seed)
    arms = {space.arm(preset.config).key: space.arm(preset.config) for preset in space.presets}
    while len(arms) < count:
        anywhere = rng.random() < ANYWHERE
        config = space.sample(rng) if anywhere else stepped(space, rng, rng.randint(1, MOST_STEPS))
        if config and space.objection(config) is None:
            arm = space.arm(config)
            arms[arm.key] = arm
    return list(arms.values())[:count]


def stepped(space: Space, rng: random.Random, steps: int) -> ConfigDict:
    """The default with some parameters drawn anew."""
    point = space.encode({})
    drawn = {d.name for d in rng.sample(space.dimensions, min(steps, len(space.dimensions)))}

    def choose(dimension: Dimension) -> int:
        if dimension.name in drawn:
            return rng.randrange(len(dimension.values))
        return point.get(dimension.name, 0)

    return space.decode(choose)


@dataclass
class Subject:
    """What a landscape is of, and what measures it.

    Attributes:
        label: How it is called.
        threads: That keep it busy.
        executor: What measures it, by turns.
        rounds: Turns, or runs of a program, in a block; in one that is recorded as noise.
        run_ms: Of a program, what each of its runs took.
    """

    label: str
    threads: int
    executor: Executor
    rounds: tuple[int, int] = (ROUNDS, NOISE_ROUNDS)
    run_ms: list[float] = field(default_factory=list)

    def block(self, arms: list[Arm], role: Role, rounds: int, number: int) -> Block:
        """Measures a block."""
        found = self.executor.measure(arms, role=role, rounds=rounds, number=number)
        if self.label in PROGRAMS:
            turns = (turn for outcome in found.outcomes for turn in outcome.turns)
            self.run_ms += [1e-6 * turn.counted_ns for turn in turns]
        return found


def blocks(subject: Subject, arms: list[Arm], passes: int, seed: int) -> Iterator[Block]:
    """Measures all arms `passes` times, SLOTS of them beside the default in each block."""
    rng = random.Random(seed)
    pair = 100_000 * seed
    for _ in range(passes):
        order = rng.sample(arms, len(arms))
        for start in range(0, len(order), SLOTS):
            beside = [Arm("hz"), *order[start : start + SLOTS]]
            yield subject.block(beside, "search", subject.rounds[0], pair)
            pair += 1


def noise(subject: Subject) -> list[list[list[float]]]:
    """Log rates of A/A blocks, shape (blocks, rounds, arms), each less its block's mean."""
    recorded = []
    for pair in range(NOISE_BLOCKS):
        arms = [Arm("hz")] * (1 + SLOTS)
        block = subject.block(arms, "aa", subject.rounds[1], 10_000 + pair)
        logs = [[math.log(turn.rate) for turn in one.turns] for one in block.outcomes]
        mean = sum(map(sum, logs)) / sum(map(len, logs))
        recorded.append([[round(x - mean, 4) for x in turns] for turns in zip(*logs, strict=False)])
    return recorded


def points(subject: Subject, arms: list[Arm], passes: int, seed: int) -> list[dict[str, Any]]:
    """Measures the arms; a point for each, with the log ratio of every pair that it was in."""
    ledger = Ledger()
    total = passes * math.ceil(len(arms) / SLOTS)
    for number, block in enumerate(blocks(subject, arms, passes, seed)):
        ledger.add(block)
        print(f"\rblock {number + 1} of {total}", end="", file=sys.stderr)
    print(file=sys.stderr)
    return [
        {
            "params": dict(seen.arm.params),
            "pairs": [round(pair.log_ratio, 4) for pair in seen.pairs],
            "log_rss": round(sum(seen.peaks) / len(seen.peaks), 4) if seen.peaks else None,
            "status": seen.failures[0].status if seen.failures else "ok",
        }
        for seen in ledger.searched.values()
    ]


def refined(subject: Subject, space: Space, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points, of which the best have only pairs that they were not chosen by."""
    ran = [point for point in found if point["status"] == "ok"]
    best = sorted(ran, key=lambda point: -fmean(point["pairs"]))[:BEST]
    arms = [space.arm(point["params"]) for point in best]
    measured = points(subject, arms, AGAIN, seed=3)
    again = {space.arm(point["params"]).key: point for point in measured}
    return [again.get(space.arm(point["params"]).key, point) for point in found]


class Kept(Around):
    """An executor whose blocks go to the disk as soon as they are measured."""

    def __init__(self, inner: Executor, study: LocalStudy, until: float) -> None:
        """Takes what measures, what keeps, and until when (by `time.monotonic`) blocks begin."""
        super().__init__(inner)
        self._study, self._until = study, until

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        """Measures a block and keeps it."""
        if time.monotonic() > self._until:
            raise KeyboardInterrupt
        block = self.inner.measure(arms, role=role, rounds=rounds, number=number)
        self._study.begin(Plan(number, role, tuple(arms), rounds))
        for index, outcome in enumerate(block.outcomes):
            for turn in outcome.turns:
                self._study.turn(index, 0, turn, Evidence())
            self._study.outcome(index, 0, outcome)
        self._study.end()
        return block


@contextmanager
def kept(
    name: str, subject: Subject, machine: Machine, options: argparse.Namespace
) -> Iterator[None]:
    """Keeps every block of a subject until what it is for is written."""
    folder = options.out / f"unfinished-{name}"
    folder.mkdir(exist_ok=True)
    asked = ("configs", "passes", "noise_only", "refine_only", "busy")
    identity = {"workload": subject.label, **{key: f"{getattr(options, key)}" for key in asked}}
    with LocalStudy(folder, identity, machine, resume=True) as study:
        keeper = Kept(subject.executor, study, time.monotonic() + options.span_s)
        subject.executor = Remembered(keeper, study.replay())
        try:
            yield
        except KeyboardInterrupt:
            there = len(study.replay())
            raise SystemExit(
                f"\nrecord.py: {there} blocks are in {folder}; the same command goes on"
            ) from None
    shutil.rmtree(folder)


@contextmanager
def bursts() -> Iterator[None]:
    """Something else that wants CPUs every now and then, as a neighbour on a server does."""
    code = (
        "import random, time\n"
        "while True:\n"
        "    until = time.monotonic() + random.expovariate(5.0)\n"
        "    while time.monotonic() < until: pass\n"
        "    time.sleep(random.expovariate(2.0))\n"
    )
    neighbour = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        neighbour.kill()
        neighbour.wait()


def write(path: Path, subject: Subject, machine: Machine, found: dict[str, Any]) -> None:
    """Writes a recording beside what it is of."""
    head = {
        "schema": 1,
        "workload": subject.label,
        "threads": subject.threads,
        **({"run_ms": round(median(subject.run_ms), 2)} if subject.run_ms else {}),
        "machine": asdict(machine),
        "load_average": os.getloadavg()[0],
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    path.write_text(json.dumps({**head, **found}, separators=(",", ":")) + "\n")
    print(path.name, file=sys.stderr)


def by_turns(name: str, seed: int, machine: Machine) -> tuple[WorkloadSpec, Executor]:
    """One of the workloads, and what measures it."""
    spec = WorkloadSpec.from_text(*WORKLOADS[name])
    return spec, executor_for([spec], seed=seed, machine=machine, processes=1 + SLOTS)


@contextmanager
def subject_of(name: str, machine: Machine) -> Iterator[Subject]:
    """What is called so, for as long as the block lasts."""
    if name not in PROGRAMS:
        spec, executor = by_turns(name, 1, machine)
        yield Subject(spec.label, spec.threads, executor)
        return
    case = BY_NAME[name]
    if lacking := missing(case):
        raise SystemExit(f"record.py: {'; '.join(lacking)}")
    with tempfile.TemporaryDirectory(prefix="hztune-record-") as folder, environment(case):
        program = program_of(case, Path(folder))
        turns = executor_of(AlternateExecutor, case, program)
        if reason := examined(turns, program).reason:
            raise SystemExit(f"record.py: {name}: {reason}")
        yield Subject(name, 1, turns, (RUNS, NOISE_RUNS))


def record(name: str, subject: Subject, machine: Machine, options: argparse.Namespace) -> None:
    """Records the noise of a workload and, unless only that is wanted, its landscape."""
    if not options.refine_only:
        with bursts() if options.busy else nullcontext():
            busy = "-busy" if options.busy else ""
            heard = {"noise": noise(subject)}
            write(options.out / f"noise-{name}{busy}.json", subject, machine, heard)
    if not options.noise_only:
        space = recorded_space(subject.threads)
        path = options.out / f"landscape-{name}.json"
        if options.refine_only:
            before = json.loads(path.read_text())
            if before["defaults"] != defaults(space):
                raise SystemExit(f"{path} is relative to other defaults: record it anew")
            found = before["points"]
        else:
            arms = drawn(space, options.configs, seed=1)
            found = points(subject, arms, options.passes, seed=2)
        head = {"defaults": defaults(space)}
        write(path, subject, machine, {**head, "points": found})
        write(path, subject, machine, {**head, "points": refined(subject, space, found)})


def main() -> None:
    """Records what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="+", choices=[*WORKLOADS, *PROGRAMS], metavar="NAME")
    parser.add_argument("--configs", type=int, default=300)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--noise-only", action="store_true")
    parser.add_argument("--refine-only", action="store_true", help="measure the best ones again")
    parser.add_argument("--busy", action="store_true", help="with a neighbour that works in bursts")
    parser.add_argument("--out", type=Path, default=HERE, help="where the files go")
    parser.add_argument(
        "--for", type=float, default=math.inf, metavar="S", dest="span_s",
        help="begin no block after so many seconds; the next call goes on",
    )  # fmt: skip
    options = parser.parse_args()
    machine = Machine.here()
    for name in options.names:
        with subject_of(name, machine) as subject, kept(name, subject, machine, options):
            record(name, subject, machine, options)


if __name__ == "__main__":
    main()
