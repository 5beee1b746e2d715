"""Samples as columns, which numpy and every data frame library take as they are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

Columns = dict[str, list[Any]]
"""By name, as many values each, of one type; None where a sample has no such value."""

_OF_THE_LINE = ("seq", "schema", "kind", "crc")


def columns(lines: Iterable[bytes], kind: str) -> Columns:
    """The samples of one kind; what is named within one has a column of its own: "params.thp"."""
    rows = [_flat(row) for row in map(json.loads, lines) if row["kind"] == kind]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _of_one_type([row.get(name) for row in rows]) for name in names}


def _of_one_type(values: list[Any]) -> list[Any]:
    """The values as texts where some are ("auto" and 4), as floats where some numbers are."""
    types = {type(each) for each in values if each is not None}
    if len(types) < 2 or not types <= {str, int, float}:
        return values
    kind = str if str in types else float
    return [None if each is None else kind(each) for each in values]


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat.update({f"{name}.{inner}": each for inner, each in value.items()})
        elif name not in _OF_THE_LINE:
            flat[name] = value
    return flat
