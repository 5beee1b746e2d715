"""The layers hold: what may import or call what, in Python and in C; and files stay readable."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from hztune import files

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tuner" / "hztune"
CORE = ROOT / "core" / "src"
BENCH = ROOT / "core" / "bench"
MOST_LINES = 600

# From the top: a part may import what stands below it, and its neighbours without going in circles.
PYTHON_LEVELS: tuple[frozenset[str], ...] = (
    frozenset({"cli", "__main__", "__init__"}),
    frozenset({"api"}),
    frozenset({"tune", "compare", "verify", "report", "export", "suggest"}),
    frozenset({"result"}),
    frozenset({"study"}),
    frozenset(
        {"measure", "stats", "space", "store", "progress", "doctor", "machine_diff"}
        | {"attach", "recordings"}
    ),
    frozenset({"sparse"}),
    frozenset({"profile", "allocator", "workload", "blocks", "caution"}),
    frozenset({"params", "machine", "trace_file", "rests", "quota"}),
    frozenset({"schema"}),
    frozenset({"process", "files", "scratch", "gc_freeze", "interrupt"}),
    frozenset({"artifacts", "arguments"}),
    frozenset({"errors"}),
)  # fmt: skip

# Who may import what, wherever it stands in the file.
SINGLE_IMPORTERS = {
    "hztune._core": {"params"},
    "subprocess": {"process"},
    "optuna": {"sparse", "study", "report"},
    "threadpoolctl": {"sparse"},
    "distributed": {"measure"},
    "numpy": {"sparse", "stats", "measure", "study", "tune", "result"},
    "click": {"cli"},
    "rich": {"progress", "cli"},
}

OVERRIDES = ("override.c", "override_new.c", "override_nothrow.c")

# From the top: a file may call what stands below it. The rest stands beside: all may call it.
C_LEVELS: tuple[frozenset[str], ...] = (
    frozenset({"alloc.c", "free.c", "extensions.c", *OVERRIDES}),
    frozenset({"magazine.c", "remote.c"}),
    frozenset({"depot.c"}),
    frozenset({"span.c"}),
    frozenset({"large.c"}),
    frozenset({"purge.c"}),
    frozenset({"pages.c", "repair.c", "sweep.c"}),
    frozenset({"move.c", "freed.c"}),
    frozenset({"arena.c", "os_cpus.c", "os_nodes.c", "os_linux.c"}),
    frozenset({"os_call.c", "os_clock.c"}),
)
C_BESIDE = frozenset(
    {
        "heap.c",
        "fork.c",
        "start.c",
        "change.c",
        "control.c",
        "serve.c",
        "text.c",
        "decay.c",
        "deepbind.c",
        "hooks.c",
        "background.c",
        "rest.c",
        "threads.c",
        "stats.c",
        "lock.c",
        "size_class.c",
        "params.c",
        "parked.c",
        "die.c",
        "guard.c",
        "harden.c",
        "usage.c",
    }
)
MAY_USE_IF = frozenset({"config.h", "internal.h", "os_call.c", "os_linux.c", "os.h"})


# ---- Python --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Import:
    """One import of `what` (dotted) in `part`, at a line."""

    part: str
    what: str
    where: str


def part_of(path: Path) -> str:
    """The part that a file belongs to: its package or module name."""
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return name


def python_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    """A file of Python, parsed once for all tests; nothing changes it."""
    return ast.parse(path.read_text())


def imports(path: Path, *, typing: bool = True) -> Iterator[Import]:
    """Every import of a file, those inside functions too; `typing`: also those for types alone."""
    parts = [each for each in tree_of(path).body if typing or not _is_for_types(each)]
    for node in (each for part in parts for each in ast.walk(part)):
        where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(part_of(path), alias.name, where)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{where}: a relative import; name the package"
            for alias in node.names:
                yield Import(part_of(path), f"{node.module}.{alias.name}", where)


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@cache
def all_imports() -> tuple[Import, ...]:
    return tuple(each for path in python_files() for each in imports(path))


def own_part(what: str) -> str:
    """The part that a dotted import of hztune's names; empty for anything else."""
    root, _, rest = what.partition(".")
    return rest.partition(".")[0] if root == "hztune" and rest else ""


def level_of(part: str) -> int:
    return next(i for i, level in enumerate(PYTHON_LEVELS) if part in level)


def test_every_python_file_has_a_place_in_the_layers() -> None:
    parts = {part_of(path) for path in python_files()}
    assert parts <= frozenset().union(*PYTHON_LEVELS), "give the new part a level"


def test_python_imports_go_downwards() -> None:
    known = frozenset().union(*PYTHON_LEVELS)
    upwards = [
        f"{each.where}: {each.part} imports {each.what}"
        for each in all_imports()
        if own_part(each.what) in known and level_of(own_part(each.what)) < level_of(each.part)
    ]
    assert upwards == []


def test_neighbours_do_not_import_each_other_in_circles() -> None:
    below: dict[str, set[str]] = defaultdict(set)
    for each in all_imports():
        if own_part(each.what) not in ("", each.part):
            below[each.part].add(own_part(each.what))

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            found = below[ahead.pop()] - seen
            seen |= found
            ahead += found
        return seen

    assert [part for part in sorted(below) if part in reached(part)] == []


def test_the_command_line_knows_the_api_and_no_room_below_it() -> None:
    allowed = {"api", "arguments", "cli", "errors", "progress", "files", "interrupt", ""}
    strangers = [
        f"{path.relative_to(ROOT)}: {each.what}"
        for path in sorted((PACKAGE / "cli").glob("*.py"))
        for each in imports(path, typing=False)
        if own_part(each.what) not in allowed
    ]
    assert strangers == []


@pytest.mark.parametrize("what", SINGLE_IMPORTERS)
def test_only_its_own_parts_import(what: str) -> None:
    strangers = [
        f"{each.where}: {each.what}"
        for each in all_imports()
        if (each.what == what or each.what.startswith(f"{what}."))
        and each.part not in SINGLE_IMPORTERS[what]
    ]
    assert strangers == []


def test_every_package_that_is_imported_is_installed_with_hztune() -> None:
    project = files.read_toml(ROOT / "pyproject.toml", 1 << 20)["project"]
    extras = project["optional-dependencies"]
    told = [*project["dependencies"], *extras["report"], *extras["dashboard"], *extras["cluster"]]
    declared = {re.split(r"[^\w-]", each)[0].replace("-", "_") for each in told}
    found = {
        each.what.partition(".")[0]
        for path in python_files()
        for each in imports(path, typing=False)
    }
    assert found - sys.stdlib_module_names - {"hztune"} <= declared


def test_no_python_runs_between_fork_and_exec() -> None:
    for path in python_files():
        names = {each.arg for each in ast.walk(tree_of(path)) if hasattr(each, "arg")}
        assert "preexec_fn" not in names, path


def test_only_the_command_line_prints_or_exits() -> None:
    calls = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node.func)}"
        for path in python_files()
        if part_of(path) not in ("cli", "__main__")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("print", "exit", "quit", "sys.exit", "breakpoint")
    ]
    assert calls == []


def test_files_are_written_in_one_place() -> None:
    """Another user may have put a link where a name is known beforehand."""
    elsewhere = {"scope.py"}  # the kernel's
    writers = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in python_files()
        if path.name not in {"files.py", *elsewhere}
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and re.search(
            r"(\.write_(text|bytes)|\.rename|os\.replace)\(|\bopen\(.*['\"][wax]b?\+?['\"]",
            ast.unparse(node),
        )
    }
    assert writers == set()


# ---- C -------------------------------------------------------------------------------------------

DEFINITION = re.compile(
    r"^(?!static |typedef |extern )[A-Za-z_][\w \*]*?\b(hz_\w+)\([^;{]*\)\s*\{", re.M
)
CALL = re.compile(r"\b(hz_\w+)\s*\(")
INLINE = re.compile(r"^HZ_(?:FAST|SLOW)[\w \*]*?\b(hz_\w+)\([^;{]*\)\s*\{", re.M)


def without_comments(text: str) -> str:
    """C without comments and strings; line numbers are kept."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
    return pattern.sub(lambda match: "\n" * match[0].count("\n"), text)


def owners() -> dict[str, str]:
    """The file that each function with an hz_ name belongs to.

    What a header defines belongs to the file of the same name.
    """
    found: dict[str, str] = {}
    for path in sorted(CORE.glob("*.c")):
        for name in DEFINITION.findall(without_comments(path.read_text())):
            found[name] = path.name
    for path in sorted(CORE.glob("*.h")):
        if path.with_suffix(".c").exists():
            for name in INLINE.findall(without_comments(path.read_text())):
                found[name] = path.with_suffix(".c").name
    return found


def bodies() -> Iterator[tuple[str, str]]:
    """Every text that may call something, with the file that it counts for."""
    for path in sorted(CORE.glob("*.[ch]")):
        yield path.with_suffix(".c").name, without_comments(path.read_text())


def c_level_of(file: str) -> int | None:
    """The level of a file, 0 on top; None when it stands beside the levels."""
    return next((i for i, level in enumerate(C_LEVELS) if file in level), None)


def test_every_c_file_has_a_place_in_the_layers() -> None:
    files = {path.name for path in CORE.glob("*.c")}
    assert files <= C_BESIDE.union(*C_LEVELS), "give the new file a level"


def test_the_scan_of_the_core_sees_its_functions() -> None:
    found = owners()
    assert found["hz_depot_take"] == "depot.c"
    assert found["hz_magazine_push"] == "magazine.c"
    nameless = {"extensions.c", "threads.c", *OVERRIDES}
    assert set(found.values()) >= {path.name for path in CORE.glob("*.c")} - nameless


def test_c_calls_go_downwards() -> None:
    owner = owners()
    upwards = set()
    for file, text in bodies():
        for name in CALL.findall(text):
            here, there = c_level_of(file), c_level_of(owner.get(name, file))
            if here is not None and there is not None and there < here:
                upwards.add(f"{file} calls {name} of {owner[name]}")
    assert sorted(upwards) == []


def test_the_table_of_contents_defines_nothing() -> None:
    """What internal.h lists is a declaration; what is inlined stands in a header of its own."""
    assert "{" not in re.sub(
        r"enum \{[^}]*\}", "", without_comments((CORE / "internal.h").read_text())
    )


def test_only_a_tick_returns_memory_by_age_or_excess() -> None:
    """Ticks come while no lock is held, and each is bounded (decay.c)."""
    callers = {file for file, text in bodies() if "hz_purge_part(" in text}
    assert callers == {"decay.c", "internal.c", "purge.c"}


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', path.read_text(), re.M)


@pytest.mark.parametrize("file", OVERRIDES)
def test_overrides_know_only_the_public_header_of_hz_and_operator_new_its_pop(file: str) -> None:
    headers = {path.name for path in CORE.glob("*.h")}
    own = {name for name in includes(CORE / file) if name in headers or name.startswith("hz/")}
    assert own - {"pop.h"} == {"hz/hz.h", "override.h"}
    assert ("pop.h" in own) == (file == "override_new.c")


def test_the_measuring_programs_know_nothing_of_hz() -> None:
    """They see whatever malloc the process has: one binary measures every allocator."""
    own = {path.name for path in BENCH.glob("*.h")}
    strange = [
        f"{path.name} includes {name}"
        for path in sorted(BENCH.glob("*.[ch]"))
        for name in includes(path)
        if name not in own and (name.startswith(("hz", "..")) or name.endswith((".c", ".def")))
    ]
    assert strange == []


def test_memory_orders_are_named_in_one_file() -> None:
    pattern = re.compile(r"\bmemory_order_|__ATOMIC_[A-Z]")
    named = [
        p.name
        for p in sorted(CORE.glob("*.[ch]"))
        if pattern.search(without_comments(p.read_text()))
    ]
    assert named == ["atomic.h"]


def test_every_access_to_an_atomic_object_names_its_order(tmp_path: Path) -> None:
    """GCC's dump shows `object = value` as a store with order 5, sequentially consistent."""
    sources = [str(path) for path in sorted(CORE.glob("*.c"))]
    defines = ("-D_GNU_SOURCE", '-DHZ_VERSION=""', f"-I{CORE.parent / 'include'}")
    command = ("gcc", "-std=c11", "-w", "-S", "-fdump-tree-original", *defines, *sources)
    subprocess.run(command, cwd=tmp_path, check=True)
    dumps = {path.name.split(".")[0]: path for path in tmp_path.glob("*.original")}
    assert len(dumps) == len(sources)
    unnamed = re.compile(r"__atomic_\w+ \([^;]*, 5\)")
    assert [name for name in sorted(dumps) if unnamed.search(dumps[name].read_text())] == []


def test_what_may_change_while_a_process_runs_is_read_with_hz_live() -> None:
    table = (CORE.parent / "include" / "hz" / "params.def").read_text()
    live = set(re.findall(r"^HZ_LIVE_INT\s*\((\w+),", table, re.M))
    read = {name for _, text in bodies() for name in re.findall(r"\bhz_live\((\w+)\)", text)}
    plain = {name for _, text in bodies() for name in re.findall(r"\bhz_cfg\.(\w+)", text)}
    assert (read - {"name"}, plain & live) == (live, set())


def conditions_in_functions(text: str) -> list[str]:
    """The `#if` lines of a C text that stand between braces."""
    depth, found = 0, []
    for line in without_comments(text).splitlines():
        if re.match(r"\s*#", line):
            if depth > 0 and re.match(r"\s*#\s*(if|elif)", line):
                found.append(line.strip())
        else:
            depth += line.count("{") - line.count("}")
    return found


def test_functions_hold_no_conditional_compilation() -> None:
    files = [path for path in sorted(CORE.glob("*.[ch]")) if path.name not in MAY_USE_IF]
    guilty = {path.name: conditions_in_functions(path.read_text()) for path in files}
    assert {name: lines for name, lines in guilty.items() if lines} == {}


def test_the_scan_for_conditions_sees_one_in_a_function_only() -> None:
    assert conditions_in_functions("#if A\nint f(void)\n{\n}\n#endif\n") == []
    assert conditions_in_functions("int f(void)\n{\n#ifdef B\n#endif\n}\n") == ["#ifdef B"]


# ---- sizes ---------------------------------------------------------------------------------------


def test_no_file_is_too_long_to_read() -> None:
    files = [
        *python_files(), *CORE.glob("*.[ch]"), *BENCH.glob("*.[ch]"),
        *(ROOT / "tests").rglob("*.py"), *(ROOT / "tests").rglob("*.c"),
    ]  # fmt: skip
    long = {p.name: n for p in files if (n := len(p.read_text().splitlines())) > MOST_LINES}
    assert long == {}


def test_every_file_opens_with_its_purpose() -> None:
    without = [
        str(p.relative_to(ROOT)) for p in python_files() if not ast.get_docstring(tree_of(p))
    ]
    c_files = [*CORE.glob("*.[ch]"), *BENCH.glob("*.[ch]"), *(ROOT / "tests").rglob("*.c")]
    without += [p.name for p in c_files if not p.read_text().startswith("/*")]
    assert sorted(without) == []
