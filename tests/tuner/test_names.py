"""One word, one meaning: what is public has one name in the whole package.

A class is a thing, and its name says which: no two modules may give one name to two things. A
function is called by its module's name, such as `profile.load` and `space.load`, so that VERBS may
come twice; every other function may not. The functions of `api` hand on what a room does, and have
its name.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2] / "tuner" / "hztune"

VERBS = frozenset(
    {"directory", "draw", "dumps", "examine", "find", "join", "load", "parse", "read", "render"}
    | {"run", "table", "write"}
)
"""Functions that say of several modules the same thing."""


def defined(kind: type[ast.ClassDef] | type[ast.FunctionDef]) -> dict[str, list[str]]:
    """Name -> the modules whose public class or function has it."""
    found = defaultdict(list)
    for path in sorted(set(ROOT.rglob("*.py")) - {ROOT / "api.py"}):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, kind) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    return found


def twice(found: dict[str, list[str]]) -> dict[str, list[str]]:
    """What more than one module defines."""
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def test_no_two_classes_have_one_name() -> None:
    assert twice(defined(ast.ClassDef)) == {}


def test_no_two_functions_have_one_name_but_the_verbs() -> None:
    found = twice(defined(ast.FunctionDef))
    assert {name: modules for name, modules in found.items() if name not in VERBS} == {}


def test_every_verb_is_the_name_of_several_functions() -> None:
    assert twice(defined(ast.FunctionDef)).keys() >= VERBS
