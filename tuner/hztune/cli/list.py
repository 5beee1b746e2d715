"""Commands that say what there is: workloads, allocators, spaces, formats, parameters, paths."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import click

from hztune import api
from hztune.cli.options import JSON, flag, offer, option
from hztune.cli.program import FilledCommand
from hztune.errors import HztuneError

Listing = tuple[Sequence[tuple[str, ...]], Sequence[Mapping[str, object]]]
"""What a list prints: rows for people, records for machines."""


@click.command("list", params=[
    click.Argument(["what"], type=click.Choice(["workloads", "allocators", "spaces", "formats"])),
    JSON,
])  # fmt: skip
def list_command(what: str, as_json: bool) -> None:
    """List what hztune can work with here."""
    listings: dict[str, Callable[[], Listing]] = {
        "workloads": _workloads,
        "allocators": _allocators,
        "spaces": _spaces,
        "formats": _formats,
    }
    rows, records = listings[what]()
    click.echo(json.dumps(records, indent=2) if as_json else _columns(rows))


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
    if as_json:
        click.echo(json.dumps([asdict(row) for row in table], indent=2))
    else:
        click.echo(_columns([(row.name, str(row.default), row.legal(), row.doc) for row in table]))


_PATHS = {
    "lib": "libhz.so, for LD_PRELOAD.",
    "static-lib": "libhz.a.",
    "deepbind": "libhz-deepbind.so, for LD_PRELOAD beside another allocator.",
    "agent": "libhz-agent.so, for LD_PRELOAD of what is to be asked.",
    "recorder": "libhz-recorder.so, for LD_PRELOAD of what is to be recorded.",
    "include": "The headers: cc -I.",
    "cmake": "The CMake package: -Dhz_DIR=.",
    "bench": "hz-bench, the workloads.",
    "launch": "hz-launch, the measuring starter.",
    "turns": "hz-turns, the conductor of turns.",
    "spaces": "The search spaces.",
}


@click.command("paths", params=[
    click.Option([f"--{name}", "what"], flag_value=name, help=told) for name, told in _PATHS.items()
])  # fmt: skip
def paths_command(what: str | None) -> None:
    """Print where the built parts of hz are.

    With an option, that one path alone.
    """
    if what is not None:
        click.echo(str(api.paths()[what]()))
        return
    rows = []
    for name, find in api.paths().items():
        try:
            rows.append((name, str(find())))
        except HztuneError as error:
            rows.append((name, f"- ({error})"))
    click.echo(_columns(rows))


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
        if not isinstance(state, HztuneError):
            path = str(state.path) if state.sha256 else ""
            rows.append((name, state.version or "-", path or "the unchanged program"))
            records.append({**asdict(state), "path": path, "installed": True, "remedy": ""})
        else:
            rows.append((name, "-", str(state)))
            records.append({"name": name, "installed": False, "remedy": str(state)})
    return rows, records


def _spaces() -> Listing:
    rows = [(path.stem, str(path)) for path in api.spaces()]
    return rows, [{"name": name, "path": path} for name, path in rows]


def _formats() -> Listing:
    found = api.formats()
    rows = [(each.name, " ".join(each.allocators) or "all", each.doc) for each in found]
    return rows, [
        {"name": each.name, "allocators": list(each.allocators), "doc": each.doc} for each in found
    ]


def _columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows as text in columns; the last one runs free."""
    if not rows:
        return ""
    *widths, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    padded = ([f"{cell:{w}}" for cell, w in zip(row, [*widths, 1], strict=True)] for row in rows)
    return "\n".join("  ".join(cells) for cells in padded)
