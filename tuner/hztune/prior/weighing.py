"""From lessons to odds: how likely each parameter matters, before a study has measured anything.

What is assumed without any lesson counts as much as two studies of which ODDS found an effect. Each
lesson adds to that what it is worth: 1 where it is new and about the same thing, and less the
older and the less alike it is. A preset of the space counts as half a study, which its parameters
share. Nothing moves the odds of a parameter by more than MOST_FACTOR either way, so that a wrong
prior is soon overruled by what is measured.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hztune.blocks import fixed
from hztune.prior.lesson import Learned, Lesson, Subject
from hztune.space import AnySpace, Space
from hztune.sparse.grid import ODDS
from hztune.strictjson import Fields

MOST_FACTOR = 8.0
"""By which the odds of a parameter rise or fall at most."""

HALF_LIFE_DAYS = 30.0
"""After which a lesson is worth half."""

_ASSUMED = 2.0
"""Studies for which ODDS counts."""

_OTHER_THREADS = 0.5
_OTHER_WORKLOAD = 0.2
_OTHER_VERSION = 0.5
"""What a lesson is worth that differs in one of these; the last one also halves the others."""

_OF_PRESET = 0.5
_MOST_NAMED = 4
_TEXT = re.compile(r"[ -~]{0,1000}")


@dataclass(frozen=True, slots=True)
class Prior:
    """With what a search begins; it is stored with the study.

    Attributes:
        odds: By allocator, how likely parameters matter; those that are not named: as ever.
        text: What it rests on, in one sentence; "": there is no prior.
    """

    odds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    text: str = ""

    def __post_init__(self) -> None:
        """Takes copies of the odds, which nothing can change."""
        odds = {name: fixed(each) for name, each in self.odds.items()}
        object.__setattr__(self, "odds", fixed(odds))

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"odds": {name: dict(each) for name, each in self.odds.items()}, "text": self.text}

    @classmethod
    def stored(cls, held: object) -> Prior:
        """What `plain` made, judged anew; NOTHING for None.

        Raises:
            UsageError: It is something else.
        """
        if held is None:
            return NOTHING
        top = Fields(held, "the prior of the study")
        odds = top.mapping("odds")
        read = {allocator: _odds(Fields(each), each) for allocator, each in odds.items()}
        prior = cls(read, top.text("text", _TEXT))
        top.close()
        return prior


NOTHING = Prior()
"""What a study begins with that has no prior."""


def weighed(
    lessons: Iterable[Lesson],
    subject: Subject,
    space: AnySpace,
    versions: Mapping[str, str],
    now: datetime,
) -> Prior:
    """The prior of a study that begins.

    Args:
        lessons: What is there, of whatever studies.
        subject: What the study is about.
        space: What may be proposed.
        versions: Of each allocator.
        now: Its beginning, UTC.
    """
    alike = [one for one in lessons if _is_of(one.subject, subject)]
    odds = {}
    for part in space.parts:
        about = [
            (_weight(lesson, subject, now) * _of_version(learned, versions), learned)
            for lesson in alike
            for learned in lesson.learned
            if learned.allocator == part.allocator
        ]
        odds[part.allocator] = _odds_of(part, about)
    return Prior({name: each for name, each in odds.items() if each}, _text(alike, subject, space))


def _is_of(known: Subject, wanted: Subject) -> bool:
    """Whether a lesson is of the same machine and objective."""
    return (known.machine, known.metric) == (wanted.machine, wanted.metric)


def _weight(lesson: Lesson, subject: Subject, now: datetime) -> float:
    """What a lesson is worth, by its likeness and its age."""
    likeness = _OTHER_WORKLOAD
    if lesson.subject.workload == subject.workload:
        likeness = 1.0 if lesson.subject.threads == subject.threads else _OTHER_THREADS
    days = max(0.0, (now - lesson.created).total_seconds() / 86400.0)
    return likeness * math.pow(0.5, days / HALF_LIFE_DAYS)


def _of_version(learned: Learned, versions: Mapping[str, str]) -> float:
    return 1.0 if learned.version == versions.get(learned.allocator) else _OTHER_VERSION


def _odds_of(space: Space, about: Sequence[tuple[float, Learned]]) -> dict[str, float]:
    """How likely the parameters of an allocator matter; those of which nothing is known are out."""
    gains, level = defaultdict[str, float](float), defaultdict[str, float](float)
    for preset in space.presets:
        for name in preset.config:
            gains[name] += _OF_PRESET / len(preset.config)
    for weight, learned in about:
        for name in {name for gain in learned.gains for name, _ in gain.levels}:
            gains[name] += weight
        for name, _ in learned.level:
            level[name] += weight
    names = [d.name for d in space.dimensions if gains[d.name] or level[d.name]]
    seen = {name: _ASSUMED + gains[name] + level[name] for name in names}
    return {name: _bounded((_ASSUMED * ODDS + gains[name]) / seen[name]) for name in names}


def _bounded(chance: float) -> float:
    """A chance whose odds are at most MOST_FACTOR away from those of ODDS."""
    usual = ODDS / (1.0 - ODDS)
    odds = min(usual * MOST_FACTOR, max(usual / MOST_FACTOR, chance / (1.0 - chance)))
    return odds / (1.0 + odds)


def _odds(found: Fields, held: Mapping[str, Any]) -> dict[str, float]:
    return {name: found.number(name, 0.0, 1.0) for name in held}


# ---- in words ------------------------------------------------------------------------------------


def _text(lessons: Sequence[Lesson], subject: Subject, space: AnySpace) -> str:
    """What the prior rests on, in one sentence."""
    if not lessons:
        return "no earlier study on this machine; parameters of presets are tried sooner"
    several = len(space.parts) > 1
    parts = {part.allocator: {d.name for d in part.dimensions} for part in space.parts}
    gains, level = Counter[str](), Counter[str]()
    for lesson in lessons:
        for learned in lesson.learned:
            known = parts.get(learned.allocator, set())
            whose = f"{learned.allocator} " if several else ""
            gained = {pair for gain in learned.gains for pair in gain.levels if pair[0] in known}
            gains.update(f"{whose}{name}={value}" for name, value in gained)
            level.update(whose + name for name, _ in learned.level if name in known)
    for name in {told.partition("=")[0] for told in gains}:
        del level[name]
    same = sum(one.subject.workload == subject.workload for one in lessons)
    of_it = {0: "none", len(lessons): "all"}.get(same, str(same))
    told = [f"{name} mattered in {count}" for name, count in gains.most_common(_MOST_NAMED)]
    told += [f"{_named(level)} showed nothing"] if level else []
    studies = f"{len(lessons)} earlier stud{'y' if len(lessons) == 1 else 'ies'}"
    said = ", ".join(told) or "no parameter was proved to matter"
    return f"of {studies} on this machine ({of_it} of this workload): {said}"


def _named(level: Counter[str]) -> str:
    """The parameters that showed nothing most often, and how many others."""
    names = [name for name, _ in level.most_common(_MOST_NAMED)]
    more = len(level) - len(names)
    return f"{', '.join(names)}{f' and {more} more' if more else ''}"
