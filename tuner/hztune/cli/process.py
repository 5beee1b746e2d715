"""Commands about this machine and the processes that run on it: doctor, stats, set, trim."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from hztune import api
from hztune.arguments import key_value
from hztune.cli.options import JSON, flag, offer, pid_option, print_answer
from hztune.cli.program import FilledCommand
from hztune.errors import UnfitError, UsageError
from hztune.progress import mib

if TYPE_CHECKING:
    from hztune.attach import Diagnosis, Statistics
    from hztune.doctor import Check

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
