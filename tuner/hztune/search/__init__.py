"""Searching: calibrate, propose, race; every decision a function of the ledger."""

from hztune.search.bench import Bench
from hztune.search.budget import Budget, Clock, Stop, SystemClock
from hztune.search.calibrate import PAIRS, Calibration, assess, calibrate
from hztune.search.doubts import doubts
from hztune.search.front import FrontSearch
from hztune.search.ledger import Ledger, Record
from hztune.search.limits import LossLimit, MemoryLimit
from hztune.search.plane import LEAST_SAVING, Place, unbeaten
from hztune.search.prospects import Best
from hztune.search.race import SLOTS, Search
from hztune.search.strays import Stray, strays

__all__ = [
    "LEAST_SAVING",
    "PAIRS",
    "SLOTS",
    "Bench",
    "Best",
    "Budget",
    "Calibration",
    "Clock",
    "FrontSearch",
    "Ledger",
    "LossLimit",
    "MemoryLimit",
    "Place",
    "Record",
    "Search",
    "Stop",
    "Stray",
    "SystemClock",
    "assess",
    "calibrate",
    "doubts",
    "strays",
    "unbeaten",
]
