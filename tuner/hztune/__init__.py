"""Finds the allocator configuration that is best for a program, and proves it.

    import hztune

    result = hztune.tune(program=["./server", "--selftest"], budget="5m")
    print(result.profile.claim.verdict, result.profile.claim.ratio, result.profile.params)
    pandas.DataFrame(result.blocks)  # or polars: all that was measured

tune          searches a configuration; for a program, a workload, or a function of yours
compare       allocators, profiles or builds side by side, also as a gate
verify        measures the claim of a profile again; load_profile reads one
environment   the variables of a profile, for subprocess.run(..., env=)
program       describes a program or a server: what it prints, what stands around it

They return frozen values with named fields (Result, Comparison, Verification, Profile, Program), or
raise an HztuneError (UsageError: something asked for is not legal) whose text is one sentence. A
measurement takes seconds to hours. `help` of each explains its arguments.

Stable is what `dir(hztune)` names: these, their arguments, and the fields of what they return. A
later version adds to it; what it takes away, a version before it warns of. All else, also
`hztune.api`, may change with each version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hztune import api as api
    from hztune.api.stable import Comparison as Comparison
    from hztune.api.stable import HztuneError as HztuneError
    from hztune.api.stable import Profile as Profile
    from hztune.api.stable import Program as Program
    from hztune.api.stable import Result as Result
    from hztune.api.stable import UsageError as UsageError
    from hztune.api.stable import Verification as Verification
    from hztune.api.stable import compare as compare
    from hztune.api.stable import environment as environment
    from hztune.api.stable import load_profile as load_profile
    from hztune.api.stable import program as program
    from hztune.api.stable import tune as tune
    from hztune.api.stable import verify as verify

    __version__: str

# no __all__: pydoc would print all of each of them, 800 lines
_STABLE = (
    "Comparison", "HztuneError", "Profile", "Program", "Result", "UsageError", "Verification",
    "compare", "environment", "load_profile", "program", "tune", "verify",
)  # fmt: skip


def version() -> str:
    """The installed version, which is the core's too."""
    from importlib.metadata import version as installed_version

    return installed_version("hztune")


def __dir__() -> list[str]:
    return [*_STABLE, "__version__"]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return version()
    from importlib import import_module

    if name == "api":
        return import_module("hztune.api")
    if name not in _STABLE:
        raise AttributeError(f"hztune has no {name!r}; it has {', '.join(_STABLE)}")
    return getattr(import_module("hztune.api.stable"), name)
