"""Commands that say what there is: lists, paths, this machine and the processes that run on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from hztune import api
from hztune.arguments import key_value
from hztune.cli.options import JSON, FilledCommand, flag, offer, option, pid_option, print_answer
from hztune.errors import HztuneError, UnfitError, UsageError
from hztune.progress import mib

if TYPE_CHECKING:
    from hztune.attach import Diagnosis, Statistics
    from hztune.doctor import Check

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


def _formats() -> Listing:
    found = api.formats()
    rows = [(each.name, " ".join(each.allocators) or "all", each.doc) for each in found]
    return rows, [dict(name=f.name, allocators=list(f.allocators), doc=f.doc) for f in found]


def _named(rows: list[tuple[str, str]], second: str) -> Listing:
    return rows, [{"name": name, second: text} for name, text in rows]


_LISTS: dict[str, Callable[[], Listing]] = {
    "workloads": _workloads,
    "allocators": _allocators,
    "spaces": lambda: _named([(path.stem, str(path)) for path in api.spaces()], "path"),
    "formats": _formats,
    "policies": lambda: _named([(each, api.policy(each).doc) for each in api.policies()], "doc"),
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


# ---- this machine and its processes --------------------------------------------------------------


_STARTED = """
The process must have been started on hz with HZ_CONTROL=1, or with the agent preloaded, which
`hztune paths --agent` names. Only its user and root may ask.
"""
_PID = pid_option("The process.", required=True)


@click.command("doctor", params=[
    JSON, flag("--strict", "Exit with status 5 when the machine is unfit."),
    pid_option("Look at this process instead of the machine."),
])  # fmt: skip
def doctor_command(as_json: bool, strict: bool, pid: int | None) -> None:
    """Show what disturbs measurements here, and how to fix it.

    The machine's record follows. Nothing is changed. --json prints an object with the keys
    findings and machine.

    With --pid: how much memory a running process uses, how much its allocator holds, which
    settings are in effect, and what would help. A process that was started on hz with HZ_CONTROL=1,
    or with the agent preloaded (`hztune paths --agent`), reports that itself; of any other one,
    only what is visible from outside is printed.
    """
    if pid is not None:
        if strict:
            raise UsageError("--strict is about the machine and --pid about a process; give one")
        seen = api.diagnose(pid)
        print_answer(as_json, _with_ratios(seen), api.process_text("diagnosis", seen))
        return
    findings, machine = api.doctor(), api.machine()
    found = {"findings": [asdict(each) for each in findings], "machine": asdict(machine)}
    lines = [
        f"{each.verdict:8}{each.name}: {each.found}" + (f"  (fix: {each.mend})" * bool(each.mend))
        for each in findings
    ]
    record = [f"        {name}: {value}" for name, value in machine.described()]
    print_answer(as_json, found, [*lines, "the record of this machine:", *record])
    if strict:
        require_fit(findings)


def require_fit(findings: tuple[Check, ...]) -> None:
    unfit = [f"{each.name}: {each.found}" for each in findings if each.verdict == "unfit"]
    if unfit:
        raise UnfitError(
            f"this machine is unfit for measuring ({'; '.join(unfit)}); see `hztune doctor`"
        )


# ---- processes that take requests ----------------------------------------------------------------


@click.command("stats", params=[
    _PID, JSON, flag("--prometheus", "Print the text format of Prometheus; see `hztune metrics`."),
], help=f"Show what a running process holds.\n{_STARTED}")  # fmt: skip
def stats_command(pid: int, as_json: bool, prometheus: bool) -> None:
    found = api.process_statistics(pid)
    if prometheus:
        click.echo(api.metrics_text([found]), nl=False)
        return
    print_answer(as_json, _with_ratios(found), api.process_text("statistics", found))


@click.command("set", cls=FilledCommand, params=[
    _PID, JSON,
    click.Argument(["settings"], metavar="NAME=VALUE...", nargs=-1, required=True,
                   shell_complete=offer(lambda: [
                       f"{each.name}=" for each in api.parameters() if each.is_live
                   ])),
], help=f"""Change parameters of a running process's allocator.
{_STARTED}
Either all of them change or none. `hztune params --live --allocator NAME` lists those that may.
""")  # fmt: skip
def set_command(pid: int, as_json: bool, settings: tuple[str, ...]) -> None:
    pairs = dict(key_value(text) for text in settings)
    if len(pairs) < len(settings):
        raise UsageError("a parameter is given twice; give it one value")
    changed = api.change_process(pid, pairs)
    lines = [f"{name}: {changed.before[name]} -> {value}" for name, value in changed.after.items()]
    print_answer(as_json, asdict(changed), [str(changed.process), *lines])


@click.command("trim", params=[_PID, JSON], help=f"""Make a running process return unused memory.
{_STARTED}
On hz, what a thread has in its own caches is returned when that thread next finds one empty or
full; a thread that makes no calls keeps it.
""")  # fmt: skip
def trim_command(pid: int, as_json: bool) -> None:
    trimmed = api.trim_process(pid)
    if not trimmed.allocators and not as_json:
        raise UsageError(f"{trimmed.process} has no allocator that the agent can trim")
    before, after = trimmed.before.anonymous_bytes, trimmed.after.anonymous_bytes
    line = (
        f"{', '.join(trimmed.allocators)}: {mib(max(0, before - after))} given back "
        f"(anonymous memory {mib(before, '')} -> {mib(after)})"
    )
    print_answer(as_json, asdict(trimmed), [str(trimmed.process), line])


def _with_ratios(found: Statistics | Diagnosis) -> dict[str, Any]:
    parts = [{**asdict(part), "ratio": part.ratio} for part in found.parts]
    return {**asdict(found), "parts": parts}
