"""Commands that say what there is: workloads, allocators, spaces, formats, parameters, paths."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from hztune import api
from hztune.cli import completion
from hztune.errors import HztuneError


@dataclass(frozen=True, slots=True)
class Listing:
    """What a list prints: rows for people, records for machines."""

    rows: Sequence[tuple[str, ...]]
    records: Sequence[Mapping[str, object]]


@click.command("list")
@click.argument("what", type=click.Choice(["workloads", "allocators", "spaces", "formats"]))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(what: str, as_json: bool) -> None:
    """List what hztune can work with here."""
    listings: dict[str, Callable[[], Listing]] = {
        "workloads": _workloads,
        "allocators": _allocators,
        "spaces": _spaces,
        "formats": _formats,
    }
    listing = listings[what]()
    click.echo(json.dumps(listing.records, indent=2) if as_json else _columns(listing.rows))


@click.command("params")
@click.option("--allocator", default="hz", show_default=True, help="Whose parameters.",
              shell_complete=completion.offer_names(api.allocator_names))  # fmt: skip
@click.option(
    "--all", "with_experimental", is_flag=True, help="With those that only experiments set."
)
@click.option("--live", is_flag=True, help="Only those that may change while a process runs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
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


@click.command("paths")
@click.option("--lib", "what", flag_value="lib", help="libhz.so, for LD_PRELOAD.")
@click.option("--static-lib", "what", flag_value="static-lib", help="libhz.a.")
@click.option("--deepbind", "what", flag_value="deepbind",
              help="libhz-deepbind.so, for LD_PRELOAD beside another allocator.")  # fmt: skip
@click.option("--agent", "what", flag_value="agent",
              help="libhz-agent.so, for LD_PRELOAD of what is to be asked.")  # fmt: skip
@click.option("--recorder", "what", flag_value="recorder",
              help="libhz-recorder.so, for LD_PRELOAD of what is to be recorded.")  # fmt: skip
@click.option("--include", "what", flag_value="include", help="The headers: cc -I.")
@click.option("--cmake", "what", flag_value="cmake", help="The CMake package: -Dhz_DIR=.")
@click.option("--bench", "what", flag_value="bench", help="hz-bench, the workloads.")
@click.option("--launch", "what", flag_value="launch", help="hz-launch, the measuring starter.")
@click.option("--turns", "what", flag_value="turns", help="hz-turns, the conductor of turns.")
@click.option("--spaces", "what", flag_value="spaces", help="The search spaces.")
def paths_command(what: str | None) -> None:
    """Print where the built parts of hz are.

    With an option, that one path alone.
    """
    if what is not None:
        click.echo(str(api.paths()[what]()))
    else:
        click.echo(_columns([(name, _path_or_reason(find)) for name, find in api.paths().items()]))


def _path_or_reason(find: Callable[[], Path]) -> str:
    try:
        return str(find())
    except HztuneError as error:
        return f"- ({error})"


def _workloads() -> Listing:
    rows: list[tuple[str, ...]] = []
    found = api.workloads()
    for each in found:
        rows.append((each.text, each.doc))
        rows += [(f"{each.name}@{setting.name}", setting.doc) for setting in each.settings]
        rows += [(f"  -p {p.name}={p.default}", f"{p.doc}; {p.legal()}") for p in each.params]
    return Listing(rows, [asdict(each) for each in found])


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
    return Listing(rows, records)


def _spaces() -> Listing:
    rows = [(path.stem, str(path)) for path in api.spaces()]
    return Listing(rows, [{"name": name, "path": path} for name, path in rows])


def _formats() -> Listing:
    rows = [(f.name, " ".join(f.allocators) or "all", f.doc) for f in api.formats()]
    records = [
        {"name": f.name, "allocators": list(f.allocators), "doc": f.doc} for f in api.formats()
    ]
    return Listing(rows, records)


def _columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows as text in columns; the last one runs free."""
    if not rows:
        return ""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    padded = [
        [*(f"{cell:{w}}" for cell, w in zip(row, widths, strict=False)), row[-1]] for row in rows
    ]
    return "\n".join("  ".join(cells) for cells in padded)
