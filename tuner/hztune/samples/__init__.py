"""What was measured: the values (blocks), the file (log), and the study's rows in it (store)."""

from hztune.samples.blocks import ROLES, STATUSES, Arm, Block, Outcome, Role, Status, Turn, joined
from hztune.samples.store import (
    Evidence,
    Nowhere,
    Plan,
    Recording,
    SampleStore,
    Sink,
    blocks,
    recording,
)

__all__ = [
    "ROLES",
    "STATUSES",
    "Arm",
    "Block",
    "Evidence",
    "Nowhere",
    "Outcome",
    "Plan",
    "Recording",
    "Role",
    "SampleStore",
    "Sink",
    "Status",
    "Turn",
    "blocks",
    "joined",
    "recording",
]
