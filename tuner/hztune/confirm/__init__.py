"""Confirming: the proof on fresh pairs, and the ablation towards the default."""

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
    "PROOF_SHARE",
    "Proof",
    "claim_error",
    "pair_rounds",
    "prove",
    "reported",
    "reported_each",
    "sharpen",
    "shrink",
]
