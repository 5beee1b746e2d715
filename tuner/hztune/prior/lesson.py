"""A lesson: what one study learned of the parameters, as one small file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from hztune import strictjson
from hztune.errors import UsageError
from hztune.params import Value
from hztune.strictjson import CREATED, TEXT, TIME_FORMAT, VERSION, Fields, time_of

SCHEMA = "hztune-lesson/1"
MOST_BYTES = 16 * 1024
"""A lesson is a page of text; whatever is larger is something else."""

_MOST_THREADS = 65536
_MOST_RATIO = 1e9


@dataclass(frozen=True, slots=True)
class Subject:
    """What a study is about: lessons count by how alike it is.

    Attributes:
        workload: Its label without the threads; a program's name with a hash of path and metric.
        threads: 0: the program decides.
        metric: What is made better: ops_per_s, wall_s, ...
        machine: The machine's fingerprint.
    """

    workload: str
    threads: int
    metric: str
    machine: str


@dataclass(frozen=True, slots=True)
class Gain:
    """What was proved to add something.

    Attributes:
        levels: A parameter with its value, or several that were added together.
        low: Lower end of the 95 % interval of the ratio with it to that without it.
        high: Upper end.
    """

    levels: tuple[tuple[str, Value], ...]
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Learned:
    """What a study learned of one allocator.

    Attributes:
        allocator: Its name.
        version: Its version.
        gains: What was proved to add something.
        level: Parameters that showed nothing, with the pairs in which they were changed.
    """

    allocator: str
    version: str
    gains: tuple[Gain, ...]
    level: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one study learned.

    Attributes:
        subject: What it was about.
        learned: For each allocator that it searched.
        hztune: The version that measured.
        created: When it ended, UTC, to the second.
    """

    subject: Subject
    learned: tuple[Learned, ...]
    hztune: str
    created: datetime


def dumps(lesson: Lesson) -> str:
    """A lesson as JSON text."""
    held = {
        "schema": SCHEMA,
        "subject": asdict(lesson.subject),
        "learned": [_plain(each) for each in lesson.learned],
        "hztune": lesson.hztune,
        "created": lesson.created.strftime(TIME_FORMAT),
    }
    return json.dumps(held, indent=1, allow_nan=False) + "\n"


def _plain(learned: Learned) -> dict[str, Any]:
    gains = [{"set": dict(g.levels), "low": g.low, "high": g.high} for g in learned.gains]
    return {**asdict(learned), "gains": gains, "level": dict(learned.level)}


def parse(content: bytes) -> Lesson:
    """The lesson in `content`.

    Raises:
        UsageError: In one sentence, what is wrong where.
    """
    top = Fields(strictjson.parse(content))
    top.word("schema", (SCHEMA,))
    lesson = Lesson(
        subject=_subject(top.child("subject")),
        learned=tuple(map(_learned, top.children("learned"))),
        hztune=top.text("hztune", VERSION),
        created=time_of("created", top.text("created", CREATED)),
    )
    top.close()
    return lesson


def _subject(found: Fields) -> Subject:
    subject = Subject(
        workload=found.text("workload", TEXT),
        threads=found.whole("threads", 0, _MOST_THREADS),
        metric=found.text("metric"),
        machine=found.text("machine"),
    )
    found.close()
    return subject


def _learned(found: Fields) -> Learned:
    learned = Learned(
        allocator=found.text("allocator"),
        version=found.text("version", VERSION),
        gains=tuple(map(_gain, found.children("gains"))),
        level=_counts(found.child("level")),
    )
    found.close()
    return learned


def _counts(found: Fields) -> tuple[tuple[str, int], ...]:
    counted = found.values()
    for name, pairs in counted:
        if not isinstance(pairs, int) or pairs < 0:
            raise UsageError(f"level.{name} is {pairs!r}; legal is a number of pairs")
    return tuple((name, int(pairs)) for name, pairs in counted)


def _gain(found: Fields) -> Gain:
    low, high = (found.number(key, 0.0, _MOST_RATIO) for key in ("low", "high"))
    gain = Gain(found.child("set").values(), low, high)
    found.close()
    return gain
