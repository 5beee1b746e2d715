"""A server lives on whatever eight bytes its clients store, also where they know hz's source."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import time

import pytest

READY_S = 20
ONCE_A_SEAL = (-0x5A3C1D2F & (1 << 64) - 1).to_bytes(8, "little")


def request(*words):
    """A command as the server reads it."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


def connected(path):
    """A connection to the server, as soon as it answers."""
    deadline = time.monotonic() + READY_S
    while True:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(READY_S)
        try:
            client.connect(str(path))
            return client
        except OSError:
            client.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@pytest.fixture(params=["at_reuse", "at_call"])
def server(request, libhz, plain_environment, tmp_path):
    """A server on hz, and the path of its socket."""
    path = tmp_path / "s"
    words = ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", ""]
    process = subprocess.Popen(
        words,
        env={**plain_environment, "LD_PRELOAD": str(libhz), "HZ_DOUBLE_FREE": request.param},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield process, path
    process.kill()
    process.wait()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_a_server_lives_whatever_eight_bytes_are_stored_in_it(server):
    process, path = server
    draw = random.Random(20261123)
    words = [ONCE_A_SEAL, *(draw.randbytes(8) for _ in range(1000))]
    client = connected(path)
    answers = client.makefile("rb")
    for word in words:
        client.sendall(request(b"SET", b"k", b"A" * 3 + word + b"B" * 400))
        assert answers.readline() == b"+OK\r\n", process.poll()
        for length in range(1411, 5411, 1000):
            client.sendall(request(b"APPEND", b"k", b"C" * 1000))
            assert answers.readline() == b":%d\r\n" % length, process.poll()
    client.close()
    assert process.poll() is None
