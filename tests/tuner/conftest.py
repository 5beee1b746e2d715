"""What the tests of the tuner share: a profile to start from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hztune.params import Value
from hztune.profile import (
    AllocatorId,
    MachineId,
    Objective,
    Profile,
    Result,
    Search,
    WorkloadId,
)

MakeProfile = Callable[..., Profile]


@pytest.fixture(scope="session")
def make_profile() -> MakeProfile:
    """Makes a profile that is valid; `make_profile(params={...}, threads=8)` changes fields."""

    def make(params: dict[str, Value] | None = None, **changes: object) -> Profile:
        given = {"magazine_cap": 512, "depot_lock": "spin"} if params is None else params
        profile = Profile(
            allocator=AllocatorId("hz", "0.1.0", "libhz.so", "a" * 64),
            params=tuple(given.items()),
            workload=WorkloadId("bench", "remote", "main", (("remote", 50),)),
            threads=32,
            machine=MachineId(
                "Test CPU (R) 3.0GHz", 2, 1.5, "6.1.0", "glibc 2.36", 4096, "madvise"
            ),
            objective=Objective("ops_per_s", (("max_rss", "1.10x"),)),
            result=Result("ops_per_s", 1.14, 1.1, 1.2, 8, "improved"),
            search=Search("tpe", 7, 90.0, 25, "b" * 64),
            versions=(("hztune", "0.1.0"),),
            created="2026-01-31T12:00:00Z",
        )
        return replace(profile, **changes)  # type: ignore[arg-type]

    return make
