"""A profile in the form that its consumer reads: a file for a shell, a container, a compiler.

Every form is made from the profile alone, opens with what was measured where, and says how to undo
it. A form is one function; the table below is the list that `hztune list formats` prints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

from hztune import profile as profiles
from hztune.errors import UsageError
from hztune.export import build, container, shell, source
from hztune.profile import Profile


@dataclass(frozen=True, slots=True)
class Format:
    """One form of export."""

    name: str
    doc: str
    """What it is for, in a few words."""
    render: Callable[[Profile], str]
    allocators: tuple[str, ...] = ()
    """The allocators that it exists for; empty: all."""
    executable: bool = False
    """Whether the file is a program."""


FORMATS: tuple[Format, ...] = (
    Format("env", "K=V lines for docker --env-file, compose env_file, EnvironmentFile=", shell.env),
    Format("sh", "export lines to source into a shell", shell.sh),
    Format("wrapper", "a script that runs one program tuned", shell.wrapper, executable=True),
    Format("systemd", "a drop-in for a unit", shell.systemd),
    Format("dockerfile", "lines for the end of a Dockerfile", container.dockerfile),
    Format("compose", "a compose file to merge with your own", container.compose),
    Format("k8s", "the env list of a Kubernetes container", container.k8s),
    Format("header", "hz_config.h, to build hz with these parameters", build.header, ("hz",)),
    Format("cmake", "a cache script: cmake -C FILE -S core -B build", build.cmake, ("hz",)),
    Format("c-glibc", "C source that calls mallopt at start", source.c_glibc, ("glibc",)),
    Format("c-jemalloc", "C source that defines malloc_conf", source.c_jemalloc, ("jemalloc",)),
    Format("rust-jemalloc", "the same as Rust source", source.rust_jemalloc, ("jemalloc",)),
    Format("c-mimalloc", "C source that sets mi_option_*", source.c_mimalloc, ("mimalloc",)),
    Format("json", "the profile itself", profiles.dumps),
)


def render(profile: Profile, format_name: str) -> str:
    """The text of `profile` in the form called `format_name`.

    Raises:
        UsageError: there is no such form, or not for the profile's allocator.
    """
    form = find(format_name)
    family = profile.adapter.family
    if form.allocators and family not in form.allocators:
        raise UsageError(
            f"the format {form.name} exists for {' and '.join(form.allocators)}, and this profile "
            f"is for {profile.allocator.name}; "
            f"legal is one of: {_names_for(family)}"
        )
    return form.render(profile)


def find(name: str) -> Format:
    """The form called `name`.

    Raises:
        UsageError: there is none; the text names all.
    """
    by_name = {form.name: form for form in FORMATS}
    if name in by_name:
        return by_name[name]
    near = get_close_matches(name, by_name, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise UsageError(f"there is no format {name!r}{hint}; legal is one of: {' '.join(by_name)}")


def _names_for(allocator: str) -> str:
    return " ".join(f.name for f in FORMATS if not f.allocators or allocator in f.allocators)
