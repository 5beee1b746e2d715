"""Expressions of a search space: `shards > 1`, `span_bytes * shards > 8388608 and thp == 'on'`.

The text comes from a file, so it is parsed into Python's syntax tree and walked here: only what is
listed below means anything, and nothing is ever executed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hztune.errors import UsageError
from hztune.params import Value

_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max}
_LEGAL = (
    "numbers, 'words', parameter names, + - * / %, comparisons, and, or, not, in [...], min, max"
)
_MAX_LENGTH = 1000


class _WordInArithmetic(Exception):
    """A word (such as `auto`) stands where a number is needed."""


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression that was read once and is evaluated often.

    Attributes:
        text: As it was written.
        names: Every name that it mentions.
    """

    text: str
    names: frozenset[str] = field(compare=False)
    _tree: ast.expr = field(repr=False, compare=False)

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Reads an expression.

        Raises:
            UsageError: It is no expression, or holds anything but what is legal.
        """
        try:
            if len(text) > _MAX_LENGTH:
                raise ValueError(f"longer than {_MAX_LENGTH} characters")
            tree = ast.parse(text.strip(), mode="eval").body
            names = frozenset(_names(tree))
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
        """Its value as a whole number.

        Raises:
            UsageError: It is not one.
        """
        try:
            return _whole(_value(self._tree, values))
        except (_WordInArithmetic, ZeroDivisionError) as error:
            raise UsageError(f"{self.text!r} does not give a whole number") from error


def _names(node: ast.AST) -> list[str]:
    """Every name below `node`; raises ValueError where something stands that means nothing here."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Constant) and type(node.value) in (int, str):
        return []
    return [name for child in _children(node) for name in _names(child)]


def _children(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.BoolOp() | ast.List() | ast.Tuple():
            return list(node.values if isinstance(node, ast.BoolOp) else node.elts)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            return [node.operand]
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            return [node.left, node.right]
        case ast.Compare():
            return [node.left, *node.comparators]
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS and node.args:
            return node.args
    raise ValueError(type(node).__name__)


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
        case ast.Compare():
            return _compare(node, values)
    return _number(node, values)


def _number(node: ast.expr, values: Mapping[str, Value]) -> Any:
    match node:
        case ast.UnaryOp():
            return -_whole(_value(node.operand, values))
        case ast.BinOp():
            left, right = (_whole(_value(side, values)) for side in (node.left, node.right))
            return _ARITHMETIC[type(node.op)](left, right)
        case ast.Call(func=ast.Name(id=name)):
            return _FUNCTIONS[name](*(_whole(_value(child, values)) for child in node.args))
    return [_value(child, values) for child in _children(node)]


def _truth(node: ast.expr, values: Mapping[str, Value]) -> bool:
    """One side of `and`, `or` or `not`; arithmetic on a word makes only that side false."""
    try:
        return bool(_value(node, values))
    except _WordInArithmetic:
        return False


def _compare(node: ast.Compare, values: Mapping[str, Value]) -> bool:
    left = _value(node.left, values)
    for comparison, child in zip(node.ops, node.comparators, strict=True):
        right = _value(child, values)
        if not _related(comparison, left, right):
            return False
        left = right
    return True


def _related(comparison: ast.cmpop, left: Any, right: Any) -> bool:
    match comparison:
        case ast.Eq() | ast.NotEq():
            return (left == right) is isinstance(comparison, ast.Eq)
        case ast.In() | ast.NotIn():
            found = isinstance(right, list) and left in right
            return found is isinstance(comparison, ast.In)
    order = _ORDER.get(type(comparison))
    both = isinstance(left, int) and isinstance(right, int)
    return order is not None and both and order(left, right)


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise _WordInArithmetic
    return int(value)
