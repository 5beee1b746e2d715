"""How a study ended: what is emitted, what is claimed of it, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from hztune.blocks import Arm
from hztune.confirm import Proof, Step
from hztune.panel import Examination
from hztune.profile import Claim, MemoryClaim, Profile, Verdict
from hztune.rests import MemoryKind
from hztune.stats import Interval
from hztune.trial import Calibration


@dataclass(frozen=True, slots=True)
class Decision:
    """How a study ended.

    Attributes:
        arm: What the profile carries; the default unless a gain was proved (or interrupted).
        claim: The verdict, and what was measured of the arm on fresh pairs: the profile's own.
        calibration: What the study could see; None when it ended before.
        proofs: Every attempt to prove a gain, in order.
        why: The verdict's reason in one sentence.
        each: The interval on each of several workloads; empty where there is one only.
        steps: What each parameter of the arm is proved to add, in order; empty without a proof.
        front: The decision for each member of a front, the fastest first; empty where none was
            sought, or where the default is alone on it.
        examined: What the panel has shown of the winner; None: there is no panel, or no winner.
        on_program: Whether the claim is of the program itself, and the rest of its trace.
        rss_ratio: Then its peak memory, tuned / default; None: not measured.
    """

    arm: Arm
    claim: Claim
    calibration: Calibration | None
    proofs: tuple[Proof, ...]
    why: str
    each: tuple[Interval | None, ...] = ()
    steps: tuple[Step, ...] = ()
    front: tuple[Decision, ...] = ()
    examined: Examination | None = None
    on_program: bool = False
    rss_ratio: float | None = None

    @property
    def verdict(self) -> Verdict:
        """What is claimed."""
        return self.claim.verdict

    @property
    def interval(self) -> Interval | None:
        """Of the arm's log ratio to the default, from fresh pairs; None: not measured."""
        return claimed_interval(self.claim, self.claim.pairs)

    @property
    def memory(self) -> Interval | None:
        """Of the arm's log ratio of memory, where a front was sought; else None."""
        return claimed_interval(self.claim.memory, self.claim.pairs)


def claim_of(
    metric: str,
    verdict: Verdict,
    speed: Interval | None,
    memory: Interval | None = None,
    weighed: MemoryKind = "rss",
) -> Claim:
    """The claim that rests on intervals of log ratios; None: not measured."""
    if speed is None:
        return Claim(metric, None, None, None, 0, verdict)
    taken = MemoryClaim(*memory.ratio, weighed) if memory else None
    return Claim(metric, *speed.ratio, speed.pairs, verdict, taken)


class HasRatio(Protocol):
    """What has a ratio with its interval: a claim, an attempt, a share of one."""

    @property
    def ratio(self) -> float | None:
        """None: not measured."""

    @property
    def ci_low(self) -> float | None:
        """Lower end of its 95 % interval."""

    @property
    def ci_high(self) -> float | None:
        """Upper end."""


def claimed_interval(claimed: HasRatio | None, pairs: int) -> Interval | None:
    """What a claim says, in log units; None: it was not measured."""
    if claimed is None or not (claimed.ratio and claimed.ci_low and claimed.ci_high):
        return None
    low, high = math.log(claimed.ci_low), math.log(claimed.ci_high)
    return Interval(math.log(claimed.ratio), low, high, pairs)


def intervals_of(member: Profile) -> tuple[Interval, Interval]:
    """Speed and memory of a member of a front, in log units."""
    speed, memory = (
        claimed_interval(each, member.claim.pairs) for each in (member.claim, member.claim.memory)
    )
    assert speed is not None and memory is not None  # every member has both
    return speed, memory


REASONS = {
    "futile": "its gain is below what this budget can prove",
    "out_of_time": "time is up before its gain is proved",
    "failed": "it failed in a fresh process",
    "over_limit": "it is not shown to meet the memory limit",
    "over_loss": "it may lose more than --max-loss allows",
    "dominated": "another one dominates it: faster, and no more memory, or hardly more",
}
