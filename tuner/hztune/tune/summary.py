"""What a finished study says of itself: the verdict, what it rests on, and where the time went."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hztune.blocks import Arm, Outcome
from hztune.params import Value
from hztune.progress import duration
from hztune.stats import pool_plain
from hztune.trial import Ledger, Outlier, outlying_pairs
from hztune.tune.results import front_file
from hztune.tune.story import Decision, Story, spelled

_COUNTERS_SHOWN = 6
_IDLE = "rss_idle_kb"


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
class FrontRow:
    """A member of a front; ratios to the control, each with its 95 % interval.

    Attributes:
        file: Its profile, in the results directory.
        verdict: As in that profile: improved where it is faster, else less_memory.
    """

    file: str
    verdict: str
    allocator: str
    params: Mapping[str, Value]
    pairs: int
    ratio: float
    ci_low: float
    ci_high: float
    rss_ratio: float
    rss_low: float
    rss_high: float

    @classmethod
    def of(cls, number: int, decision: Decision) -> FrontRow:
        """The row of member `number`, from 1."""
        assert decision.interval is not None and decision.memory is not None  # it is confirmed
        return cls(
            str(front_file(number)),
            decision.verdict,
            decision.arm.allocator,
            decision.arm.config,
            decision.interval.pairs,
            *decision.interval.ratio,
            *decision.memory.ratio,
        )

    @property
    def arm(self) -> Arm:
        """Whose it is."""
        return Arm.stored(self.allocator, self.params)

    def line(self) -> str:
        """The row for people, without its configuration."""
        speed = f"{self.ratio:.3f}x [{self.ci_low:.3f}, {self.ci_high:.3f}]"
        memory = f"{self.rss_ratio:.3f}x [{self.rss_low:.3f}, {self.rss_high:.3f}]"
        return f"  {self.file}  {self.verdict}: speed {speed}, memory {memory}"


@dataclass(frozen=True, slots=True)
class OutlierPair:
    """A pair of processes that lies far from the others of its kind; it counts all the same.

    Attributes:
        allocator: Whose pair with the control it is; without parameters, and the control's: the
            default with itself.
        params: Its configuration.
        block: Number of the block in which it was measured.
        ratio: Its ratio to the median of all these pairs.
        pairs: How many these are.
    """

    allocator: str
    params: Mapping[str, Value]
    block: int
    ratio: float
    pairs: int

    @classmethod
    def of(cls, stray: Outlier) -> OutlierPair:
        """The same for machines."""
        arm, ratio = stray.arm, math.exp(stray.distance)
        return cls(arm.allocator, arm.config, stray.block, ratio, stray.pairs)

    @property
    def arm(self) -> Arm:
        """Whose it is."""
        return Arm.stored(self.allocator, self.params)


@dataclass(frozen=True, slots=True)
class Summary:
    """The account of a study.

    Attributes:
        verdict: As in the profile; improved, too, where members of a front only take less memory.
        why: Its reason in one sentence.
        allocator: Whose parameters they are; `none` is the unchanged program.
        control: What it was compared with: an allocator as it comes, or `none`.
        params: What the profile carries.
        ratio: Tuned / control with its 95 % interval in `ci_low`, `ci_high`; None: not measured.
        shares: The same on each of several workloads, by label: ratio, ci_low, ci_high; those that
            were measured often enough.
        trials: Configurations searched.
        failures: Failed processes by status.
        attempts: The finalists, in order.
        noise_floor: Half-width of an A/A interval, as a ratio - 1.
        detectable: Least gain that the budget proves, as a ratio - 1.
        wall_s: Seconds from start to end, this session's.
        measured_share: Part of the wall time in which targets ran, warm-up included.
        warmup_share: Part of the wall time that was warm-up.
        disturbed: Turns that something else disturbed, of `turns`.
        counters: What the allocator counted, by name: default and tuned, where they differ.
        rss_ratio: Peak memory, tuned / control; None: not measured.
        idle_ratio: The same of the memory at rest: of a server some time after the load, of a
            workload that ends so; None: not measured.
        as_they_come: What the search saw of each allocator with its defaults, as a ratio to the
            control, or how it failed; empty where only one is tuned.
        out: The results directory; "" where none is written.
        front: Its members, the fastest first; empty where none was sought or found.
        strays: Pairs of processes that lie far from the others of their kind.
    """

    verdict: str
    why: str
    allocator: str
    control: str
    params: Mapping[str, Value]
    ratio: float | None
    ci_low: float | None
    ci_high: float | None
    pairs: int
    shares: Mapping[str, tuple[float, float, float]]
    trials: int
    failures: Mapping[str, int]
    attempts: tuple[Attempt, ...]
    noise_floor: float | None
    detectable: float | None
    wall_s: float
    measured_share: float
    warmup_share: float
    turns: int
    disturbed: int
    counters: Mapping[str, tuple[int, int]]
    rss_ratio: float | None
    idle_ratio: float | None
    as_they_come: Mapping[str, float | str]
    out: str
    front: tuple[FrontRow, ...] = ()
    strays: tuple[OutlierPair, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The summary for machines."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], out: Path | None) -> Summary:
        """The summary that `to_json` gave, of a study that now is in `out`."""
        attempts = tuple(Attempt(**attempt) for attempt in stored["attempts"])
        counters = {name: tuple(both) for name, both in stored["counters"].items()}
        shares = {name: tuple(share) for name, share in stored["shares"].items()}
        front = tuple(FrontRow(**row) for row in stored.get("front", ()))
        strays = tuple(OutlierPair(**stray) for stray in stored.get("strays", ()))
        read = {"attempts": attempts, "counters": counters, "shares": shares, "front": front}
        return cls(**{**stored, **read, "strays": strays, "out": str(out or "")})

    def lines(self) -> list[str]:
        """The summary for people."""
        text = [f"verdict: {self.verdict} ({self.why})"]
        text += self._members() if self.front else self._profile()
        text += self._account()
        for name, (before, after) in list(self.counters.items())[:_COUNTERS_SHOWN]:
            text.append(f"  counter {name}: {before} by default, {after} tuned")
        return [*text, f"results: {self.out}"] if self.out else text

    def _members(self) -> list[str]:
        """The front, each member with its configuration below."""
        text = []
        for row in self.front:
            text += [row.line(), f"    {spelled(row.arm)}"]
        return text

    def _profile(self) -> list[str]:
        """What the one profile is worth, and its configuration."""
        text = []
        if self.ratio is not None and self.verdict != "no_gain":
            interval = f"[{self.ci_low:.3f}, {self.ci_high:.3f}]"
            text.append(f"  tuned / {self._base}: {self.ratio:.3f}x, 95 % interval {interval}")
            for name, (ratio, low, high) in self.shares.items():
                text.append(f"    on {name}: {ratio:.3f}x [{low:.3f}, {high:.3f}]")
        if self.rss_ratio is not None:
            text.append(f"  peak memory: {self.rss_ratio:.2f}x of the {self._base}'s")
        if self.idle_ratio is not None:
            text.append(f"  idle memory: {self.idle_ratio:.2f}x of the {self._base}'s")
        if self.allocator != self.control:
            text.append(f"  allocator = {self.allocator}")
        for name, value in self.params.items():
            text.append(f"  {name} = {value}")
        return text

    @property
    def _base(self) -> str:
        """What the control is, in words."""
        return "unchanged program" if self.control == "none" else "default"

    def _account(self) -> list[str]:
        failed = ", ".join(f"{count} {status}" for status, count in sorted(self.failures.items()))
        lines = [
            f"searched: {self.trials} configurations; failures: {failed or 'none'}",
            f"time: {duration(self.wall_s)}, {100 * self.measured_share:.0f} % of it measuring "
            f"(warm-up {100 * self.warmup_share:.0f} %), "
            f"{self.disturbed} of {self.turns} turns disturbed",
        ]
        if self.as_they_come:
            seen = [f"{name} {_shown(one)}" for name, one in self.as_they_come.items()]
            lines.insert(0, f"as they come, in the search: {', '.join(seen)}")
        if self.noise_floor is not None and self.detectable is not None:
            lines.append(
                f"noise floor: {100 * self.noise_floor:.1f} %; a gain of "
                f"{100 * self.detectable:.1f} % is proved in nine studies of ten"
            )
        return [*lines, *map(self._stray_line, self.strays)]

    def _stray_line(self, stray: OutlierPair) -> str:
        """What is told of a pair that lies far from the others."""
        itself = stray.arm == Arm(self.control)
        whose = f"the {self._base} with itself" if itself else spelled(stray.arm)
        return (
            f"one of {stray.pairs} pairs of {whose} lies far from the others, at "
            f"{stray.ratio:.2f}x of their middle (block {stray.block}); it counts all the same"
        )


def summarize(
    study: Story, decision: Decision, wall_s: float, out: Path | None, workloads: Sequence[str] = ()
) -> Summary:
    """The account of a study that has ended; `workloads` are the labels of what was measured."""
    bench, calibration = study.bench, decision.calibration
    used = bench.executor.accounting
    wall = max(wall_s, 1e-9)
    ratio, low, high = decision.interval.ratio if decision.interval else (None, None, None)
    return Summary(
        verdict="improved" if decision.front else decision.verdict,
        why=decision.why,
        allocator=decision.arm.allocator,
        control=study.control.allocator,
        params=decision.arm.config,
        ratio=ratio,
        ci_low=low,
        ci_high=high,
        pairs=decision.interval.pairs if decision.interval else 0,
        shares={
            name: interval.ratio
            for name, interval in zip(workloads, decision.each, strict=False)
            if interval is not None
        },
        trials=bench.ledger.trials,
        failures=dict(bench.ledger.failures()),
        attempts=tuple(_attempts(decision)),
        noise_floor=math.expm1(calibration.floor) if calibration else None,
        detectable=math.expm1(calibration.detectable) if calibration else None,
        wall_s=wall_s,
        measured_share=(used.measured_s + used.warmup_s) / wall,
        warmup_share=used.warmup_s / wall,
        turns=used.turns,
        disturbed=used.disturbed,
        counters=_counters(bench.ledger, decision),
        rss_ratio=_rss_ratio(bench.ledger, decision),
        idle_ratio=_idle_ratio(bench.ledger, decision),
        as_they_come=_as_they_come(study),
        out=str(out or ""),
        front=tuple(FrontRow.of(n, each) for n, each in enumerate(decision.front, start=1)),
        strays=tuple(map(OutlierPair.of, outlying_pairs(bench.ledger))),
    )


def _attempts(decision: Decision) -> Iterator[Attempt]:
    for proof in decision.proofs:
        interval = proof.interval
        ratio, low, high = interval.ratio if interval else (None, None, None)
        pairs = interval.pairs if interval else 0
        yield Attempt(proof.arm.allocator, proof.arm.config, proof.answer, ratio, low, high, pairs)


def _as_they_come(study: Story) -> dict[str, float | str]:
    """What the search saw of each allocator with its defaults; nothing where there is one only."""
    if study.space.holds(study.control):
        return {}
    ledger = study.bench.ledger
    records = (ledger.searched.get(Arm(part.allocator).key) for part in study.space.parts)
    return {
        record.arm.allocator: record.failures[-1].status
        if record.failures
        else math.exp(pool_plain(record.pairs, ledger.noises())[0])
        for record in records
        if record is not None and (record.failures or record.pairs)
    }


def _shown(ratio: float | str) -> str:
    """A ratio or a failure in words."""
    return ratio if isinstance(ratio, str) else f"{ratio:.2f}x"


def _rss_ratio(ledger: Ledger, decision: Decision) -> float | None:
    record = ledger.confirmed.get(decision.arm.key)
    if record is None or not record.rss:
        return None
    return math.exp(sum(record.rss) / len(record.rss))


def _idle_ratio(ledger: Ledger, decision: Decision) -> float | None:
    """Idle memory to the control's, on the fresh pairs of this session."""
    pairs = [
        (control.facts.get(_IDLE, 0), tuned.facts.get(_IDLE, 0))
        for control, tuned in _fresh(ledger, decision.arm)
    ]
    logs = [math.log(tuned / before) for before, tuned in pairs if before and tuned]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _fresh(ledger: Ledger, arm: Arm) -> list[tuple[Outcome, Outcome]]:
    """The control and an arm in each block of fresh pairs, in order of time."""
    return [
        (block.control, outcome)
        for block in ledger.here()
        if block.role == "confirm"
        for outcome in block.outcomes[1:]
        if outcome.arm == arm
    ]


def _counters(ledger: Ledger, decision: Decision) -> dict[str, tuple[int, int]]:
    """Slow-path counters of the last pair of default and tuned, the greatest change first."""
    for control, tuned in reversed(_fresh(ledger, decision.arm)):
        if control.ok and tuned.ok:
            both = {
                name: (count, tuned.counters[name])
                for name, count in control.counters.items()
                if name in tuned.counters and tuned.counters[name] != count
            }
            return dict(sorted(both.items(), key=lambda item: -_change(*item[1])))
    return {}


def _change(before: int, after: int) -> float:
    return abs(math.log((after + 1.0) / (before + 1.0)))
