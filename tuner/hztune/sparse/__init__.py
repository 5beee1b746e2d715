"""A sparse model of what parameters do, and a sampler for Optuna that proposes by it.

Nothing here knows the rest of hztune: `SparseSampler` works in any Optuna study.
"""

from hztune.sparse.grid import BLOCK, EXCESS, VARIANCE, Axis
from hztune.sparse.model import Measurement, SparseModel
from hztune.sparse.sampler import SparseSampler, screening_step

__all__ = [
    "BLOCK", "EXCESS", "VARIANCE", "Axis", "Measurement", "SparseModel", "SparseSampler",
    "screening_step",
]  # fmt: skip
