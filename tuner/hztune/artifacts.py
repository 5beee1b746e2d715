"""Where the built parts of hz are: the libraries, the programs, the headers, the search spaces.

They come with the package (wheel or editable install): the tree that the core's own
`cmake --install` makes, beside `_core`. Developers and tests may name another one with
HZTUNE_CORE=DIR, where DIR is an installation prefix of the core, or a build directory of `core/` or
of `tuner/`.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

from hztune.errors import HztuneError, UsageError

CORE_VARIABLE = "HZTUNE_CORE"
_CORE_MODULE = "_core.abi3.so"


def library() -> Path:
    """libhz.so, for LD_PRELOAD."""
    return _find("libhz.so", ("lib", "", "core"))


def preloadable(library: Path) -> str:
    """The path of a library as LD_PRELOAD takes it.

    Raises:
        UsageError: The loader would take it for several, or for another one.
    """
    if re.search(r"[\s:$]", str(library)):
        raise UsageError(
            f"{str(library)!r}: LD_PRELOAD cannot name a path with a colon, a blank or a dollar "
            "sign; put it into another folder"
        )
    return str(library)


def static_library() -> Path:
    """libhz.a, for programs that link hz."""
    return _find("libhz.a", ("lib", "", "core"))


def deepbind() -> Path:
    """libhz-deepbind.so, which stands in LD_PRELOAD beside every allocator but hz."""
    return _find("libhz-deepbind.so", ("lib", "", "core"))


def agent() -> Path:
    """libhz-agent.so, which tells other processes about the allocator that it stands beside."""
    return _find("libhz-agent.so", ("lib", "", "core"))


def recorder() -> Path:
    """libhz-recorder.so, which stands in LD_PRELOAD before any allocator."""
    return _find("libhz-recorder.so", ("lib", "trace", "core/trace"))


def record() -> Path:
    """hz-record, which records programs."""
    return _find("hz-record", ("bin", "trace", "core/trace"))


def trace_tool() -> Path:
    """hz-trace, which reads and changes what was recorded."""
    return _find("hz-trace", ("bin", "trace", "core/trace"))


def bench() -> Path:
    """hz-bench, the workloads."""
    return _program("hz-bench")


def launch() -> Path:
    """hz-launch, which starts and measures any program."""
    return _program("hz-launch")


def turns() -> Path:
    """hz-turns, the conductor of turn-based comparisons."""
    return _program("hz-turns")


def alternate() -> Path:
    """hz-alternate, which runs whole programs by turns."""
    return _program("hz-alternate")


def include_dir() -> Path:
    """The directory to give a compiler, which holds hz/hz.h."""
    source = _source_of_build(root())
    return _existing("hz/hz.h", [root() / "include", *([source / "include"] if source else [])])


def cmake_dir() -> Path:
    """The directory to give CMake as hz_DIR, which holds hzConfig.cmake."""
    return _existing("hzConfig.cmake", [root() / "lib" / "cmake" / "hz"])


def search_spaces() -> Path:
    """The directory of the search spaces: the working copy's own in an editable install."""
    checkout = _checkout()
    if checkout is not None:
        return checkout / "search_spaces"
    return _installed_root() / "share" / "hztune" / "search_spaces"


def core_module() -> Path | None:
    """The `_core` that was built with the core of HZTUNE_CORE; None: the package's own is right."""
    if not os.environ.get(CORE_VARIABLE):
        return None
    built = (root() / _CORE_MODULE, root().parent / _CORE_MODULE)
    return next((path for path in built if path.is_file()), None)


def root() -> Path:
    """The tree that holds the built core.

    Raises:
        HztuneError: HZTUNE_CORE names no directory, or the package was not built.
    """
    named = os.environ.get(CORE_VARIABLE)
    if not named:
        return _installed_root()
    if not Path(named).is_dir():
        raise HztuneError(
            f"{CORE_VARIABLE} is {named!r}, which is not a directory; "
            "it must name a build directory or an installation prefix of hz, or be unset"
        )
    return Path(named).absolute()


def _checkout() -> Path | None:
    """The working copy that this file stands in; None: it was installed."""
    checkout = Path(__file__).parents[2]
    return checkout if (checkout / "core" / "include" / "hz" / "params.def").is_file() else None


def _installed_root() -> Path:
    spec = find_spec("hztune._core")
    if spec is None or spec.origin is None:
        raise HztuneError(
            "hztune's compiled part is missing; install the package (pip install .) "
            "instead of running its source"
        )
    return Path(spec.origin).parent / "core"


def _program(name: str) -> Path:
    return _find(name, ("bin", "bench", "core/bench", ""))


def _find(name: str, folders: tuple[str, ...]) -> Path:
    return _existing(name, [root() / folder for folder in folders]) / name


def _existing(name: str, folders: list[Path]) -> Path:
    """The first folder that holds `name`."""
    for folder in folders:
        if (folder / name).is_file():
            return folder
    raise HztuneError(f"there is no {name} in {root()}; build hz completely, or reinstall hztune")


def _source_of_build(build: Path) -> Path | None:
    """The core's source that `build` was configured from; None when it is no build directory."""
    cache = build / "CMakeCache.txt"
    if not cache.is_file():
        return None
    for line in cache.read_text(encoding="utf-8").splitlines():
        if line.startswith("hz_SOURCE_DIR:STATIC="):
            return Path(line.partition("=")[2])
    return None
