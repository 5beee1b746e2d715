"""Searching: what to measure next, and what to prove; every decision a function of the ledger."""

from hztune.search.finalist import MOST_STEPS, Chain
from hztune.search.pareto_search import FrontGoal, members
from hztune.search.prospects import Ranked
from hztune.search.race import SLOTS, FastestGoal, Search, SearchGoal

__all__ = [
    "MOST_STEPS",
    "SLOTS",
    "Chain",
    "FastestGoal",
    "FrontGoal",
    "Ranked",
    "Search",
    "SearchGoal",
    "members",
]
