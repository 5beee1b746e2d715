"""Where rows come from: a Prometheus, a file or a command."""

from __future__ import annotations

import csv
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import suppress
from http.client import HTTPException
from typing import Any, NamedTuple

from hztune import files, process
from hztune.arguments import printable
from hztune.canary.spec import Canary
from hztune.errors import HztuneError, UsageError

_ANSWERED_S = 30.0
MOST_ROW_BYTES = 1 << 29
_LATEST_S = 1e11  # in the year 5138
_HEAD = ["time", "unit", "metric", "value"]
_NO_ANSWER = (OSError, ValueError, LookupError, TypeError, HTTPException)


class FleetRow(NamedTuple):
    at_s: float  # since 1970
    unit: str
    metric: str  # its name, or the query
    value: float


def fetched(canary: Canary, since_s: float, until_s: float) -> list[FleetRow]:
    """Rows of the canary's units in a stretch of time; a file and a command give all they have.

    HztuneError: the source does not answer, or not with rows.
    """
    spec, own = canary.spec, {unit.name for unit in canary.units}
    if spec.prometheus:
        return [row for name in spec.wanted for row in _queried(canary, name, since_s, until_s)]
    if spec.file:
        text, name = files.read_small(canary.folder / spec.file, MOST_ROW_BYTES), spec.file
    else:
        ended = process.run(["sh", "-c", spec.command], cwd=canary.folder,
                            deadline_s=_ANSWERED_S, output_limit=MOST_ROW_BYTES)  # fmt: skip
        if not ended.ok:
            raise HztuneError(f"the command of the canary {ended.describe()}")
        text, name = ended.stdout.encode(), "what the command prints"
    return [row for row in parsed_rows(text, name) if row.unit in own and row.metric in spec.wanted]


def row_line(row: FleetRow) -> bytes:
    """A row as a line of JSON, which `parsed_rows` reads."""
    return json.dumps(dict(zip(_HEAD, row, strict=True))).encode() + b"\n"


def parsed_rows(content: bytes, name: str) -> Iterator[FleetRow]:
    """Rows of CSV or of lines of JSON; a last line without its end is left for the next time.

    UsageError names the source and the line.
    """
    text = content.decode(errors="replace")
    lines = text[: text.rfind("\n") + 1].splitlines()
    is_json = text.lstrip().startswith("{")
    for number, line in enumerate(lines, start=1):
        try:
            found = json.loads(line) if is_json and line else {}
            words = [found[name] for name in _HEAD] if found else next(csv.reader([line]), [])
            if words and words != _HEAD:
                at, unit, metric, value = words
                if not float(str(at)) < _LATEST_S:
                    raise ValueError("its time is none, or in milliseconds")
                yield FleetRow(float(str(at)), str(unit), str(metric), float(str(value)))
        except (ValueError, LookupError, TypeError, RecursionError, csv.Error) as error:
            raise UsageError(
                f"{name}: line {number} is {printable(line)[:80]!r} ({error}); legal is "
                "time,unit,metric,value, the time in seconds since 1970"
            ) from None


def _queried(canary: Canary, query: str, since_s: float, until_s: float) -> Iterator[FleetRow]:
    spec, own, seen = canary.spec, {each.name for each in canary.units}, set[str]()
    told = set[tuple[str, float]]()
    asked = {"query": query, "start": since_s, "end": until_s, "step": spec.step_s}
    url = f"{spec.prometheus.rstrip('/')}/api/v1/query_range?{urllib.parse.urlencode(asked)}"
    for series in _answered(url, f"Prometheus, asked for {query!r},"):
        unit = series["metric"].get(spec.unit, "")
        seen.add(unit)
        if unit in own:
            for at, value in series["values"]:
                if (unit, at) in told:
                    raise UsageError(f"{query!r} has two series of {unit!r} at once; legal is one, "
                                     f"as by sum by ({spec.unit}) (...)")  # fmt: skip
                told.add((unit, at))
                yield FleetRow(float(at), unit, query, float(value))
    if seen and not seen & own:
        raise UsageError(
            f"no series of {query!r} is of a unit in the groups: the label {spec.unit!r} says "
            f"{printable(', '.join(sorted(seen)[:3]))!r}; name another with `unit`"
        )


def _answered(url: str, who: str) -> Iterable[Any]:
    try:
        with urllib.request.urlopen(url, timeout=_ANSWERED_S) as answer:
            return list(json.load(answer)["data"]["result"])
    except urllib.error.HTTPError as error:
        why = str(error.reason)
        with suppress(*_NO_ANSWER):  # it says more than its status
            why = str(json.load(error)["error"])
        raise HztuneError(f"{who} answers {error.code}: {printable(why)[:200]}") from None
    except _NO_ANSWER as error:
        raise HztuneError(f"{who} does not answer: {error}") from None
