"""Places of servers: each run has a free port and an empty directory, and leaves neither behind."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from hztune import scratch
from hztune.errors import UsageError
from hztune.measure.program import Program, Service, described
from hztune.measure.server import swept, with_port_and_dir

PROGRAM = Program(
    ("serve", "--port={port}"),
    prepare="touch {dir}/a",
    cleanup="ls {dir}",
    service=Service("load {port} ${port}", ready="test -e {dir}"),
)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def folder_of(program: Program) -> Path:
    return Path(program.cleanup.removeprefix("ls "))


def port_of(program: Program) -> int:
    return int(program.argv[1].removeprefix("--port="))


def test_two_that_live_at_once_have_ports_and_directories_of_their_own() -> None:
    with with_port_and_dir(PROGRAM) as one, with_port_and_dir(PROGRAM) as other:
        assert folder_of(one) != folder_of(other)
        assert port_of(one) != port_of(other)
        port, folder = port_of(one), folder_of(one)
        assert [*folder.iterdir()] == []
        assert one.prepare == f"touch {folder}/a"
        assert one.service == Service(f"load {port} ${{port}}", f"test -e {folder}", port)
        with socket.create_server(("127.0.0.1", port)):
            subprocess.run(["/bin/sh", "-c", one.prepare], check=True)
        assert [each.name for each in folder.iterdir()] == ["a"]
        (folder / "deep").mkdir()
    assert not folder.exists()


def test_a_program_that_is_no_server_keeps_its_words() -> None:
    awk = Program(("awk", "{dir}"), prepare="echo {port}")
    with with_port_and_dir(awk) as program:
        assert program is awk


def test_what_a_killed_process_left_is_removed_by_the_next_one_and_what_lives_stays() -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with with_port_and_dir(PROGRAM) as program:
            os.write(writing, str(folder_of(program)).encode())
            signal.pause()
        os._exit(0)
    left = Path(os.read(reading, 4096).decode())
    with with_port_and_dir(PROGRAM):
        assert left.exists()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with with_port_and_dir(PROGRAM):
        assert left.exists(), "others may make any number: each process looks once"
    scratch._remove_left.cache_clear()
    with with_port_and_dir(PROGRAM):
        assert not left.exists()


def test_what_others_put_where_temporary_directories_are_stops_nothing_and_stays(
    tmp_path: Path,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    (tmp_path / "hztune-scratch-a").symlink_to("elsewhere")
    for theirs in (tmp_path / f"hztune-{os.getuid()}", tmp_path / "hztune-scratch-b"):
        theirs.mkdir()
        os.chown(theirs, 12345, -1)
    with with_port_and_dir(PROGRAM) as program:
        assert folder_of(program).stat().st_mode & 0o777 == 0o700
    assert len([*tmp_path.iterdir()]) == 3


def test_a_directory_that_a_shell_would_split_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "two words").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "two words"))
    assert described(server="s {port}", load="l {port}").service is not None
    with pytest.raises(UsageError, match=r"would be in '.*/two words', .* legal are .* TMPDIR="):
        described(server="s {port}", load="l {port}", cleanup="rm -r {dir}/c")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a port in the server's command only": (
        {"server": "s {port}", "load": "l 7777"},
        "--load 'l 7777' has not",
    ),
    "a port in the load only": (
        {"server": "s 7777", "load": "l {port}", "ready": "true"},
        "--server has not",
    ),
    "a port of its own and a fixed one": (
        {"server": "s {port}", "load": "l {port}", "ready_port": 7777},
        "--ready-port says 7777",
    ),
    "nothing that says when it answers": (
        {"server": "s {dir}", "load": "l {dir}"},
        "nothing says when the server answers",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_commands_that_cannot_meet_are_refused_with_what_to_write(name: str) -> None:
    options, reason = REFUSED[name]
    with pytest.raises(UsageError) as refused:
        described(**options)
    assert reason in str(refused.value)


def test_a_port_may_stand_in_what_writes_the_configuration() -> None:
    told = described(prepare="echo {port} > {dir}/c", server="s {dir}/c", load="l {port}")
    assert told.service is not None and told.service.port == 0


def test_shared_memory_of_a_killed_server_is_removed_and_no_other() -> None:
    libc, table = ctypes.CDLL(None), Path("/proc/sysvipc/shm")
    other = libc.shmget(0, 4096, 0o1600)
    with swept() as pids:
        pid = os.fork()
        if pid == 0:
            libc.shmget(0, 4096, 0o1600)
            os._exit(0)
        os.waitpid(pid, 0)
        pids.add(pid)
        made = {row.split()[1]: row.split()[4] for row in table.read_text().splitlines()[1:]}
        assert str(pid) in made.values()
    left = {row.split()[1]: row.split()[4] for row in table.read_text().splitlines()[1:]}
    assert str(pid) not in left.values()
    assert str(other) in left
    libc.shmctl(other, 0, None)
