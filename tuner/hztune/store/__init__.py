"""Where a study is kept: one log, `samples.jsonl` in its results directory.

`rows` is what an executor tells and what blocks are made of again; `lines` is how rows are written;
`log` is the study that is open for measuring, and what a directory says of its own; `kept_command`
is the command of a study.
"""

from hztune.store.rows import SCHEMA, Evidence, Nowhere, Plan, SampleRows, Sink, blocks_of

__all__ = ["SCHEMA", "Evidence", "Nowhere", "Plan", "SampleRows", "Sink", "blocks_of"]
