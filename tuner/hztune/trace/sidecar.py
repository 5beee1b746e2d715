"""The verdict on a trace, in a file beside it: FILE.check.json.

It belongs to the content of the trace, by its hash, and not to its name: beside another trace of
the same name it counts for nothing.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

from hztune import files, strictjson
from hztune.errors import UsageError
from hztune.strictjson import CREATED, Fields
from hztune.trace_file import TraceFile

SCHEMA = "hztune-trace-check/1"
ENDING = ".check.json"
MOST_BYTES = 1 << 20

CheckAnswer = Literal["stands", "does not stand", "cannot tell"]
ANSWERS: tuple[CheckAnswer, ...] = ("stands", "does not stand", "cannot tell")

PointState = Literal["agrees", "disagrees", "open", "skipped"]
STATES: tuple[PointState, ...] = ("agrees", "disagrees", "open", "skipped")

_SENTENCE = re.compile(r"[ -~]{0,400}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST = 1e6


@dataclass(frozen=True, slots=True)
class CheckPoint:
    """One thing that was asked of a trace.

    Attributes:
        name: "order", "scale", "memory", "touch" or "shape".
        state: What was found; "open": the measurements do not tell.
        text: The same for people.
    """

    name: str
    state: PointState
    text: str


@dataclass(frozen=True, slots=True)
class TimeShare:
    """The part of the program's time that a trace stands for, with the ends of its interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class TraceCheck:
    """The verdict on a trace.

    Attributes:
        trace_sha256: Of the trace's content.
        answer: Whether it may stand for its program.
        why: The reason in one sentence.
        program: What the program is called; its words may hold secrets, and are not kept.
        contenders: Under what both were measured.
        points: What was asked.
        share: Of the program's time that the trace stands for; None: not known.
        created: When, UTC.
        measured: What each row showed, as it was judged, as JSON; it is not taken apart here.
    """

    trace_sha256: str
    answer: CheckAnswer
    why: str
    program: str
    contenders: tuple[str, ...]
    points: tuple[CheckPoint, ...]
    share: TimeShare | None
    created: str
    measured: str

    @property
    def stands(self) -> bool:
        """Whether the trace may stand for its program."""
        return self.answer == "stands"

    @property
    def against_rounds(self) -> str:
        """What differs from the program round after round, as studies measure; "": nothing."""
        found = (p.text for p in self.points if (p.name, p.state) == ("rounds", "disagrees"))
        return next(found, "")

    def as_json(self) -> str:
        """The verdict as it stands in its file."""
        held = {**asdict(self), "measured": json.loads(self.measured)}
        return json.dumps({"schema": SCHEMA, **held}, indent=1, allow_nan=False) + "\n"


def path_of(trace: Path) -> Path:
    """Where the verdict on a trace stands."""
    return trace.with_name(trace.name + ENDING)


def require_place(trace: Path) -> None:
    """Sees to it, before anything is measured, that a verdict can be written beside its trace.

    Raises:
        UsageError: It cannot.
    """
    path = path_of(trace)
    if not (files.may_be_replaced(path) and os.access(path.parent, os.W_OK)):
        raise UsageError(f"cannot write the verdict to {str(path)!r}; copy the trace elsewhere")


def write(check: TraceCheck, trace: Path) -> Path:
    """Writes the verdict beside its trace, and returns where it is.

    Raises:
        HztuneError: The file system refused.
    """
    path = path_of(trace)
    files.write_whole(path, check.as_json())
    return path


def find(trace: TraceFile) -> TraceCheck | None:
    """The verdict on a trace; None where there is none on this content that can be read."""
    path = path_of(trace.path)
    if not path.is_file():
        return None
    try:
        found = parse(files.read_small(path, MOST_BYTES))
    except UsageError:
        return None
    return found if found.trace_sha256.startswith(trace.digest) else None


def remark(trace: TraceFile) -> str:
    """What is to be said of a trace on which a configuration is sought; "": it may stand."""
    found = find(trace)
    if found is None:
        return f"{trace.name} was not checked: whether it may stand for its program is not known"
    if found.answer == "cannot tell":
        return f"{trace.name} was checked, and it is not shown that it may stand for its program"
    return "" if found.stands else f"{trace.name} was checked, and may not stand for its program"


def parse(content: bytes) -> TraceCheck:
    """The verdict in a file's content.

    Raises:
        UsageError: It is none; the text says where.
    """
    top = Fields(strictjson.parse(content))
    top.word("schema", (SCHEMA,))
    share = top.anything("share")
    found = TraceCheck(
        trace_sha256=top.text("trace_sha256", _SHA256),
        answer=cast("CheckAnswer", top.word("answer", ANSWERS)),
        why=top.text("why", _SENTENCE),
        program=top.text("program", _SENTENCE),
        contenders=tuple(_names(top.items("contenders"))),
        points=tuple(_point(each) for each in top.children("points")),
        share=None if share is None else _share(Fields(share, "share")),
        created=top.text("created", CREATED),
        measured=json.dumps(top.mapping("measured")),
    )
    top.close()
    return found


def _names(values: list[Any]) -> list[str]:
    if not all(isinstance(each, str) and _SENTENCE.fullmatch(each) for each in values):
        raise UsageError("contenders is not a list of names")
    return values


def _point(fields: Fields) -> CheckPoint:
    point = CheckPoint(
        fields.text("name"),
        cast("PointState", fields.word("state", STATES)),
        fields.text("text", _SENTENCE),
    )
    fields.close()
    return point


def _share(fields: Fields) -> TimeShare:
    share = TimeShare(*(fields.number(key, -_MOST, _MOST) for key in ("estimate", "low", "high")))
    fields.close()
    return share
