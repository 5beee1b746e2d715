"""The documents hold: what they name exists, and what they list is complete.

README is the way in; every other document stands beside its subject. A path that moves, a link to
a section that has another name, a room that no document names fails here.
"""

import re
from functools import cache
from pathlib import Path

import pytest
from lab import definition

from hztune import params, space
from hztune.allocator.base import tables

from .test_layers import PYTHON_LEVELS

ROOT = Path(__file__).parents[2]
FOLDERS = ("core", "tuner", "search_spaces", "experiments", "tests", ".ci", ".github")
DOCUMENTS = [
    ROOT / "README.md",
    *sorted(path for name in FOLDERS for path in (ROOT / name).rglob("*.md")),
]
MOST_LINES = 150

LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
BLOCK = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
PATH = re.compile(r"[A-Za-z0-9_./-]+")
GENERATED = {"hz_config.h"}
SOURCE = re.compile(r".+\.(c|h|def|py|cpp|md|toml|css|sh)")
EVERY_DOCUMENT = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS]
)


@cache
def files():
    """Every file and directory of the tree, relative to its root."""
    found = {path for name in FOLDERS for path in (ROOT / name).rglob("*")} | set(ROOT.iterdir())
    return frozenset(
        str(path.relative_to(ROOT)) for path in found if "__pycache__" not in path.parts
    )


def sections(document):
    """The sections of a document as links name them."""
    text = BLOCK.sub("", document.read_text())
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def broken_links(document):
    """What a document links to and is not there."""
    for target in LINK.findall(BLOCK.sub("", document.read_text())):
        path, _, section = target.partition("#")
        found = document.parent / path if path else document
        is_there = found.exists() and (not section or section in sections(found))
        if "://" not in target and not is_there:
            yield target


def strange_paths(document):
    """What a document names in backticks as a source file or a directory, and is not there.

    A path starts at the document or at the root; a name alone may stand anywhere. The text of a
    link may be shorter than its target.
    """
    text = LINK.sub("", BLOCK.sub("", document.read_text()))
    for word in CODE.findall(text):
        is_path = "/" in word and word.split("/")[0] in (*FOLDERS, "hztune")
        is_meant = PATH.fullmatch(word) and "NAME" not in word and word not in GENERATED
        if not is_meant or not (is_path or SOURCE.fullmatch(word)):
            continue
        if "/" not in word:
            if not any(Path(file).name == word for file in files()):
                yield word
        elif not ((document.parent / word).exists() or (ROOT / word).exists()):
            yield word


@EVERY_DOCUMENT
def test_every_link_leads_somewhere(document):
    assert list(broken_links(document)) == []


@EVERY_DOCUMENT
def test_every_path_in_backticks_exists(document):
    assert list(strange_paths(document)) == []


def test_readme_is_read_in_five_minutes():
    assert len((ROOT / "README.md").read_text().splitlines()) <= MOST_LINES


def test_the_rooms_of_the_tuner_are_told_as_they_are():
    text = (ROOT / "tuner" / "hztune" / "README.md").read_text().partition("## The rooms")[2]
    table = text.partition("|---|---|\n")[2].partition("\n\n")[0]
    told = [frozenset(CODE.findall(line.split("|")[1])) for line in table.splitlines()]
    assert told == [level - {"__main__", "__init__"} for level in PYTHON_LEVELS]


def example(document):
    """The first TOML file that a document shows."""
    found = re.search(r"^( *)```toml\n(.*?)```", document.read_text(), re.DOTALL | re.MULTILINE)
    return re.sub(rf"^{found[1]}", "", found[2], flags=re.MULTILINE)


def test_the_example_of_a_search_space_is_one(tmp_path):
    path = tmp_path / "example.toml"
    path.write_text(example(ROOT / "search_spaces" / "README.md"))
    made = space.load(path, params.table(), check=params.check, facts={"cpus": 4, "threads": 8})
    assert made.rules and made.presets and made.contains({})


def test_the_example_of_an_experiment_is_one(tmp_path):
    (tmp_path / "experiment.toml").write_text(example(ROOT / "experiments" / "README.md"))
    made = definition.load(tmp_path)
    assert (len(made.sides), len(made.rows)) == (4, 4)


def test_the_image_is_built_from_what_is_there_by_what_the_first_command_installs():
    """Its second stage has Debian's allocators, and nothing that compiles."""
    build, image = (ROOT / "tuner" / "Dockerfile").read_text().split("\n\nFROM ")
    copied = [word for line in re.findall(r"^COPY (.+) \S+$", build, re.M) for word in line.split()]
    assert copied and all((ROOT / word).exists() for word in copied)
    command = re.search(
        r"<!-- main command -->(.*?)&& python3", (ROOT / "README.md").read_text(), re.S
    )
    needed = command[1].split("install -y ")[1].split()
    assert [name for name in needed if name not in build] == []
    assert {"gcc", "g++", "cmake"}.isdisjoint(image.split())
    packages = {each.package for each in tables().values()} - {"", "libc6"}
    assert {word for word in image.split() if word.startswith("lib")} == packages
