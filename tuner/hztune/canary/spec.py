"""What a canary judges: a file (TOML) of metrics, guard rails, and where their rows come from."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Meta

from hztune import files, schema
from hztune.arguments import margin
from hztune.canary.groups import FleetUnit, read_groups
from hztune.errors import UsageError

_MOST_BYTES = 1 << 16
_Seconds = Annotated[float, Meta(ge=0.0, le=1e8)]


class _Asked(schema.Schema, frozen=True, kw_only=True):
    name: schema.Word
    query: str = ""  # in PromQL, a series for each unit; "": the rows have this name

    @property
    def rows(self) -> str:
        return self.query or self.name


class GuardRail(_Asked, frozen=True, kw_only=True):
    """Events that each unit counts since its start, such as restarts; each is bad."""

    most: Annotated[int, Meta(ge=0)] | None = None  # more of them than in a control as large


class CanaryMetric(_Asked, frozen=True, kw_only=True):
    """A figure of each unit; less of it is better, unless it says otherwise."""

    # what it may get worse by: "2%" of a ratio, treated to control, or a number of a difference
    margin: str | Annotated[float, Meta(gt=0.0)]
    target: bool = False  # to promote, one target must have become better
    per: str = ""  # a query, or name of rows, of what it is divided by: "requests"
    counter: bool = False  # it counts since a start, and so does `per`: their growth is meant
    more_is_better: bool = False

    @property
    def is_ratio(self) -> bool:
        return isinstance(self.margin, str)

    @property
    def worst(self) -> float:
        """The margin, in logarithms of a ratio or in units of the metric."""
        if not isinstance(self.margin, str):
            return self.margin
        sign = -1.0 if self.more_is_better else 1.0
        return sign * math.log1p(sign * margin(self.margin, f"margin of {self.name}"))


class CanarySpec(schema.Schema, frozen=True):
    doc: str
    start: str  # when all treated ones have the change; rows before are the baseline
    groups: str  # file of lines `unit,group,stratum`, from the spec's folder
    metrics: Annotated[tuple[CanaryMetric, ...], Meta(min_length=1)]
    rails: tuple[GuardRail, ...] = ()
    prometheus: schema.HttpUrl = ""  # base URL; or one of the next two
    file: str = ""  # CSV, or lines of JSON, with time, unit, metric, value
    command: str = ""  # a shell command that prints the same
    unit: schema.Word = "instance"  # label in Prometheus that names the unit
    step_s: Annotated[float, Meta(ge=1.0, le=1e5)] = 60.0  # a block: units are compared within
    baseline_s: _Seconds = 86400.0  # before the start
    settle_s: _Seconds = 300.0  # after the start, of which metrics are not counted, but rails are
    planned_s: Annotated[float, Meta(ge=10.0, le=1e8)] = 86400.0  # intervals are narrowest then
    error: Annotated[float, Meta(ge=1e-6, le=0.2)] = 0.02  # of any false promotion, or false revert
    hook: str = ""  # a shell command for *revert*; it reads the page on stdin

    def __post_init__(self) -> None:
        names = [each.name for each in (*self.metrics, *self.rails)]
        if sum(map(bool, (self.prometheus, self.file, self.command))) != 1:
            raise ValueError("Object has not one source: prometheus, file or command")
        if not any(each.target for each in self.metrics):
            raise ValueError("Object has no metric with target = true, which may promote")
        if len({*names}) < len(names):
            raise ValueError("Object has two metrics or rails of one name")

    @property
    def wanted(self) -> tuple[str, ...]:
        rows = [each.rows for each in (*self.metrics, *self.rails)]
        return tuple(dict.fromkeys([*rows, *(each.per for each in self.metrics if each.per)]))

    @property
    def revert_error(self) -> float:
        """Of each way to revert: a metric, or either test of a rail, of which silence is one."""
        return self.error / (len(self.metrics) + 2 * len(self.rails) + 2)


class Canary(NamedTuple):
    spec: CanarySpec
    folder: Path  # where the spec lies, and its commands run
    units: tuple[FleetUnit, ...]
    start_s: float  # since 1970


def load(path: Path) -> Canary:
    """The canary of a file; UsageError says what is wrong in it."""
    try:
        spec = schema.judged(files.read_toml(path, _MOST_BYTES), CanarySpec)
        _ = [each.worst for each in spec.metrics]
        start_s = schema.time_of("start", spec.start).timestamp()
    except UsageError as error:
        raise UsageError(f"canary {path}: {error}") from None
    return Canary(spec, path.parent, read_groups(path.parent / spec.groups), start_s)
