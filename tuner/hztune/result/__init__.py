"""The result of a study, once and for all: profiles, and the account of how they came about.

Everything else that is told of a finished study is a view of it: the profile's file and its
exports, the summary for people and for machines (`hztune.result.summary`), the report. It is stored
beside the samples, in the form of `summary.ending`, and read back by `Result.stored`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hztune import caution
from hztune import profile as profiles
from hztune.blocks import Arm
from hztune.caution import Caution
from hztune.params import Value
from hztune.profile import Profile
from hztune.result.counters import CounterChange
from hztune.strictjson import Fields

FRONT = "front"

OUTLIERS_KEY = "strays"
"""What a stored summary calls the outliers: its keys stay as they are."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One finalist and what fresh pairs made of it; ratios, not logs."""

    allocator: str
    params: Mapping[str, Value]
    answer: str
    ratio: float | None
    ci_low: float | None
    ci_high: float | None
    pairs: int


@dataclass(frozen=True, slots=True)
class Addition:
    """What one parameter of the profile, or several together, adds to those before it.

    Attributes:
        params: The parameters, and the allocator where that was changed.
        reason: "gain", or "limit": without it the memory limit is broken.
        ratio: Of the speeds with and without it, on the fresh pairs of the proof.
        ci_low: Lower end of the 95 % interval.
        ci_high: Upper end.
        pairs: Fresh pairs behind it.
    """

    params: Mapping[str, Value]
    reason: str
    ratio: float
    ci_low: float
    ci_high: float
    pairs: int


@dataclass(frozen=True, slots=True)
class OutlierPair:
    """A pair of processes that lies far from the others of its kind; it counts all the same.

    Attributes:
        allocator: Of the arm that was paired with the control. The control itself, without
            parameters: a pair of the default with itself.
        params: The arm's configuration.
        block: Number of the block in which it was measured.
        ratio: Its ratio to the median of all these pairs.
        pairs: How many these are.
    """

    allocator: str
    params: Mapping[str, Value]
    block: int
    ratio: float
    pairs: int

    @property
    def arm(self) -> Arm:
        """What was paired with the control."""
        return Arm.stored(self.allocator, self.params)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What the winner was seen to do on one workload of the panel.

    Attributes:
        workload: Of hz-bench.
        on: The kind of programs that it stands for.
        state: "harmed", "safe", or "open" where neither is shown.
        speed: Tuned / control with the ends of its 95 % interval; None: not measured.
        memory: The same of peak memory; above 1 it takes more.
        pairs: Pairs of processes behind them.
        failure: How a process failed; "": none did.
    """

    workload: str
    on: str
    state: str
    speed: tuple[float, float, float] | None
    memory: tuple[float, float, float] | None
    pairs: int
    failure: str = ""

    @classmethod
    def stored(cls, row: Mapping[str, Any]) -> Elsewhere:
        """What was stored as JSON."""
        ratios = {key: row[key] and tuple(row[key]) for key in ("speed", "memory")}
        return cls(**{**row, **ratios})


@dataclass(frozen=True, slots=True)
class Account:
    """How a study came to its verdict, and where the time went.

    Attributes:
        why: The verdict's reason in one sentence.
        failures: Failed processes by status.
        attempts: The finalists, in order.
        noise_floor: Half-width of an A/A interval, as a ratio - 1; None: not calibrated.
        detectable: Least gain of a finalist that is proved nine times in ten, as a ratio - 1.
        wall_s: Seconds from start to end, this session's.
        measured_share: Part of the wall time in which targets ran, warm-up included.
        warmup_share: Part of the wall time that was warm-up.
        turns: Turns that were measured.
        disturbed: How many of them something else disturbed.
        changes: What was counted differently by default and tuned, the greatest change first.
        rss_ratio: Peak memory, tuned / control; None: not measured.
        idle_ratio: The same of the memory at rest: of a server some time after the load, of a
            workload that ends so; None: not measured.
        as_they_come: What the search saw of each allocator with its defaults, as a ratio to the
            control, or how it failed; empty where only one is tuned.
        outliers: Pairs of processes that lie far from the others of their kind.
        elsewhere: What the panel saw; empty where there was none.
        left_out: The harm of what the panel left out of the winner.
        added: What each parameter of the profile adds, in the order in which they were proved.
        prior: What the search began with, in a sentence; "": nothing from elsewhere.
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
    outliers: tuple[OutlierPair, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()
    left_out: tuple[Caution, ...] = ()
    added: tuple[Addition, ...] = ()
    prior: str = ""

    @classmethod
    def stored(cls, summary: Mapping[str, Any]) -> Account:
        """The account in a summary that was stored.

        Raises:
            KeyError: A key is missing: another version of hztune wrote it.
            TypeError: Something in it has another form.
        """
        later = ("changes", "outliers", "elsewhere", "left_out", "added", "prior")
        plain = {
            field.name: summary[field.name] for field in fields(cls) if field.name not in later
        }
        return cls(
            **{
                **plain,
                "attempts": tuple(Attempt(**each) for each in summary["attempts"]),
                "changes": _changes(summary),
                "outliers": tuple(OutlierPair(**each) for each in summary.get(OUTLIERS_KEY, ())),
                "elsewhere": tuple(Elsewhere.stored(row) for row in summary.get("elsewhere", ())),
                "left_out": tuple(caution.read(Fields(row)) for row in summary.get("left_out", ())),
                "added": tuple(Addition(**each) for each in summary.get("added", ())),
                "prior": str(summary.get("prior", "")),
            }
        )


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

    @classmethod
    def stored(cls, ending: Mapping[str, Any], folder: Path | None) -> Result:
        """The result of a study that has ended, from what is stored of it.

        Args:
            ending: The profile, the summary and the front; the summary says the verdict and the
                configuration again, for readers of the file: they are read from the profile.
            folder: Where its results are now.

        Raises:
            UsageError: A profile in it is none.
            KeyError, TypeError: As `Account.stored`.
        """
        front = tuple(_profile(each) for each in ending.get(FRONT, ()))
        account = Account.stored(ending["summary"])
        return cls(_profile(ending["profile"]), account, front, folder)


def _changes(summary: Mapping[str, Any]) -> tuple[CounterChange, ...]:
    """What was counted; of a study before `study.db` the counters alone are stored."""
    if "changes" in summary:
        return tuple(CounterChange(**each) for each in summary["changes"])
    return tuple(CounterChange(name, *both) for name, both in summary["counters"].items())


def _profile(stored: Any) -> Profile:
    return profiles.parse(json.dumps(stored).encode())


def front_file(number: int) -> Path:
    """Where a member of a front stands in the results directory; 1 is the fastest."""
    return Path(FRONT) / f"{number}.json"
