"""What search and proof both stand on: bench, ledger, budget and limits of a study."""

from hztune.trial.budget import Budget, Clock, Stop, SystemClock
from hztune.trial.calibration import PAIRS, Calibration, assess, calibrate, warnings_about
from hztune.trial.counters import FAULTS, CounterChange, counter_changes, fresh_outcomes
from hztune.trial.division import HEADROOM
from hztune.trial.ledger import ArmRecord, Ledger
from hztune.trial.limits import OF_LOAD, LossLimit, MemoryLimit, limits_of, memory_limit
from hztune.trial.outlying import Outlier, outlying_pairs
from hztune.trial.pareto import LEAST_SAVING, Point, unbeaten
from hztune.trial.smallest import SmallestMemory, smallest_memory
from hztune.trial.workbench import LONG_WAIT_S, Workbench

__all__ = [
    "FAULTS",
    "HEADROOM",
    "LEAST_SAVING",
    "LONG_WAIT_S",
    "OF_LOAD",
    "PAIRS",
    "ArmRecord",
    "Budget",
    "Calibration",
    "Clock",
    "CounterChange",
    "Ledger",
    "LossLimit",
    "MemoryLimit",
    "Outlier",
    "Point",
    "SmallestMemory",
    "Stop",
    "SystemClock",
    "Workbench",
    "assess",
    "calibrate",
    "counter_changes",
    "fresh_outcomes",
    "limits_of",
    "memory_limit",
    "outlying_pairs",
    "smallest_memory",
    "unbeaten",
    "warnings_about",
]
