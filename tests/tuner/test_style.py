"""The house rules that a tool can judge: ruff and strict mypy find nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def complaints(*command):
    """What a checker says of the tree; empty when it is content."""
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_ruff_finds_nothing():
    assert complaints("ruff", "check", "--no-cache", "tuner", "tests") == ""


def test_every_file_is_formatted():
    assert complaints("ruff", "format", "--no-cache", "--check", "tuner", "tests") == ""


def test_mypy_finds_nothing(tmp_path):
    assert complaints("mypy", "--cache-dir", str(tmp_path)) == ""
