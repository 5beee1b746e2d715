"""What hz would meet on a machine with more CPUs: its locks, and how speed grows with threads."""

from hztune.scale.lock_uses import Contact, LockUse, Times
from hztune.scale.noted import Noted, run_noted
from hztune.scale.scaling import Scaling, measure_scaling

__all__ = ["Contact", "LockUse", "Noted", "Scaling", "Times", "measure_scaling", "run_noted"]
