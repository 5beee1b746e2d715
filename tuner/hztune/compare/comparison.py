"""A comparison as JSON: the raw samples of every row beside the estimates that they give.

Samples are written densely, for they are committed beside what they prove: a row names its counters
once, and a turn is [counted_ns, ops]. The estimates are written for readers; when a record is
loaded they are made anew from the samples (`standings_of`), and `disagreements` says where what is
written is not what the samples give.
"""

from __future__ import annotations

import json
import math
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, cast

import msgspec

from hztune import files, strictjson, version
from hztune.blocks import STATUSES, Arm, Block, Outcome, Status, Turn, overall_rate
from hztune.compare.contenders import Contender
from hztune.compare.gate import Gate, Horizon, Ruling
from hztune.compare.match import MOST_PAIRS, Count, Measured, Unfinished
from hztune.compare.standings import Standing, Standings, standings
from hztune.compare.targets import AMOUNTS, Amount, ComparedRow, ProgramSpec, amount_of
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.measure.live_share import LiveReading, LiveShare
from hztune.rests import Rested
from hztune.result.kept import Keeper
from hztune.schema import as_text
from hztune.stats.intervals import Interval
from hztune.strictjson import CREATED, SETTING, SHA256_OR_NONE, VERSION, Fields
from hztune.workload import WorkloadSpec

SCHEMA = "hztune-comparison/2"
MOST_BYTES = 64 << 20

_LINE = re.compile(r".{1,400}")
_DETAIL = re.compile(r"[ -~]{0,400}")
_CAUSES = re.compile(r"[a-z,]{0,80}")
_FOLDERS = re.compile(r"(?<![\w.])/(?:[^\s/:,;]+/)+")
_MOST = 2**63 - 1
_TOLERANCE = 2e-6
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison, or as much of it as has been measured.

    Attributes:
        contenders: The first one is the control.
        machine: Where, as names and values for a reader.
        versions: Of hztune and what it computes with.
        rows: What was measured.
        asked: What a repetition needs beside contenders and rows: seed, budget_s, pairs; by name.
        gate: What the second contender may lose; None: nothing was tested.
        left: Rows with too few pairs: the budget was too small for them, or it was interrupted, and
            a later session goes on with them; stored nowhere.
    """

    contenders: tuple[Contender, ...]
    machine: tuple[tuple[str, str | int | float | None], ...]
    versions: tuple[tuple[str, str], ...]
    rows: tuple[Measured, ...]
    asked: tuple[tuple[str, float], ...] = ()
    gate: Gate | None = None
    left: tuple[Unfinished, ...] = ()

    @property
    def stopped(self) -> bool:
        """Whether Ctrl-C ended it before the last row was finished."""
        return any(not row.enough_s for row in self.left)

    @property
    def answers(self) -> tuple[Ruling, ...]:
        """What the gate says of each row that was asked for; empty where there is none."""
        if self.gate is None:
            return ()
        ruled = {each.label for each in self.rulings}
        return (*self.rulings, *(_unanswered(row) for row in self.left if row.label not in ruled))

    @property
    def rulings(self) -> tuple[Ruling, ...]:
        """What the gate says of each row that was measured; empty where there is none."""
        if self.gate is None:
            return ()
        plans = [(row, row.horizon) for row in self.rows]
        return tuple(
            self.gate.rule(row.spec.label, row.blocks, plan) for row, plan in plans if plan
        )

    @property
    def standings(self) -> tuple[Standings, ...]:
        """What the samples of each row give."""
        return tuple(standings_of(self.contenders, row) for row in self.rows)


def _unanswered(row: Unfinished) -> Ruling:
    why = f"it was interrupted after {row.words}" if row.pairs else "it was not measured"
    if row.enough_s:
        why = "there was no time for it"
    return Ruling(row.label, "not enough data", why, None, None, row.pairs, 0)


def started(
    contenders: Sequence[Contender],
    machine: Machine,
    asked: Mapping[str, float] | None = None,
    gate: Gate | None = None,
) -> Comparison:
    """Returns the record of a comparison of which nothing has been measured."""
    fields = tuple(
        (name, as_text(value) if isinstance(value, str) else value)
        for name, value in asdict(machine).items()
    )
    versions = (
        ("hztune", version()),
        ("numpy", version_of("numpy")),
        ("python", platform.python_version()),
    )
    return Comparison(tuple(contenders), fields, versions, (), tuple((asked or {}).items()), gate)


def standings_of(contenders: Sequence[Contender], row: Measured) -> Standings:
    """Returns what the samples of a row give."""
    names = [each.name for each in contenders]
    return standings(
        row.spec.label,
        names,
        row.blocks,
        [each.each for each in row.counts],
        amount=amount_of(row.spec),
        horizon=row.horizon,
        live=row.live,
    )


def dumps(record: Comparison) -> str:
    """Returns the record as JSON text, one line for what one contender showed in one block."""
    head = {
        "schema": SCHEMA,
        "machine": dict(record.machine),
        "versions": dict(record.versions),
        **({"asked": dict(record.asked)} if record.asked else {}),
        **({"gate": _gate_json(record.gate, record.rulings)} if record.gate else {}),
    }
    contenders = ",\n".join(f"  {json.dumps(_contender_json(each))}" for each in record.contenders)
    rows = ",\n".join(_row_text(record.contenders, row) for row in record.rows)
    return (
        f'{json.dumps(head, indent=1)[:-2]},\n "contenders": [\n{contenders}\n ],\n'
        f' "rows": [\n{rows}\n ]\n}}\n'
    )


def load(path: Path) -> tuple[Comparison, list[str]]:
    """Returns the record in a file, and where it claims what its samples do not give.

    Raises:
        UsageError: There is none, or it is not a legal one; the text says where.
    """
    content = files.read_small(path, MOST_BYTES)
    try:
        return _parse(content)
    except UsageError as error:
        raise UsageError(f"{str(path)!r} is no valid record of a comparison: {error}") from None


def _parse(content: bytes) -> tuple[Comparison, list[str]]:
    top = Fields(strictjson.parse(content))
    top.word("schema", (SCHEMA,))
    machine = top.mapping("machine")
    versions = top.child("versions").texts()
    asked = _asked(top.child("asked")) if top.has("asked") else ()
    gate, ruled = _gate(top.child("gate")) if top.has("gate") else (None, None)
    contenders = tuple(_contender(each) for each in top.children("contenders"))
    if len({each.name for each in contenders}) != len(contenders) or not contenders:
        raise UsageError("contenders must be there, each with a name of its own")
    rows, wrong = [], []
    for fields in top.children("rows"):
        row, stored = _row(fields, contenders)
        rows.append(row)
        computed = _standings_json(standings_of(contenders, row))
        wrong += [f"{row.spec.label}: {each}" for each in disagreements(stored, computed)]
    top.close()
    found = Comparison(contenders, tuple(machine.items()), versions, tuple(rows), asked, gate)
    if gate is not None:
        computed = _gate_json(gate, found.rulings)["rows"]
        wrong += [f"gate: {each}" for each in disagreements(ruled, computed)]
    return found, wrong


def disagreements(stored: object, computed: object, where: str = "") -> Iterator[str]:
    """Yields in which points something that was written is not what was computed."""
    if isinstance(stored, Mapping) and isinstance(computed, Mapping):
        for key in dict.fromkeys([*computed, *stored]):
            deeper = f"{where}.{key}" if where else str(key)
            yield from disagreements(stored.get(key), computed.get(key), deeper)
    elif _is_number(stored) and _is_number(computed):
        a, b = cast("float", stored), cast("float", computed)
        if not math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
            yield f"{where} is {a:g}, its samples give {b:g}"
    elif stored != computed:
        yield f"{where} is {stored!r}, its samples give {computed!r}"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# ---- writing -------------------------------------------------------------------------------------


def _contender_json(contender: Contender) -> dict[str, Any]:
    """Returns a contender; of a library in a file only what it is called, never where it was."""
    return {
        "name": contender.name,
        "allocator": contender.arm.allocator,
        "params": contender.arm.config,
        "version": contender.version,
        "sha256": contender.sha256,
    }


def _gate_json(gate: Gate, rulings: Sequence[Ruling]) -> dict[str, Any]:
    """Returns what was tested, and what it came to; how many rows there were to be is in it."""
    rows = {each.label: {"answer": each.answer, "why": each.why} for each in rulings}
    return {"no_worse": gate.limit.text, "of_rows": gate.rows, "rows": rows}


def _row_text(contenders: Sequence[Contender], row: Measured) -> str:
    spec = row.spec
    head = f'  {{"row": {json.dumps(spec.label)}, "created": "{row.created}",\n'
    head += f'   "spec": {json.dumps(_spec_json(spec))},\n'
    if row.horizon is not None:
        plan = {"pairs": row.horizon.planned, "time_was_up": row.horizon.is_last}
        head += f'   "planned": {json.dumps(plan)},\n'
    if row.counts:
        head += f'   "instructions": {_dense([_count_json(each) for each in row.counts])},\n'
    if row.live:
        head += f'   "live": {_dense([_live_json(each) for each in row.live])},\n'
    told = _dense(_standings_json(standings_of(contenders, row)))
    outcomes = [outcome for block in row.blocks for outcome in block.outcomes]
    names = list(dict.fromkeys(name for each in outcomes for name in _counted(each)))
    head += f'   "counters": {_dense(names)},\n'
    blocks = ",\n".join(
        "    [" + ",\n     ".join(_dense(_outcome_json(o, names)) for o in block.outcomes) + "]"
        for block in row.blocks
    )
    return f'{head}   "standings": {told},\n   "blocks": [\n{blocks}\n   ]}}'


def _spec_json(spec: ComparedRow) -> dict[str, Any]:
    """Returns what a row is of; of a program's words only hashes, for they may hold secrets."""
    if isinstance(spec, ProgramSpec):
        program = {name: value for name, value in asdict(spec).items() if name != "label"}
        return {"program": spec.label, **program}
    return {
        "name": spec.name,
        "setting": spec.setting,
        "params": dict(spec.params),
        "threads": spec.threads,
        "steady": spec.steady,
    }


def _dense(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _count_json(count: Count) -> list[int]:
    """Returns [operations, instructions] of the shorter run, then of the longer one."""
    less, more = zip(count.operations, count.instructions, strict=True)
    return [*less, *more]


def _live_json(share: LiveShare) -> dict[str, Any]:
    """Returns what one allocator answered, KiB; live bytes that it does not count are null."""
    readings = {"most": share.most, "last": share.last}
    told = {name: [each.held_kb, each.live_kb] for name, each in readings.items() if each}
    return {"allocator": share.allocator, **told, "why": _without_folders(share.why)}


def _counted(outcome: Outcome) -> dict[str, int]:
    """Returns what was counted in a process, and what is known of it as a whole."""
    return {**outcome.facts, **outcome.counters}


def _outcome_json(outcome: Outcome, names: Sequence[str]) -> dict[str, Any]:
    """Returns an outcome, its counters in the order of their names; null where it has none."""
    failed = {"status": outcome.status, "detail": _without_folders(outcome.detail)}
    return {
        **({} if outcome.ok else failed),
        "rss_peak_kb": outcome.rss_peak_kb,
        **({"rested": msgspec.to_builtins(outcome.rested)} if outcome.rested else {}),
        "counters": [_counted(outcome).get(name) for name in names],
        "turns": [_turn_json(position, turn) for position, turn in enumerate(outcome.turns)],
    }


def _turn_json(position: int, turn: Turn) -> list[object]:
    """Returns [counted_ns, ops], or [round, counted_ns, ops] where the round is not the position.

    What was disturbed says so: [round, counted_ns, ops, causes].
    """
    ops = int(turn.ops) if float(turn.ops).is_integer() else turn.ops
    if turn.disturbed:
        return [turn.round, turn.counted_ns, ops, turn.disturbed]
    number = [] if turn.round == position else [turn.round]
    return [*number, turn.counted_ns, ops]


def _standings_json(found: Standings) -> dict[str, Any]:
    return {
        "contenders": {each.name: _standing_json(each) for each in found.all},
        "best_of_others": found.best,
        "first_over_best": _interval_json(found.lead),
        "rss_over_median_of_others": found.frugality,
    }


def _standing_json(standing: Standing) -> dict[str, Any]:
    return {
        "ops_per_s": standing.ops_per_s,
        "rss_mb": standing.rss_mb,
        "speed": _interval_json(standing.speed),
        "rss": _interval_json(standing.memory),
        **({"cpu": _interval_json(standing.cpu)} if standing.cpu else {}),
        **({"failures": len(standing.failures)} if standing.failures else {}),
        **({"counters": dict(standing.counters)} if standing.counters else {}),
        **({} if standing.instructions is None else {"instructions": standing.instructions}),
        **(_keeps_json(standing.keeps, standing.kept) if standing.keeps else {}),
    }


def _keeps_json(keeps: Keeper, ratio: Interval | None) -> dict[str, Any]:
    """Returns what it keeps at rest, and the estimate and ends of what each round adds, KiB."""
    slope = [round(each, _DIGITS) for each in keeps.slope_kb] if keeps.slope_kb else None
    kept_kb = round(keeps.kept_kb, _DIGITS)
    return {"kept_kb": kept_kb, "round_more_kb": slope, "kept": _interval_json(ratio)}


def _interval_json(interval: Interval | None) -> dict[str, Any] | None:
    """Returns a ratio to the first one with its 95 % interval; null ends: it has none."""
    if interval is None:
        return None
    is_known = math.isfinite(interval.half_width)
    ratio, low, high = (round(each, _DIGITS) for each in interval.ratio) if is_known else (
        round(math.exp(interval.estimate), _DIGITS), None, None,
    )  # fmt: skip
    return {"ratio": ratio, "ci_low": low, "ci_high": high, "pairs": interval.pairs}


def _without_folders(text: str) -> str:
    """Returns a sentence with the names of files, but not where they are on this machine."""
    return re.sub(r"[^ -~]", "?", _FOLDERS.sub("", text))[:400]


# ---- reading -------------------------------------------------------------------------------------


def _contender(fields: Fields) -> Contender:
    name, allocator = fields.text("name", _LINE), fields.text("allocator")
    contender = Contender(
        name=name,
        arm=Arm.of(allocator, dict(fields.child("params").values())),
        version=fields.text("version", VERSION),
        sha256=fields.text("sha256", SHA256_OR_NONE),
    )
    fields.close()
    return contender


def _row(fields: Fields, contenders: Sequence[Contender]) -> tuple[Measured, object]:
    """Returns a row, and the standings that are written beside its samples."""
    label = fields.text("row", _LINE)
    created = fields.text("created", CREATED)
    spec = _spec(fields.child("spec"))
    if spec.label != label:
        raise UsageError(f"the row {label!r} has the samples of {spec.label!r}")
    names = fields.items("counters")
    blocks = tuple(
        _block(number, each, contenders, label, names)
        for number, each in enumerate(fields.items("blocks"))
    )
    if not blocks:
        raise UsageError(f"the row {label!r} has no samples")
    counts = (
        tuple(_count(each) for each in fields.items("instructions"))
        if fields.has("instructions")
        else ()
    )
    horizon = _horizon(fields.child("planned")) if fields.has("planned") else None
    live = tuple(map(_live, fields.children("live"))) if fields.has("live") else ()
    stored = fields.mapping("standings")
    fields.close()
    if counts and len(counts) != len(contenders):
        raise UsageError(f"{label!r} has not one count of instructions for each contender")
    if live and len(live) != len(contenders):
        raise UsageError(f"{label!r} has not one answer of live bytes for each contender")
    return Measured(spec, blocks, created, counts, horizon, live), stored


def _live(fields: Fields) -> LiveShare:
    """Returns what one allocator answered."""
    name, why = fields.text("allocator", _DETAIL), fields.text("why", _DETAIL)
    most, last = (
        _reading(fields.items(each)) if fields.has(each) else None for each in ("most", "last")
    )
    fields.close()
    return LiveShare(name, most, last, why)


def _reading(values: Sequence[object]) -> LiveReading:
    """Returns the reading of [held, live]."""
    held, live = values if len(values) == 2 else (None, None)
    known = [held] if live is None else [held, live]
    if any(type(each) is not int or each < 0 for each in known):
        raise UsageError(
            f"an answer of live bytes is {str(values)[:60]}; legal is [held, live], both KiB, the "
            "second one null where it is not known"
        )
    return LiveReading(cast("int", held), cast("int | None", live))


def _count(item: object) -> Count:
    """Returns the count of [operations, instructions, operations, instructions]."""
    if not isinstance(item, list) or [type(each) for each in item] != [int] * 4:
        raise UsageError(f"a count of instructions is {str(item)[:60]}; legal are four numbers")
    if not item[0] < item[2]:
        raise UsageError(f"a count of instructions is {item}; its second run must be the longer")
    return Count((item[0], item[2]), (item[1], item[3]))


def _asked(fields: Fields) -> tuple[tuple[str, float], ...]:
    """Returns what a repetition needs, by name."""
    known = ("seed", "budget_s", "pairs")
    asked = tuple((name, fields.number(name, 0, _MOST)) for name in known if fields.has(name))
    fields.close()
    return asked


def _gate(fields: Fields) -> tuple[Gate, object]:
    """Returns a gate, and the answers that are written with it."""
    text, rows = fields.text("no_worse", _LINE), fields.whole("of_rows", 1, _MOST)
    gate, ruled = Gate.of(text, rows), fields.mapping("rows")
    fields.close()
    return gate, ruled


def _horizon(fields: Fields) -> Horizon:
    horizon = Horizon(fields.whole("pairs", 1, MOST_PAIRS), fields.truth("time_was_up"))
    fields.close()
    return horizon


def _program(fields: Fields) -> ProgramSpec:
    spec = ProgramSpec(
        label=fields.text("program", _LINE),
        amount=cast("Amount", fields.word("amount", AMOUNTS)),
        words_sha256=fields.text("words_sha256", SHA256_OR_NONE),
        around_sha256=fields.text("around_sha256", SHA256_OR_NONE),
        sha256=fields.text("sha256", SHA256_OR_NONE),
    )
    fields.close()
    return spec


def _spec(fields: Fields) -> ComparedRow:
    if fields.has("program"):
        return _program(fields)
    spec = WorkloadSpec(
        name=fields.text("name"),
        setting=fields.text("setting", SETTING),
        params=fields.child("params").values(),
        threads=fields.whole("threads", 1, _MOST),
        steady=fields.truth("steady"),
    )
    fields.close()
    return spec


def _block(
    number: int,
    outcomes: object,
    contenders: Sequence[Contender],
    label: str,
    names: Sequence[object],
) -> Block:
    if not isinstance(outcomes, list) or len(outcomes) != len(contenders):
        raise UsageError(f"block {number} of {label!r} has not one outcome for each contender")
    read = [
        _outcome(Fields(each, f"{label} block {number}"), contender.arm, names)
        for each, contender in zip(outcomes, contenders, strict=True)
    ]
    return Block(number, "explore", tuple(read))


def _outcome(fields: Fields, arm: Arm, names: Sequence[object]) -> Outcome:
    has_failed = fields.has("status")
    outcome = Outcome(
        arm=arm,
        status=cast("Status", fields.word("status", STATUSES)) if has_failed else "ok",
        detail=fields.text("detail", _DETAIL) if has_failed else "",
        rss_peak_kb=fields.whole("rss_peak_kb", 0, _MOST),
        rested=_rested(fields.child("rested")) if fields.has("rested") else None,
        counters=_counters(names, fields.items("counters")),
        turns=tuple(_turn(position, each) for position, each in enumerate(fields.items("turns"))),
    )
    fields.close()
    if not outcome.ok:
        return outcome
    if not outcome.turns:
        raise UsageError(f"{arm.allocator} ran well in a block, but has no turn there")
    return replace(outcome, ops_per_s=overall_rate(outcome.turns))


def _rested(fields: Fields) -> Rested:
    """Returns the rounds of load and rest of a process."""
    stored = {name: fields.items(name) for name in ("points", "rounds")}
    for name, length in (("points", 3), ("rounds", 6)):
        for each in stored[name]:
            if not isinstance(each, list) or [type(one) for one in each] != [int] * length:
                raise UsageError(f"{name} at rest: {str(each)[:60]}; legal are {length} numbers")
    if not stored["rounds"]:
        raise UsageError("a process that rested has no rounds")
    read = msgspec.convert({"speed": fields.number("speed", 0, math.inf), **stored}, Rested)
    fields.close()
    return read


def _counters(names: Sequence[object], counts: Sequence[object]) -> dict[str, int]:
    """Returns what a process counted, by name; what it does not count is null."""
    if len(names) != len(counts):
        raise UsageError(f"it has {len(counts)} counts for {len(names)} counters")
    for count in counts:
        if count is not None and (type(count) is not int or count < 0):
            raise UsageError(
                f"a count is {str(count)[:60]}; legal is a whole number from 0, or null"
            )
    pairs = zip(names, counts, strict=True)
    return {str(name): count for name, count in pairs if isinstance(count, int)}


def _turn(position: int, item: object) -> Turn:
    """Returns the turn of [counted_ns, ops], [round, counted_ns, ops] or the same with causes."""
    values = item if isinstance(item, list) else []
    whole = [position, *values] if len(values) == 2 else values
    number, counted_ns, ops, *causes = whole if len(whole) in (3, 4) else (None, None, None)
    if (
        type(number) is not int
        or type(counted_ns) is not int
        or counted_ns <= 0
        or type(ops) not in (int, float)
        or not all(isinstance(each, str) and _CAUSES.fullmatch(each) for each in causes)
    ):
        raise UsageError(f"a turn is {str(item)[:60]}; legal is [round, counted_ns, ops, causes]")
    return Turn(number, 0, 0, counted_ns, cast("float", ops), causes[0] if causes else "")
