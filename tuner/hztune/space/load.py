"""From a TOML file to a space.

The file names parameters and narrows ranges; defaults, units and descriptions are the allocator's
and never stand in it. Whatever is wrong is said in one sentence that names the file and the key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import ceil
from pathlib import Path
from typing import Any

from hztune import artifacts, files
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.params import Param, Value, judge
from hztune.space.core import Preset, Rule, Space
from hztune.space.dimension import Dimension, grid, powers_of_two
from hztune.space.expression import Expression
from hztune.strictjson import TEXT

SCHEMA = 1
_TOP_KEYS = (
    "schema", "allocator", "parameters", "not_searched", "forbid", "risk", "preset",
)  # fmt: skip
_PARAMETER_KEYS = (
    "low", "high", "values", "share_of", "when", "if_present", "if_rests", "keeping",
)  # fmt: skip
_MAX_BYTES = 256 * 1024

ConfigCheck = Callable[[Mapping[str, Value]], None]


def load(
    name: str | Path,
    params: Sequence[Param],
    *,
    check: ConfigCheck,
    facts: Mapping[str, int] | None = None,
) -> Space:
    """Reads a space.

    Args:
        name: A path to a TOML file, or the name of one that hztune ships ("hz").
        params: The knobs of the allocator that is installed.
        check: Raises UsageError when the allocator would refuse a whole configuration.
        facts: Numbers that ranges and presets may refer to; see `machine_facts`.

    Raises:
        UsageError: The file is missing, is no TOML, or says something that is not legal.
    """
    path = find(name)
    reader = _Reader(path, {p.name: p for p in params}, dict(facts or machine_facts()))
    return reader.space(files.read_toml(path, _MAX_BYTES), tuple(params), check)


def machine_facts(
    threads: int = 1,
    machine: Machine | None = None,
    *,
    rests: bool = False,
    keeping: bool = False,
) -> dict[str, int]:
    """What a space may refer to: CPUs that a quota leaves us, threads of the workload.

    Args:
        threads: Of the workload.
        machine: Where it runs; None: here.
        rests: Whether memory at rest is judged.
        keeping: Whether settings are tried with which freed memory is never returned.
    """
    machine = machine or Machine.here()
    quota = machine.cores if machine.quota is None else ceil(machine.quota)
    cpus = max(1, min(machine.cores, quota))
    return {"cpus": cpus, "threads": threads, "rests": int(rests), "keeping": int(keeping)}


def find(name: str | Path) -> Path:
    """The file that `name` means: a path, or the name of a space that hztune ships.

    Raises:
        UsageError: There is none.
    """
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
    """Whether `name` means a file of the user's, not a space that hztune ships."""
    path = Path(name)
    return path.suffix == ".toml" or len(path.parts) > 1


@dataclass
class _Reader:
    """Reads one file; `where` is the key at which the reader is, for the messages."""

    path: Path
    params: dict[str, Param]
    facts: dict[str, int]
    tables: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    where: str = ""

    def space(self, data: dict[str, Any], params: tuple[Param, ...], check: ConfigCheck) -> Space:
        self._known_keys(data, _TOP_KEYS)
        if data.get("schema") != SCHEMA:
            raise self._error(f"schema is {data.get('schema')!r}; legal is {SCHEMA}")
        self.tables = tables = self._table(data, "parameters")
        self.left_out = self._left_out()
        self.absent = {name for name, table in tables.items() if self._is_absent(name, table)}
        dimensions = [
            self._dimension(name, t) for name, t in tables.items() if name not in self.absent
        ]
        self.where = ""
        self._not_searched(self._table(data, "not_searched"), tables)
        space = Space(
            allocator=self._text(data, "allocator"),
            dimensions=self._ordered(dimensions),
            rules=self._each(data, "forbid", self._rule),
            presets=self._each(data, "preset", self._preset),
            params=params,
            check=check,
            risks=self._each(data, "risk", self._risk),
        )
        self._presets_legal(space)
        return space

    def _is_absent(self, name: str, table: Any) -> bool:
        """Whether a parameter is left out: its table says when it may be."""
        if not isinstance(table, dict):
            return False
        if table.get("if_present") is True and name not in self.params:
            return True
        if table.get("if_rests") is True and not self.facts.get("rests"):
            return True
        if name not in self.left_out:
            return False
        param = self.params[name]
        return {*param.choices} == {*self.left_out[name], param.default}

    def _left_out(self) -> dict[str, tuple[Value, ...]]:
        """By parameter, the values that are not tried: with them memory is never returned."""
        found = {}
        for name, table in self.tables.items():
            self.where = f"parameters.{name}"
            if isinstance(table, dict) and "keeping" in table and name in self.params:
                found[name] = self._values(self.params[name], table["keeping"])
        return {} if self.facts.get("keeping") else found

    def _dimension(self, name: str, table: Any) -> Dimension:
        self.where = f"parameters.{name}"
        param = self._param(name)
        if not isinstance(table, dict):
            raise self._error(f"is {table!r}; legal is a table of {', '.join(_PARAMETER_KEYS)}")
        self._known_keys(table, _PARAMETER_KEYS)
        low, high = self._range(param, table)
        when = self._when(table)
        share_of = table.get("share_of", "")
        if share_of:
            return self._share(param, share_of, (low, high), when)
        values: Sequence[Value] = grid(param, low, high)
        if "values" in table:
            values = self._values(param, table["values"])
        left_out = self.left_out.get(name, ())
        return Dimension(param, tuple(v for v in values if v not in left_out), when=when)

    def _range(self, param: Param, table: dict[str, Any]) -> tuple[int, int]:
        low = self._number(table, "low", param.low)
        high = self._number(table, "high", param.high)
        if param.kind == "enum" and ("low" in table or "high" in table):
            raise self._error(f"is a word and has no range; legal is {param.legal()}")
        if isinstance(table.get("high"), str):
            high = max(low, min(high, param.high))
        if not param.low <= low <= high <= param.high:
            raise self._error(f"goes from {low} to {high}; legal is {param.legal()}")
        return low, high

    def _number(self, table: dict[str, Any], key: str, otherwise: int) -> int:
        value = table.get(key, otherwise)
        if isinstance(value, str):
            expression = self._expression(value, self.facts)
            return expression.number(self.facts)
        if type(value) is not int:
            raise self._error(f"{key} is {value!r}; legal is a whole number or an expression")
        return value

    def _values(self, param: Param, values: Any) -> tuple[Value, ...]:
        if not isinstance(values, list) or not values or len(set(map(str, values))) != len(values):
            raise self._error(f"values is {values!r}; legal is a list of different values")
        for value in values:
            self._judge(param, value)
        return tuple(values)

    def _share(
        self, param: Param, share_of: Any, span: tuple[int, int], when: Expression | None
    ) -> Dimension:
        whole = self._param(share_of)
        most = self._range(whole, self._table(self.tables, whole.name))[1]
        if param.kind != "int" or whole.kind != "int" or whole.name == param.name:
            raise self._error(
                f"share_of is {share_of!r}; legal is another parameter that is a number"
            )
        divisors = powers_of_two(1, max(1, most // max(1, span[0])))
        return Dimension(param, tuple(divisors), *span, share_of=share_of, when=when)

    def _when(self, table: dict[str, Any]) -> Expression | None:
        if "when" not in table:
            return None
        return self._expression(table["when"], self.params)

    def _rule(self, table: dict[str, Any]) -> Rule | None:
        self._known_keys(table, ("rule", "why"))
        rule = self._expression(self._text(table, "rule"), {*self.params, *self.absent})
        return None if rule.names & self.absent else Rule(rule, self._text(table, "why"))

    def _risk(self, table: dict[str, Any]) -> Rule | None:
        """A known risk; its sentence goes into profiles, which hold no other signs."""
        risk = self._rule(table)
        if not TEXT.fullmatch(table["why"]):
            raise self._error(f"why is {table['why']!r:.60}; legal is a text like {TEXT.pattern}")
        return risk

    def _preset(self, table: dict[str, Any]) -> Preset | None:
        self._known_keys(table, ("name", "why", "set", "returns"))
        config = self._table(table, "set")
        if config.keys() & self.absent or any(
            value in self.left_out.get(name, ()) for name, value in config.items()
        ):
            return None
        values = {name: self._preset_value(self._param(name), config[name]) for name in config}
        returns = table.get("returns") is True
        return Preset(self._text(table, "name"), self._text(table, "why"), values, returns)

    def _preset_value(self, param: Param, value: Any) -> Value:
        """A value of a preset; a number may be an expression of the facts."""
        if param.kind == "int" and isinstance(value, str) and value != "auto":
            number = self._expression(value, self.facts).number(self.facts)
            value = max(param.low, min(param.high, number))
        self._judge(param, value)
        legal: Value = value
        return legal

    def _each(self, data: dict[str, Any], key: str, read: Callable[[dict[str, Any]], Any]) -> Any:
        """What `read` makes of each table of an array, without its Nones (not this version)."""
        tables = data.get(key, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise self._error(f"{key} is {tables!r:.60}; legal are tables, written [[{key}]]")
        made = []
        for index, table in enumerate(tables):
            self.where = f"{key}[{index}]"
            made.append(read(table))
        self.where = ""
        return tuple(one for one in made if one is not None)

    def _presets_legal(self, space: Space) -> None:
        for index, preset in enumerate(space.presets):
            self.where = f"preset[{index}]"
            objection = space.objection(preset.config)
            if objection is not None:
                raise self._error(f"{preset.name!r} is not legal: {objection}")

    def _not_searched(self, table: dict[str, Any], searched: dict[str, Any]) -> None:
        for name, why in table.items():
            self.where = f"not_searched.{name}"
            self._param(name)
            if name in searched:
                raise self._error("stands under [parameters] too; legal is one of the two")
            if not isinstance(why, str) or not why:
                raise self._error(f"is {why!r}; legal is the reason, in words")
        self.where = ""

    def _ordered(self, dimensions: list[Dimension]) -> tuple[Dimension, ...]:
        """Puts each dimension after those that it needs."""
        ordered: list[Dimension] = []
        left = list(dimensions)
        while left:
            pending = {dimension.name for dimension in left}
            ready = [d for d in left if not d.needs & pending]
            if not ready:
                names = ", ".join(sorted(pending))
                raise self._error(f"parameters {names} need each other in a circle")
            ordered += ready
            left = [d for d in left if d not in ready]
        return tuple(ordered)

    def _judge(self, param: Param, value: Any) -> None:
        try:
            judge(param, value)
        except UsageError as error:
            raise self._error(str(error)) from error

    def _expression(self, text: Any, names: Mapping[str, Any] | set[str]) -> Expression:
        if not isinstance(text, str):
            raise self._error(f"is {text!r}; legal is an expression, in quotes")
        try:
            expression = Expression.parse(text)
        except UsageError as error:
            raise self._error(str(error)) from error
        for name in sorted(expression.names - set(names)):
            raise self._unknown(name, list(names))
        return expression

    def _param(self, name: Any) -> Param:
        if name not in self.params:
            raise self._unknown(str(name), list(self.params))
        return self.params[name]

    def _table(self, data: dict[str, Any], key: str) -> dict[str, Any]:
        table = data.get(key, {})
        if not isinstance(table, dict):
            raise self._error(f"{key} is {table!r:.60}; legal is a table")
        return table

    def _text(self, data: dict[str, Any], key: str) -> str:
        text = data.get(key)
        if not isinstance(text, str) or not text:
            raise self._error(f"{key} is {text!r}; legal is a text")
        return text

    def _known_keys(self, table: dict[str, Any], legal: Sequence[str]) -> None:
        for key in table:
            if key not in legal:
                raise self._error(f"key {key!r} means nothing; legal are {', '.join(legal)}")

    def _unknown(self, name: str, legal: list[str]) -> UsageError:
        near = get_close_matches(name, legal, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; legal are {', '.join(legal)}"
        return self._error(f"there is no {name!r}{hint}")

    def _error(self, sentence: str) -> UsageError:
        place = f"{self.path}: {self.where}: " if self.where else f"{self.path}: "
        return UsageError(place + sentence)
