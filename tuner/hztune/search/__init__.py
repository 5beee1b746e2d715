"""Searching: propose, race, believe; every decision a function of the ledger."""

from hztune.search.pareto_search import ParetoSearch
from hztune.search.prospects import Best
from hztune.search.race import SLOTS, Search

__all__ = ["SLOTS", "Best", "ParetoSearch", "Search"]
