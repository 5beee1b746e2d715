"""`hztune tune`: a request, the story of its study, and the results directory."""

from hztune.tune.request import DEFAULT_BUDGET_S, TuneRequest
from hztune.tune.session import Tuned, plan, tune

__all__ = ["DEFAULT_BUDGET_S", "TuneRequest", "Tuned", "plan", "tune"]
