"""A space: which configurations a search may propose, each as indices.

Glossary: a *configuration* holds only what differs from the defaults; a *dimension* is one
parameter as the search sees it, a short list of legal values in their order; the *indices* of a
configuration say which value each active dimension has (its `when` holds); a *preset* is a
configuration that is tried early, for a reason that stands beside it. A *choice* is between
allocators, each with a space of its own: a configuration belongs to one of them and is proposed by
its space. An *expression* is of parameters, `shards > 1` or `span_bytes * shards > 8388608 and thp
== 'on'`: its text comes from a file, is parsed, and is walked here. Nothing is ever executed.
"""

from __future__ import annotations

import ast
import hashlib
import json
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, zip_longest
from math import prod
from random import Random
from typing import Any, NamedTuple

from hztune.blocks import UNCHANGED_PROGRAM, Arm
from hztune.errors import UsageError
from hztune.params import Param, Value

ConfigDict = dict[str, Value]
Indices = dict[str, int]
_RANDOM_TRIES = 200


@dataclass(frozen=True, slots=True)
class Dimension:
    param: Param
    values: tuple[Value, ...]  # in order, `auto` and 0 for "off" first
    when: Expression | None = None  # where it is searched; elsewhere it stays at its default

    @property
    def name(self) -> str:
        return self.param.name

    @property
    def is_ordered(self) -> bool:
        """Whether neighbours in `values` are alike: numbers are, words are not."""
        return self.param.kind == "int"

    def is_active(self, full: Mapping[str, Value]) -> bool:
        return self.when is None or self.when.holds(full)

    def nearest(self, value: Value) -> int:
        """The index of `value`, or of the number nearest to it; 0 when no number is."""
        if value in self.values:
            return self.values.index(value)
        if not isinstance(value, int):
            return 0
        listed = enumerate(self.values)
        gaps = [(abs(each - value), place) for place, each in listed if isinstance(each, int)]
        return min(gaps)[1] if gaps else 0


class Rule(NamedTuple):
    """A relation of parameters, and why it must not be proposed, or which programs it may harm."""

    rule: Expression
    why: str


@dataclass(frozen=True, slots=True)
class Preset:
    name: str
    why: str
    config: Mapping[str, Value]
    returns: bool = False  # it is known to return memory: first where less memory is sought


class _Parts:
    parts: tuple[Space, ...]

    def part(self, allocator: str) -> Space:
        return next(part for part in self.parts if part.allocator == allocator)

    def holds(self, arm: Arm) -> bool:
        return any(part.allocator == arm.allocator for part in self.parts)

    def size(self) -> int:
        """Number of configurations when every dimension is active: an upper bound."""
        return sum(prod(len(each.values) for each in part.dimensions) for part in self.parts)


@dataclass(frozen=True)
class Space(_Parts):
    allocator: str  # name of the adapter whose knobs these are
    dimensions: tuple[Dimension, ...]
    rules: tuple[Rule, ...]  # what is legal but senseless
    presets: tuple[Preset, ...]
    params: tuple[Param, ...]
    check: Callable[[Mapping[str, Value]], None] = lambda config: None
    """Raises UsageError when the allocator would refuse a whole configuration."""
    risks: tuple[Rule, ...] = ()  # what is known to harm some programs

    @property
    def parts(self) -> tuple[Space, ...]:  # type: ignore[override]
        return (self,)

    @property
    def unchanged(self) -> frozenset[str]:
        """The allocators whose defaults are the control."""
        return frozenset({self.allocator})

    @property
    def control(self) -> Arm:
        return Arm(self.allocator)

    def arm(self, config: Mapping[str, Value]) -> Arm:
        return Arm.of(self.allocator, config)

    @property
    def starts(self) -> tuple[Arm, ...]:
        return tuple(self.arm(preset.config) for preset in self.presets)

    @property
    def returning(self) -> tuple[Arm, ...]:
        return tuple(self.arm(preset.config) for preset in self.presets if preset.returns)

    @cached_property
    def _indices(self) -> dict[frozenset[tuple[str, Value]], Indices]:
        """What was encoded before: a search asks for the same findings again and again."""
        return {}

    def full(self, config: Mapping[str, Value]) -> ConfigDict:
        return {param.name: config.get(param.name, param.default) for param in self.params}

    def reduced(self, config: Mapping[str, Value]) -> ConfigDict:
        full = self.full(config)
        return {p.name: full[p.name] for p in self.params if full[p.name] != p.default}

    def decode(self, choose: Callable[[Dimension], int]) -> ConfigDict:
        full = self.full({})
        for dimension in self.dimensions:
            if dimension.is_active(full):
                full[dimension.name] = dimension.values[choose(dimension)]
        return self.reduced(full)

    def at(self, indices: Mapping[str, int]) -> ConfigDict:
        return self.decode(lambda dimension: indices[dimension.name])

    def encode(self, config: Mapping[str, Value]) -> Indices:
        """The indices of a configuration; a value off the grid becomes the nearest one on it."""
        known = frozenset(config.items())
        if known not in self._indices:
            full = self.full(config)
            self._indices[known] = {
                d.name: d.nearest(full[d.name]) for d in self.dimensions if d.is_active(full)
            }
        return self._indices[known].copy()

    def indices(self, config: Mapping[str, Value]) -> Indices:
        """The same with all dimensions: one that is not active has its default's index."""
        usual = {d.name: d.nearest(d.param.default) for d in self.dimensions}
        return usual | self.encode(config)

    def objection(self, config: Mapping[str, Value]) -> str | None:
        """Why `config` must not be proposed, in one sentence; None when it may be."""
        full = self.full(config)
        for rule in self.rules:
            if rule.rule.holds(full):
                return f"{rule.rule.text}: {rule.why}"
        try:
            self.check(full)
        except UsageError as error:
            return str(error)
        return None

    def known_risks(self, config: Mapping[str, Value]) -> list[tuple[ConfigDict, str]]:
        """The known risks of a configuration: the parameters that have each, and the sentence."""
        full = self.full(config)
        changed = self.reduced(config)
        return [
            ({name: changed[name] for name in changed if name in risk.rule.names}, risk.why)
            for risk in self.risks
            if risk.rule.names & changed.keys() and risk.rule.holds(full)
        ]

    def contains(self, config: Mapping[str, Value]) -> bool:
        on_grid = self.at(self.encode(config)) == self.reduced(config)
        return on_grid and self.objection(config) is None

    def sample(self, rng: Random) -> ConfigDict:
        """A random configuration that may be proposed; the default when none was found."""
        for _ in range(_RANDOM_TRIES):
            config = self.decode(lambda dimension: rng.randrange(len(dimension.values)))
            if self.objection(config) is None:
                return config
        return {}

    def fingerprint(self) -> str:
        """SHA-256 of everything that decides what can be proposed."""
        shape = [
            [self.allocator],
            [[d.name, d.values, d.when and d.when.text] for d in self.dimensions],
            [rule.rule.text for rule in self.rules],
            [[preset.name, sorted(preset.config.items())] for preset in self.presets],
            [[param.name, param.default] for param in self.params],
        ]
        return hashlib.sha256(json.dumps(shape).encode()).hexdigest()


@dataclass(frozen=True)
class Choice(_Parts):
    parts: tuple[Space, ...]  # in the order in which they are first measured
    unchanged: frozenset[str] = frozenset()  # those whose defaults are the unchanged program

    @property
    def control(self) -> Arm:
        return Arm(UNCHANGED_PROGRAM)

    @property
    def starts(self) -> tuple[Arm, ...]:
        defaults = (part.control for part in self.parts if part.allocator not in self.unchanged)
        return (*defaults, *_in_turn([part.starts for part in self.parts]))

    @property
    def returning(self) -> tuple[Arm, ...]:
        return tuple(_in_turn([part.returning for part in self.parts]))

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """For a reader: the choice itself, then every parameter with its allocator's name."""
        names = tuple(part.allocator for part in self.parts)
        doc = "whose malloc the program runs on"
        root = Param("allocator", UNCHANGED_PROGRAM, doc, high=len(names) - 1, choices=names)
        named = (
            replace(each, param=replace(each.param, name=f"{part.allocator}.{each.name}"))
            for part in self.parts
            for each in part.dimensions
        )
        return (Dimension(root, names), *named)

    def fingerprint(self) -> str:
        prints = [[part.allocator, part.fingerprint()] for part in self.parts]
        return hashlib.sha256(json.dumps(prints).encode()).hexdigest()


def _in_turn(each: list[tuple[Arm, ...]]) -> Iterator[Arm]:
    """The first of each, then the second of each."""
    return (arm for arm in chain.from_iterable(zip_longest(*each)) if arm is not None)


AnySpace = Space | Choice  # what a study searches


def _ordered(compare: Callable[[int, int], bool]) -> Callable[[Any, Any], bool]:
    """A word is neither less nor more than anything."""
    return lambda one, two: isinstance(one, int) and isinstance(two, int) and compare(one, two)


_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISON: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: _ordered(operator.lt),
    ast.LtE: _ordered(operator.le),
    ast.Gt: _ordered(operator.gt),
    ast.GtE: _ordered(operator.ge),
    ast.In: lambda one, two: isinstance(two, list) and one in two,
    ast.NotIn: lambda one, two: not (isinstance(two, list) and one in two),
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max}
_NODES = (
    *_ARITHMETIC, *_COMPARISON, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub,
    ast.BinOp, ast.Compare, ast.Call, ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple,
)  # fmt: skip
_LEGAL = (
    "numbers, 'words', parameter names, + - * / %, comparisons, and, or, not, in [...], min, max"
)
_MAX_LENGTH = 1000


@dataclass(frozen=True, slots=True)
class Expression:
    text: str
    names: frozenset[str] = field(compare=False)
    _tree: ast.expr = field(repr=False, compare=False)

    @classmethod
    def parse(cls, text: str) -> Expression:
        try:
            if len(text) > _MAX_LENGTH:
                raise ValueError(f"longer than {_MAX_LENGTH} characters")
            tree = ast.parse(text.strip(), mode="eval").body
            names = _names(tree)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UsageError(f"{text[:80]!r} is no expression; legal are {_LEGAL}") from error
        return cls(text, names, tree)

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Whether it is true. Arithmetic on a word, or a division by zero, makes it false."""
        try:
            return bool(_value(self._tree, values))
        except ArithmeticError:
            return False

    def number(self, values: Mapping[str, Value]) -> int:
        try:
            return _whole(self._tree, values)
        except ArithmeticError as error:
            raise UsageError(f"{self.text!r} does not give a whole number") from error


def _names(tree: ast.expr) -> frozenset[str]:
    """Every name below `tree`; ValueError where something stands that means nothing here."""
    nodes = list(ast.walk(tree))
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id=name), keywords=[], args=[_, *_]) if name in _FUNCTIONS:
                continue
            case ast.Constant() if type(node.value) in (int, str):
                continue
            case ast.Call() | ast.Constant():
                raise ValueError(ast.dump(node))
        if not isinstance(node, _NODES):
            raise ValueError(type(node).__name__)
    return frozenset(n.id for n in nodes if isinstance(n, ast.Name) and n not in called)


def _value(node: ast.expr, values: Mapping[str, Value]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return values[node.id]
        case ast.BoolOp():
            test = all if isinstance(node.op, ast.And) else any
            return test(_truth(child, values) for child in node.values)
        case ast.UnaryOp(op=ast.Not()):
            return not _truth(node.operand, values)
        case ast.List() | ast.Tuple():
            return [_value(child, values) for child in node.elts]
        case ast.Compare():
            sides = [_value(child, values) for child in (node.left, *node.comparators)]
            pairs = zip(node.ops, sides, sides[1:], strict=False)
            return all(_COMPARISON[type(op)](one, two) for op, one, two in pairs)
    return _number(node, values)


def _number(node: ast.expr, values: Mapping[str, Value]) -> int:
    match node:
        case ast.UnaryOp():
            return -_whole(node.operand, values)
        case ast.BinOp():
            return _ARITHMETIC[type(node.op)](_whole(node.left, values), _whole(node.right, values))
        case ast.Call(func=ast.Name(id=name)):
            return _FUNCTIONS[name](*(_whole(child, values) for child in node.args))
    raise AssertionError(f"{node} was let in by _names")


def _truth(node: ast.expr, values: Mapping[str, Value]) -> bool:
    """One side of `and`, `or` or `not`; senseless arithmetic makes only that side false."""
    try:
        return bool(_value(node, values))
    except ArithmeticError:
        return False


def _whole(node: ast.expr, values: Mapping[str, Value]) -> int:
    value = _value(node, values)
    if not isinstance(value, int):
        raise ArithmeticError("a word, such as `auto`, stands where a number is needed")
    return int(value)
