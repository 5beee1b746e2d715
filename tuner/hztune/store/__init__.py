"""Where a study is kept: one database of blocks, whether one process measures or many machines.

`rows` is what an executor tells and what blocks are made of again; `lines` is how rows are written;
`database` is a connection; `study` is the tables and what stands in them; `local` is the study of a
results directory, which one process measures; `worker` is one of several; `peers` is what a worker
asks of the others; `kept_command` is the command of a study. Only what needs no database is named
here: commands that need none load none.
"""

from hztune.store.peers import Alone, EndedElsewhere, News, Peers
from hztune.store.rows import SCHEMA, Evidence, Nowhere, Plan, SampleRows, Sink, blocks_of

__all__ = [
    "SCHEMA",
    "Alone",
    "EndedElsewhere",
    "Evidence",
    "News",
    "Nowhere",
    "Peers",
    "Plan",
    "SampleRows",
    "Sink",
    "blocks_of",
]
