"""One word, one meaning: what is public has one name in the whole package, and functions in C, too.

Python: a class is a thing, and its name says which: no two modules may give one name to two things;
a type alias is one of them. A function is called by its module's name, such as `profile.load` and
`space.load`, so that VERBS may come twice; every other function may not. So it is with constants.
The functions of `api` hand on what a room does, and have its name.

C: the functions of all programs and libraries in core/ count, static ones too. `hz_` does not make
another name of one. What may come twice is stated below.
"""

import ast
import re
from collections import defaultdict

from .test_layers import CORE, trees, without_comments

C = CORE.parent

VERBS = frozenset({
    "dumps", "examine", "find", "load", "named", "parse", "read", "render", "write",
})  # fmt: skip
"""Functions that say of several modules the same thing."""

FACTS_OF_A_MODULE = frozenset({"MOST_BYTES", "SCHEMA"})
"""Constants that do: of a kind of file its version and the longest that is read."""

LIBC = frozenset({
    "aligned_alloc", "calloc", "free", "free_aligned_sized", "free_sized", "malloc", "memalign",
    "posix_memalign", "pthread_create", "pvalloc", "realloc", "reallocarray", "valloc",
})  # fmt: skip
"""The C library's functions, which hz and the recorder both define."""

OF_A_PROGRAM = frozenset({"main", "parse"})
"""What each program has: where it begins, and how it takes an option that others have, too."""

OF_A_WORKLOAD = frozenset({
    "begin", "consume", "drain", "draw_size", "end", "new_block", "play", "prepare", "produce",
    "replace", "report", "step",
})  # fmt: skip
"""What a workload of hz-bench is made of (`hz_workload` in bench.h), and what several do."""


FUNCTION = re.compile(
    r"^(?!typedef\b|struct\b|enum\b)[A-Za-z_](?:[^;{}=#\n]|\n(?![\n#]))*?\b(\w+)\([^;{}#]*\)\s*\{",
    re.M,
)


def twice(names):
    """Name -> where it is defined, of those that several places define.

    Two forms in one file are two answers of an `#if`.
    """
    found = defaultdict(set)
    for name, place in names:
        found[name].add(place)
    return {name: places for name, places in found.items() if len(places) > 1}


# ---- Python --------------------------------------------------------------------------------------


def things():
    """Each public class, alias and constant, and its module."""
    for path, tree in trees().items():
        for node in tree.body if path.parent.name != "api" else ():
            names = [node.name] if isinstance(node, ast.ClassDef) else []
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                every = (each for target in targets for each in ast.walk(target))
                names = [each.id for each in every if isinstance(each, ast.Name)]
            yield from ((name, str(path)) for name in names if not name.startswith("_"))


def doings():
    """Each public function, and its module."""
    for path, tree in trees().items():
        for node in tree.body if path.parent.name != "api" else ():
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                yield node.name, str(path)


def test_no_two_files_have_one_name_but_a_command_and_what_it_calls():
    own = [p for p in trees() if p.parent.name != "cli" and p.name != "__init__.py"]
    assert twice((path.name, str(path)) for path in own) == {}


def test_no_two_things_or_functions_in_python_have_one_name_but_those_that_are_stated():
    assert twice(things()).keys() == FACTS_OF_A_MODULE
    assert twice(doings()).keys() == VERBS


# ---- C -------------------------------------------------------------------------------------------


def code(path):
    """C without comments, strings and attributes."""
    attribute = r"__attribute__\(\((?:[^()]|\([^()]*\))*\)\)"
    return re.sub(attribute, "", without_comments(path.read_text()))


def functions():
    """Each function without `hz_`, as it is written and where: of one file, too, if they differ."""
    return [
        (name.removeprefix("hz_"), f"{path.relative_to(C)}: {name}")
        for path in sorted(C.rglob("*.[ch]"))
        for name in FUNCTION.findall(code(path))
    ]


def test_no_two_functions_in_c_have_one_name_but_those_that_are_stated():
    found, again = functions(), twice(functions())
    assert {"run_make_clean", "run_purge", "malloc"} <= {name for name, _ in found}, "not found"
    assert again.keys() == LIBC | OF_A_PROGRAM | OF_A_WORKLOAD
    inside = {name for name, where in again.items() if any(w.startswith("src/") for w in where)}
    assert inside <= LIBC, "the exceptions of workloads and programs do not hold for core/src"
    rooms = {where.rpartition("/")[0] for name, where in found if name in OF_A_WORKLOAD}
    assert rooms == {"bench/workloads"}
