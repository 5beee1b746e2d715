"""Commands about the machine: is it fit to measure on."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hztune import api
from hztune.errors import UnfitError

if TYPE_CHECKING:
    from hztune.doctor import Check


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--strict", is_flag=True, help="Exit with status 5 when the machine is unfit.")
def doctor_command(as_json: bool, strict: bool) -> None:
    """Show what disturbs measurements here, and what mends it.

    The machine's record follows. Nothing is changed. With --json it is an object with the keys
    findings and machine.
    """
    findings, machine = api.doctor(), api.machine()
    if as_json:
        found = {"findings": [asdict(each) for each in findings], "machine": asdict(machine)}
        click.echo(json.dumps(found, indent=2))
    else:
        record = [f"        {name}: {value}" for name, value in machine.described()]
        lines = [*map(_line, findings), "the record of this machine:", *record]
        click.echo("\n".join(lines))
    if strict:
        require_fit(findings)


def require_fit(findings: tuple[Check, ...]) -> None:
    """Refuses to measure on a machine where measurements mean little.

    Raises:
        UnfitError: something was found that makes them so.
    """
    unfit = [f"{each.name}: {each.found}" for each in findings if each.verdict == "unfit"]
    if unfit:
        raise UnfitError(
            f"this machine is unfit for measuring ({'; '.join(unfit)}); see `hztune doctor`"
        )


def _line(finding: Check) -> str:
    mend = f"  (mend it: {finding.mend})" if finding.mend else ""
    return f"{finding.verdict:8}{finding.name}: {finding.found}{mend}"
