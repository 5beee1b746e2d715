"""What `import hztune` offers: the functions that the command line calls, with their results."""

from __future__ import annotations

import ast
import csv
import inspect
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from lab.replay import Truth

import hztune
from hztune import api
from hztune.cli import status_of

PACKAGE = Path(api.__file__).parent
MANY = 4


def test_the_command_line_uses_every_function_of_the_api():
    used = {
        node.attr
        for path in (PACKAGE.parent / "cli").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "api"
    }
    assert used == set(api.__all__)


@pytest.mark.parametrize("name", api.__all__)
def test_the_text_of_a_function_explains_it_and_each_of_many_arguments(name):
    function = getattr(api, name)
    text = inspect.getdoc(function) or ""
    text += (inspect.getdoc(hztune.tune) or "") if name == "request" else ""
    taken = list(inspect.signature(function).parameters)
    assert text.split(".")[0].count(" ") >= 3
    assert len(taken) < MANY or all(f"{each}:" in text for each in taken)


SPACE = 'schema = 1\nallocator = "hz"\n[parameters.depot_lock]\n'


def spin_is_faster(arm):
    return Truth(0.2 if arm.config.get("depot_lock") == "spin" else 0.0)


@pytest.fixture
def study(simulate, tmp_path, monkeypatch, listener):
    """Carries out a study from Python, of a simulated target on which `spin` is faster."""
    (tmp_path / "space.toml").write_text(SPACE)
    space, out = str(tmp_path / "space.toml"), tmp_path / "out"
    monkeypatch.setattr("hztune.doctor.remarks", lambda: ["warning: others want the CPUs"])

    def carry_out(*target, **options):
        simulate(spin_is_faster)
        asked = api.request(*target, budget="1m", space=space, out=out, **options)
        return api.tune(asked, reporter=listener)

    return carry_out


@pytest.fixture
def studied(study):
    """Such a study of a workload."""
    return study("larson", threads=2)


def test_a_study_from_python_ends_in_a_result_with_its_views(studied, listener):
    said = [line.partition(":")[0] for line in listener.lines]
    assert said.index("warning") < said.index("calibrated"), "what disturbs is said first"
    tuned, folder = studied.profile, studied.folder
    assert (tuned.claim.verdict, tuned.params) == ("improved", {"depot_lock": "spin"})
    assert folder is not None and api.load_profile(folder / "profile.json") == tuned
    made = api.environment(tuned, {"HZ_DEPOT_LOCK": "mutex", "HOME": "/h"})
    assert (made["HZ_DEPOT_LOCK"], made["HOME"]) == ("spin", "/h")
    assert api.summary(studied)["verdict"] == "improved"
    assert any(line.startswith("verdict: improved") for line in api.summary_lines(studied))
    assert "depot_lock" in api.report(folder).read_text()
    assert "block" in {json.loads(line)["kind"] for line in api.samples(folder)}


def test_a_program_may_be_called_as_it_likes(study, tmp_path):
    program = tmp_path / "my pr\u00f6g's\udcff"
    program.symlink_to("/bin/cat")
    found = study(program=api.program((str(program),)), allocator="hz")
    assert found.profile.workload.name == "my-pr-g-s-"
    assert api.load_profile(found.folder / "profile.json") == found.profile


def test_samples_are_columns_for_numpy_and_a_table(studied):
    turns = api.sample_columns(studied.folder)
    speeds = np.array(turns["ops"]) / np.array(turns["counted_ns"])
    is_spin = np.array(turns["params.depot_lock"]) == "spin"
    assert speeds.shape == is_spin.shape and len({len(each) for each in turns.values()}) == 1
    assert speeds[is_spin].mean() > 1.1 * speeds[~is_spin].mean()
    outcomes = api.sample_columns(studied.folder, "outcome")
    assert set(outcomes["status"]) == {"ok"} and min(outcomes["rss_peak_kb"]) > 0
    table = studied.folder / "turns.csv"
    assert status_of(["export", str(studied.folder), "--format", "csv", "-o", str(table)]) == 0
    head, *rows = csv.reader(table.read_text().splitlines())
    assert head == list(turns)
    assert [float(row[head.index("ops")]) for row in rows] == turns["ops"]


def test_a_study_in_a_thread_is_like_any_other(study):
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(study, "larson", threads=2).result()
    assert result.profile.claim.verdict == "improved"
