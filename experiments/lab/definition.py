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

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path

from hztune import files, params, profile
from hztune.blocks import Arm
from hztune.compare.contenders import BUILD
from hztune.compare.gate import MOST_PAIRS
from hztune.compare.match import LEAST_BUDGET_S, LEAST_PAIRS, MOST_BUDGET_S, USUAL_PAIRS
from hztune.errors import UsageError
from hztune.workload import WorkloadSpec
from lab import builds
from lab.fields import Fields

EXPERIMENTS = Path(__file__).resolve().parents[1]
DEFINITION = "experiment.toml"
MOST_BYTES = 64 * 1024

BEST = "best"
OF_SPEED = "speed"
OF_MEMORY = "memory"
INSTRUCTIONS = "instructions"

_SCHEMA = 1
_MOST_SEED = 2**31
_QUESTION = re.compile(r".{1,300}\?")
_NAME = re.compile(r"[A-Za-z0-9_.:+=, -]{1,80}")
_TITLE = re.compile(r"[ -~]{1,80}")
_ROWS = re.compile(r"[A-Za-z0-9_.@+=* -]{1,80}")
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,60}\.json")
_MOST_TIMES = 1_000_000
_PROGRAM = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_WORKLOAD = re.compile(r"[a-z0-9-]+(@[a-zA-Z0-9_.-]+)?")


@dataclass(frozen=True, slots=True)
class Side:
    """One arm of an experiment, as it was asked for.

    Attributes:
        name: How it is called in the results.
        arm: Its allocator and parameters.
        if_installed: Whether the experiment goes on without it where it is not installed.
        build: Which other build of hz it is; "": the installed allocator.
        profile: Where its parameters come from; None: from the definition. As long as there is no
            such file, the arm has none.
    """

    name: str
    arm: Arm
    if_installed: bool = False
    build: str = ""
    profile: Path | None = None


@dataclass(frozen=True, slots=True)
class CounterValue:
    """A figure that counters give: `times` * `count` / `per`.

    Attributes:
        name: What it is called.
        count: Name of a counter.
        per: Name of another one; "": the count of a whole process.
        times: What it is multiplied with.
    """

    name: str
    count: str
    per: str = ""
    times: int = 1


@dataclass(frozen=True, slots=True)
class Figure:
    """What the report says in one line: one arm against another.

    Attributes:
        name: What it shows.
        arm: Name of the arm, or BEST.
        over: Name of the arm that it is compared with; "": the control.
        rows: Patterns of the labels of the rows that count.
        of: OF_SPEED, OF_MEMORY, INSTRUCTIONS, or the name of a value.
    """

    name: str
    arm: str
    over: str
    rows: tuple[str, ...]
    of: str

    def covers(self, label: str) -> bool:
        """Whether a row counts."""
        return any(fnmatchcase(label, pattern) for pattern in self.rows)


@dataclass(frozen=True, slots=True)
class ProgramRow:
    """A row that is a real program; what is started stands in no definition.

    Attributes:
        label: How the program is called.
    """

    label: str


@dataclass(frozen=True, slots=True)
class Experiment:
    """A question that measuring can answer.

    Attributes:
        folder: Where it lives; its name is the experiment's.
        question: In one sentence.
        instructions: Whether they are counted, too.
        pairs: Blocks of each row.
        budget_s: Seconds for all rows.
        seed: Of every random choice.
        sides: The first one is the control.
        rows: The workloads, or the programs.
        values: What its counters give.
        figures: What the report says of it.
    """

    folder: Path
    question: str
    instructions: bool
    pairs: int
    budget_s: float
    seed: int
    sides: tuple[Side, ...]
    rows: tuple[WorkloadSpec | ProgramRow, ...]
    values: tuple[CounterValue, ...]
    figures: tuple[Figure, ...]

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.resolve().name

    @property
    def programs(self) -> tuple[str, ...]:
        """The names of the programs among its rows."""
        return tuple(row.label for row in self.rows if isinstance(row, ProgramRow))


def find(names: Sequence[str]) -> tuple[Path, ...]:
    """Returns the folders that are meant: of experiments by name or path, or "all" of them."""
    if [*names] == ["all"]:
        return tuple(sorted(path.parent for path in EXPERIMENTS.glob(f"*/{DEFINITION}")))
    here = [Path(name) for name in names]
    return tuple(path if path.is_dir() else EXPERIMENTS / path for path in here)


def load(folder: Path) -> Experiment:
    """Returns the experiment in a folder."""
    path = folder / DEFINITION
    fields = Fields(files.read_toml(path, MOST_BYTES))
    try:
        return _experiment(folder, fields)
    except UsageError as error:
        raise UsageError(f"{str(path)!r}: {error}") from None


def _experiment(folder: Path, top: Fields) -> Experiment:
    top.whole("schema", _SCHEMA, _SCHEMA)
    experiment = Experiment(
        folder=folder,
        question=top.text("question", _QUESTION),
        instructions=top.has("instructions") and top.truth("instructions"),
        pairs=top.whole("pairs", LEAST_PAIRS, MOST_PAIRS) if top.has("pairs") else USUAL_PAIRS,
        budget_s=top.number("budget_s", LEAST_BUDGET_S, MOST_BUDGET_S),
        seed=top.whole("seed", 0, _MOST_SEED) if top.has("seed") else 1,
        sides=tuple(side for each in top.children("arm") for side in _sides(folder, each)),
        rows=tuple(row for each in top.children("row") for row in _rows(each)),
        values=tuple(_value(each) for each in _optional(top, "value")),
        figures=tuple(_figure(each) for each in _optional(top, "figure")),
    )
    top.close()
    _judge(experiment)
    for figure in experiment.figures:
        _judge_figure(figure, experiment)
    return experiment


def _judge(experiment: Experiment) -> None:
    """Refuses what no measurement could answer."""
    for what, found, least in (
        ("arm", [side.name for side in experiment.sides], 2),
        ("row", [row.label for row in experiment.rows], 1),
        ("value", [value.name for value in experiment.values], 0),
        ("figure", [figure.name for figure in experiment.figures], 0),
    ):
        twice = [each for each, count in Counter(found).items() if count > 1]
        if twice:
            raise UsageError(f"the {what} {twice[0]!r} stands twice")
        if len(found) < least:
            raise UsageError(f"it has {len(found)} {what}s; legal is {least} at least")
    if experiment.sides[0].if_installed:
        raise UsageError("arm[0] is the control and cannot be left out; drop its if_installed")
    single = [r for r in experiment.rows if isinstance(r, WorkloadSpec) and r.threads == 1]
    if experiment.instructions and not single:
        raise UsageError("instructions are counted with one thread, and no row has threads = 1")


def _judge_figure(figure: Figure, experiment: Experiment) -> None:
    """Refuses a figure of something that the experiment does not have."""
    names = [side.name for side in experiment.sides]
    kinds = [OF_SPEED, OF_MEMORY, *(value.name for value in experiment.values)]
    kinds += [INSTRUCTIONS] if experiment.instructions else []
    for key, got, legal in (
        ("arm", figure.arm, [BEST, *names]),
        ("over", figure.over or names[0], names),
        ("of", figure.of, kinds),
    ):
        if got not in legal:
            raise UsageError(f"figure {figure.name!r}: {key} is {got!r}; legal is one of: {legal}")
    if not any(figure.covers(row.label) for row in experiment.rows):
        raise UsageError(f"figure {figure.name!r}: no row is called like {figure.rows}")


def _optional(fields: Fields, key: str) -> tuple[Fields, ...]:
    return fields.children(key) if fields.has(key) else ()


def _value(fields: Fields) -> CounterValue:
    value = CounterValue(
        name=fields.text("name", _TITLE),
        count=fields.text("count"),
        per=fields.text("per") if fields.has("per") else "",
        times=fields.whole("times", 1, _MOST_TIMES) if fields.has("times") else 1,
    )
    fields.close()
    return value


def _figure(fields: Fields) -> Figure:
    figure = Figure(
        name=fields.text("name", _TITLE),
        arm=fields.text("arm", _NAME),
        over=fields.text("over", _NAME) if fields.has("over") else "",
        rows=tuple(_pattern(each) for each in _listed(fields, "rows"))
        if fields.has("rows")
        else ("*",),
        of=fields.text("of", _TITLE) if fields.has("of") else OF_SPEED,
    )
    fields.close()
    return figure


def _sides(folder: Path, fields: Fields) -> Iterator[Side]:
    """Yields one arm for each combination of the listed parameters."""
    allocator = fields.text("allocator")
    named = fields.text("name", _NAME) if fields.has("name") else ""
    if_installed = fields.has("if_installed") and fields.truth("if_installed")
    build = fields.word("build", tuple(builds.BUILDS)) if fields.has("build") else ""
    if build and allocator != "hz":
        raise UsageError(f"arm {named!r}: only hz has builds, not {allocator}")
    path = folder / fields.text("profile", _FILE) if fields.has("profile") else None
    configs = [_of_profile(path, allocator)] if path else list(_combinations(fields))
    fields.close()
    for config in configs:
        told = {key for key in config if not named or len({each[key] for each in configs}) > 1}
        varied = " ".join(f"{key}={value}" for key, value in config.items() if key in told)
        parts = [named, varied] if named and varied else [named or varied or allocator]
        arm = Arm.of(BUILD + build if build else allocator, config)
        yield Side(" ".join(parts), arm, if_installed, build, path)


def _of_profile(path: Path, allocator: str) -> dict[str, params.Value]:
    """Returns the parameters of a profile; none as long as there is none."""
    if not path.exists():
        return {}
    tuned = profile.load(path)
    if tuned.allocator.name != allocator:
        raise UsageError(f"{str(path)!r} is a profile of {tuned.allocator.name}, not {allocator}")
    return dict(tuned.params)


def _rows(fields: Fields) -> Iterator[WorkloadSpec | ProgramRow]:
    """Yields one row for each program, or workload, number of threads and parameters."""
    if fields.has("program"):
        names = [_program(each) for each in _listed(fields, "program")]
        fields.close()
        yield from map(ProgramRow, names)
        return
    workloads = [_word(each) for each in _listed(fields, "workload")]
    threads = [_threads(each) for each in _listed(fields, "threads")]
    configs = list(_combinations(fields))
    is_whole = fields.has("whole_runs") and fields.truth("whole_runs")
    fields.close()
    for workload, count, config in product(workloads, threads, configs):
        overrides = [f"{key}={value}" for key, value in config.items()]
        spec = WorkloadSpec.from_text(workload, overrides, count)
        yield replace(spec, steady=spec.steady and not is_whole)


def _combinations(fields: Fields) -> Iterator[dict[str, params.Value]]:
    """Yields every combination of the values in `params`; the empty one without them."""
    listed = fields.child("params").choices() if fields.has("params") else ()
    names = [name for name, _ in listed]
    for values in product(*(values for _, values in listed)):
        yield dict(zip(names, values, strict=True))


def _listed(fields: Fields, key: str) -> list[object]:
    """Returns a list, or the list of a single value."""
    value = fields.anything(key)
    return value if isinstance(value, list) else [value]


def _pattern(value: object) -> str:
    if not isinstance(value, str) or not _ROWS.fullmatch(value):
        raise UsageError(f"a figure's rows are {value!r}; legal are patterns like 'larson *'")
    return value


def _word(value: object) -> str:
    if not isinstance(value, str) or not _WORKLOAD.fullmatch(value):
        raise UsageError(f"a row's workload is {value!r}; legal is NAME or NAME@SETTING")
    return value


def _program(value: object) -> str:
    if not isinstance(value, str) or not _PROGRAM.fullmatch(value):
        raise UsageError(f"a row's program is {value!r}; legal is a name of a-z, 0-9 and dashes")
    return value


def _threads(value: object) -> int:
    if type(value) is not int:
        raise UsageError(f"a row's threads are {value!r}; legal is a whole number")
    return value
