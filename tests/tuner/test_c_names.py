"""One word, one meaning, in C: each function has a name that no other one has.

The functions of all programs and libraries in core/ count, static ones too. `hz_` does not make
another name of one. What may come twice is stated below.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.tuner.test_layers import without_comments

CORE = Path(__file__).parents[2] / "core"

LIBC = frozenset(
    {
        "aligned_alloc",
        "calloc",
        "free",
        "free_aligned_sized",
        "free_sized",
        "malloc",
        "memalign",
        "posix_memalign",
        "pthread_create",
        "pvalloc",
        "realloc",
        "reallocarray",
        "valloc",
    }
)
"""The C library's functions, which hz and the recorder both define."""

OF_A_PROGRAM = frozenset({"add_change", "main", "parse"})
"""What each program has: where it begins, and how it takes an option that others have, too."""

OF_A_WORKLOAD = frozenset(
    {
        "begin",
        "consume",
        "drain",
        "draw_size",
        "end",
        "new_block",
        "play",
        "prepare",
        "produce",
        "replace",
        "report",
        "step",
    }
)
"""What a workload of hz-bench is made of (`hz_workload` in bench.h), and what several do."""

X_MACROS = frozenset({"HZ_ENUM", "HZ_INT", "HZ_STAT", "WORD"})
"""Macros that read a table: each reader gives them its own meaning."""

FUNCTION = re.compile(
    r"^(?!typedef\b|struct\b|enum\b)[A-Za-z_](?:[^;{}=#\n]|\n(?![\n#]))*?\b(\w+)\([^;{}#]*\)\s*\{",
    re.M,
)
ENUM = re.compile(r"\benum\b[^;{}()]*\{([^}]*)\}")
MACRO = re.compile(r"^#define (\w+)", re.M)


def code(path: Path) -> str:
    """C without comments, strings and attributes."""
    return re.sub(
        r"__attribute__\(\((?:[^()]|\([^()]*\))*\)\)", "", without_comments(path.read_text())
    )


def where(names: Iterator[tuple[str, str]]) -> dict[str, set[str]]:
    """Name -> the files that define it; two forms in one file are two answers of an `#if`."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for name, file in names:
        found[name].add(file)
    return found


def functions() -> Iterator[tuple[str, str]]:
    """Each function without `hz_`, as it is written and where: of one file, too, if they differ."""
    for path in sorted(CORE.rglob("*.[ch]")):
        for name in FUNCTION.findall(code(path)):
            yield name.removeprefix("hz_"), f"{path.relative_to(CORE)}: {name}"


def constants(room: str) -> Iterator[tuple[str, str]]:
    """Each constant of a folder of core/, and the file that defines it."""
    for path in sorted((CORE / room).rglob("*.[ch]")):
        text = code(path)
        for words in ENUM.findall(text):
            for name in re.findall(r"(?:^|,)\s*(\w+)", words):
                yield name, path.name
        for name in MACRO.findall(text):
            yield name, path.name


def twice(found: dict[str, set[str]]) -> dict[str, set[str]]:
    return {name: files for name, files in found.items() if len(files) > 1}


def test_no_two_functions_in_c_have_one_name_but_those_that_are_stated() -> None:
    found = where(functions())
    assert {"run_make_clean", "run_purge", "malloc"} <= found.keys(), "the functions are not found"
    stated = LIBC | OF_A_PROGRAM | OF_A_WORKLOAD
    assert {name: files for name, files in twice(found).items() if name not in stated} == {}


def test_no_function_of_the_allocator_has_the_name_of_another_ones() -> None:
    """The exceptions of workloads and programs do not hold for core/src."""
    inside = {
        name: files
        for name, files in twice(where(functions())).items()
        if name not in LIBC and any(file.startswith("src/") for file in files)
    }
    assert inside == {}


def test_what_a_workload_shares_stands_in_workloads_alone() -> None:
    found = where(functions())
    for name in OF_A_WORKLOAD:
        assert {file.rpartition("/")[0] for file in found[name]} == {"bench/workloads"}, name


def test_no_constant_of_the_allocator_is_defined_in_two_files() -> None:
    found = twice(where(constants("src")))
    assert {name: files for name, files in found.items() if name not in X_MACROS} == {}


def test_what_may_come_twice_in_c_does() -> None:
    again = twice(where(functions())).keys()
    assert again >= LIBC | OF_A_PROGRAM | OF_A_WORKLOAD
    assert X_MACROS - {"HZ_ENUM", "HZ_INT", "WORD"} <= twice(where(constants("src"))).keys()
