"""The contenders of a row once more, asked how much of their allocators' memory they have.

A gate asks nothing: it is about speed, and answers as soon as it can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from hztune.compare.contenders import Contender, commands_of
from hztune.compare.match import LEAST_PAIRS, OVERTIME_S, Measured
from hztune.compare.preload import FileIdentity
from hztune.compare.targets import ProgramSpec
from hztune.measure.executors import RUN_S, program_identity
from hztune.measure.live_share import LiveShare, live_shares
from hztune.measure.program import Program, bench_program

ASKED_SHARE = 1.0 / LEAST_PAIRS
"""Most time for it, as a part of a row's: each contender has run so often at least."""


def ask_row(
    row: Measured,
    contenders: Sequence[Contender],
    programs: Mapping[ProgramSpec, Program],
    budget_s: float,
    seed: int,
) -> tuple[LiveShare, ...]:
    """Asks each contender of a row that has been measured.

    Args:
        row: With its blocks.
        contenders: In order.
        programs: What is run for the rows that are programs.
        budget_s: Seconds of the row.
        seed: Of every random choice.
    """
    well = [
        each
        for index, each in enumerate(contenders)
        if any(b.outcomes[index].ok for b in row.blocks)
    ]
    runs_s = [
        1e-9 * turn.counted_ns
        for block in row.blocks
        for each in block.outcomes
        for turn in each.turns
    ]
    seconds = min(ASKED_SHARE * max(budget_s, sum(runs_s)), max(0.0, row.left_s) + OVERTIME_S)
    identity, usual_s = FileIdentity(contenders), 0.0
    if isinstance(row.spec, ProgramSpec):
        program = replace(programs[row.spec], commands=commands_of(contenders))
        inside = [each.inside for each in contenders if each.inside is not None]
        identity = FileIdentity(contenders, program_identity(program, inside))
        usual_s = median(runs_s or [0.0])
    else:
        program = bench_program(row.spec, min(RUN_S, seconds / max(1, len(well))))
    found = live_shares(
        program, [each.arm for each in well], identity, seed=seed, seconds=seconds, usual_s=usual_s
    )
    by_name = {each.name: share for each, share in zip(well, found, strict=True)}
    silent = LiveShare(why="it did not run well")
    return tuple(by_name.get(each.name, silent) for each in contenders)
