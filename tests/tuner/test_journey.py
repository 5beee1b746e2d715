"""Every parameter reaches every station, from the table to the running library and back.

Walked here: the start value (by the header, and frozen), the environment and the profile. Looked
for in the tree: the effect, the search, the documentation and the liveness test. A row that misses
a station fails here; the last tests prove that, on a copy of the tree.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from hztune import export, params, profile
from hztune.errors import UsageError
from hztune.params import Param, Value
from hztune.profile import Profile

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Build = Callable[..., Path]
MakeProfile = Callable[..., Profile]

TABLE = params.table()
EVERY_ROW = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)


def alternatives(row: Param) -> list[Value]:
    """Legal values other than the default, the nearest first: big steps cost memory."""
    if row.kind == "enum":
        return [word for word in row.choices if word != row.default]
    steps = {row.low, row.high} | {2**n for n in range(40) if row.low <= 2**n <= row.high}
    default = row.default if isinstance(row.default, int) else row.low
    others = [value for value in steps if value != row.default]
    return sorted(others, key=lambda value: abs(value.bit_length() - default.bit_length()))


def everything_changed() -> dict[str, Value]:
    """A legal configuration in which no row is at its default."""

    def filled(config: dict[str, Value], rows: tuple[Param, ...]) -> dict[str, Value] | None:
        if not rows:
            return config
        for value in alternatives(rows[0]):
            candidate = {**config, rows[0].name: value}
            try:
                params.check(candidate)
            except UsageError:
                continue
            if (found := filled(candidate, rows[1:])) is not None:
                return found
        return None

    found = filled({}, TABLE)
    assert found is not None, "some row cannot leave its default"
    return found


CHANGED = everything_changed()


def confirmed(library: Path, variables: Mapping[str, str]) -> dict[str, Value]:
    """What a process under `library` says it runs with; a variable that it refuses is an error."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("HZ_")}
    done = subprocess.run(
        ["/bin/true"],
        env={
            **inherited,
            "LD_PRELOAD": str(library),
            "HZ_CONFIRM": "1",
            "HZ_STRICT": "1",
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode != 0:
        raise AssertionError(f"status {done.returncode}: {done.stderr}")
    line = next(line for line in done.stderr.splitlines() if line.startswith("HZ_CONFIRM "))
    config: dict[str, Value] = json.loads(line.removeprefix("HZ_CONFIRM "))["config"]
    return config


@pytest.fixture(scope="session")
def header(root: Path, make_profile: MakeProfile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An hz_config.h with every row away from its default.

    Always at the same place for a tree, so that builds with it can be kept between runs.
    """
    tree = hashlib.sha256(str(root).encode()).hexdigest()[:12]
    path = tmp_path_factory.getbasetemp().parent / f"hztune-journey-{tree}" / "hz_config.h"
    path.parent.mkdir(exist_ok=True)
    text = export.render(make_profile(CHANGED), "header")
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)
    return path


@pytest.fixture(scope="session")
def library(core_build: Path) -> Path:
    """The library with its defaults."""
    return core_build / "libhz.so"


@pytest.fixture(scope="session")
def library_of_header(build_core: Build, header: Path) -> Path:
    """The library with the header's values as defaults."""
    built = build_core(targets=["hz_shared"], HZ_CONFIG_HEADER=str(header), HZ_WERROR="ON")
    return built / "libhz.so"


@pytest.fixture(scope="session")
def frozen(build_core: Build, header: Path) -> Path:
    """The library with the header's values as constants."""
    built = build_core(
        targets=["hz_shared"], HZ_CONFIG_HEADER=str(header), HZ_FROZEN="ON", HZ_WERROR="ON"
    )
    return built / "libhz.so"


# ---- stations of the running library -------------------------------------------------------------


@EVERY_ROW
def test_the_running_library_says_the_default_of_the_table(row: Param, library: Path) -> None:
    said = confirmed(library, {})[row.name]
    if row.default == "auto":
        assert isinstance(said, int) and row.low <= said <= row.high
    else:
        assert said == row.default


@EVERY_ROW
def test_the_environment_reaches_the_running_library(row: Param, library: Path) -> None:
    assert confirmed(library, params.environment(CHANGED))[row.name] == CHANGED[row.name]


@EVERY_ROW
def test_the_header_gives_the_library_its_defaults(row: Param, library_of_header: Path) -> None:
    assert confirmed(library_of_header, {})[row.name] == CHANGED[row.name]


@EVERY_ROW
def test_the_environment_goes_before_the_header(row: Param, library_of_header: Path) -> None:
    back = params.environment(params.defaults())
    said = confirmed(library_of_header, back)[row.name]
    assert said == row.default or row.default == "auto"


@EVERY_ROW
def test_the_frozen_library_has_the_header_as_constants(row: Param, frozen: Path) -> None:
    assert confirmed(frozen, {})[row.name] == CHANGED[row.name]


@EVERY_ROW
def test_the_frozen_library_refuses_the_variable(row: Param, frozen: Path) -> None:
    with pytest.raises(AssertionError, match=rf"(?s)status 78.*{row.env}"):
        confirmed(frozen, {row.env: str(CHANGED[row.name])})


def test_the_frozen_library_says_that_it_is_frozen(frozen: Path) -> None:
    done = subprocess.run(
        ["/bin/true"],
        env={"LD_PRELOAD": str(frozen), "HZ_CONFIRM": "1"},
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stderr.removeprefix("HZ_CONFIRM "))["frozen"] is True


@EVERY_ROW
def test_a_profile_carries_the_row_there_and_back(row: Param, make_profile: MakeProfile) -> None:
    text = profile.dumps(make_profile(CHANGED))
    assert profile.parse(text.encode()).params[row.name] == CHANGED[row.name]


# ---- stations in the tree ------------------------------------------------------------------------


LIVENESS = "tests/core/test_liveness.py"


def missing_stations(tree: Path, name: str) -> set[str]:
    """The stations of `tree` that the row `name` does not reach."""
    stations = {
        "core": _core_reads(tree, name),
        "space": _space_names(tree, name),
        "readme": f"| `{name}` |" in (tree / "core" / "README.md").read_text(),
        "liveness": bool(re.search(rf'"{name}"', (tree / LIVENESS).read_text())),
    }
    return {station for station, reached in stations.items() if not reached}


def _core_reads(tree: Path, name: str) -> bool:
    sources = [path.read_text() for path in (tree / "core" / "src").glob("*.[ch]")]
    return any(re.search(rf"\bhz_cfg\.{name}\b|\bhz_live\({name}\)", text) for text in sources)


def _space_names(tree: Path, name: str) -> bool:
    space = tomllib.loads((tree / "search_spaces" / "hz.toml").read_text())
    return name in space["parameters"] or name in space.get("not_searched", {})


@EVERY_ROW
def test_the_row_is_used_searched_documented_and_alive(row: Param, root: Path) -> None:
    assert missing_stations(root, row.name) == set()


# ---- the test itself: an added row that is not reachable -----------------------------------------


NAME = "added_row"
ADDED = f"""
HZ_INT ({NAME}, {NAME.upper()}, 4, 1, 64, POW2, "blocks", NONE,
        "nothing at all")
"""
ADDED_PARAM = replace(params.find("magazine_cap"), name=NAME, env=f"HZ_{NAME.upper()}",
                      macro=f"HZ_CONFIG_{NAME.upper()}", default=4)  # fmt: skip


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """A copy of the tree whose table has one more row, which nothing else knows."""
    tree = tmp_path / "tree"
    for part in ("core", "search_spaces", "tests"):
        shutil.copytree(root / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    table = tree / "core" / "include" / "hz" / "params.def"
    text = table.read_text()
    marker = "/* A test build may append"
    assert text.count(marker) == 1
    table.write_text(text.replace(marker, f"{ADDED}\n{marker}"))
    return tree


STATIONS: dict[str, Callable[[Path], None]] = {
    "core": lambda tree: _append(tree / "core/src/depot.c", f"\nint64_t x = hz_cfg.{NAME};\n"),
    "space": lambda tree: _append(tree / "search_spaces/hz.toml", f"\n[parameters.{NAME}]\n"),
    "readme": lambda tree: _append(tree / "core/README.md", f"\n| `{NAME}` | 4 |\n"),
    "liveness": lambda tree: _append(tree / LIVENESS, f'\nCLAIM = "{NAME}"\n'),
}


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_an_added_row_reaches_no_station_of_the_tree_by_itself(copy: Path) -> None:
    assert missing_stations(copy, NAME) == set(STATIONS)


@pytest.mark.parametrize("station", STATIONS)
def test_each_station_is_missed_until_it_is_reached(station: str, copy: Path) -> None:
    for name, reach in STATIONS.items():
        if name != station:
            reach(copy)
    assert missing_stations(copy, NAME) == {station}


def test_a_library_that_lacks_the_row_fails_the_walk(
    library: Path, library_of_header: Path, frozen: Path
) -> None:
    for walk in (
        lambda: test_the_environment_reaches_the_running_library(ADDED_PARAM, library),
        lambda: test_the_header_gives_the_library_its_defaults(ADDED_PARAM, library_of_header),
        lambda: test_the_frozen_library_has_the_header_as_constants(ADDED_PARAM, frozen),
    ):
        with pytest.raises(KeyError, match=NAME):
            walk()


@pytest.mark.slow
def test_a_header_that_lacks_the_row_does_not_build(
    copy: Path, build_core: Build, header: Path
) -> None:
    with pytest.raises(RuntimeError, match=ADDED_PARAM.macro):
        build_core(source=copy, targets=["hz_shared"], HZ_CONFIG_HEADER=str(header))


@pytest.mark.slow
def test_the_added_row_reaches_the_library_from_the_table_alone(
    copy: Path, build_core: Build
) -> None:
    built = build_core(source=copy, targets=["hz_shared"]) / "libhz.so"
    assert confirmed(built, {})[NAME] == 4
    assert confirmed(built, {ADDED_PARAM.env: "32"})[NAME] == 32
