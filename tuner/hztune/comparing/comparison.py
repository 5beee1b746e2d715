"""A comparison as JSON: the raw samples of every row beside the estimates that they give.

Samples are written densely, for they are committed beside what they prove: a row names its counters
once, and a turn is [counted_ns, ops]. Estimates are written for readers; loading makes them anew
from the samples.
"""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from hztune import files, version
from hztune.blocks import Arm, Block, Outcome, Status, Turn, overall_rate
from hztune.comparing.contenders import ComparedRow, Contender, ProgramSpec
from hztune.comparing.gate import Gate, GateAnswer, Horizon, Ruling, Standing, Standings, whole
from hztune.comparing.match import Measured, failing
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.params import Value
from hztune.rests import Rested
from hztune.schema import Created, Schema, as_text
from hztune.stats.intervals import Interval
from hztune.stats.ratios import Columns, block_columns
from hztune.workload import WorkloadSpec

SCHEMA: Literal["hztune-comparison/1"] = "hztune-comparison/1"
MOST_BYTES = 64 << 20

_FOLDERS = re.compile(r"(?<![\w.])/(?:[^\s/:,;]+/)+")
_DIGITS = 6
_LINE_BEGINS = ('"machine":', '"gate":', '"contenders":', '{"name":', '{"row":', '{"rss_peak_kb":')

_Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Text = Annotated[str, Meta(max_length=400)]


@dataclass(frozen=True, slots=True)
class Comparison:
    contenders: tuple[Contender, ...]  # the first one is the control
    machine: Mapping[str, str | int | float | None]  # where, by name
    versions: Mapping[str, str]  # of hztune and what it computes with
    # what was measured; the budget may have been too small for one, and a stop have cut one
    rows: tuple[Measured, ...] = ()
    # what a repetition needs beside contenders and rows: seed, budget_s, pairs; by name
    asked: Mapping[str, float] = field(default_factory=dict)
    gate: Gate | None = None  # what the second contender may lose; None: nothing was tested
    missing: tuple[str, ...] = ()  # labels of rows that a stop left unmeasured; stored nowhere

    @property
    def stopped(self) -> bool:
        """Whether Ctrl-C ended it before the last row was finished."""
        return bool(self.missing) or any(row.is_cut for row in self.rows)

    @property
    def answers(self) -> tuple[Ruling, ...]:
        """What the gate says of each row that was asked for; empty where there is none."""
        if self.gate is None:
            return ()
        lost = (Ruling(label, "not enough data", "it was not measured") for label in self.missing)
        return (*(self._answer(self.gate, row) for row in self.rows), *lost)

    def _answer(self, gate: Gate, row: Measured) -> Ruling:
        label, pairs = row.spec.label, len(row.blocks)
        if row.horizon is None or not pairs:
            return Ruling(label, "not enough data", "there was no time for it")
        found = gate.rule(label, row.blocks, row.horizon)
        if not row.is_cut:
            return found
        why = f"it was interrupted after {row.words.partition(' of ')[0]}"
        return found._replace(answer="not enough data", why=why)

    @property
    def ruling(self) -> GateAnswer:
        return whole(self.answers)

    @property
    def failing(self) -> list[str]:
        """Which contenders failed in at least half of the pairs of a row, how often and how."""
        return [
            f"{row.spec.label}: {words}"
            for row in self.rows
            for words in failing(self.contenders, row.blocks, 0.5).values()
        ]

    @property
    def blocks(self) -> Columns:
        """All that was measured, as columns: a row for each contender of each block."""
        measured = ((row.spec.label, block) for row in self.rows for block in row.blocks)
        return block_columns(measured, [each.name for each in self.contenders])

    @property
    def standings(self) -> tuple[Standings, ...]:
        names = [each.name for each in self.contenders]
        return tuple(row.standings(names) for row in self.rows if row.blocks)


def started(
    contenders: Sequence[Contender],
    machine: Machine,
    asked: Mapping[str, float] | None = None,
    gate: Gate | None = None,
) -> Comparison:
    versions = {
        "hztune": version(),
        "numpy": version_of("numpy"),
        "python": platform.python_version(),
    }
    fields = {
        name: as_text(value) if isinstance(value, str) else value
        for name, value in asdict(machine).items()
    }
    return Comparison(tuple(contenders), fields, versions, asked=asked or {}, gate=gate)


# ---- as it is stored -----------------------------------------------------------------------------


class _Contender(Schema, frozen=True):
    """Of a library in a file only what it is called, never where it was."""

    name: _Text
    allocator: _Text
    params: dict[str, Value] = msgspec.field(default_factory=dict)
    version: _Text = ""
    sha256: _Text = ""


class _Workload(Schema, frozen=True):
    name: _Text
    setting: _Text
    params: dict[str, Value]
    threads: Annotated[int, Meta(ge=1)]
    steady: bool


class _Turn(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    counted_ns: Annotated[int, Meta(gt=0)]
    ops: int | float
    round: _Whole | None = None  # None: its position in the list
    disturbed: _Text = ""

    def read(self, position: int) -> Turn:
        number = position if self.round is None else self.round
        return Turn(number, 0, 0, self.counted_ns, self.ops, self.disturbed)


class _Outcome(Schema, frozen=True):
    rss_peak_kb: _Whole
    turns: list[_Turn]
    counters: tuple[_Whole | None, ...] = ()
    status: Status = "ok"
    detail: _Text = ""
    rested: Rested | None = None

    @classmethod
    def of(cls, one: Outcome, names: Sequence[str]) -> _Outcome:
        turns: list[Any] = []  # without what is usual at the end of each
        for position, turn in enumerate(one.turns):
            ops = int(turn.ops) if float(turn.ops).is_integer() else turn.ops
            number = None if turn.round == position else turn.round
            told = [turn.counted_ns, ops, number, turn.disturbed]
            turns.append(told[: 4 if turn.disturbed else 2 if number is None else 3])
        counters = tuple(map(one.counted.get, names))
        detail = re.sub(r"[^ -~]", "?", _FOLDERS.sub("", one.detail))[:400]  # not where files are
        return cls(one.rss_peak_kb, turns, counters, one.status, detail, one.rested)

    def read(self, arm: Arm, names: Sequence[str]) -> Outcome:
        turns = tuple(turn.read(position) for position, turn in enumerate(self.turns))
        if len(names) != len(self.counters):
            raise UsageError(f"it has {len(self.counters)} counts for {len(names)} counters")
        if self.status == "ok" and not turns:
            raise UsageError(f"{arm.allocator} ran well in a block, but has no turn there")
        if self.rested is not None and not self.rested.rounds:
            raise UsageError("a process that rested has no rounds")
        known = zip(names, self.counters, strict=True)
        return Outcome(
            arm,
            self.status,
            self.detail,
            overall_rate(turns) if self.status == "ok" else 0.0,
            turns,
            self.rss_peak_kb,
            counters={name: count for name, count in known if count is not None},
            rested=self.rested,
        )


class _Row(Schema, frozen=True):
    row: _Text
    created: Created
    counters: list[_Text]
    standings: dict[str, Any]
    blocks: Annotated[list[list[_Outcome]], Meta(min_length=1)]
    workload: _Workload | None = None
    program: ProgramSpec | None = None
    planned: Horizon | None = None
    is_cut: bool = False

    @classmethod
    def of(cls, row: Measured, names: Sequence[str]) -> _Row:
        spec, outcomes = row.spec, [o for block in row.blocks for o in block.outcomes]
        counters = [*dict.fromkeys(name for o in outcomes for name in o.counted)]
        workload, program = None, spec if isinstance(spec, ProgramSpec) else None
        if isinstance(spec, WorkloadSpec):
            params = dict(spec.params)
            workload = _Workload(spec.name, spec.setting, params, spec.threads, spec.steady)
        blocks = [[_Outcome.of(o, counters) for o in block.outcomes] for block in row.blocks]
        told = _standings_json(row.standings(names))
        return cls(
            spec.label, row.created, counters, told, blocks, workload, program, row.horizon,
            row.is_cut,
        )  # fmt: skip

    def read(self, contenders: Sequence[Contender]) -> Measured:
        spec: ComparedRow | None = self.program
        if (of := self.workload) is not None:
            params = tuple(of.params.items())
            spec = WorkloadSpec(of.name, of.setting, params, of.threads, of.steady)
        if spec is None or spec.label != self.row:
            raise UsageError(f"the row {self.row!r} has the samples of another one")
        if {*map(len, self.blocks)} != {len(contenders)}:
            raise UsageError(f"the row {self.row!r} has not one sample for each contender")
        blocks = []
        for number, outcomes in enumerate(self.blocks):
            both = zip(outcomes, contenders, strict=True)
            read = tuple(one.read(side.arm, self.counters) for one, side in both)
            blocks.append(Block(number, "explore", read))
        return Measured(spec, tuple(blocks), self.created, self.planned, is_cut=self.is_cut)


class _Gate(Schema, frozen=True):
    of_rows: Annotated[int, Meta(ge=1)]
    rows: dict[str, Any]
    no_worse: _Text = ""
    no_more_memory: _Text = ""


class _Record(Schema, frozen=True):
    schema: Literal["hztune-comparison/1"]
    machine: dict[str, str | int | float | None]
    versions: dict[str, _Text]
    contenders: Annotated[list[_Contender], Meta(min_length=1)]
    rows: list[_Row]
    asked: dict[Literal["seed", "budget_s", "pairs"], int | float] = msgspec.field(
        default_factory=dict
    )
    gate: _Gate | None = None


def dumps(record: Comparison) -> str:
    """The record as JSON text, one line for what one contender showed in one block."""
    names, gate = [each.name for each in record.contenders], record.gate
    answers = {each.label: {"answer": each.answer, "why": each.why} for each in record.answers}
    stored = _Record(
        SCHEMA,
        dict(record.machine),
        dict(record.versions),
        [
            _Contender(side.name, side.arm.allocator, side.arm.config, side.version, side.sha256)
            for side in record.contenders
        ],
        [_Row.of(row, names) for row in record.rows if row.blocks],
        dict(record.asked),  # type: ignore[arg-type]
        _Gate(gate.rows, answers, gate.no_worse, gate.no_more_memory) if gate else None,
    )
    text = msgspec.json.encode(stored).decode()
    for begin in _LINE_BEGINS:
        text = text.replace(begin, "\n" + begin)
    return text + "\n"


def load(path: Path) -> Comparison:
    """The record in a file; UsageError: there is none, or it is not a legal one: it says where."""
    content = files.read_small(path, MOST_BYTES)
    try:
        return _read(msgspec.json.decode(content, type=_Record))
    except (UsageError, msgspec.DecodeError, RecursionError) as error:
        why = f"is no comparison as this version of hztune writes it: {error}"
        raise UsageError(f"{str(path)!r} {why}") from None


def _read(stored: _Record) -> Comparison:
    contenders = tuple(
        Contender(one.name, Arm.of(one.allocator, one.params), one.version, one.sha256)
        for one in stored.contenders
    )
    if len({each.name for each in contenders}) != len(contenders):
        raise UsageError("two contenders have one name")
    rows = tuple(row.read(contenders) for row in stored.rows)
    asked, told = stored.gate, dict[str, float](stored.asked)  # type: ignore[arg-type]
    gate = Gate(asked.no_worse, asked.no_more_memory, asked.of_rows) if asked else None
    return Comparison(contenders, stored.machine, stored.versions, rows, told, gate)


def _standings_json(found: Standings) -> dict[str, Any]:
    return {
        "contenders": {each.name: _standing_json(each) for each in found.all},
        "best_of_others": found.best,
        "first_over_best": _interval_json(found.lead),
    }


def _standing_json(standing: Standing) -> dict[str, Any]:
    keeps, counters = standing.keeps, standing.counters
    told = {
        "ops_per_s": round(standing.ops_per_s, _DIGITS),
        "rss_mb": round(standing.rss_mb, _DIGITS),
        "speed": _interval_json(standing.speed),
        "rss": _interval_json(standing.memory),
        "cpu": _interval_json(standing.cpu),
        "failures": len(standing.failures) or None,
        "counters": {name: round(each, _DIGITS) for name, each in counters.items()} or None,
        "kept_kb": round(keeps.kept_kb, _DIGITS) if keeps else None,
        "round_more_kb": [round(each, _DIGITS) for each in keeps.slope_kb or ()] if keeps else None,
        "kept": _interval_json(standing.kept),
    }
    return {name: each for name, each in told.items() if each is not None}


def _interval_json(interval: Interval | None) -> dict[str, Any] | None:
    """A ratio to the first one with its 95 % interval; null ends: it has none."""
    if interval is None:
        return None
    ratio, *ends = (round(each, _DIGITS) for each in interval.ratio)
    if not math.isfinite(interval.half_width):
        return {"ratio": ratio, "ci_low": None, "ci_high": None, "pairs": interval.pairs}
    return {"ratio": ratio, "ci_low": ends[0], "ci_high": ends[1], "pairs": interval.pairs}
