"""An allocator with parameters stands in every place that must know it, or the place is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from hztune import allocator
from hztune.allocator import Installed, loaded_program
from hztune.compare import contenders
from hztune.errors import UsageError

from .conftest import TUNED
from .test_allocator import TABLES
from .test_allocator_spaces import VERSIONS

ROOT = Path(__file__).parents[2]
SHORT_NAMES = ROOT / "core" / "bench" / "allocator_name.c"
OWN = {"hz"}
"""The project's own: its parameters, its one version and its profile are the tests' usual ones."""


def with_parameters() -> set[str]:
    """Every allocator whose adapter has a parameter, in its newest version."""
    newest = {name: Installed(name, "99.0", "lib.so", Path(), "", "") for name in allocator.names()}
    return {name for name, one in newest.items() if allocator.get(name).knobs(one)}


PLACES = {
    "search_spaces": {path.stem for path in (ROOT / "search_spaces").glob("*.toml")} - OWN,
    "TABLES in tests/tuner/test_allocator.py": {*TABLES},
    "VERSIONS in tests/tuner/test_allocator_spaces.py": {*VERSIONS},
    "TUNED in tests/tuner/conftest.py": {name for name, (_, config) in TUNED.items() if config},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_place_names_every_allocator_with_parameters_and_no_other(place: str) -> None:
    wanted = with_parameters() - OWN
    assert wanted - PLACES[place] == set(), f"{place} lacks them"
    assert PLACES[place] - wanted == set(), f"{place} has them, and they have no parameters"


def test_the_library_of_every_allocator_is_known_in_programs_and_processes() -> None:
    assert {*loaded_program.LINKED, "glibc"} == {*allocator.names()} - {"none"}


def test_a_library_that_the_loader_would_take_for_two_is_refused_before_it_is_preloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "a:b" / "libhz.so"
    library.parent.mkdir()
    library.touch()
    monkeypatch.setenv("HZTUNE_CORE", str(library.parent))
    for use in (allocator.get("hz").installed, lambda: contenders.parse([f"own={library}"])):
        with pytest.raises(UsageError, match="a path with a colon"):
            use()


@pytest.mark.parametrize("name", sorted(set(allocator.names()) - {"none"}))
def test_every_allocator_says_how_its_settings_are_checked(name: str) -> None:
    assert allocator.get(name).check_advice


@pytest.mark.parametrize("name", sorted(set(allocator.names()) - {"none"}))
def test_hz_launch_has_a_short_name_for_every_allocator(name: str) -> None:
    assert f'"{name}"' in SHORT_NAMES.read_text(), f"{SHORT_NAMES.name} lacks it"
