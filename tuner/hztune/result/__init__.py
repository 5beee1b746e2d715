"""The result of a study, once and for all: what it emits, and how that came about.

It is made once, when the study has ended, and cannot be changed. Everything that is told of the
study is a view of it: the profile's file and its exports, the summary for people and for machines
(`hztune.result.summary`), the report. `hztune.result` keeps it beside the blocks;
`hztune.result.figures` works out of both what a report draws.

How a study ended: what is emitted, what is claimed of it, and why.

A result as it is kept beside the blocks of its study, and read back.

Its profiles are kept as their files hold them, its account field by field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from hztune import profile as profiles
from hztune import schema
from hztune.blocks import UNCHANGED_PROGRAM, Arm, fixed
from hztune.caution import Caution
from hztune.measure.live_share import LiveShare
from hztune.params import Value
from hztune.profile import Claim, MemoryClaim, Profile, Verdict
from hztune.rests import MemoryKind
from hztune.result.kept import KeptMemory
from hztune.stats.intervals import Interval
from hztune.study.calibration import Calibration
from hztune.study.counters import CounterChange, Outlier
from hztune.study.panel import Examination
from hztune.study.proof import Proof, Step

FRONT = "front"


@dataclass(frozen=True, slots=True)
class SpeedRatio:
    """A ratio of speeds on fresh pairs with its 95 % interval, as the proof judged it.

    Attributes:
        ratio: Above 1 is better; None, as are the ends: too few pairs.
        ci_low: Lower end of the interval.
        ci_high: Upper end.
        pairs: Fresh pairs behind it.
    """

    ratio: float | None
    ci_low: float | None
    ci_high: float | None
    pairs: int

    @classmethod
    def of(cls, interval: Interval | None) -> SpeedRatio:
        """What an interval of log ratios shows."""
        return (
            cls(None, None, None, 0) if interval is None else cls(*interval.ratio, interval.pairs)
        )


@dataclass(frozen=True, slots=True)
class Addition:
    """What a configuration that is proved beside others adds to the one before it.

    Attributes:
        arm: The configuration.
        params: What it changes: parameters with their values, and the allocator where it does.
        answer: "proved", or "kept" where the memory limit is kept by it; or why it is neither.
        is_kept: Whether the profile carries it.
        adds: Its speed to that of the one before it, or to the control's.
        total: Its speed to the control's.
    """

    arm: Arm
    params: tuple[tuple[str, Value], ...]
    answer: str
    is_kept: bool
    adds: SpeedRatio
    total: SpeedRatio


@dataclass(frozen=True, slots=True)
class Attempt:
    """One finalist and what fresh pairs made of it; ratios, not logs.

    Attributes:
        arm: What is proved, or what the attempt began with.
        answer: "proved", "kept", or why neither.
        ratio: Its speed to the control's; None, as are the ends: too few pairs.
        ci_low: Lower end of the 95 % interval, as the proof judged it.
        ci_high: Upper end.
        pairs: Fresh pairs behind it.
        steps: What was measured side by side, each with what it adds; empty of a front.
    """

    arm: Arm
    answer: str
    ratio: float | None
    ci_low: float | None
    ci_high: float | None
    pairs: int
    steps: tuple[Addition, ...] = ()


@dataclass(frozen=True, slots=True)
class PanelRatios:
    """What the winner was seen to do on one workload of the panel.

    Attributes:
        workload: Of hz-bench.
        on: The kind of programs that it stands for.
        state: "harmed", "safe", or "open" where neither is shown.
        speed: Tuned / control with the ends of its 95 % interval; None: not measured.
        memory: The same of peak memory; above 1 it takes more.
        pairs: Pairs of processes behind them.
        failure: How a process failed; "": none did.
        missing: Why nothing was measured; "": something was.
    """

    workload: str
    on: str
    state: str
    speed: tuple[float, float, float] | None
    memory: tuple[float, float, float] | None
    pairs: int
    failure: str = ""
    missing: str = ""


CONFIRMED_BY = 5
"""Runs in a row that must survive."""


@dataclass(frozen=True, slots=True)
class SmallestMemory:
    """The smallest limit that was found.

    Attributes:
        kb: KiB; 0: it survived no limit that was tried.
        failed_kb: The greatest limit below it at which a run was ended, KiB; 0: none was.
        runs: How many were made.
        is_confirmed: Whether CONFIRMED_BY runs in a row survived it.
    """

    kb: int
    failed_kb: int
    runs: int
    is_confirmed: bool

    @property
    def words(self) -> str:
        """In words: "61.2 MiB, confirmed by 5 runs; 60.1 MiB was too little"."""
        if not self.kb:
            return "no limit was survived in the time that there was"
        how = f"confirmed by {CONFIRMED_BY} runs" if self.is_confirmed else "not confirmed in time"
        failed = f"; {self.failed_kb / 1024:.1f} MiB was too little" if self.failed_kb else ""
        return f"{self.kb / 1024:.1f} MiB, {how}{failed}"


@dataclass(frozen=True, slots=True)
class Survivor:
    """The smallest memory of its container that an arm survived."""

    arm: Arm
    least: SmallestMemory


@dataclass(frozen=True, slots=True)
class LiveMemory:
    """How much of what its allocator holds the program had, under one arm.

    Attributes:
        arm: The control, or what the profile carries.
        target: What ran; "": there is one only.
        share: What was answered.
    """

    arm: Arm
    target: str
    share: LiveShare

    @property
    def name(self) -> str:
        """In words: "the unchanged program", "hz thp=on on larson"."""
        is_unchanged = self.arm.allocator == UNCHANGED_PROGRAM
        whose = "the unchanged program" if is_unchanged else self.arm.text
        return f"{whose} on {self.target}" if self.target else whose


@dataclass(frozen=True, slots=True)
class Account:
    """How a study came to its verdict, and where the time went.

    Attributes:
        why: The verdict's reason in one sentence.
        failures: Failed processes by status.
        attempts: The finalists, in order.
        noise_floor: Half-width of an A/A interval, as a ratio - 1; None: not calibrated.
        detectable: Least gain of a finalist that is proved three times in four, as a ratio - 1.
        findable: Least gain of one parameter that is found and proved nine times in ten, as a
            ratio - 1; None: nothing was searched, or an earlier hztune did.
        wall_s: Seconds from start to end, this session's.
        measured_share: Part of the wall time in which targets ran, warm-up included.
        warmup_share: Part of the wall time that was warm-up.
        turns: Turns that were measured.
        disturbed: How many of them something else disturbed.
        waited_s: Seconds of the wall time in which another hztune measured on the machine.
        changes: What was counted differently by default and tuned, the greatest change first.
        rss_ratio: Peak memory, tuned / control; None: not measured.
        idle_ratio: The same of the memory at rest: of a server some time after the load, of a
            workload that ends so; None: not measured.
        as_they_come: What the search saw of each allocator with its defaults, as a ratio to the
            control, or how it failed; empty where only one is tuned.
        seen_within: Half of the 95 % interval of each such ratio, log units; empty in a study that
            ended before that was kept.
        outliers: Pairs of processes that lie far from the others of their kind.
        follow_on: Correlation of the winner's fresh pairs with those before them; None: no more
            than chance brings.
        elsewhere: What the panel saw; empty where there was none.
        left_out: The harm of what the panel left out of the winner.
        kept: What stays at rest, on the fresh pairs; None: nothing was looked at while it rested.
        survivors: The smallest memory of the default and of the profile; empty: it was not sought.
        live: Live and held memory of both, asked when all was measured; empty: it was not asked.
    """

    why: str
    failures: Mapping[str, int]
    attempts: tuple[Attempt, ...]
    noise_floor: float | None
    detectable: float | None
    wall_s: float
    measured_share: float
    warmup_share: float
    turns: int
    disturbed: int
    changes: tuple[CounterChange, ...]
    rss_ratio: float | None
    idle_ratio: float | None
    as_they_come: Mapping[str, float | str]
    outliers: tuple[Outlier, ...] = ()
    elsewhere: tuple[PanelRatios, ...] = ()
    left_out: tuple[Caution, ...] = ()
    kept: KeptMemory | None = None
    survivors: tuple[Survivor, ...] = ()
    findable: float | None = None
    live: tuple[LiveMemory, ...] = ()
    follow_on: float | None = None
    waited_s: float = 0.0
    seen_within: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Takes copies of the mappings, which nothing can change."""
        for name in ("failures", "as_they_come", "seen_within"):
            object.__setattr__(self, name, fixed(getattr(self, name)))

    @property
    def added(self) -> tuple[Addition, ...]:
        """What each parameter of the profile adds, in the order in which they were proved."""
        steps = (step for attempt in self.attempts for step in attempt.steps)
        return tuple(step for step in steps if step.is_kept and step.adds.ratio is not None)


@dataclass(frozen=True, slots=True)
class Result:
    """What a study came to.

    Attributes:
        profile: The configuration that it emits, with the verdict and what is claimed.
        account: How it came about.
        front: Profiles of the members of a front, the fastest first; empty where there is none.
        folder: The results directory; None: of a worker that writes none.
    """

    profile: Profile
    account: Account
    front: tuple[Profile, ...] = ()
    folder: Path | None = None


def front_file(number: int) -> Path:
    """Where a member of a front stands in the results directory; 1 is the fastest."""
    return Path(FRONT) / f"{number}.json"


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


def ending(result: Result) -> dict[str, Any]:
    """What an ended study keeps of itself; `read` reads it back."""
    front = [_profile_json(member) for member in result.front]
    return {
        "profile": _profile_json(result.profile),
        "account": stored_form(result.account),
        **({FRONT: front} if front else {}),
    }


def read(ended: Mapping[str, Any], folder: Path | None) -> Result:
    """The result of a study that has ended, from what `ending` made; its results are in `folder`.

    Raises:
        UsageError: Something in it is not legal.
    """
    account = schema.judged(ended["account"], Account)
    made, *front = (_profile(each) for each in (ended["profile"], *ended.get(FRONT, ())))
    return Result(made, account, tuple(front), folder)


def stored_form(value: Any) -> Any:
    """A value as JSON holds it."""
    return msgspec.to_builtins(value, enc_hook=dict)  # of mappings that nothing can change


def _profile_json(made: Profile) -> Any:
    """A profile as it stands in its file."""
    return json.loads(profiles.dumps(made))


def _profile(kept: Any) -> Profile:
    return profiles.parse(json.dumps(kept).encode())
