"""experiment.toml: what is compared with what, on which rows, for how long.

schema = 1
question = "One sentence that ends with a question mark?"
budget_s = 300          # for all rows together
pairs = 6               # blocks of fresh processes a row (6 if left out)
metric = "ops_per_s"    # or "rss_peak_kb": what the headline is about (ops_per_s if left out)
headline = "big ring"   # the arm that the report compares with the first one; left out: the
                        # first one is compared with the best of the others, row by row
[[arm]]                 # the first one is the control
name = "default"        # left out: made from the parameters, or the allocator's name
allocator = "hz"
params = { remote_ring_size = [64, 256], shards = 4 }   # a list stands for one arm each
if_installed = true     # left out, with a word on stderr, where the allocator is not installed
[[row]]
workload = ["larson", "remote@main"]
threads = [2, 8]
params = { ws = 400 }   # of the workload; again, lists stand for one row each
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal, cast

from hztune import files
from hztune.compare.match import (
    LEAST_BUDGET_S,
    LEAST_PAIRS,
    MOST_BUDGET_S,
    MOST_PAIRS,
    USUAL_PAIRS,
)
from hztune.errors import UsageError
from hztune.params import Value
from hztune.samples import Arm
from hztune.strictjson import Fields
from hztune.workload import WorkloadSpec

DEFINITION = "experiment.toml"
MOST_BYTES = 64 * 1024

Metric = Literal["ops_per_s", "rss_peak_kb"]

_METRICS: tuple[Metric, ...] = ("ops_per_s", "rss_peak_kb")
_SCHEMA = 1
_MOST_SEED = 2**31
_QUESTION = re.compile(r".{1,300}\?")
_NAME = re.compile(r"[A-Za-z0-9_.:+=, -]{1,60}")
_WORKLOAD = re.compile(r"[a-z0-9-]+(@[a-zA-Z0-9_.-]+)?")


@dataclass(frozen=True, slots=True)
class Side:
    """One arm of an experiment, as it was asked for.

    Attributes:
        name: How it is called in the results.
        arm: Its allocator and parameters.
        if_installed: Whether the experiment goes on without it where it is not installed.
    """

    name: str
    arm: Arm
    if_installed: bool


@dataclass(frozen=True, slots=True)
class Experiment:
    """A question that measuring can answer.

    Attributes:
        folder: Where it lives; its name is the experiment's.
        question: In one sentence.
        metric: What the headline is about.
        headline: Name of the arm that the report compares with the first one; "": see above.
        pairs: Blocks of each row.
        budget_s: Seconds for all rows.
        seed: Of every random choice.
        sides: The first one is the control.
        rows: The workloads.
    """

    folder: Path
    question: str
    metric: Metric
    headline: str
    pairs: int
    budget_s: float
    seed: int
    sides: tuple[Side, ...]
    rows: tuple[WorkloadSpec, ...]

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.resolve().name


def find(words: tuple[str, ...], where: Path) -> tuple[Path, ...]:
    """Returns the folders that are meant: those named, or all experiments in `where`.

    Raises:
        UsageError: There is none, or one that is named is no experiment.
    """
    if words and words != ("all",):
        return tuple(Path(word) for word in words)
    found = tuple(sorted(path.parent for path in where.glob(f"*/{DEFINITION}")))
    if not found:
        raise UsageError(
            f"there is no experiment in {str(where)!r}; name a directory with an {DEFINITION}"
        )
    return found


def load(folder: Path) -> Experiment:
    """Returns the experiment in a folder.

    Raises:
        UsageError: There is none, or something in it is not legal.
    """
    path = folder / DEFINITION
    fields = Fields(files.read_toml(path, MOST_BYTES))
    try:
        return _experiment(folder, fields)
    except UsageError as error:
        raise UsageError(f"{str(path)!r}: {error}") from None


def _experiment(folder: Path, top: Fields) -> Experiment:
    top.whole("schema", _SCHEMA, _SCHEMA)
    metric = top.word("metric", _METRICS) if top.has("metric") else "ops_per_s"
    experiment = Experiment(
        folder=folder,
        question=top.text("question", _QUESTION),
        metric=cast("Metric", metric),
        headline=top.text("headline", _NAME) if top.has("headline") else "",
        pairs=top.whole("pairs", LEAST_PAIRS, MOST_PAIRS) if top.has("pairs") else USUAL_PAIRS,
        budget_s=top.number("budget_s", LEAST_BUDGET_S, MOST_BUDGET_S),
        seed=top.whole("seed", 0, _MOST_SEED) if top.has("seed") else 1,
        sides=tuple(side for each in top.children("arm") for side in _sides(each)),
        rows=tuple(row for each in top.children("row") for row in _rows(each)),
    )
    top.close()
    _judge(experiment)
    return experiment


def _judge(experiment: Experiment) -> None:
    """Refuses what no measurement could answer."""
    names = [side.name for side in experiment.sides]
    labels = [row.label for row in experiment.rows]
    for what, found, least in (("arm", names, 2), ("row", labels, 1)):
        twice = {each for each in found if found.count(each) > 1}
        if twice:
            raise UsageError(f"the {what} {min(twice)!r} stands twice")
        if len(found) < least:
            raise UsageError(f"it has {len(found)} {what}s; legal is {least} at least")
    if experiment.sides[0].if_installed:
        raise UsageError("arm[0] is the control and cannot be left out; drop its if_installed")
    if experiment.headline and experiment.headline not in names[1:]:
        raise UsageError(f"headline is {experiment.headline!r}; legal is one of: {names[1:]}")
    if experiment.metric != "ops_per_s" and not experiment.headline:
        raise UsageError(f"metric {experiment.metric} needs a headline: the name of an arm")


def _sides(fields: Fields) -> Iterator[Side]:
    """Yields one arm for each combination of the listed parameters."""
    allocator = fields.text("allocator")
    named = fields.text("name", _NAME) if fields.has("name") else ""
    if_installed = fields.has("if_installed") and fields.truth("if_installed")
    configs = list(_combinations(fields))
    fields.close()
    for config in configs:
        varied = " ".join(f"{key}={value}" for key, value in config.items())
        parts = [named, varied] if named and len(configs) > 1 else [named or varied or allocator]
        yield Side(" ".join(parts), Arm.of(allocator, config), if_installed)


def _rows(fields: Fields) -> Iterator[WorkloadSpec]:
    """Yields one row for each workload, number of threads and combination of parameters."""
    workloads = [_word(each) for each in _listed(fields, "workload")]
    threads = [_threads(each) for each in _listed(fields, "threads")]
    configs = list(_combinations(fields))
    fields.close()
    for workload, count, config in product(workloads, threads, configs):
        overrides = [f"{key}={value}" for key, value in config.items()]
        yield WorkloadSpec.from_text(workload, overrides, count)


def _combinations(fields: Fields) -> Iterator[dict[str, Value]]:
    """Yields every combination of the values in `params`; the empty one without them."""
    listed = fields.child("params").choices() if fields.has("params") else ()
    names = [name for name, _ in listed]
    for values in product(*(values for _, values in listed)):
        yield dict(zip(names, values, strict=True))


def _listed(fields: Fields, key: str) -> list[object]:
    """Returns a list, or the list of a single value."""
    value = fields.anything(key)
    return value if isinstance(value, list) else [value]


def _word(value: object) -> str:
    if not isinstance(value, str) or not _WORKLOAD.fullmatch(value):
        raise UsageError(f"a row's workload is {value!r}; legal is NAME or NAME@SETTING")
    return value


def _threads(value: object) -> int:
    if type(value) is not int:
        raise UsageError(f"a row's threads are {value!r}; legal is a whole number")
    return value
