"""The layers hold: what may import or call what, in Python and in C; and files stay readable."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from hztune import files

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tuner" / "hztune"
CORE = ROOT / "core" / "src"
BENCH = ROOT / "core" / "bench"
MOST_LINES = 600

# From the top: a part may import what stands below it, and its neighbours without going in circles.
PYTHON_LEVELS = [frozenset(row.split()) for row in (
    "__init__ __main__ cli",
    "api",
    "canary comparing export govern report suggest tuning verifying",
    "result",
    "study",
    "attach doctor measure progress recordings space stats store templates",
    "sparse",
    "allocator blocks profile workload",
    "machine params quota rests",
    "schema",
    "files interrupt process prometheus",
    "arguments artifacts",
    "errors",
)]  # fmt: skip

# Who may import what, wherever it stands in the file.
SINGLE_IMPORTERS = {
    "hztune._core": {"params"},
    "subprocess": {"process"},
    "optuna": {"sparse", "study", "report"},
    "threadpoolctl": {"sparse"},
    "distributed": {"measure"},
    "numpy": {"canary", "sparse", "stats", "measure", "study", "tuning", "result"},
    "click": {"cli"},
}

# From the top: a file may call what stands below it. The rest stands beside: all may call it.
OVERRIDES = ("override.c", "override_new.c", "override_nothrow.c")
C_LEVELS = (
    frozenset({"alloc.c", "free.c", "extensions.c", *OVERRIDES}),
    frozenset({"magazine.c", "remote.c"}),
    frozenset({"depot.c"}),
    frozenset({"span.c"}),
    frozenset({"large.c"}),
    frozenset({"purge.c", "huge.c"}),
    frozenset({"pages.c", "repair.c", "sweep.c"}),
    frozenset({"move.c", "freed.c"}),
    frozenset({"arena.c", "os_cgroup.c", "os_nodes.c", "os_linux.c"}),
    frozenset({"os_call.c", "os_clock.c", "os_ticks.c"}),
)
C_BESIDE = frozenset({
    "heap.c", "fork.c", "start.c", "change.c", "control.c", "serve.c", "text.c", "decay.c",
    "deepbind.c", "hooks.c", "budget.c", "background.c", "rest.c", "threads.c", "stats.c", "lock.c",
    "size_class.c", "params.c", "die.c", "guard.c", "harden.c", "usage.c",
    "lease.c",
})  # fmt: skip
MAY_USE_IF = frozenset({"config.h", "internal.h", "os_call.c", "os_linux.c", "os.h"})


# ---- Python --------------------------------------------------------------------------------------


@cache
def trees():
    """Every file of the package, parsed once for all tests; nothing changes it."""
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def part_of(path):
    """The part that a file belongs to: its package or module name."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def nodes(*kinds):
    """Every node of these kinds, its file and whether it is for types alone."""
    return [
        (node, path, isinstance(top, ast.If) and ast.unparse(top.test) == "TYPE_CHECKING")
        for path, tree in trees().items()
        for top in tree.body
        for node in ast.walk(top)
        if isinstance(node, kinds)
    ]


def all_imports(*, typing=True):
    """Part, what it imports (dotted) and where; `typing`: also what it imports for types alone."""
    found = []
    for node, path, is_for_types in nodes(ast.Import, ast.ImportFrom):
        where = f"{path.relative_to(PACKAGE)}:{node.lineno}"
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{where}: a relative import; name the package"
            names = [f"{node.module}.{name}" for name in names]
        found += [(part_of(path), name, where) for name in names if typing or not is_for_types]
    return found


def own_part(what):
    """The part that a dotted import of hztune's names; empty for anything else."""
    root, _, rest = what.partition(".")
    return rest.partition(".")[0] if root == "hztune" else ""


def test_python_imports_go_downwards_and_never_in_circles():
    level = {part: n for n, parts in enumerate(PYTHON_LEVELS) for part in parts}
    assert {part_of(path) for path in trees()} <= level.keys(), "give the new part a level"
    below = {}
    upwards = []
    for part, what, where in all_imports():
        target = own_part(what)
        if target in level and target != part:
            below.setdefault(part, set()).add(target)
            upwards += [f"{where} imports {what}"] if level[target] < level[part] else []
    assert upwards == []
    TopologicalSorter(below).prepare()  # a circle is a CycleError that shows it


def test_the_command_line_knows_the_api_and_no_room_below_it():
    allowed = {"api", "arguments", "cli", "errors", "progress", "files", "interrupt", ""}
    imports = all_imports(typing=False)
    assert [x for x in imports if x[0] == "cli" and own_part(x[1]) not in allowed] == []


def test_some_packages_are_imported_by_their_own_parts_alone_and_all_are_declared():
    for what, parts in SINGLE_IMPORTERS.items():
        own = [x for x in all_imports() if x[1] == what or x[1].startswith(f"{what}.")]
        assert [where for part, _, where in own if part not in parts] == [], what
    project = files.read_toml(ROOT / "pyproject.toml", 1 << 20)["project"]
    extras = project["optional-dependencies"]
    told = [*project["dependencies"], *extras["report"], *extras["dashboard"], *extras["cluster"]]
    declared = {re.split(r"[^\w-]", each)[0].replace("-", "_") for each in told}
    found = {what.partition(".")[0] for _, what, _ in all_imports(typing=False)}
    assert found - sys.stdlib_module_names - {"hztune"} <= declared


def test_only_the_command_line_prints_or_exits_and_only_one_module_writes_files():
    """Another user may have put a link where a name is known beforehand."""
    prints = ("print", "exit", "quit", "sys.exit", "breakpoint")
    writes = re.compile(
        r"(\.write_(text|bytes)|\.rename|os\.replace)\(|\bopen\(.*['\"][wax]b?\+?['\"]"
    )
    writers = {"files.py", "scope.py"}  # an own new directory; the kernel's
    for node, path, _ in nodes(ast.Call):
        where = f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node.func)}"
        assert ast.unparse(node.func) not in prints or part_of(path) in ("cli", "__main__"), where
        assert path.name in writers or not writes.search(ast.unparse(node)), where
        assert "preexec_fn" not in {each.arg for each in node.keywords}, (
            "Python between fork and exec"
        )


# ---- C -------------------------------------------------------------------------------------------

DEFINITION = re.compile(
    r"^(?!static |typedef |extern )[A-Za-z_][\w \*]*?\b(hz_\w+)\([^;{]*\)\s*\{", re.M
)
INLINE = re.compile(r"^HZ_(?:FAST|SLOW)[\w \*]*?\b(hz_\w+)\([^;{]*\)\s*\{", re.M)


def without_comments(text):
    """C without comments and strings; line numbers are kept."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
    return pattern.sub(lambda match: "\n" * match[0].count("\n"), text)


@cache
def core():
    """The text of every file of the core, without comments."""
    return {p.name: without_comments(p.read_text()) for p in sorted(CORE.glob("*.[ch]"))}


def owners():
    """The file of each function with an hz_ name: of a header's, the .c file of the same name."""
    found = {}
    for file, text in core().items():
        source = f"{file[:-2]}.c"
        if source in core():
            pattern = DEFINITION if file == source else INLINE
            found.update(dict.fromkeys(pattern.findall(text), source))
    return found


def test_c_calls_go_downwards():
    level = {file: n for n, files in enumerate(C_LEVELS) for file in files}
    sources = {file for file in core() if file.endswith(".c")}
    assert sources <= C_BESIDE | level.keys(), "give the new file a level"
    owner = owners()
    assert (owner["hz_depot_take"], owner["hz_magazine_push"]) == ("depot.c", "magazine.c")
    assert set(owner.values()) >= sources - {"extensions.c", "threads.c", *OVERRIDES}, "not seen"
    upwards = [
        f"{file} calls {name} of {owner[name]}"
        for file, text in core().items()
        for name in re.findall(r"\b(hz_\w+)\s*\(", text)
        if level.get(owner.get(name, ""), 99) < level.get(f"{file[:-2]}.c", -1)
    ]
    assert upwards == []


def includes(path):
    return re.findall(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', path.read_text(), re.M)


@pytest.mark.parametrize("file", OVERRIDES)
def test_overrides_know_only_the_public_header_of_hz_and_operator_new_its_pop(file):
    own = {name for name in includes(CORE / file) if name in core() or name.startswith("hz/")}
    assert own - {"pop.h"} == {"hz/hz.h", "override.h"}
    assert ("pop.h" in own) == (file == "override_new.c")


def test_the_measuring_programs_know_nothing_of_hz():
    """They see whatever malloc the process has: one binary measures every allocator."""
    own = {path.name for path in BENCH.glob("*.h")}
    strange = [
        f"{path.name} includes {name}"
        for path in sorted(BENCH.glob("*.[ch]"))
        for name in includes(path)
        if name not in own and (name.startswith(("hz", "..")) or name.endswith((".c", ".def")))
    ]
    assert strange == []


def naming(pattern):
    """The files of the core in which a pattern is found."""
    return {file for file, text in core().items() if re.search(pattern, text)}


def test_what_has_one_place_in_the_core_stands_there():
    assert naming(r"\bmemory_order_|__ATOMIC_[A-Z]") == {"atomic.h"}
    clock = "a refill and a flush read no clock that may be a system call"
    assert naming(r"\bhz_os_now_ns\(") <= {"os.h", "os_clock.c", "os_linux.c"}, clock
    ticks = "ticks come while no lock is held, and each is bounded"
    assert naming(r"hz_purge_part\(") == {"decay.c", "internal.h", "purge.c"}, ticks
    contents = re.sub(r"enum \{[^}]*\}", "", core()["internal.h"])
    assert "{" not in contents, "what is inlined stands in a header of its own"
    table = (CORE.parent / "include" / "hz" / "params.def").read_text()
    live = set(re.findall(r"^HZ_LIVE_INT\s*\((\w+),", table, re.M))
    whole = "\n".join(core().values())
    assert set(re.findall(r"\bhz_live\((\w+)\)", whole)) - {"name"} == live
    assert not live & set(re.findall(r"\bhz_cfg\.(\w+)", whole)), "read by hz_live alone"


def test_every_access_to_an_atomic_object_names_its_order(tmp_path):
    """GCC's dump shows `object = value` as a store with order 5, sequentially consistent."""
    sources = [str(path) for path in sorted(CORE.glob("*.c"))]
    defines = ("-D_GNU_SOURCE", '-DHZ_VERSION=""', f"-I{CORE.parent / 'include'}")
    command = ("gcc", "-std=c11", "-w", "-fsyntax-only", "-fdump-tree-original", *defines, *sources)
    subprocess.run(command, cwd=tmp_path, check=True)
    dumps = {path.name.split(".")[0]: path for path in tmp_path.glob("*.original")}
    assert len(dumps) == len(sources)
    unnamed = re.compile(r"__atomic_\w+ \([^;]*, 5\)")
    assert [name for name in sorted(dumps) if unnamed.search(dumps[name].read_text())] == []


def conditions_in_functions(text):
    """The `#if` lines of a C text that stand between braces."""
    depth, found = 0, []
    for line in text.splitlines():
        if not re.match(r"\s*#", line):
            depth += line.count("{") - line.count("}")
        elif depth > 0 and re.match(r"\s*#\s*(if|elif)", line):
            found.append(line.strip())
    return found


def test_functions_hold_no_conditional_compilation():
    assert conditions_in_functions("#if A\nint f(void)\n{\n#ifdef B\n#endif\n}\n") == ["#ifdef B"]
    guilty = {file for file, text in core().items() if conditions_in_functions(text)}
    assert guilty <= MAY_USE_IF


# ---- sizes ---------------------------------------------------------------------------------------


def test_no_file_is_too_long_to_read_and_every_one_opens_with_its_purpose():
    in_c = [*CORE.glob("*.[ch]"), *BENCH.glob("*.[ch]"), *(ROOT / "tests").rglob("*.c")]
    every = [*trees(), *in_c, *(ROOT / "tests").rglob("*.py")]
    long = {p.name: n for p in every if (n := len(p.read_text().splitlines())) > MOST_LINES}
    assert long == {}
    assert [path for path, tree in trees().items() if not ast.get_docstring(tree)] == []
    assert [path for path in in_c if not path.read_text().startswith("/*")] == []
