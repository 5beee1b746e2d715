"""The result of a study, once and for all: what it emits, and how that came about.

All that is told of it is a view: the profile and its exports, the summary, the report.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hztune import profile as profiles
from hztune import schema
from hztune.blocks import Arm
from hztune.profile import Caution, Claim, MemoryClaim, Profile, Share, Verdict
from hztune.result.kept import CounterChange, KeptMemory
from hztune.stats.intervals import Interval
from hztune.stats.ratios import Columns, block_columns
from hztune.store.log import recording
from hztune.study.calibration import Calibration
from hztune.study.ledger import Ledger
from hztune.study.panel import Examination, Seen
from hztune.study.proof import Proof, Step

FRONT = "front"


@dataclass(frozen=True, slots=True)
class Account:
    """How a study came to its verdict, and where the time went."""

    why: str  # the verdict's reason in one sentence
    failures: Mapping[str, int]  # failed processes by status
    attempts: tuple[Proof, ...]  # the finalists, in order
    noise_floor: float | None  # half-width of an A/A interval, as a ratio - 1; None: not calibrated
    # least gain of a finalist that is proved three times in four, as a ratio - 1
    detectable: float | None
    wall_s: float  # seconds from start to end, this session's
    measured_share: float  # part of the wall time in which targets ran, warm-up included
    warmup_share: float  # part of the wall time that was warm-up
    turns: int  # turns that were measured
    disturbed: int  # how many of them something else disturbed
    # what was counted differently by default and tuned, the greatest change first
    changes: tuple[CounterChange, ...]
    rss_ratio: float | None  # peak memory, tuned / control; None: not measured
    # what the search saw of each allocator with its defaults, as a ratio to the control, or how
    # it failed; empty where only one is tuned
    as_they_come: Mapping[str, float | str]
    # what each parameter of the profile is proved to add, in the order in which they were proved
    added: tuple[Step, ...] = ()
    elsewhere: tuple[Seen, ...] = ()  # what the panel saw; empty where there was none
    left_out: tuple[Caution, ...] = ()  # the harm of what the panel left out of the winner
    # what stays at rest, on the fresh pairs; None: nothing was looked at while it rested
    kept: KeptMemory | None = None
    # least gain of one parameter that is found and proved nine times in ten, as a ratio - 1;
    # None: nothing was searched, or an earlier hztune did
    findable: float | None = None
    # correlation of the winner's fresh pairs with those before them; None: no more than chance
    # brings
    follow_on: float | None = None
    # seconds of the wall time in which another hztune measured on the machine
    waited_s: float = 0.0
    # half of the 95 % interval of each such ratio, log units; empty in a study that ended before
    # that was kept
    seen_within: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    profile: Profile  # the configuration that it emits, with the verdict and what is claimed
    account: Account  # how it came about
    # profiles of the members of a front, the fastest first; empty where there is none
    front: tuple[Profile, ...] = ()
    folder: Path | None = None  # the results directory; None: of a worker that writes none

    @property
    def blocks(self) -> Columns:
        """All that was measured, as columns: a row for each configuration of each block.

            pandas.DataFrame(result.blocks)  # or polars.DataFrame

        HztuneError: the results directory is gone, or damaged.
        """
        found = recording(self.folder).blocks if self.folder is not None else ()
        return block_columns((block.workload, block) for block in found)


def front_file(number: int) -> Path:
    """Where a member of a front stands in the results directory; 1 is the fastest."""
    return Path(FRONT) / f"{number}.json"


@dataclass(frozen=True, slots=True)
class Decision:
    arm: Arm  # what the profile carries; the default unless a gain was proved (or interrupted)
    verdict: Verdict
    interval: Interval | None  # 95 %, of its log ratio to the default; None: not measured
    calibration: Calibration | None  # what the study could see; None when it ended before
    proofs: tuple[Proof, ...]  # every attempt to prove a gain, in order
    why: str  # the verdict's reason in one sentence
    # the interval on each of several workloads; empty where there is one only
    each: tuple[Interval | None, ...] = ()
    # what each parameter of the arm is proved to add, in order; empty without a proof
    steps: tuple[Step, ...] = ()
    memory: Interval | None = None  # of a member of a front: of its log ratio of memory
    # the decision for each member of a front, the fastest first; empty where none was sought, or
    # where the default is alone on it
    front: tuple[Decision, ...] = ()
    # what the panel has shown of the winner; None: there is no panel, or no winner
    examined: Examination | None = None
    on_program: Ledger | None = None  # that it rests on, where the study is of a trace


def claimed_interval(claimed: Claim | MemoryClaim | Share | None, pairs: int) -> Interval | None:
    """What a claim says, in log units; None: it was not measured."""
    if claimed is None or not (claimed.ratio and claimed.ci_low and claimed.ci_high):
        return None
    low, high = math.log(claimed.ci_low), math.log(claimed.ci_high)
    return Interval(math.log(claimed.ratio), low, high, pairs)


REASONS = {
    "futile": "its gain is below what this budget can prove",
    "out_of_time": "time is up before its gain is proved",
    "failed": "it failed in a fresh process",
    "over_limit": "it is not shown to meet the memory limit",
    "over_loss": "it may lose more than --max-loss allows",
    "dominated": "another one dominates it: faster, and no more memory, or hardly more",
}


def ending(result: Result) -> dict[str, Any]:
    """What an ended study keeps of itself; `read` reads it back."""
    made, *front = (json.loads(profiles.dumps(each)) for each in (result.profile, *result.front))
    kept = {"profile": made, "account": msgspec.to_builtins(result.account)}
    return {**kept, **({FRONT: front} if front else {})}


def read(ended: Mapping[str, Any], folder: Path | None) -> Result:
    """The result of a study that has ended, from what `ending` made; else UsageError."""
    account = schema.judged(ended["account"], Account)
    kept = (ended["profile"], *ended.get(FRONT, ()))
    made, *front = (profiles.parse(json.dumps(each).encode()) for each in kept)
    return Result(made, account, tuple(front), folder)
