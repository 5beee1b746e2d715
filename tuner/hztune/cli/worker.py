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
hztune tune --workload larson --storage URL --study NAME    begins or resumes it
hztune worker --storage URL --study NAME                    adds a worker, as often as you like

A worker reads the request from the storage, compares candidates only with its own control, and
prints the verdict when the study has ended. One worker proves the finalist, on its own machine;
meanwhile the others wait. The budget is the whole study's, for any number of workers.

A worker may be killed at any time: its stored results stay, and another worker can take its
unfinished candidate at once. If a host will not come back, use --forget.

PostgreSQL needs the extra `distributed` (pip install 'hztune[distributed]'); put a password into
~/.pgpass or PGPASSWORD.
"""


@click.command("worker", help=_HELP)
@click.option(
    "--storage",
    required=True,
    metavar="URL",
    help="postgresql://USER@HOST/DATABASE, or sqlite:///FILE on one machine.",
)
@click.option(
    "--study", required=True, metavar="NAME", help="Name of the study, as given to `hztune tune`."
)
@click.option("--budget", metavar="TIME", help="Leave the study after that time.  [default: never]")
@click.option(
    "--out",
    type=Place(),
    metavar="DIR",
    help="Write a results directory at the end, too.",
)
@click.option(
    "--forget", metavar="HOST", help="Measure nothing; free what the workers of a lost host hold."
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
