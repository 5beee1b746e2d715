"""What search and proof both stand on: bench, ledger, budget and limits of a study."""

from hztune.trial.bench import Bench
from hztune.trial.budget import Budget, Clock, Stop, SystemClock
from hztune.trial.calibration import PAIRS, Calibration, assess, calibrate
from hztune.trial.ledger import Ledger, Record
from hztune.trial.limits import LossLimit, MemoryLimit
from hztune.trial.outliers import Stray, strays
from hztune.trial.pareto import LEAST_SAVING, Place, unbeaten
from hztune.trial.warnings import doubts

__all__ = [
    "LEAST_SAVING",
    "PAIRS",
    "Bench",
    "Budget",
    "Calibration",
    "Clock",
    "Ledger",
    "LossLimit",
    "MemoryLimit",
    "Place",
    "Record",
    "Stop",
    "Stray",
    "SystemClock",
    "assess",
    "calibrate",
    "doubts",
    "strays",
    "unbeaten",
]
