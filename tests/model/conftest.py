"""The model, built; and copies of it in which one order of memory is weaker."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Weaken = Callable[[str, str, str, tuple[str, ...]], Path]


@pytest.fixture(scope="session")
def model(build_model: Callable[..., Path]) -> Path:
    """The program that searches the cases."""
    return build_model() / "model"


@pytest.fixture
def weaken(model: Path, root: Path, tmp_path: Path) -> Weaken:
    """A model of which `sources` were compiled with one text of one file replaced."""

    def build(file: str, text: str, weaker: str, sources: tuple[str, ...]) -> Path:
        copy = tmp_path / "src"
        shutil.copytree(root / "core" / "src", copy)
        whole = (copy / file).read_text()
        assert text in whole, f"{file} does not hold {text!r}"
        (copy / file).write_text(whole.replace(text, weaker))
        linked = []
        for entry in _commands(model.parent):
            name = Path(entry["file"]).name
            weak = name in sources
            linked.append(_compiled(entry, copy, tmp_path / f"{name}.o") if weak else _made(entry))
        linked.sort(key=lambda made: "engine" not in made.name)  # its hz_os_* come first
        program = tmp_path / "model"
        command = ["g++", "-no-pie", "-Wl,-z,muldefs", *map(str, linked), "-o", str(program)]
        subprocess.run(command, check=True)
        return program

    return build


def _commands(build: Path) -> list[dict[str, str]]:
    read: list[dict[str, str]] = json.loads((build / "compile_commands.json").read_text())
    return read


def _made(entry: dict[str, str]) -> Path:
    """The object file that a command has made."""
    words = shlex.split(entry["command"])
    return Path(entry["directory"]) / words[words.index("-o") + 1]


def _compiled(entry: dict[str, str], copy: Path, made: Path) -> Path:
    """The same command, which finds the copy of the sources first."""
    words = shlex.split(entry["command"])
    source = Path(entry["file"])
    words[words.index("-o") + 1] = str(made)
    words[words.index("-c") + 1] = str(
        copy / source.name if source.parent.name == "src" else source
    )
    words.insert(1, f"-I{copy}")
    subprocess.run(words, cwd=entry["directory"], check=True)
    return made
