"""Where a study is kept: one log, `samples.jsonl` in its results directory."""

from hztune.store.rows import Evidence, Plan, Sink, blocks_of

__all__ = ["Evidence", "Plan", "Sink", "blocks_of"]
