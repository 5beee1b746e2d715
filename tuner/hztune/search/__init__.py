"""Searching: what to measure next, and what to prove; every decision a function of the ledger."""

from hztune.search.finalist import MOST_STEPS, Chain
from hztune.search.pareto_search import FrontGoal, members
from hztune.search.prospects import Best
from hztune.search.race import SLOTS, FastestGoal, Search, SearchGoal

__all__ = [
    "MOST_STEPS",
    "SLOTS",
    "Best",
    "Chain",
    "FastestGoal",
    "FrontGoal",
    "Search",
    "SearchGoal",
    "members",
]
