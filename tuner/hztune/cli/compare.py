"""`hztune compare`: allocators, configurations and commands side by side; a gate for CI."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hztune import api
from hztune.cli.options import (
    ABOUT_PROGRAMS,
    PRIVATE,
    QUIET,
    SEED,
    ProgramCommand,
    flag,
    given_words,
    gone_on_with,
    offer,
    option,
    print_lines,
    programs_of,
    refuse_without_program,
    workload_names,
)
from hztune.errors import HztuneError, NotEnoughDataError, StoppedByUser, UsageError
from hztune.files import fresh_results
from hztune.progress import reporter

if TYPE_CHECKING:
    from hztune.comparing.comparison import Comparison
    from hztune.measure.program import Program

_STATUS = {"no worse": 0, "worse": 4, "not enough data": 6}
_MOST_NAMED = 3  # failing contenders that one sentence names

_HELP = """Measure allocators, configurations or programs side by side.

The first contender is the control: ratios are to it, with 95 % intervals; above 1 is faster. Each
row of the result is a workload (--workload), your own program (after --), one of several
(--command), or a server (--server). Ctrl-C ends the comparison with the rows so far; --resume goes
on with it.

\b
default                   hz with its defaults
PROFILE.json              what a profile describes
glibc, jemalloc, ...      an allocator with its defaults; `none`: the program unchanged
hz:shards=4,thp=on        an allocator with parameters
NAME=/path/to/lib.so      any other library that replaces malloc

If the program is {}, the contenders are commands that replace it, and all get the same arguments:

\b
hztune compare none jemalloc -- ./program its arguments
hztune compare ./old ./new -- {} its arguments
hztune compare OLD='./server-1' NEW='./server-2 --fast' --server '{} --port 7777' ...
hztune compare ./old ./new --command small='{} a.txt' --command large='{} b.txt'

A ratio comes only from pairs in which both contenders ended well; the table says how often one
failed.

With --no-worse 2%, the answer is whether the second of two contenders is more than 2 % slower than
the first one on any row; with --no-more-memory 5%, whether it takes more than 5 % more. The number
of pairs is planned from the time; an early look may end it.

\b
exit status   0  compared
              1  the first contender never ran: nothing was compared
              6  not enough data: a contender failed in at least half of the pairs of a row, or
                 the budget was too small for a row: what was measured is printed
with --no-worse or --no-more-memory
              0  no worse: more than that is excluded on every row
              1  the first contender never ran: nothing was compared
              4  worse: it is more on some row; or the second contender always fails
              6  not enough data: neither is shown; or a contender fails in some runs only
"""


_OPTIONS = [
    option("--workload -w NAME[@SETTING],...", "What to measure; see `hztune list workloads`.",
           "workloads", shell_complete=offer(workload_names)),
    option("--threads -t N,...", "Threads.  [default: CPUs here]"),
    option("--param -p KEY=VALUE", "A parameter of the workloads that have it.", "params",
           multiple=True),
    option("--budget TIME", "Time for all rows together.", default="60s"),
    option("--pairs N",
           "Fresh pairs for each row.  [default: 6; in a gate as the time allows]"),
    SEED,
    option("--no-worse PERCENT", "Test whether the second contender is slower by more than that."),
    option("--no-more-memory PERCENT",
           "Test whether it takes more memory by more than that: peak, and at rest what it keeps."),
    flag("--counters", "Print counters, too."),
    flag("--json", "Print JSON, with every sample and estimate.", "as_json"),
    flag("--markdown", "Print a Markdown table."),
    option("--csv FILE", "Write the figures there, too.", "csv_path"),
    option("--junit FILE", "Write the answers of a gate there as JUnit XML."),
    option("--out DIR", "Results directory.  [default: a new one in hztune-results]"),
    flag("--resume", "Go on with the comparison in --out."),
    PRIVATE, QUIET,
]  # fmt: skip
_CONTENDERS = click.Argument(
    ["contenders"], metavar="A B [C]...", nargs=-1,
    shell_complete=offer(lambda: ["default", *api.allocator_names()], files=True),
)  # fmt: skip


@click.command("compare", cls=ProgramCommand, help=_HELP,
               params=[*_OPTIONS, *ABOUT_PROGRAMS, _CONTENDERS])  # fmt: skip
def compare_command(
    contenders: tuple[str, ...],
    no_worse: str,
    no_more_memory: str,
    counters: bool,
    as_json: bool,
    markdown: bool,
    csv_path: Path | None,
    junit: Path | None,
    out: Path | None,
    resume: bool,
    quiet: bool,
    private: bool,
    budget: str,
    pairs: int | None,
    seed: int,
    **measured: Any,
) -> int:
    if resume and not contenders:
        return int(gone_on_with(out, "comparison.json"))
    if len(contenders) < 2:
        raise UsageError("compare needs at least two contenders (see `hztune compare --help`)")
    if as_json and markdown:
        raise UsageError("--json and --markdown exclude each other; give one of them")
    is_gate = bool(no_worse or no_more_memory)
    if junit is not None and not is_gate:
        raise UsageError("--junit writes the answers of a gate; give one, too: --no-worse 2%")
    if out is None and not resume:
        out = fresh_results("compare")
    _refuse_places(out, {"--csv": csv_path, "--junit": junit})
    programs = _programs(contenders, **measured)
    with reporter(quiet=quiet) as display:
        found = api.compare(
            contenders, measured["workloads"], program=programs, threads=measured["threads"],
            params=measured["params"], pairs=pairs, budget=budget, seed=seed, no_worse=no_worse,
            no_more_memory=no_more_memory, out=out, resume=resume,
            command=() if private else given_words(programs),
            reporter=display,
        )  # fmt: skip
    try:
        if csv_path is not None and found.standings:
            api.write_comparison(found, csv_path, "csv")
        if junit is not None:  # it tells of rows that were not measured, too
            api.write_comparison(found, junit, "junit")
    finally:  # a full disk takes the files, not the answer
        if as_json:
            click.echo(api.comparison_json(found), nl=False)
        elif found.standings:
            text = api.comparison_text(
                found.standings, found.answers, markdown=markdown, counters=counters
            )
            print_lines(text.split("\n"))
    answer = found.ruling if is_gate else ""
    how = "go on with the same command and" if private else "go on with: hztune compare"
    _require_answers(found, answer, f"{how} --resume --out {shlex.quote(str(out))}")
    return _STATUS.get(answer, 0)


def _refuse_places(out: Path | None, files: dict[str, Path | None]) -> None:
    """Sees to it that each file that is asked for can be written when all is measured."""
    for name, path in files.items():
        if path is not None and path.parent != out and not path.absolute().parent.is_dir():
            raise UsageError(f"{name} {str(path)!r}: there is no folder {str(path.parent)!r}")
        if path is not None and path.exists() and not path.is_file():
            raise UsageError(f"{name} {str(path)!r} is not a regular file; name another one")


def _programs(
    contenders: tuple[str, ...],
    *,
    workloads: str,
    threads: str,
    params: tuple[str, ...],
    commands: tuple[str, ...],
    words: tuple[str, ...],
    **about: Any,
) -> Sequence[Program]:
    programs = programs_of(words, commands, about)
    if programs and workloads:
        raise UsageError("--workload and a program exclude each other; give one of them")
    if programs and (threads or params):
        raise UsageError("--threads and --param are for workloads; a program has its arguments")
    if not programs and not workloads:
        api.contenders(contenders)  # one of them may be a program that lacks its dashes
        raise UsageError(
            "there is nothing to measure: give a program after --, --server with --load, --command"
            " NAME='PROGRAM ARGS', or --workload NAME (`hztune list workloads`)"
        )
    if not programs:
        refuse_without_program()
    return programs


def _require_answers(found: Comparison, answer: str, how: str) -> None:
    """Refuses what is no comparison, or only that of a few lucky runs, so that a script notices."""
    if found.stopped:
        cut = [row.words for row in found.rows if row.is_cut]
        rows, left = len(found.rows) + len(found.missing), len(cut) + len(found.missing)
        told = f"interrupted with {rows - left} of {rows} rows finished"
        raise StoppedByUser(f"{told}{f', and {cut[0]} saved' if cut else ''}; {how}")
    if answer not in ("", "not enough data"):
        return
    controls = [block.control for row in found.rows for block in row.blocks]
    if controls and not any(outcome.ok for outcome in controls):
        raise HztuneError(
            f"nothing could be compared: {found.contenders[0].name} never ran "
            f"({controls[-1].words})"
        )
    if late := [row for row in found.rows if row.enough_s]:
        told = " and ".join(row.words for row in late[:_MOST_NAMED])
        enough_s, more = max(each.enough_s for each in late), "one run takes longer than it"
        if math.isfinite(enough_s):
            more = f"--budget {enough_s:.0f}s would do"
        raise NotEnoughDataError(
            f"not enough data: the budget had time for {told}, of which nothing can be claimed; "
            f"{more}"
        )
    if not answer and (often := found.failing):
        more = f"; and {len(often) - _MOST_NAMED} more" if len(often) > _MOST_NAMED else ""
        raise NotEnoughDataError(
            f"not enough data: {'; '.join(often[:_MOST_NAMED])}{more}; start each by hand several "
            "times to see all that it prints, and mend it or leave it out"
        )
