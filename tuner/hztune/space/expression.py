"""Expressions of a search space: `shards > 1`, `span_bytes * shards > 8388608 and thp == 'on'`.

The text comes from a file: it is parsed, and walked here. Nothing is ever executed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hztune.errors import UsageError
from hztune.params import Value


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


class _WordInArithmetic(Exception):
    """A word (such as `auto`) stands where a number is needed."""


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
        except (_WordInArithmetic, ZeroDivisionError):
            return False

    def number(self, values: Mapping[str, Value]) -> int:
        try:
            return _whole(self._tree, values)
        except (_WordInArithmetic, ZeroDivisionError) as error:
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
    """One side of `and`, `or` or `not`; arithmetic on a word makes only that side false."""
    try:
        return bool(_value(node, values))
    except _WordInArithmetic:
        return False


def _whole(node: ast.expr, values: Mapping[str, Value]) -> int:
    value = _value(node, values)
    if not isinstance(value, int):
        raise _WordInArithmetic
    return int(value)
