"""The figures behind a result: what the blocks of a study show, worked out for a reader.

Nothing is judged again: verdict, noise floor and the intervals of proofs are the result's. Log
ratios are to the default, above 0 is better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from hztune.blocks import Arm, Outcome, spent_s
from hztune.errors import UsageError
from hztune.params import Param, Value
from hztune.profile import PROFILE
from hztune.rests import Rested, weighed_memory
from hztune.result import Result, claimed_interval
from hztune.result import read as read_result
from hztune.result.kept import fresh_outcomes
from hztune.space import Dimension, Space
from hztune.stats.intervals import Interval
from hztune.store import kept_command
from hztune.store.log import SAMPLES, Recording, recording
from hztune.study.ledger import ArmRecord, Ledger
from hztune.study.limits import limits_of
from hztune.study.proof import Proof, Step
from hztune.study.proposer import Proposer

_FEWEST = 4  # configurations without which nothing is said of what a parameter does


class Candidate(NamedTuple):
    number: int  # in order of first measurement, from 1
    record: ArmRecord
    interval: Interval | None  # 95 %, of its log ratio in the search; None: it never ran

    @property
    def arm(self) -> Arm:
        return self.record.arm


@dataclass(frozen=True)
class Figures:
    result: Result
    samples: Recording
    ledger: Ledger  # the samples, sorted as the study had them
    command: tuple[str, ...] = ()  # the words that asked for it; () where they were not kept

    @property
    def control(self) -> Arm:
        return self.samples.blocks[0].control.arm

    @cached_property
    def winner(self) -> Arm:
        """What the profile carries, as the samples know it."""
        name, bare = self.result.profile.allocator.name, self._reduced(self.result.profile.params)
        for records in (self.ledger.fresh_by_arm, self.ledger.searched):
            for arm in (record.arm for record in records.values()):
                if arm.allocator == name and self._reduced(arm.config) == bare:
                    return arm
        return Arm.of(name, bare)

    @cached_property
    def params(self) -> dict[str, Param]:
        profile = self.result.profile
        return {knob.name: knob for knob in profile.adapter.knobs(profile.allocator.as_installed())}

    @property
    def tuned(self) -> dict[str, Value]:
        """What the profile changes, but for knobs that are there no more."""
        changed = self._reduced(self.result.profile.params)
        return {name: value for name, value in changed.items() if name in self.params}

    @cached_property
    def candidates(self) -> list[Candidate]:
        return [
            Candidate(number, record, self.ledger.interval(record))
            for number, record in enumerate(self.ledger.searched.values(), start=1)
        ]

    @property
    def lasted_s(self) -> float:
        """How long all blocks took; pauses between sessions are left out."""
        return spent_s(self.samples.blocks)

    @property
    def shares(self) -> list[tuple[str, list[float], Interval | None]]:
        """What the profile does on each of several workloads: name, fresh pairs, interval."""
        record, told = self.ledger.fresh_by_arm.get(self.winner.key), []
        each = zip(self.result.profile.shares, record.each if record else (), strict=False)
        for share, pairs in each:
            ratios = [pair.log_ratio for pair in pairs]
            told.append((share.workload.label, ratios, claimed_interval(share, len(pairs))))
        return told

    @cached_property
    def judged(self) -> dict[Arm, Interval | None]:
        """The interval of each arm's fresh pairs as its proof judged it; None: too few."""
        found = {}
        for attempt in self.result.account.attempts:
            found[attempt.arm] = attempt.interval
            found |= {step.arm: step.total for step in attempt.steps}
        claim = self.result.profile.claim
        if claimed := claimed_interval(claim, claim.pairs):
            found[self.winner] = claimed
        return found

    @property
    def floor(self) -> float:
        """Noise floor, log units; 0 where the study ended before it knew it."""
        return math.log1p(self.result.account.noise_floor or 0.0)

    @property
    def control_speeds(self) -> list[float]:
        """Operations a second of the default when it was measured last, on each workload."""
        outcomes = [block.control for block in self.samples.blocks if block.control.ok]
        last = outcomes[-1].parts or outcomes[-1:] if outcomes else ()
        return [outcome.ops_per_s for outcome in last] or [1.0]

    @property
    def attempt(self) -> Proof | None:
        """The attempt that proved the profile, or else the last one."""
        attempts = self.result.account.attempts[::-1]
        proved = (each for each in attempts if any(step.arm == self.winner for step in each.steps))
        return next(proved, attempts[0] if attempts else None)

    @property
    def steps(self) -> list[tuple[Step, list[float]]]:
        """What each configuration of that attempt added, and the log ratios that show it."""
        chain, logs = self.attempt.steps if self.attempt else (), self.ledger.fresh_logs
        return [(step, logs(step.before, step.arm, chain[0].arm)) for step in chain]

    @property
    def importance(self) -> dict[str, float]:
        return likely_effects(self.ledger, self.result.profile.allocator.name, self.params)

    @property
    def failures(self) -> list[tuple[str, int, Outcome]]:
        """What failed and how often, the most frequent first, with the first example."""
        failed = [one for block in self.samples.blocks for one in block.outcomes if not one.ok]
        return [
            (how, count, next(each for each in failed if each.failure == how))
            for how, count in self.ledger.failures().most_common()
        ]

    @property
    def rested(self) -> tuple[list[Rested], list[Rested]]:
        """The rounds of the default's processes and of the profile's, of fresh pairs."""
        pairs = fresh_outcomes(self.ledger, self.winner)
        default = [one for one, _ in pairs] or self.ledger.calm_controls
        groups = default, [other for _, other in pairs]
        before, after = ([o.rested for o in group if o.ok and o.rested] for group in groups)
        return before, after

    @property
    def turns(self) -> tuple[int, int]:
        turns = [t for b in self.samples.blocks for o in b.outcomes for t in o.all_turns]
        return len(turns), sum(bool(turn.disturbed) for turn in turns)

    def _reduced(self, config: Mapping[str, Value]) -> dict[str, Value]:
        return {
            name: value
            for name, value in config.items()
            if name not in self.params or self.params[name].default != value
        }


def read(folder: Path) -> Figures:
    """Reads a results directory; UsageError: no study ended in it; HztuneError: damaged samples."""
    samples = recording(folder)
    if not samples.ending:
        raise UsageError(
            f"{str(folder)!r} holds no study that has ended (`hztune tune ... --resume --out` and "
            "that directory goes on with one; `hztune report --dashboard` shows it meanwhile; if "
            "it holds a comparison, `hztune compare ... --resume --out` prints its table again)"
        )
    if not samples.blocks:
        raise UsageError(f"{str(folder / SAMPLES)!r} holds no measurement yet")
    result = read_result(samples.ending, folder)
    limits = limits_of(result.profile.objective.limits)
    weighed = weighed_memory(samples.identity.get("objectives", ""))
    ledger = Ledger.of(samples.blocks, *limits, samples.machine.fingerprint, weighed)
    words: tuple[str, ...] = ()
    with suppress(UsageError):  # another user's, say: that one is not repeated here
        words = kept_command.read(folder / PROFILE)
    return Figures(result, samples, ledger, words)


def likely_effects(ledger: Ledger, allocator: str, params: Mapping[str, Param]) -> dict[str, float]:
    """How likely each changed parameter has an effect on the speed; empty: too few trials."""
    records = [each for each in ledger.searched.values() if each.arm.allocator == allocator]
    configs = [each.arm.config for each in records if each.pairs]
    if len(configs) < _FEWEST:
        return {}
    seen = {
        name: ordered([param.default, *(each.get(name, param.default) for each in configs)])
        for name, param in params.items()
    }
    dimensions = tuple(
        Dimension(params[name], tuple(values)) for name, values in seen.items() if len(values) > 1
    )
    space = Space(allocator, dimensions, (), (), tuple(params.values()))
    # Defaults that were measured beside the control are another configuration than it is.
    is_control = not any(each.arm.is_default for each in records)
    model = Proposer(space, ledger, seed=1, is_control=is_control).model()
    chances = model.matters().tolist() if model is not None else []
    likely = zip((each.name for each in dimensions), chances, strict=False)
    return dict(sorted(likely, key=lambda each: -each[1]))


def ordered(values: Iterable[Value]) -> list[Value]:
    """Values from the least to the greatest, words first."""
    return sorted(set(values), key=lambda value: (not isinstance(value, str), value))
