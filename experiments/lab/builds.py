"""Other builds of hz as arms: what a constant, a counter or the border of a library costs.

A build is kept in $XDG_CACHE_HOME/hztune/builds, one directory for each kind and configuration;
CMake rebuilds there what has changed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from hztune import allocator, files, params, process
from hztune.blocks import Arm
from hztune.comparing.contenders import BUILD, Contender
from hztune.errors import HztuneError
from hztune.export import macros
from hztune.files import sha256_of
from hztune.params import Value

HEADER = "HZ_CONFIG_HEADER"
INSIDE = "HZ_BENCH_INSIDE"

BUILDS: Mapping[str, tuple[str, ...]] = {
    "header": (HEADER,),
    "frozen": (HEADER, "HZ_FROZEN"),
    "inside": (HEADER, "HZ_FROZEN", INSIDE),
    "uncounted": (),
}
"""The options of core/CMakeLists.txt that each kind of build turns on."""

_OFF: Mapping[str, tuple[str, ...]] = {"uncounted": ("HZ_STATS_COUNTERS",)}
_DEADLINE_S = 600.0
_SERVICES = {"HZ_STRICT": "1", "HZ_CONFIRM": "1"}


def arm(kind: str, config: Mapping[str, Value]) -> Arm:
    """Returns the arm of a build under a configuration."""
    return Arm.of(BUILD + kind, config)


def contender(name: str, kind: str, config: Mapping[str, Value]) -> Contender:
    """Builds hz and returns it as a contender."""
    params.check(config)
    is_program = INSIDE in BUILDS[kind]
    build = _built(kind, config)
    file = build / ("bench/hz-bench" if is_program else "libhz.so")
    set_late = {} if HEADER in BUILDS[kind] else params.environment(config)
    return Contender(
        name,
        arm(kind, config),
        version=allocator.get("hz").installed().version,
        sha256=sha256_of(file),
        file=file,
        variables=tuple({**_SERVICES, **set_late}.items()),
        is_program=is_program,
    )


def _built(kind: str, config: Mapping[str, Value]) -> Path:
    """Returns the build directory, up to date."""
    source = Path(__file__).resolve().parents[2] / "core"
    header = macros(config) if HEADER in BUILDS[kind] else ""
    identity = hashlib.sha256(f"{source}\n{kind}\n{header}".encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    build = cache / "hztune" / "builds" / f"{kind}-{identity}"
    options = [f"-D{name}=ON" for name in BUILDS[kind] if name != HEADER]
    options += [f"-D{name}=OFF" for name in _OFF.get(kind, ())]
    build.mkdir(parents=True, exist_ok=True)
    if header:
        path = build / "hz_config.h"
        options.append(f"-D{HEADER}={path}")
        if not path.exists() or path.read_text(encoding="utf-8") != header:  # else its time stays
            files.write_whole(path, header)
    target = "hz-bench" if INSIDE in BUILDS[kind] else "hz_shared"
    for words in (
        ("-S", str(source), "-B", str(build), *options),
        ("--build", str(build), "--target", target, "--parallel", "2"),
    ):
        done = process.run(["cmake", *words], deadline_s=_DEADLINE_S)
        if not done.ok:
            raise HztuneError(f"cmake {' '.join(words[:2])} {done.describe()}")
    return build
