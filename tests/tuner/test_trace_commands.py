"""`hztune record` and `hztune trace` as a user types them."""

from __future__ import annotations

import json
import sys

import pytest
from tests.bench import traces

from hztune.recordings import trace_text


def test_a_program_is_recorded_and_told_of_and_its_output_and_status_are_its_own(
    hztune, hztune_here, tmp_path
):
    words = [sys.executable, "-I", "-S", "-c", "print('its own'); raise SystemExit(5)"]
    done = hztune("record", "-o", "own.trace", "--", *words)
    assert (done.returncode, done.stdout) == (5, "its own\n")
    told = json.loads(hztune_here("trace", "info", "own.trace", "--json").stdout)
    assert told["calls"] > 50 and told["threads"] == 1
    assert told["notes"]["program"] == words
    lines = hztune_here("trace", "info", "own.trace").stdout.splitlines()
    assert lines == trace_text(told)
    assert lines[0].startswith(f"program   {sys.executable} -I")


@pytest.mark.parametrize("notes", ["[1]", '{"program": 5}', "{", '{"a":' * 9000, "\udcff"])
def test_notes_that_hztune_does_not_write_get_a_sentence(notes, hztune_here, tmp_path):
    path = traces.write(tmp_path / "odd.trace", [traces.churn(400)], notes=notes)
    done = hztune_here("trace", "info", path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "has notes that hztune does not write" in done.stderr
    assert hztune_here("trace", "anonymize", path, "-o", "a.trace").returncode == 0
    assert hztune_here("trace", "info", "a.trace").returncode == 0


def test_the_names_of_a_program_do_not_steer_the_terminal(hztune_here, tmp_path):
    notes = json.dumps({"program": ["a\x1b[2Jb\n", "c"]})
    path = traces.write(tmp_path / "odd.trace", [traces.churn(400)], notes=notes)
    assert hztune_here("trace", "info", path).stdout.splitlines()[0] == "program   a?[2Jb c"
