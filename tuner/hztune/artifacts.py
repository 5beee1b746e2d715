"""Where the built parts of hz are: the libraries, the programs, the headers, the search spaces.

They come with the package: the tree that the core's own `cmake --install` makes, beside `_core`.
Developers and tests may name another with HZTUNE_CORE=DIR, an installation prefix of the core, or a
build directory of `core/` or of `tuner/`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from hztune.errors import HztuneError, UsageError

CORE_VARIABLE = "HZTUNE_CORE"
_CORE_MODULE = "_core.abi3.so"


def preloadable(library: Path) -> str:
    """A path for LD_PRELOAD; UsageError: the loader would take it for several, or another one."""
    if re.search(r"[\s:$]", str(library)):
        raise UsageError(
            f"{str(library)!r}: LD_PRELOAD cannot name a path with a colon, a blank or a dollar "
            "sign; put it into another folder"
        )
    return str(library)


def _finder(name: str, *folders: str) -> Callable[[], Path]:
    return lambda: _existing(name, [root() / folder for folder in folders]) / name


_LIBRARY, _TRACE = ("lib", "", "core"), ("bin", "trace", "core/trace")
_PROGRAM = ("bin", "bench", "core/bench", "")

library = _finder("libhz.so", *_LIBRARY)  # for LD_PRELOAD
static_library = _finder("libhz.a", *_LIBRARY)  # for programs that link hz
deepbind = _finder("libhz-deepbind.so", *_LIBRARY)  # beside every allocator but hz
agent = _finder("libhz-agent.so", *_LIBRARY)  # tells others of the allocator beside it
recorder = _finder("libhz-recorder.so", "lib", *_TRACE[1:])  # before any allocator
record = _finder("hz-record", *_TRACE)  # records programs
trace_tool = _finder("hz-trace", *_TRACE)  # reads and changes what was recorded
bench = _finder("hz-bench", *_PROGRAM)  # the workloads
launch = _finder("hz-launch", *_PROGRAM)  # starts and measures any program
turns = _finder("hz-turns", *_PROGRAM)  # conducts workloads by turns
alternate = _finder("hz-alternate", *_PROGRAM)  # runs whole programs by turns


def include_dir() -> Path:
    folders, cache = [root() / "include"], root() / "CMakeCache.txt"
    if cache.is_file():  # a build directory: the headers stand in its source
        source = re.search(r"^hz_SOURCE_DIR:STATIC=(.*)$", cache.read_text("utf-8"), re.M)
        folders += [Path(source[1]) / "include"] if source else []
    return _existing("hz/hz.h", folders)


def search_spaces() -> Path:
    """The directory of the search spaces: the working copy's own in an editable install."""
    return _shared("search_spaces", "search_spaces")


def _shared(installed: str, here: str) -> Path:
    checkout = Path(__file__).parents[2]
    if (checkout / "core" / "include" / "hz" / "params.def").is_file():
        return checkout / here
    return _installed_root() / "share" / "hztune" / installed


def core_module() -> Path | None:
    """The `_core` that was built with the core of HZTUNE_CORE; None: the package's own is right."""
    if not os.environ.get(CORE_VARIABLE):
        return None
    built = (root() / _CORE_MODULE, root().parent / _CORE_MODULE)
    return next((path for path in built if path.is_file()), None)


PARTS: dict[str, tuple[str, Callable[[], Path]]] = {
    "lib": ("libhz.so, for LD_PRELOAD", library),
    "static-lib": ("libhz.a", static_library),
    "deepbind": ("libhz-deepbind.so, for LD_PRELOAD beside another allocator", deepbind),
    "agent": ("libhz-agent.so, for LD_PRELOAD of what is to be asked", agent),
    "recorder": ("libhz-recorder.so, for LD_PRELOAD of what is to be recorded", recorder),
    "include": ("The headers: cc -I", include_dir),
    "cmake": (
        "The CMake package: -Dhz_DIR=",
        lambda: _existing("hzConfig.cmake", [root() / "lib" / "cmake" / "hz"]),
    ),
    "bench": ("hz-bench, the workloads", bench),
    "launch": ("hz-launch, the measuring starter", launch),
    "turns": ("hz-turns, the conductor of turns", turns),
    "spaces": ("The search spaces", search_spaces),
    "guide": ("The guide", lambda: _shared("README.md", "tuner/README.md")),
}
"""What `hztune paths` prints: the name of a part, what it is, and what finds it."""


def root() -> Path:
    """The tree that holds the built core; HztuneError: it is not there, or was not built."""
    named = os.environ.get(CORE_VARIABLE)
    if not named:
        return _installed_root()
    if not Path(named).is_dir():
        raise HztuneError(
            f"{CORE_VARIABLE} is {named!r}, which is not a directory; "
            "it must name a build directory or an installation prefix of hz, or be unset"
        )
    return Path(named).absolute()


def _installed_root() -> Path:
    spec = find_spec("hztune._core")
    if spec is None or spec.origin is None:
        raise HztuneError(
            "hztune's compiled part is missing; install the package (pip install .) "
            "instead of running its source"
        )
    return Path(spec.origin).parent / "core"


def _existing(name: str, folders: list[Path]) -> Path:
    for folder in folders:
        if (folder / name).is_file():
            return folder
    raise HztuneError(f"there is no {name} in {root()}; build hz completely, or reinstall hztune")
