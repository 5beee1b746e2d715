"""`hztune tune`: a request, the story of its study, and the results directory."""

from hztune.tune.request import DEFAULT_BUDGET_S, TuneRequest
from hztune.tune.session import plan, tune

__all__ = ["DEFAULT_BUDGET_S", "TuneRequest", "plan", "tune"]
