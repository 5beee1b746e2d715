"""The tests themselves: where hztune is older than the tree, and where a package is missing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.conftest import pytest_sessionstart

CONFTEST = """
from tests import conftest
from tests.conftest import *
conftest.OPTIONAL = {"libdragon1": ("dragon", "lib/libdragon.so.1")}
"""
TESTS = """
def test_dragon(): assert False
def test_griffin(): assert False
"""


def test_tests_of_another_table_than_the_installed_one_stop_in_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "hz").mkdir()
    (tmp_path / "hz" / "params.def").write_text("/* a row fewer */")
    monkeypatch.setattr("hztune.artifacts.include_dir", lambda: tmp_path)
    with pytest.raises(pytest.exit.Exception, match="run pip install --editable"):
        pytest_sessionstart()


def test_a_test_that_fails_and_names_a_missing_package_is_skipped(root, tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_beasts.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-c", "/dev/null",
         "--rootdir", tmp_path, tmp_path],
        env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True,
    )  # fmt: skip
    assert "1 failed, 1 skipped" in done.stdout
    assert "it fails without libdragon1: apt-get install it" in done.stdout
