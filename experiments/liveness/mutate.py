"""Cut each parameter out of the core, and see that its liveness tests notice.

For every row of the table, in a copy of the tree: wherever the core reads the parameter, it gets
the table's default instead, as a constant. The copy is built, and the row's tests of
tests/core/test_liveness.py are run on it, unchanged. When all still pass they watch something other
than their parameter: the row is said to have survived, and the exit status is 1.

    mutate.py                       every row
    mutate.py depot_lock thp        some rows
    mutate.py --each-place          one place after the other where a parameter is read

Under --each-place a survivor is no verdict, but a question: a place may only size an array.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).parents[2]
TESTS = Path("tests") / "core" / "test_liveness.py"
DEADLINE_S = 1800
RESULTS = {"killed": 0, "survived": 1}


class MutationError(Exception):
    """A mutant that could not be judged; the message says which one and why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the core reads a parameter."""

    source: Path  # below the tree
    line: int  # from 0

    def __str__(self) -> str:
        """As compilers name it."""
        return f"{self.source.name}:{self.line + 1}"


def places(tree: Path, row: str) -> tuple[Place, ...]:
    """Every line of the core that reads the parameter."""
    read = re.compile(rf"\bhz_cfg\.{row}\b|\bhz_live\({row}\)")
    return tuple(
        Place(source.relative_to(tree), number)
        for source in sorted((tree / "core" / "src").glob("*.[ch]"))
        for number, line in enumerate(source.read_text().splitlines())
        if read.search(line)
    )


def tests(tree: Path) -> dict[str, list[str]]:
    """Row -> the tests of its claims, as pytest names them."""
    listed = _pytest(tree, "--collect-only", str(TESTS)).stdout.splitlines()
    found: dict[str, list[str]] = {}
    for line in listed:
        if match := re.match(r"\S+::test_the_parameter\[(\w+) ", line):
            found.setdefault(match[1], []).append(line)
    if not found:
        raise MutationError(f"{TESTS} names no test of a parameter:\n" + "\n".join(listed))
    return found


def _pytest(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # The tests keep their builds in the cache directory: the copy gets one of its own.
    environment = {**os.environ, "XDG_CACHE_HOME": str(tree / "cache")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--tb=short", *words],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def require_whole_tree_passes(tree: Path, named: dict[str, list[str]]) -> None:
    """The control: with nothing cut out no test fails, so that a failure is the cut's doing."""
    done = _pytest(tree, *(test for row in named.values() for test in row))
    if done.returncode != 0:
        raise MutationError(f"the tests fail with nothing cut out\n{done.stdout[-3000:]}")


def _cut(tree: Path, row: str, where: tuple[Place, ...]) -> dict[Path, str]:
    """Cuts the parameter out at these places; returns the files as they were."""
    before: dict[Path, str] = {}
    for place in where:
        path = tree / place.source
        before.setdefault(path, path.read_text())
        lines = path.read_text().splitlines(keepends=True)
        for read in (f"hz_cfg.{row}", f"hz_live({row})"):
            lines[place.line] = lines[place.line].replace(read, f"hz_cfg_built.{row}")
        path.write_text("".join(lines))
    return before


def judge(tree: Path, row: str, named: list[str], where: tuple[Place, ...]) -> str:
    """Runs the row's tests with the parameter cut out at these places: killed or survived."""
    before = _cut(tree, row, where)
    try:
        done = _pytest(tree, *named)
    finally:
        for path, text in before.items():
            path.write_text(text)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    if re.match(r"\d+ passed in", last):
        return "survived"
    if re.match(r"\d+ failed", last) and "error" not in last:
        return "killed"
    raise MutationError(f"{row}: neither passed nor failed\n{done.stdout[-3000:]}{done.stderr}")


def mutants(tree: Path, row: str, each_place: bool) -> Iterator[tuple[Place, ...]]:
    """The places that are cut out together, mutant by mutant."""
    everywhere = places(tree, row)
    if not everywhere:
        raise MutationError(f"{row}: the core reads it nowhere")
    if not each_place:
        yield everywhere
    else:
        yield from ((place,) for place in everywhere)


def run(trees: list[Path], rows: list[str], each_place: bool) -> int:
    """Judges the rows, in each tree one at a time; prints a line for each mutant."""
    named = tests(trees[0])
    for row in rows:
        if row not in named:
            raise MutationError(f"{row} is no parameter; there are: {' '.join(named)}")
    free: Queue[Path] = Queue()
    survived = 0
    with ThreadPoolExecutor(len(trees)) as pool:
        for _ in pool.map(lambda tree: require_whole_tree_passes(tree, named), trees):
            pass
        for tree in trees:
            free.put(tree)

        def judged(mutant: tuple[str, tuple[Place, ...]]) -> str:
            row, where = mutant
            tree = free.get()
            try:
                return judge(tree, row, named[row], where)
            finally:
                free.put(tree)

        every = [
            (row, where)
            for row in rows or list(named)
            for where in mutants(trees[0], row, each_place)
        ]
        for (row, where), result in zip(every, pool.map(judged, every), strict=True):
            survived += RESULTS[result]
            print(f"{row:22} {result:9} {' '.join(map(str, where))}", flush=True)
    return survived


def copy_of_the_tree(into: Path) -> Path:
    """What the tests of the core need: the core, the tests, and pytest's settings."""
    unneeded = shutil.ignore_patterns("__pycache__", "tuner")
    into.mkdir()
    for part in ("core", "tests"):
        shutil.copytree(ROOT / part, into / part, ignore=unneeded)
    shutil.copy(ROOT / "pyproject.toml", into)
    return into


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="parameters; all when none is given")
    parser.add_argument("--each-place", action="store_true", help="cut one place at a time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hz-mutate-") as folder:
        copies = (Path(folder, str(n)) for n in range(len(os.sched_getaffinity(0))))
        try:
            trees = [copy_of_the_tree(copy) for copy in copies]
            survived = run(trees, options.rows, options.each_place)
        except MutationError as error:
            print(f"mutate: {error}", file=sys.stderr)
            return 2
    print(f"{survived} survived", file=sys.stderr)
    return 1 if survived and not options.each_place else 0


if __name__ == "__main__":
    sys.exit(main())
