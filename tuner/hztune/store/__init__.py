"""Where a study is kept: one log, `samples.jsonl` in its results directory.

`rows` is what an executor tells and what blocks are made of again; `log` is how rows are written,
the study that is open for measuring, and what a directory says of its own; `kept_command` is the
command of a study.
"""

from hztune.store.rows import Evidence, Plan, Sink, blocks_of

__all__ = ["Evidence", "Plan", "Sink", "blocks_of"]
