"""Estimates and intervals: pure functions of measurements, without I/O and without a clock."""

from hztune.stats.distributions import NORMAL_95, normal_tail
from hztune.stats.outliers import far_off, follow_on, move_together, two_states
from hztune.stats.pooling import (
    Estimate,
    expected_improvement,
    machine_variance,
    pool,
    pool_plain,
    pooled_mean,
)
from hztune.stats.ratios import (
    PairRatio,
    block_ratios,
    load_ratio,
    log_memory_ratio,
    log_rss_ratio,
    pair_ratio,
    part_ratios,
    saving_ratio,
)
from hztune.stats.sequential import (
    FIRST_LOOK,
    LEAST_PLANNED,
    MOST_TIMES,
    Interval,
    Ratio,
    Spread,
    fixed_interval,
    planned_interval,
    planned_looks,
)
from hztune.stats.variance import (
    Noise,
    Noises,
    detectable_effect,
    estimate_noise,
    estimate_noises,
    noise_floor,
)

__all__ = [
    "FIRST_LOOK",
    "LEAST_PLANNED",
    "MOST_TIMES",
    "NORMAL_95",
    "Estimate",
    "Interval",
    "Noise",
    "Noises",
    "PairRatio",
    "Ratio",
    "Spread",
    "block_ratios",
    "detectable_effect",
    "estimate_noise",
    "estimate_noises",
    "expected_improvement",
    "far_off",
    "fixed_interval",
    "follow_on",
    "load_ratio",
    "log_memory_ratio",
    "log_rss_ratio",
    "machine_variance",
    "move_together",
    "noise_floor",
    "normal_tail",
    "pair_ratio",
    "part_ratios",
    "planned_interval",
    "planned_looks",
    "pool",
    "pool_plain",
    "pooled_mean",
    "saving_ratio",
    "two_states",
]
