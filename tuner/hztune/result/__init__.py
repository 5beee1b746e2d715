"""The result of a study, once and for all: what it emits, and how that came about.

It is made once, when the study has ended, and cannot be changed. Everything that is told of the
study is a view of it: the profile's file and its exports, the summary for people and for machines
(`hztune.result.summary`), the report. `hztune.result.stored` keeps it beside the blocks;
`hztune.result.figures` works out of both what a report draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hztune.blocks import UNCHANGED_PROGRAM, Arm, fixed
from hztune.caution import Caution
from hztune.measure.live_share import LiveShare
from hztune.params import Value
from hztune.profile import Profile
from hztune.result.kept import KeptMemory
from hztune.stats import Interval
from hztune.trial import CounterChange, Outlier, SmallestMemory

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
