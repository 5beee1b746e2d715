"""What was measured: values (blocks), their rows (rows), the file (log), a study in it (store)."""

from hztune.samples.blocks import (
    ROLES,
    STATUSES,
    Arm,
    Block,
    Outcome,
    Role,
    Status,
    Turn,
    joined,
    times_of,
)
from hztune.samples.rows import SCHEMA, Evidence, Nowhere, Plan, Rows, Sink
from hztune.samples.store import (
    Recording,
    SampleStore,
    blocks,
    blocks_of,
    differences,
    recording,
)

__all__ = [
    "ROLES",
    "SCHEMA",
    "STATUSES",
    "Arm",
    "Block",
    "Evidence",
    "Nowhere",
    "Outcome",
    "Plan",
    "Recording",
    "Role",
    "Rows",
    "SampleStore",
    "Sink",
    "Status",
    "Turn",
    "blocks",
    "blocks_of",
    "differences",
    "joined",
    "recording",
    "times_of",
]
