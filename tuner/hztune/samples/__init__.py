"""What was measured: the values, and the append-only file that keeps them."""

from hztune.samples.blocks import ROLES, STATUSES, Arm, Block, Outcome, Role, Status, Turn

__all__ = ["ROLES", "STATUSES", "Arm", "Block", "Outcome", "Role", "Status", "Turn"]
