"""What the sections of a report show: the rows of its tables and strips, from a study's figures."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass
from functools import cached_property

from hztune.blocks import Arm
from hztune.report import words
from hztune.report.charts import Strip
from hztune.result import Account, front_file
from hztune.result.figures import Candidate, Figures
from hztune.result.kept import Keeper
from hztune.study.counters import CounterChange
from hztune.workload import METRICS

_ANSWERS = {
    "proved": "proved, and then extended or examined",
    "kept": "kept the limit",
    "": "not judged before the study was stopped",
    "futile": "not confirmed: its gain is below what this budget can prove",
    "out_of_time": "not confirmed: time was up",
    "failed": "not confirmed: it failed in a fresh process",
    "over_loss": "not confirmed: it may lose more than --max-loss",
    "over_limit": "not confirmed: it is not shown to meet the limit",
    "dominated": "confirmed, but a faster one takes no more memory, or hardly more",
}
_RUN_S = 1.0
"""Seconds that one run of the hyperfine command takes, about."""


@dataclass(frozen=True)
class Page:
    """The sections of one study."""

    found: Figures

    @cached_property
    def ranked(self) -> list[Candidate]:
        """Every configuration of the search, the fastest first, and last those that failed."""
        return sorted(self.found.candidates, key=_rank)

    @property
    def proof(self) -> tuple[list[Strip], list[tuple[str, str, Arm]]]:
        """Strips of all fresh pairs, and what came of each arm: label, fate, arm."""
        found, strips, lines = self.found, list[Strip](), {}
        if found.calibration is not None:
            name = f"{words.control_words(found.profile)} against itself"
            note = f"noise floor {words.change(found.floor, sign=False)}"
            strips.append(Strip(name, note, found.calibration_pairs, None, "neutral"))
        for number, record in enumerate(found.proofs, start=1):
            interval = found.proved(record)
            label, fate, is_proved = self.fate(record.arm, number)
            note = words.interval_words(interval) + ("" if is_proved else " - not proved")
            kind = "gain" if is_proved else "neutral"
            strips.append(Strip(label, note, record.log_ratios, interval, kind))
            lines[label] = (label, fate, record.arm)
        return strips, list(lines.values())

    def fate(self, arm: Arm, number: int) -> tuple[str, str, bool]:
        """What to call the arm proved as so-manieth, what came of it, and whether it is proved."""
        found = self.found
        for place, member in enumerate(found.front, start=1):
            if member.arm == arm:
                is_faster = member.claim.verdict == "improved"
                said = "proved" if is_faster else "of which less memory is proved"
                return str(front_file(place)), said, is_faster
        if arm == found.winner and found.profile.makes_a_claim:
            return "the profile", "proved", True
        answer = found.answer(arm)
        if not answer and found.result is not None and not found.seeks_front:
            step = found.added[arm].answer if arm in found.added else ""
            if step not in ("proved", "kept"):
                beside = "measured beside a finalist, and not proved to add to it"
                return f"configuration {number}", beside, False
            return f"configuration {number}", _ANSWERS[step], step == "proved"
        label = f"{'finalist' if answer else 'configuration'} {number}"
        return label, _ANSWERS[answer], answer == "proved"

    @property
    def cautions(self) -> list[str]:
        """What the profile may do elsewhere, and what was left out of it for that."""
        result = self.found.result
        left_out = result.account.left_out if result else ()
        told = [each.text for each in self.found.profile.cautions]
        return told + [f"left out: {each.text}" for each in left_out]

    @property
    def telling(self) -> CounterChange:
        """The change to tell first: of events, and counted under both."""
        changes = self.found.changes
        both = (each for each in changes if all(each.shown) and not each.counter.endswith("_bytes"))
        return next(both, changes[0])

    @property
    def program(self) -> str:
        """The words of the one program that was tuned for; "" where they were not kept."""
        command = self.found.command
        return shlex.join(command[command.index("--") + 1 :]) if "--" in command else ""

    @property
    def hyperfine(self) -> str:
        """A command for each workload where whole runs can show a gain, a second or so long."""
        profile, metrics = self.found.profile, (METRICS["throughput"], "wall_s")
        if not profile.makes_a_claim or profile.claim.metric not in metrics:
            return ""
        if "--input" in self.found.command:
            return ""
        if self.program:
            escaped = re.sub(r'([\\"$`])', r"\\\1", self.program)
            return words.hyperfine_command(profile, escaped)
        if profile.workload.kind != "bench":
            return ""
        each = zip(profile.workloads, self.found.control_speeds, strict=False)
        return "\n\n".join(
            words.hyperfine_command(
                profile,
                words.bench_command(one, profile.threads, words.round_ops(speed * _RUN_S)),
            )
            for one, speed in each
        )

    @property
    def _account(self) -> Account:
        assert self.found.result is not None  # the template asks only then
        return self.found.result.account

    @property
    def keepers(self) -> list[tuple[str, Keeper]]:
        kept, control = self.found.kept, words.control_words(self.found.profile)
        both = ((control, kept.default), ("tuned", kept.tuned)) if kept else ()
        return [(name, one) for name, one in both if one is not None]


def _rank(candidate: Candidate) -> float:
    usable = candidate.interval is not None and not candidate.record.failures
    return -candidate.interval.estimate if usable and candidate.interval else math.inf
