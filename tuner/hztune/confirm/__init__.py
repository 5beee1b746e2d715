"""Confirming: the proof on fresh pairs, of a chain or of a front, and the ablation for fronts."""

from hztune.confirm.pareto_proof import (
    MOST_MEMBERS,
    Member,
    affordable,
    member_error,
    on_front,
    prove_front,
)
from hztune.confirm.proof import (
    Proof,
    Step,
    added_to,
    affordable_pairs,
    against_itself,
    chain_rounds,
    claim_error,
    difference,
    given_up,
    interval_of,
    prove,
    reported,
    reported_each,
)
from hztune.confirm.shrink import shorten_members

__all__ = [
    "MOST_MEMBERS",
    "Member",
    "Proof",
    "Step",
    "added_to",
    "affordable",
    "affordable_pairs",
    "against_itself",
    "chain_rounds",
    "claim_error",
    "difference",
    "given_up",
    "interval_of",
    "member_error",
    "on_front",
    "prove",
    "prove_front",
    "reported",
    "reported_each",
    "shorten_members",
]
