"""Measuring: executors that compare arms, built-in workloads by turns (turns), whole programs by runs (runs)."""

from hztune.measure.types import (
    ROLES,
    STATUSES,
    Accounting,
    Arm,
    Block,
    Executor,
    Outcome,
    Role,
    Status,
    Turn,
)

__all__ = [
    "ROLES",
    "STATUSES",
    "Accounting",
    "Arm",
    "Block",
    "Executor",
    "Outcome",
    "Role",
    "Status",
    "Turn",
]
