"""Contenders side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hztune.compare import contenders as sides_of
from hztune.errors import UsageError
from hztune.progress import Quiet, Reporter

if TYPE_CHECKING:
    from hztune.compare.comparison import Comparison
    from hztune.compare.contenders import Contender
    from hztune.measure.program import Program
    from hztune.workload import WorkloadSpec


def contenders(texts: Sequence[str], *, are_commands: bool = False) -> tuple[Contender, ...]:
    """What to compare; the first is the control. As `hztune compare --help` explains them.

    Args:
        texts: "default", "jemalloc", ...; of commands "./new", or NAME='./new --fast'.
        are_commands: Whether they are commands, for programs whose words begin with {}.

    Raises:
        UsageError: One of them does not exist, or is not legal.
    """
    if isinstance(texts, str):
        raise UsageError(f"the contenders {texts!r} are one text; give several: ('none', 'hz')")
    return sides_of.parse(texts, are_commands=are_commands)


def rows(workloads: str, threads: str = "", params: Sequence[str] = ()) -> tuple[WorkloadSpec, ...]:
    """The rows of a comparison: every workload with every number of threads.

    Args:
        workloads: "larson,remote@main".
        threads: "2,8,32"; "": as many as there are CPUs.
        params: "KEY=VALUE", for the workloads that have such a parameter.

    Raises:
        UsageError: One of them does not exist, or cannot run here.
    """
    from hztune.compare.conduct import specs_of

    specs = specs_of(workloads, threads, params)
    for spec in specs:
        spec.check()
    return specs


def compare(
    sides: Sequence[Contender],
    specs: Sequence[WorkloadSpec | Program],
    *,
    pairs: int | None = None,
    budget_s: float = 60.0,
    seed: int = 1,
    no_worse: str | None = None,
    out: Path | None = None,
    resume: bool = False,
    command: tuple[str, ...] = (),
    reporter: Reporter | None = None,
) -> Comparison:
    """Measures contenders side by side.

    When a row is measured, each contender runs once more, and is asked how much of the memory that
    its allocator holds the program has (`live` of its standing); with `no_worse` it is not.

    Args:
        sides: From `contenders`.
        specs: From `rows`, or programs from `program`.
        pairs: Blocks of fresh processes for each row; None: 6, or with `no_worse` as many as there
            is time for.
        budget_s: Seconds for all rows together.
        seed: Of every random choice.
        no_worse: What the second of two may lose of its speed, "2%"; None: nothing is tested.
            The answer is `ruling` of what is returned.
        out: A directory for every sample, as soon as it exists, and the record; None: none.
        resume: Whether to go on with the comparison in `out`, which was asked for alike.
        command: The words that asked for it, to be kept in `out`; () keeps none.
        reporter: Is told how it goes; None: nothing is shown.

    Returns:
        What was measured. Where Ctrl-C ended it (`stopped`), `left` says which rows are not
        finished, and how many pairs of each are kept in `out`.

    Raises:
        UsageError: Something is not legal; nothing was measured.
    """
    from hztune.compare import conduct

    told = reporter or Quiet()
    return conduct.compare(
        sides, specs, pairs, budget_s, seed, no_worse, out, told, resume=resume, command=command
    )


def ruling(found: Comparison) -> str:
    """What a comparison with `no_worse` says: "no worse", "worse" or "not enough data"."""
    from hztune.compare.gate import whole

    return whole(found.answers)


def failing(found: Comparison) -> list[str]:
    """Which contenders failed in at least half of the pairs of a row, with how often and how."""
    from hztune.compare import match

    return [
        f"{row.spec.label}: {words}"
        for row in found.rows
        for words in match.failing(found.contenders, row.blocks, 0.5).values()
    ]


def comparison_text(found: Comparison, *, markdown: bool = False, counters: bool = False) -> str:
    """A comparison for people, or as a table for a Markdown document."""
    from hztune.compare import table

    if markdown:
        return table.markdown(found.standings, found.answers)
    return table.plain(found.standings, found.answers, counters=counters)
