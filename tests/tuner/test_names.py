"""One word, one meaning: what is public has one name in the whole package.

A class is a thing, and its name says which: no two modules may give one name to two things; a type
alias is one of them. A function is called by its module's name, such as `profile.load` and
`space.load`, so that VERBS may come twice; every other function may not. So it is with constants,
of which FACTS_OF_A_MODULE may come twice. The functions of `api` hand on what a room does, and have
its name.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2] / "tuner" / "hztune"

VERBS = frozenset(
    {
        "dumps",
        "examine",
        "find",
        "load",
        "named",
        "parse",
        "read",
    }
    | {"render", "write"}
)
"""Functions that say of several modules the same thing."""

FACTS_OF_A_MODULE = frozenset({"MOST_BYTES", "SCHEMA"})
"""Constants that do: of a kind of file its version and the longest that is read."""


def names(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module defines, but for functions."""
    if isinstance(node, ast.ClassDef):
        yield node.name
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))


def functions(node: ast.stmt) -> Iterator[str]:
    """The name of the function that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef):
        yield node.name


def defined() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Name -> the modules that define it: of classes, aliases and constants; of functions."""
    things: defaultdict[str, list[str]] = defaultdict(list)
    doings: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(set(ROOT.rglob("*.py")) - set((ROOT / "api").glob("*.py"))):
        module = str(path.relative_to(ROOT))
        for node in ast.parse(path.read_text()).body:
            for found, each in ((things, names), (doings, functions)):
                for name in each(node):
                    if not name.startswith("_"):
                        found[name].append(module)
    return things, doings


def twice(found: dict[str, list[str]]) -> dict[str, list[str]]:
    """What more than one module defines."""
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def files_twice() -> dict[str, list[str]]:
    """File names that come more than once, but for the commands' own files."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        if path.parent.name != "cli" and path.stem not in ("__init__", "__main__"):
            found[path.name].append(str(path.relative_to(ROOT)))
    return twice(found)


def but(found: dict[str, list[str]], allowed: frozenset[str]) -> dict[str, list[str]]:
    """The others."""
    return {name: modules for name, modules in found.items() if name not in allowed}


def test_no_two_files_have_one_name_but_a_command_and_what_it_calls() -> None:
    assert files_twice() == {}


def test_no_two_classes_or_aliases_have_one_name() -> None:
    found = twice(defined()[0])
    assert {name: modules for name, modules in found.items() if not name.isupper()} == {}


def test_no_two_constants_have_one_name_but_the_facts_of_a_module() -> None:
    found = twice(defined()[0])
    constants = {name: modules for name, modules in found.items() if name.isupper()}
    assert but(constants, FACTS_OF_A_MODULE) == {}


def test_no_two_functions_have_one_name_but_the_verbs() -> None:
    assert but(twice(defined()[1]), VERBS) == {}


def test_what_may_come_twice_does() -> None:
    things, doings = map(twice, defined())
    assert doings.keys() >= VERBS
    assert things.keys() >= FACTS_OF_A_MODULE
