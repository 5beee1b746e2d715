"""A network for each copy of a server whose port is fixed, so that two of them can live at once.

It has all its ports free, loopback, and nothing else: no other machine, and nothing of this one.
hz-launch makes it (core/bench/network.h); root may, and others where the kernel lets them make a
user namespace.
"""

from __future__ import annotations

from functools import cache

from hztune import artifacts, process

_TRIAL_S = 10.0


@cache
def can_be_had() -> bool:
    """Whether this process may make a network. It is tried out."""
    words = [str(artifacts.launch()), "--own-network", "--", str(artifacts.launch()), "--help"]
    return process.run(words, deadline_s=_TRIAL_S).ok


def inside(launcher: int, command: str) -> list[str]:
    """Returns the words that run a shell command in the network of a process."""
    return [
        *(str(artifacts.launch()), "--network-of", str(launcher)),
        *("--", "/bin/sh", "-c", command),
    ]
