"""From a TOML file to a space.

The file names parameters and narrows ranges; defaults, units and descriptions are the allocator's
and never stand in it. Whatever is wrong is said in one sentence that names the file and the key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, field

from hztune import artifacts, files
from hztune.errors import UsageError, did_you_mean
from hztune.machine import Machine
from hztune.params import Param, Value, judge
from hztune.schema import Schema, Text, judged
from hztune.space.core import Dimension, Expression, Preset, Rule, Space

SCHEMA = 1
_MAX_BYTES = 256 * 1024
_MAX_LINEAR_VALUES = 33

ConfigCheck = Callable[[Mapping[str, Value]], None]
_Words = Annotated[str, Meta(min_length=1)]


class _Parameter(Schema, frozen=True):
    """One of [parameters]; expressions are of the facts, but `when` of the parameters."""

    low: int | str | None = None
    high: int | str | None = None
    values: tuple[int | str, ...] | None = None
    when: str | None = None
    if_present: bool = False
    if_rests: bool = False
    keeping: tuple[int | str, ...] | None = None


class _Rule(Schema, frozen=True):
    """The sentence of a risk goes into profiles, which hold no other signs."""

    rule: str
    why: Annotated[Text, Meta(min_length=1)]


class _Preset(Schema, frozen=True):
    name: _Words
    why: _Words
    set: dict[str, int | str] = field(default_factory=dict)
    returns: bool = False


class _File(Schema, frozen=True):
    schema: int
    allocator: _Words
    parameters: dict[str, Any] = field(default_factory=dict)
    not_searched: dict[str, Any] = field(default_factory=dict)
    forbid: tuple[_Rule, ...] = ()
    risk: tuple[_Rule, ...] = ()
    preset: tuple[_Preset, ...] = ()


def load(
    name: str | Path,
    params: Sequence[Param],
    *,
    check: ConfigCheck,
    facts: Mapping[str, int] | None = None,
) -> Space:
    """Reads a space; UsageError: the file is missing, is no TOML, or says what is not legal.

    `name`: a path to a TOML file, or the name of one that hztune ships ("hz"). `params`: the knobs
    of the allocator that is installed. `check`: raises UsageError when the allocator would refuse a
    whole configuration. `facts`: numbers that ranges and presets may refer to; see `machine_facts`.
    """
    path = find(name)
    reader = _Reader(path, {p.name: p for p in params}, dict(facts or machine_facts()))
    return reader.space(files.read_toml(path, _MAX_BYTES), check)


def machine_facts(
    threads: int = 1,
    machine: Machine | None = None,
    *,
    rests: bool = False,
    keeping: bool = False,
) -> dict[str, int]:
    """What a space may refer to: CPUs that a quota leaves us, threads of the workload.

    `rests`: memory at rest is judged; `keeping`: settings that never return it are tried.
    """
    machine = machine or Machine.here()
    quota = machine.cores if machine.quota is None else ceil(machine.quota)
    cpus = max(1, min(machine.cores, quota))
    return {"cpus": cpus, "threads": threads, "rests": int(rests), "keeping": int(keeping)}


def find(name: str | Path) -> Path:
    path = Path(name)
    if is_file(name):
        if path.is_file():
            return path
        raise UsageError(f"there is no search space {str(name)!r}")
    shipped = artifacts.search_spaces()
    if (shipped / f"{name}.toml").is_file():
        return shipped / f"{name}.toml"
    known = " ".join(sorted(file.stem for file in shipped.glob("*.toml")))
    raise UsageError(f"there is no search space {str(name)!r} (shipped: {known}; or give a .toml)")


def is_file(name: str | Path) -> bool:
    path = Path(name)
    return path.suffix == ".toml" or len(path.parts) > 1


@dataclasses.dataclass
class _Reader:
    path: Path
    params: dict[str, Param]
    facts: dict[str, int]
    tables: dict[str, _Parameter] = dataclasses.field(default_factory=dict)
    left_out: dict[str, tuple[Value, ...]] = dataclasses.field(default_factory=dict)
    """By parameter, the values that are not tried: with them memory is never returned."""
    absent: set[str] = dataclasses.field(default_factory=set)

    @contextmanager
    def _at(self, where: str) -> Iterator[None]:
        try:
            yield
        except UsageError as error:
            raise UsageError(": ".join(filter(None, [str(self.path), where, str(error)]))) from None

    def space(self, data: dict[str, Any], check: ConfigCheck) -> Space:
        with self._at(""):
            file = judged(data, _File)
            if file.schema != SCHEMA:
                raise UsageError(f"schema is {file.schema!r}; legal is {SCHEMA}")
        for name, table in file.parameters.items():
            with self._at(f"parameters.{name}"):
                self.tables[name] = judged(table, _Parameter)
                self._leave_out(name, self.tables[name])
        dimensions = []
        for name in (each for each in self.tables if each not in self.absent):
            with self._at(f"parameters.{name}"):
                dimensions.append(self._dimension(name, self.tables[name]))
        for name, why in file.not_searched.items():
            with self._at(f"not_searched.{name}"):
                judged(why, _Words)
                self._param(name)
                if name in self.tables:
                    raise UsageError("stands under [parameters] too; legal is one of the two")
        with self._at(""):
            ordered = _ordered_by_need(dimensions)
        space = Space(
            allocator=file.allocator,
            dimensions=ordered,
            rules=self._each("forbid", file.forbid, self._rule),
            presets=self._each("preset", file.preset, self._preset),
            params=tuple(self.params.values()),
            check=check,
            risks=self._each("risk", file.risk, self._rule),
        )
        for preset in space.presets:
            objection = space.objection(preset.config)
            if objection is not None:
                raise UsageError(f"{self.path}: preset {preset.name!r} is not legal: {objection}")
        return space

    def _leave_out(self, name: str, table: _Parameter) -> None:
        param = self.params.get(name)
        if table.keeping is not None and param:
            kept = _values(param, table.keeping)
            if not self.facts.get("keeping"):
                self.left_out[name] = kept
        left = self.left_out.get(name, ())
        if (
            (table.if_present and param is None)
            or (table.if_rests and not self.facts.get("rests"))
            or (left and param and {*param.choices} == {*left, param.default})
        ):
            self.absent.add(name)

    def _dimension(self, name: str, table: _Parameter) -> Dimension:
        param = self._param(name)
        low, high = self._range(param, table)
        when = None if table.when is None else _expression(table.when, self.params)
        values = _grid(param, low, high) if table.values is None else _values(param, table.values)
        left_out = self.left_out.get(name, ())
        return Dimension(param, tuple(v for v in values if v not in left_out), when=when)

    def _range(self, param: Param, table: _Parameter) -> tuple[int, int]:
        if param.kind == "enum" and (table.low is not None or table.high is not None):
            raise UsageError(f"is a word and has no range; legal is {param.legal()}")
        low = param.low if table.low is None else self._number(table.low)
        high = param.high if table.high is None else self._number(table.high)
        if isinstance(table.high, str):
            high = max(low, min(high, param.high))
        if not param.low <= low <= high <= param.high:
            raise UsageError(f"goes from {low} to {high}; legal is {param.legal()}")
        return low, high

    def _number(self, value: int | str) -> int:
        if isinstance(value, int):
            return value
        return _expression(value, self.facts).number(self.facts)

    def _rule(self, table: _Rule) -> Rule | None:
        rule = _expression(table.rule, {*self.params, *self.absent})
        return None if rule.names & self.absent else Rule(rule, table.why)

    def _preset(self, table: _Preset) -> Preset | None:
        config: dict[str, Value] = {}
        if table.set.keys() & self.absent:
            return None
        for name, value in table.set.items():
            param = self._param(name)
            if value in self.left_out.get(name, ()):
                return None
            if param.kind == "int" and isinstance(value, str) and value != "auto":
                value = max(param.low, min(param.high, self._number(value)))
            judge(param, value)
            config[name] = value
        return Preset(table.name, table.why, config, table.returns)

    def _each(self, key: str, tables: Sequence[Any], read: Callable[[Any], Any]) -> Any:
        """What `read` makes of each table of an array, without its Nones (not this version)."""
        made = []
        for index, table in enumerate(tables):
            with self._at(f"{key}[{index}]"):
                made.append(read(table))
        return tuple(each for each in made if each is not None)

    def _param(self, name: str) -> Param:
        if name not in self.params:
            raise _unknown(name, self.params)
        return self.params[name]


def _ordered_by_need(dimensions: list[Dimension]) -> tuple[Dimension, ...]:
    """Puts each dimension after those that its condition names."""
    ordered: list[Dimension] = []
    left = {each.name: each for each in dimensions}
    while left:
        ready = [
            each for each in left.values() if each.when is None or not left.keys() & each.when.names
        ]
        if not ready:
            raise UsageError(f"parameters {', '.join(sorted(left))} need each other in a circle")
        ordered += ready
        for each in ready:
            del left[each.name]
    return tuple(ordered)


def _expression(text: str, names: Collection[str]) -> Expression:
    expression = Expression.parse(text)
    for name in sorted(expression.names - set(names)):
        raise _unknown(name, names)
    return expression


def _unknown(name: str, legal: Collection[str]) -> UsageError:
    hint = did_you_mean(name, legal) or f"; legal are {', '.join(legal)}"
    return UsageError(f"there is no {name!r}{hint}")


def _values(param: Param, values: Sequence[Value]) -> tuple[Value, ...]:
    if not values or len(set(map(str, values))) != len(values):
        raise UsageError(f"values is {list(values)!r}; legal is a list of different values")
    for value in values:
        judge(param, value)
    return tuple(values)


def _grid(param: Param, low: int, high: int) -> tuple[Value, ...]:
    """The values of a number or an enum between `low` and `high`, as its own scale steps.

    Special values (`auto`, 0 for "off") stand first. The default is among them where it is in
    range, so that a search can start from it.
    """
    if param.kind == "enum":
        return param.choices
    steps: set[int] = {0} if low == 0 else set()
    if param.scale == "linear":
        stride = max(1, -(-(high - low) // (_MAX_LINEAR_VALUES - 1)))
        steps |= {*range(low, high + 1, stride), high}
    else:
        powers = (1 << exponent for exponent in range(high.bit_length()))
        steps |= {power for power in powers if max(low, 1) <= power}
    if param.scale == "log":
        steps |= {max(low, 1), high}
    if isinstance(param.default, int) and low <= param.default <= high:
        steps.add(param.default)
    special: tuple[Value, ...] = ("auto",) if param.may_be_auto else ()
    return special + tuple(sorted(steps))
