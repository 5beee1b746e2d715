"""Commands that say what there is: workloads, allocators, spaces, formats, parameters, paths."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import click

from hztune import api
from hztune.cli.options import JSON, flag, offer, option
from hztune.cli.program import FilledCommand
from hztune.errors import HztuneError

Listing = tuple[Sequence[tuple[str, ...]], Sequence[Mapping[str, object]]]
"""What a list prints: rows for people, records for machines."""


def _workloads() -> Listing:
    rows: list[tuple[str, ...]] = []
    found = api.workloads()
    for each in found:
        rows.append((each.text, each.doc))
        rows += [(f"{each.name}@{setting.name}", setting.doc) for setting in each.settings]
        rows += [(f"  -p {p.name}={p.default}", f"{p.doc}; {p.legal()}") for p in each.params]
    return rows, [asdict(each) for each in found]


def _allocators() -> Listing:
    rows: list[tuple[str, ...]] = []
    records: list[dict[str, object]] = []
    for name, state in api.allocators().items():
        if isinstance(state, HztuneError):
            rows.append((name, "-", str(state)))
            records.append({"name": name, "installed": False, "remedy": str(state)})
        else:
            path = str(state.path) if state.sha256 else ""
            rows.append((name, state.version or "-", path or "the unchanged program"))
            records.append({**asdict(state), "path": path, "installed": True, "remedy": ""})
    return rows, records


def _spaces() -> Listing:
    rows = [(path.stem, str(path)) for path in api.spaces()]
    return rows, [{"name": name, "path": path} for name, path in rows]


def _formats() -> Listing:
    rows, records = list[tuple[str, ...]](), []
    for each in api.formats():
        rows.append((each.name, " ".join(each.allocators) or "all", each.doc))
        records.append(dict(name=each.name, allocators=list(each.allocators), doc=each.doc))
    return rows, records


def _policies() -> Listing:
    rows = [(name, api.policy(name).doc) for name in api.policies()]
    return rows, [{"name": name, "doc": doc} for name, doc in rows]


_LISTS = {
    "workloads": _workloads,
    "allocators": _allocators,
    "spaces": _spaces,
    "formats": _formats,
    "policies": _policies,
}


@click.command("list", params=[click.Argument(["what"], type=click.Choice([*_LISTS])), JSON])
def list_command(what: str, as_json: bool) -> None:
    """List what hztune can work with here."""
    _print(*_LISTS[what](), as_json=as_json)


@click.command("params", cls=FilledCommand, params=[
    option("--allocator TEXT", "Whose parameters.", default="hz",
           shell_complete=offer(lambda: api.allocator_names())),
    flag("--all", "With those that only experiments set.", "with_experimental"),
    flag("--live", "Only those that may change while a process runs."),
    JSON,
])  # fmt: skip
def params_command(allocator: str, with_experimental: bool, live: bool, as_json: bool) -> None:
    """Print the table of parameters."""
    table = [
        row
        for row in api.parameters(allocator)
        if (with_experimental or not row.is_experimental) and (row.is_live or not live)
    ]
    rows = [(row.name, str(row.default), row.legal(), row.doc) for row in table]
    _print(rows, [asdict(row) for row in table], as_json=as_json)


@click.command("paths", params=[
    click.Option([f"--{name}", "what"], flag_value=name, help=f"{told}.")
    for name, (told, _) in api.paths().items()
])  # fmt: skip
def paths_command(what: str | None) -> None:
    """Print where the built parts of hz are.

    With an option, that one path alone.
    """
    if what is not None:
        click.echo(str(api.paths()[what][1]()))
        return
    rows = []
    for name, (_, find) in api.paths().items():
        try:
            rows.append((name, str(find())))
        except HztuneError as error:
            rows.append((name, f"- ({error})"))
    _print(rows, (), as_json=False)


def _print(
    rows: Sequence[tuple[str, ...]], records: Sequence[Mapping[str, object]], *, as_json: bool
) -> None:
    if as_json or not rows:
        click.echo(json.dumps(records, indent=2) if as_json else "")
        return
    *widths, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    for row in rows:
        padded = [f"{cell:{width}}" for cell, width in zip(row, [*widths, 1], strict=True)]
        click.echo("  ".join(padded))
