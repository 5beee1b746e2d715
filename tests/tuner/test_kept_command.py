"""The command of a study is kept beside its profile, and a study goes on by it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hztune import api
from hztune.errors import HztuneError, UsageError
from hztune.profile import PROFILE
from hztune.store import kept_command

WORDS = [
    "--allocator", "hz,glibc", "--metric-regex", "-x (.*)", "--lower-is-better", "--no-panel",
    "--cpus", "1.5", "--", "sh", "-c", "web 'a b'",
]  # fmt: skip


@pytest.fixture
def asked(monkeypatch):
    """What reaches the study, which is not carried out."""
    seen = []

    def tune(request, **_):
        seen.append(request)
        raise HztuneError("not carried out")

    monkeypatch.setattr(api, "tune", tune)
    return seen


def test_a_command_is_kept_as_it_was_given_but_for_where_and_how_it_is_told(asked, hztune_here):
    hztune_here("tune", "--out", "here", "-q", *WORDS)
    assert sorted(asked[0].command) == sorted(WORDS)
    assert asked[0].command[-4:] == tuple(WORDS[-4:])
    hztune_here("tune", "--private", *asked[0].command)
    assert asked[1].command == ()
    assert asked[1].program and asked[0].program
    assert asked[1].program.metric == asked[0].program.metric


def test_a_file_on_stdin_is_named_in_the_command(asked, hztune_here, tmp_path):
    (tmp_path / "big").write_text("x")
    stdin = os.dup(0)
    try:
        with (tmp_path / "big").open() as file:
            os.dup2(file.fileno(), 0)
            hztune_here("tune", "--", "sort")
    finally:
        os.dup2(stdin, 0)
        os.close(stdin)
    assert asked[0].command == ("--input", str(tmp_path / "big"), "--", "sort")


def test_a_study_goes_on_by_its_directory_alone(asked, hztune_here, tmp_path):
    done = hztune_here("--resume", "--out", "there")
    assert (done.returncode, asked) == (2, [])
    assert "'there' does not hold the command that is to be resumed" in done.stderr
    (tmp_path / "there").mkdir()
    kept_command.write(tmp_path / "there" / "profile.json", WORDS)
    assert (tmp_path / "there" / "profile.args").stat().st_mode & 0o777 == 0o600
    hztune_here("--resume", "--out", "there", "--budget", "40s")
    (request,) = asked
    assert request.program is not None and request.program.argv == ("sh", "-c", "web 'a b'")
    assert (request.budget_s, request.resume, request.out) == (40.0, True, Path("there"))
    assert (request.allocator, request.panel) == ("hz,glibc", False)


# ---- names that mean something else from one moment to the next ----------------------------------


def test_no_command_is_read_from_a_folder_that_takes_the_place_of_ones_own(tmp_path, monkeypatch):
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        kept_command.write(folder / PROFILE, [folder.name])
    (other / "profile.args").chmod(0o666)
    with pytest.raises(UsageError, match=r"profile\.args"):
        kept_command.read(other / PROFILE)
    opened = kept_command._opened_folder

    def exchanged(path):
        handle = opened(path)
        own.rename(tmp_path / "aside")
        other.rename(own)
        return handle

    monkeypatch.setattr(kept_command, "_opened_folder", exchanged)
    assert kept_command.read(own / PROFILE) == ("own",)
