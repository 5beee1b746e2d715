"""Confirming: the proof on fresh pairs, of one or of a front, and the ablation."""

from hztune.confirm.members import shorten_members
from hztune.confirm.pareto_proof import (
    MOST_MEMBERS,
    Member,
    affordable,
    front_error,
    member_error,
    on_front,
    prove_front,
)
from hztune.confirm.proof import (
    PROOF_SHARE,
    Proof,
    claim_error,
    pair_rounds,
    prove,
    reported,
    reported_each,
    sharpen,
)
from hztune.confirm.shrink import shrink

__all__ = [
    "MOST_MEMBERS",
    "PROOF_SHARE",
    "Member",
    "Proof",
    "affordable",
    "claim_error",
    "front_error",
    "member_error",
    "on_front",
    "pair_rounds",
    "prove",
    "prove_front",
    "reported",
    "reported_each",
    "sharpen",
    "shorten_members",
    "shrink",
]
