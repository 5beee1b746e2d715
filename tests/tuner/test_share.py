"""What shells complete: the scripts are installed beside the command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# What stands on the command line up to the cursor, and some of what bash then offers.
COMPLETED = {
    "a command": ("hztune ", {"tune", "doctor"}),
    "an option behind others": ("hztune -w larson --thr", {"--threads"}),
    "a choice": ("hztune tune --objective ", {"throughput", "p99"}),
    "a further workload": ("hztune -w larson,rem", {"larson,remote"}),
    "a contender": ("hztune compare none jem", {"jemalloc", "FILES"}),
    "an allocator whose parameters are shown": ("hztune params --allocator mim", {"mimalloc"}),
    "a form of a profile": ("hztune export x --format sys", {"systemd"}),
    "a program under a profile": ("hztune run profile.json -- ", {"FILES"}),
}

ASK = """
source "$1"; shift
compopt() { COMPREPLY+=(FILES); }
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_hztune hztune
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(("line", "offered"), COMPLETED.values(), ids=COMPLETED.keys())
def test_bash_completes(line, offered, root, core_build, tmp_path):
    command = tmp_path / "hztune"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hztune "$@"\n')
    command.chmod(0o755)
    script = root / "tuner/share/bash-completion/completions/hztune"
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", ASK, "bash", script, *line.split(" ")],
        env={**os.environ, "PATH": path, "HZTUNE_CORE": str(core_build)},
        capture_output=True,
        text=True,
    )
    assert offered <= set(done.stdout.split()), done.stderr
