"""Measuring: one interface, `Executor`, and the executors behind it.

turns: built-in workloads, by short alternating turns. runs: whole programs, by interleaved runs.
alternate: programs and servers, by turns. For simulations, lab/replay has one without processes.
"""

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
