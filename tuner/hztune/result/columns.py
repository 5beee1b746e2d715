"""Blocks as columns of equal length, for pandas, polars, numpy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hztune.blocks import Block
from hztune.stats.ratios import log_memory_ratio, pair_ratio
from hztune.store.rows import Columns, as_columns


def block_columns(measured: Iterable[tuple[str, Block]], names: Sequence[str] = ()) -> Columns:
    """A row for each arm of each block, the control first, with its ratios to that.

    `measured`: blocks, each with its workload. `names`: of the arms, where they have some.
    """
    rows = []
    for workload, block in measured:
        for place, outcome in enumerate(block.outcomes):
            speed = pair_ratio(block.control, outcome)
            memory = log_memory_ratio(block.control, outcome)
            rows.append(
                {
                    "block": block.number,
                    "role": block.role,
                    "workload": workload,
                    "arm": names[place] if names else outcome.arm.text,
                    "allocator": outcome.arm.allocator,
                    "is_control": place == 0,
                    "status": outcome.status,
                    "detail": outcome.detail,
                    "ops_per_s": outcome.ops_per_s if outcome.ok else None,
                    "ratio": math.exp(speed.log_ratio) if speed else None,
                    "rss_peak_kb": outcome.rss_peak_kb or None,
                    "rss_ratio": None if memory is None else math.exp(memory),
                    **{f"params.{name}": value for name, value in outcome.arm.params},
                }
            )
    return as_columns(rows)
