"""What search and proof both stand on: bench, ledger, budget and limits of a study."""

from hztune.trial.bench import Bench
from hztune.trial.budget import Budget, Clock, Stop, SystemClock
from hztune.trial.calibration import PAIRS, Calibration, assess, calibrate, warnings_about
from hztune.trial.counters import FAULTS, CounterChange, counter_changes, fresh_outcomes
from hztune.trial.ledger import ArmRecord, Ledger
from hztune.trial.limits import OF_LOAD, LossLimit, MemoryLimit, limits_of, memory_limit
from hztune.trial.outlying import Outlier, outlying_pairs
from hztune.trial.pareto import LEAST_SAVING, Place, unbeaten
from hztune.trial.smallest import SmallestMemory, smallest_memory

__all__ = [
    "FAULTS",
    "LEAST_SAVING",
    "OF_LOAD",
    "PAIRS",
    "ArmRecord",
    "Bench",
    "Budget",
    "Calibration",
    "Clock",
    "CounterChange",
    "Ledger",
    "LossLimit",
    "MemoryLimit",
    "Outlier",
    "Place",
    "SmallestMemory",
    "Stop",
    "SystemClock",
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
