"""`hztune worker`: another process, here or elsewhere, that takes part in a shared study."""

from __future__ import annotations

from pathlib import Path

import click

from hztune import api
from hztune.arguments import parse_duration
from hztune.cli.program import Place
from hztune.cli.tune import print_result, write_report
from hztune.progress import reporter

_HELP = """Take part in a study that several workers share.

\b
hztune tune --workload larson --storage URL --study NAME    begins it (or goes on with it)
hztune worker --storage URL --study NAME                    joins it, as often as you like

A worker reads the request from the storage, compares every candidate with the default in blocks
of its own, and prints the verdict when the study has ended. One of the workers proves the finalist,
on its own machine; meanwhile the others stand by. The budget is the study's, however many take
part.

A worker may be killed at any time: whatever it has entered is kept, and what it was measuring is
free again at once. Of a host that went down for good you have to tell, with --forget.

PostgreSQL needs the extra `distributed` (pip install 'hztune[distributed]'); a password belongs
into ~/.pgpass or PGPASSWORD.
"""


@click.command("worker", help=_HELP)
@click.option(
    "--storage",
    required=True,
    metavar="URL",
    help="postgresql://USER@HOST/DATABASE, or sqlite:///FILE on one machine.",
)
@click.option("--study", required=True, metavar="NAME", help="As given to `hztune tune`.")
@click.option("--budget", metavar="TIME", help="Leave after that time.  [default: never]")
@click.option(
    "--out",
    type=Place(),
    metavar="DIR",
    help="Write a results directory at the end, too.",
)
@click.option(
    "--forget", metavar="HOST", help="Only free what workers of a host hold that is gone for good."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
def worker_command(
    storage: str,
    study: str,
    budget: str | None,
    out: Path | None,
    forget: str | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Reads the request from the storage and measures until the study has ended."""
    address = api.study_address(storage, study)
    if forget is not None:
        click.echo(f"freed what {api.forget(address, forget)} worker(s) of {forget} held")
        return 0
    budget_s = None if budget is None else parse_duration(budget, "--budget")
    with reporter(quiet=quiet) as display:
        result = api.join(address, budget_s=budget_s, out=out, reporter=display)
    if result is None:
        click.echo(f"left the study {study} after {budget}; it has not ended", err=True)
        return 0
    status = print_result(result, as_json=as_json)
    write_report(result)
    return status
