"""experiment.toml: what is compared with what, on which rows, for how long.

schema = 1
question = "One sentence that ends with a question mark?"
budget_s = 300          # for all rows together
pairs = 6               # blocks of fresh processes a row (6 if left out)
instructions = true     # also count those of an operation, on rows with one thread (valgrind)
[[arm]]                 # the first one is the control
name = "default"        # left out: made from all parameters; given: those that vary are added
allocator = "hz"
params = { remote_ring_size = [64, 256], shards = 4 }   # a list stands for one arm each
profile = "larson.json" # its parameters instead; a file of `hztune`, beside this one
build = "frozen"        # another build of hz: see builds.BUILDS
if_installed = true     # left out, with a word on stderr, where the allocator is not installed
[[row]]
workload = ["larson", "remote@main"]
threads = [2, 8]
params = { ws = 400 }   # of the workload; again, lists stand for one row each
whole_runs = true       # no turns (false if left out): nothing ages while a process waits for one
[[row]]
program = ["lua", "z3"] # real programs; a script beside the file says how each is started
[[value]]               # what the counters say, for every arm on every row
name = "blocks a group"
count = "handed_blocks" # a counter of hz, or ops or minor_faults of the process, or its rss_idle_kb
per = "handed_groups"   # left out: a process
times = 1000            # left out: 1
[[figure]]              # what the report says in one line; the first one is the headline
name = "ring of 1024 against 256"   # none at all: the first arm against the best of the others
arm = "remote_ring_size=1024"       # or "best": whichever is fastest over these rows
over = "remote_ring_size=256"       # left out: the control
rows = "remote remote=90 *"         # those whose label matches, or one of a list; left out: all
of = "speed"            # (if left out) or "memory", "instructions", or the name of a value
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from hztune import files, profile
from hztune.blocks import Arm
from hztune.comparing.contenders import BUILD
from hztune.comparing.gate import MOST_PAIRS
from hztune.comparing.match import LEAST_BUDGET_S, LEAST_PAIRS, MOST_BUDGET_S, USUAL_PAIRS
from hztune.errors import UsageError
from hztune.params import Value
from hztune.schema import Schema, Word, WordOrNone, judged
from hztune.workload import WorkloadSpec
from lab import builds

EXPERIMENTS = Path(__file__).resolve().parents[1]
DEFINITION = "experiment.toml"
MOST_BYTES = 64 * 1024

BEST = "best"
OF_SPEED = "speed"
OF_MEMORY = "memory"

Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.:+=, -]{0,80}\Z")]
Title = Annotated[str, Meta(pattern=r"\A[ -~]{1,80}\Z")]
Pattern = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.@+=* -]{1,80}\Z")]
Config = dict[str, Value | tuple[Value, ...]]


class _Arm(Schema, frozen=True, kw_only=True):
    allocator: Word
    name: Name = ""
    params: Config = field(default_factory=dict)
    profile: Annotated[str, Meta(pattern=r"\A([A-Za-z0-9_-][A-Za-z0-9_.-]{0,60}\.json)?\Z")] = ""
    build: Annotated[str, Meta(pattern=rf"\A({'|'.join(builds.BUILDS)}|)\Z")] = ""
    if_installed: bool = False


_Workload = Annotated[str, Meta(pattern=r"\A[a-z0-9-]+(@[a-zA-Z0-9_.-]+)?\Z")]
_Program = Annotated[str, Meta(pattern=r"\A[a-z0-9][a-z0-9-]{0,39}\Z")]


class _Row(Schema, frozen=True, kw_only=True):
    workload: _Workload | tuple[_Workload, ...] = ()
    threads: int | tuple[int, ...] = ()
    params: Config = field(default_factory=dict)
    whole_runs: bool = False
    program: _Program | tuple[_Program, ...] = ()


class CounterValue(Schema, frozen=True):
    """A figure that counters give: `times` * `count` / `per`; without `per` of a whole process."""

    name: Title
    count: Word
    per: WordOrNone = ""
    times: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


INSTRUCTIONS = CounterValue("instructions", "callgrind_instructions", "callgrind_ops")
"""Those of an operation, from counters that `instructions.count` gives."""


class Figure(Schema, frozen=True):
    """What the report says in one line: one arm (or BEST) against another one, or the control."""

    name: Title
    arm: Name
    over: Name = ""
    rows: Pattern | tuple[Pattern, ...] = ("*",)
    of: Title = OF_SPEED

    def covers(self, label: str) -> bool:
        """Whether a row counts."""
        return any(fnmatchcase(label, pattern) for pattern in _listed(self.rows))


class _File(Schema, frozen=True, kw_only=True):
    schema: Literal[1]
    question: Annotated[str, Meta(pattern=r"\A.{1,300}\?\Z")]
    instructions: bool = False
    pairs: Annotated[int, Meta(ge=LEAST_PAIRS, le=MOST_PAIRS)] = USUAL_PAIRS
    budget_s: Annotated[float, Meta(ge=LEAST_BUDGET_S, le=MOST_BUDGET_S)]
    seed: Annotated[int, Meta(ge=0, le=2**31)] = 1
    arm: tuple[_Arm, ...]
    row: tuple[_Row, ...]
    value: tuple[CounterValue, ...] = ()
    figure: tuple[Figure, ...] = ()


@dataclass(frozen=True, slots=True)
class Side:
    """One arm of an experiment, as it was asked for."""

    name: str  # in the results
    arm: Arm
    if_installed: bool  # whether the experiment goes on without it where it is not installed
    build: str  # which other build of hz it is; "": the installed allocator
    # where its parameters come from; None: from the definition. As long as there is no such file,
    # the arm has none.
    profile: Path | None


@dataclass(frozen=True, slots=True)
class ProgramRow:
    """A row that is a real program; what is started stands in no definition."""

    label: str  # how the program is called


@dataclass(frozen=True, slots=True)
class Experiment:
    """A question that measuring can answer."""

    folder: Path  # where it lives; its name is the experiment's
    file: _File  # what its definition says
    sides: tuple[Side, ...]  # the first one is the control
    rows: tuple[WorkloadSpec | ProgramRow, ...]

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.resolve().name

    @property
    def programs(self) -> tuple[str, ...]:
        """The names of the programs among its rows."""
        return tuple(row.label for row in self.rows if isinstance(row, ProgramRow))

    @property
    def values(self) -> tuple[CounterValue, ...]:
        """What its counters give."""
        return (*self.file.value, *[INSTRUCTIONS] * self.file.instructions)


def find(names: Sequence[str]) -> tuple[Path, ...]:
    """Returns the folders that are meant: of experiments by name or path, or "all" of them."""
    if [*names] == ["all"]:
        return tuple(sorted(path.parent for path in EXPERIMENTS.glob(f"*/{DEFINITION}")))
    here = [Path(name) for name in names]
    return tuple(path if path.is_dir() else EXPERIMENTS / path for path in here)


def load(folder: Path) -> Experiment:
    """Returns the experiment in a folder."""
    path = folder / DEFINITION
    said = files.read_toml(path, MOST_BYTES)
    try:
        file = judged(said, _File)
        sides = tuple(side for each in file.arm for side in _sides(folder, each))
        rows = tuple(row for each in file.row for row in _rows(each))
        experiment = Experiment(folder, file, sides, rows)
        _judge(experiment)
    except UsageError as error:
        raise UsageError(f"{str(path)!r}: {error}") from None
    return experiment


def _judge(experiment: Experiment) -> None:
    """Refuses what no measurement could answer."""
    file, names = experiment.file, [side.name for side in experiment.sides]
    labels = [row.label for row in experiment.rows]
    values, figures = (
        [each.name for each in listed] for listed in (experiment.values, file.figure)
    )
    every = (("arm", names, 2), ("row", labels, 1), ("value", values, 0), ("figure", figures, 0))
    for what, found, least in every:
        twice = [each for each, count in Counter(found).items() if count > 1]
        if twice:
            raise UsageError(f"the {what} {twice[0]!r} stands twice")
        if len(found) < least:
            raise UsageError(f"it has {len(found)} {what}s; legal is {least} at least")
    if experiment.sides[0].if_installed:
        raise UsageError("arm[0] is the control and cannot be left out; drop its if_installed")
    single = [r for r in experiment.rows if isinstance(r, WorkloadSpec) and r.threads == 1]
    if file.instructions and not single:
        raise UsageError("instructions are counted with one thread, and no row has threads = 1")
    kinds = [OF_SPEED, OF_MEMORY, *values]
    for figure in file.figure:
        for key, got, legal in (
            ("arm", figure.arm, [BEST, *names]),
            ("over", figure.over or names[0], names),
            ("of", figure.of, kinds),
        ):
            if got not in legal:
                said = f"figure {figure.name!r}: {key} is {got!r}"
                raise UsageError(f"{said}; legal is one of: {legal}")
        if not any(map(figure.covers, labels)):
            raise UsageError(f"figure {figure.name!r}: no row is called like {figure.rows}")


def _sides(folder: Path, asked: _Arm) -> Iterator[Side]:
    """Yields one arm for each combination of the listed parameters."""
    if asked.build and asked.allocator != "hz":
        raise UsageError(f"arm {asked.name!r}: only hz has builds, not {asked.allocator}")
    path = folder / asked.profile if asked.profile else None
    if path and asked.params:
        raise UsageError(f"arm {asked.name!r} has params and a profile; legal is one of the two")
    configs = [_of_profile(path, asked.allocator)] if path else _combinations(asked.params)
    varied = {key for key in asked.params if len({each[key] for each in configs}) > 1}
    for config in configs:
        told = [f"{k}={v}" for k, v in config.items() if k in varied or not asked.name]
        name = " ".join(filter(None, [asked.name, *told])) or asked.allocator
        arm = Arm.of(BUILD + asked.build if asked.build else asked.allocator, config)
        yield Side(name, arm, asked.if_installed, asked.build, path)


def _of_profile(path: Path, allocator: str) -> dict[str, Value]:
    """Returns the parameters of a profile; none as long as there is none."""
    if not path.exists():
        return {}
    tuned = profile.load(path)
    if tuned.allocator.name != allocator:
        raise UsageError(f"{str(path)!r} is a profile of {tuned.allocator.name}, not {allocator}")
    return dict(tuned.params)


def _rows(asked: _Row) -> Iterator[WorkloadSpec | ProgramRow]:
    """Yields one row for each program, or workload, number of threads and parameters."""
    workloads, programs, threads = map(_listed, (asked.workload, asked.program, asked.threads))
    if bool(programs) == bool(workloads) or bool(threads) != bool(workloads):
        raise UsageError("a row is a program, or a workload with its threads")
    yield from map(ProgramRow, programs)
    for workload, count, config in product(workloads, threads, _combinations(asked.params)):
        overrides = [f"{key}={value}" for key, value in config.items()]
        spec = WorkloadSpec.from_text(workload, overrides, count)
        yield replace(spec, steady=spec.steady and not asked.whole_runs)


def _combinations(params: Mapping[str, Value | tuple[Value, ...]]) -> list[dict[str, Value]]:
    """Every combination of the listed values; the empty one without any."""
    lists = map(_listed, params.values())
    return [dict(zip(params, values, strict=True)) for values in product(*lists)]


def _listed(value: object) -> tuple[Any, ...]:
    """A list, or the list of a single value."""
    return value if isinstance(value, tuple) else (value,)
