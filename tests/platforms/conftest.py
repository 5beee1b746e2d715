"""The platforms that hz is tried on beside the one that the other tests run on.

A platform is skipped, with the reason, where its compiler or the emulator is missing: then it was
not tested. README.md names the packages.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

DEADLINE_S = 120
# The emulator keeps a record of each page that a process maps, and hz looks for a place of 8 GiB or
# more when it starts: half a second, and hundreds of megabytes that every fork copies. Under this
# limit the look is refused at once.
EMULATED_BYTES = 7 << 30
TARGETS = (
    "hz_shared", "hz_deepbind", "hz-bench", "hz-launch", "api", "fuzz_shadow", "forks",
    "offences", "threads",
)  # fmt: skip


class Platform(NamedTuple):
    """What programs for another machine, or another C library, need."""

    name: str
    needs: tuple[str, ...]  # programs that must be installed
    packages: str  # Debian's packages that have them
    defines: dict[str, str]  # for CMake
    emulator: str = ""  # "" where this machine runs what is built
    variables: tuple[tuple[str, str], ...] = ()  # for the emulator


AARCH64 = Platform(
    "AArch64 with glibc",
    ("aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++", "qemu-aarch64"),
    "g++-aarch64-linux-gnu qemu-user",
    {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_C_COMPILER": "aarch64-linux-gnu-gcc",
        "CMAKE_CXX_COMPILER": "aarch64-linux-gnu-g++",
    },
    "qemu-aarch64",
    (("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu"),),
)
MUSL = Platform("x86-64 with musl", ("musl-gcc",), "musl-tools", {"CMAKE_C_COMPILER": "musl-gcc"})
OLDEST = Platform("the first x86-64", ("qemu-x86_64",), "qemu-user", {}, "qemu-x86_64")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


class Built:
    """hz and its tests, built for a platform."""

    def __init__(self, platform: Platform, build: Path, folder: Path) -> None:
        self.platform = platform
        self.build = build
        self.folder = folder

    @property
    def is_emulated(self) -> bool:
        return self.platform.emulator != ""

    def words(self, program: str, *options: str, is_on_hz: bool = True) -> list[str]:
        """The words that start a program of the build; `options` are for the emulator.

        On musl the tests are linked to libhz.so: what they start may be glibc's, and cannot be
        preloaded with it.
        """
        if not self.is_emulated:
            preload = ["env", f"LD_PRELOAD={self.build / 'libhz.so'}"]
            is_linked = program.startswith("tests/")
            return [*(preload if is_on_hz and not is_linked else ()), str(self.build / program)]
        preload = ["-E", f"LD_PRELOAD={self.build / 'libhz.so'}"]
        return [
            self.platform.emulator, *options, *(preload if is_on_hz else ()),
            str(self.build / program),
        ]  # fmt: skip

    def script(self, name: str, words: list[str]) -> Path:
        """A program that starts these words: what exec cannot start by itself is emulated so."""
        path = self.folder / name
        path.write_text("#!/bin/sh\nexec " + " ".join(words) + ' "$@"\n')
        path.chmod(0o755)
        return path

    def run(
        self, words: list[str], *, is_limited: bool = True, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs them in an empty environment of hz's variables; see EMULATED_BYTES."""
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("HZ_", "LD_PRELOAD"))}
        limit = EMULATED_BYTES if self.is_emulated and is_limited else resource.RLIM_INFINITY
        return subprocess.run(
            ["prlimit", f"--as={limit}", *words],
            env={**plain, **dict(self.platform.variables), **variables},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )


def require_tools(platform: Platform) -> None:
    """Skip, and say that it was not tested, where a program is missing."""
    missing = [name for name in platform.needs if shutil.which(name) is None]
    if missing:
        pytest.skip(
            f"{platform.name} was not tested: there is no {', '.join(missing)} "
            f"(apt-get install {platform.packages})"
        )


def _built(
    platform: Platform, build_core: Callable[..., Path], folders: pytest.TempPathFactory
) -> Built:
    require_tools(platform)
    quick = {"HZ_WERROR": "ON", "HZ_BUILD_TESTS": "ON", "CMAKE_C_FLAGS_RELEASE": "-O1"}
    return Built(
        platform,
        build_core(targets=TARGETS, **quick, **platform.defines),
        folders.mktemp("platform"),
    )


@pytest.fixture(scope="session")
def aarch64(build_core: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Built:
    return _built(AARCH64, build_core, tmp_path_factory)


@pytest.fixture(scope="session")
def musl(build_core: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Built:
    return _built(MUSL, build_core, tmp_path_factory)


@pytest.fixture(params=["aarch64", "musl"])
def built(request: pytest.FixtureRequest) -> Built:
    """Each platform in turn."""
    made: Built = request.getfixturevalue(request.param)
    return made


@pytest.fixture(scope="session")
def oldest(core_tests: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The build that the other tests run on; the emulator's processor is given by its options."""
    require_tools(OLDEST)
    return Built(OLDEST, core_tests, tmp_path_factory.mktemp("platform"))
