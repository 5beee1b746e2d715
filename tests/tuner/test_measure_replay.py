"""Replayed measurements are reproducible, keep virtual time, and have the noise asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from lab.replay import ModelNoise, ReplayExecutor, Truth

from hztune.blocks import Arm

DEFAULT = Arm("hz")
FASTER = Arm.of("hz", {"magazine_cap": 64})
BROKEN = Arm.of("hz", {"magazine_cap": 8})
SILENT = ModelNoise(within=0.0, between=0.0, common=0.0)


def landscape(arm):
    """The default; one arm that is 20 % faster; one that crashes."""
    if arm == BROKEN:
        return Truth(status="crash")
    return Truth(log_ratio=math.log(1.2), rss_kb=50_000) if arm == FASTER else Truth()


def executor(seed=1, noise=None):
    return ReplayExecutor(landscape, noise, seed=seed)


def aa_blocks(noise, blocks, rounds, seed=1):
    player = executor(seed, noise)
    return [
        player.measure([DEFAULT] * 2, role="aa", rounds=rounds, number=pair)
        for pair in range(blocks)
    ]


def logs(block):
    """Log rates of a block, (rounds, arms)."""
    return np.log([[turn.rate for turn in outcome.turns] for outcome in block.outcomes]).T


def test_a_block_shows_the_truth_and_depends_on_seed_and_pair_alone():
    block = executor(noise=SILENT).measure([DEFAULT, FASTER], role="search", rounds=5, number=0)
    assert block.outcomes[1].ops_per_s / block.control.ops_per_s == pytest.approx(1.2)
    assert block.outcomes[1].rss_peak_kb == 50_000

    def play(seed, number):
        return executor(seed).measure([DEFAULT, FASTER], role="search", rounds=5, number=number)

    assert play(1, 3) == play(1, 3)
    assert play(1, 3) != play(2, 3)
    assert play(1, 3).outcomes != play(1, 4).outcomes
    block = executor().measure([DEFAULT, BROKEN], role="search", rounds=5, number=0)
    assert (block.outcomes[1].status, block.outcomes[1].turns) == ("crash", ())
    assert len(block.control.turns) == 5


def test_the_model_has_the_variances_that_it_was_given():
    noise = ModelNoise(within=0.03, between=0.05, common=0.1)
    differences = np.array([np.subtract(*logs(b).T) for b in aa_blocks(noise, 2000, 10)])
    means = differences.mean(axis=1)
    within = differences.var(axis=1, ddof=1).mean()
    assert within == pytest.approx(2 * 0.03**2, rel=0.05)
    assert means.var() == pytest.approx(2 * 0.05**2 + within / 10, rel=0.1)
