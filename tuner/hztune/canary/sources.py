"""Where rows come from: a Prometheus, a file or a command."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hztune import files, process
from hztune.arguments import printable
from hztune.canary.spec import Canary
from hztune.errors import HztuneError, UsageError
from hztune.prometheus import Series, queried

_ANSWERED_S = 120.0  # as Prometheus gives a query
MOST_ROW_BYTES = 1 << 29
_LATEST_S = 1e11  # in the year 5138
_HEAD = ["time", "unit", "metric", "value"]
_MOST_DOUBLED = 0.5  # of the points that a query finds
_MOST_POINTS = 10000  # Prometheus refuses to give more than 11,000


class FleetRow(NamedTuple):
    at_s: float  # since 1970
    unit: str
    metric: str  # its name, or the query
    value: float


def fetched(canary: Canary, names: Sequence[str], since_s: float, until_s: float) -> list[FleetRow]:
    """Rows of these names in a stretch of time; a file or a command gives all that it has.

    HztuneError: the source does not answer, or not with rows.
    """
    spec, own = canary.spec, {unit.name for unit in canary.units}
    if spec.prometheus:
        return [row for name in names for row in _rows_of(canary, name, since_s, until_s)]
    if spec.file:
        text, source = files.read_small(canary.folder / spec.file, MOST_ROW_BYTES), spec.file
    else:
        ended = process.run(["sh", "-c", spec.command], cwd=canary.folder,
                            deadline_s=_ANSWERED_S, output_limit=MOST_ROW_BYTES)  # fmt: skip
        if not ended.ok or ended.truncated:
            why = "prints too much" if ended.ok else ended.describe()
            raise HztuneError(f"the command of the canary {why}")
        text, source = ended.stdout.encode(), "what the command prints"
    rows = list(parsed_rows(text, source))
    _require_own({row.unit for row in rows}, own, f"row of {source} is of a unit in the groups")
    _require_own({row.metric for row in rows}, {*names}, f"row of {source} is of a metric that "
                 f"is asked for, such as {names[0]!r}")  # fmt: skip
    return [row for row in rows if row.unit in own and row.metric in names]


def row_line(row: FleetRow) -> bytes:
    return json.dumps(dict(zip(_HEAD, row, strict=True))).encode() + b"\n"


def parsed_rows(content: bytes, name: str) -> Iterator[FleetRow]:
    """Rows of CSV or JSON lines; an unended last line waits for more. UsageError names the line."""
    text = content.decode("utf-8-sig", "replace")
    lines = text[: text.rfind("\n") + 1].splitlines()
    is_json = text.lstrip().startswith("{")
    for number, line in enumerate(lines, start=1):
        try:
            found = json.loads(line) if is_json and line else {}
            words = [found[name] for name in _HEAD] if found else next(csv.reader([line]), [])
            if words and words != _HEAD:
                at, unit, metric, value = words
                if not abs(float(str(at))) < _LATEST_S:
                    raise ValueError("its time is none, or in milliseconds")
                yield FleetRow(float(str(at)), str(unit), str(metric), float(str(value)))
        except (ValueError, LookupError, TypeError, RecursionError, csv.Error) as error:
            raise UsageError(
                f"{name}: line {number} is {printable(line)[:80]!r} ({error}); legal is "
                "time,unit,metric,value, the time in seconds since 1970"
            ) from None


def _require_own(seen: set[str], own: set[str], what: str) -> None:
    if seen and seen.isdisjoint(own):
        some = printable(", ".join(sorted(seen)[:3]))
        raise UsageError(f"no {what}; there is {some!r}")


def _rows_of(canary: Canary, query: str, since_s: float, until_s: float) -> list[FleetRow]:
    """What a query finds; NaN where a unit has two series, as for a while after a restart."""
    spec, own, seen = canary.spec, {each.name for each in canary.units}, set[str]()
    found: dict[tuple[float, str], list[float]] = {}
    for labels, values in _stretches(canary, query, since_s, until_s):
        unit = labels.get(spec.unit, "")
        seen.add(unit)
        for at, value in values if unit in own else ():
            found.setdefault((at, unit), []).append(value)
    if query not in {each.rows for each in spec.rails}:  # of those some begin with an event
        _require_own(seen, own, f"series of {query!r} is of a unit in the groups by the label "
                     f"{spec.unit!r}, which `unit` names")  # fmt: skip
    doubled = [unit for (_, unit), values in found.items() if len(values) > 1]
    if len(doubled) > _MOST_DOUBLED * len(found):
        raise UsageError(
            f"{query!r} has two series of {doubled[0]!r} at once; legal is one, as by sum by "
            f"({spec.unit}) (...), of counters of their increase(...[1m]), then without `counter`"
        )
    return [FleetRow(at, unit, query, values[0] if len(values) == 1 else math.nan)
            for (at, unit), values in found.items()]  # fmt: skip


def _stretches(canary: Canary, query: str, since_s: float, until_s: float) -> Iterator[Series]:
    step_s = canary.spec.step_s
    for point in range(0, math.floor((until_s - since_s) / step_s) + 1, _MOST_POINTS):
        begin_s = since_s + point * step_s
        end_s = min(until_s, begin_s + (_MOST_POINTS - 1) * step_s)
        span = {"start": begin_s, "end": end_s, "step": step_s}
        yield from queried(canary.spec.prometheus, query, _ANSWERED_S, span)
