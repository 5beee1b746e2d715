"""Searching: calibrate, propose, race; every decision a function of the ledger."""

from hztune.search.bench import Bench
from hztune.search.budget import Budget, Clock, Stop, SystemClock
from hztune.search.calibrate import PAIRS, Calibration, assess, calibrate
from hztune.search.doubts import doubts
from hztune.search.ledger import Ledger, Record
from hztune.search.limits import LossLimit, MemoryLimit
from hztune.search.prospects import Best
from hztune.search.race import SLOTS, Search

__all__ = [
    "PAIRS",
    "SLOTS",
    "Bench",
    "Best",
    "Budget",
    "Calibration",
    "Clock",
    "Ledger",
    "LossLimit",
    "MemoryLimit",
    "Record",
    "Search",
    "Stop",
    "SystemClock",
    "assess",
    "calibrate",
    "doubts",
]
