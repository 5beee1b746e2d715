"""Confirming: the proof on fresh pairs, and the ablation towards the default."""

from hztune.confirm.proof import (
    Proof,
    claim_error,
    prove,
    reported,
    sharpen,
)
from hztune.confirm.shrink import shrink

__all__ = ["Proof", "claim_error", "prove", "reported", "sharpen", "shrink"]
