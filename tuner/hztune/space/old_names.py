"""A search space that was written with names that hz's parameters had before."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hztune import params

_TEXTS = ("share_of", "when", "rule")
"""Keys whose texts name parameters."""


def with_current_names_in(data: dict[str, Any], known: Collection[str]) -> None:
    """Puts the current names into what a file of hz says, and leaves out what was removed.

    Args:
        data: The file; it is changed.
        known: The parameters that there are; one of them is never left out.

    What is not of the form that it should be stays as it is: the reader refuses it.

    Raises:
        UsageError: A parameter stands there twice, under an old name too, and differently.
    """
    if data.get("allocator") != "hz":
        return
    for key in ("parameters", "not_searched"):
        if isinstance(data.get(key), dict):
            data[key] = _runnable(data[key], known)
    presets = _tables(data.get("preset"))
    for preset in presets:
        if isinstance(preset.get("set"), dict):
            preset["set"] = _runnable(preset["set"], known)
    parameters = data.get("parameters")
    named = parameters.values() if isinstance(parameters, dict) else ()
    rules = (table for key in ("forbid", "risk") for table in _tables(data.get(key)))
    for table in (*_tables(list(named)), *rules):
        for key in _TEXTS:
            if isinstance(table.get(key), str):
                table[key] = params.renamed_in(table[key])


def removed(data: dict[str, Any]) -> set[str]:
    """The names that no longer mean anything: a rule that needs one is left out."""
    if data.get("allocator") != "hz":
        return set()
    return {old.name for old in params.old_names().values() if not old.now}


def _runnable(named: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """What stands under the names of parameters, without what was removed."""
    now = params.with_current_names(named)
    return {name: v for name, v in now.items() if name in known or params.runnable({name: v})}


def _tables(values: object) -> list[dict[str, Any]]:
    """The tables of an array; whatever else is there is left to the reader."""
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []
