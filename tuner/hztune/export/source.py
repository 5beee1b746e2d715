"""Exports as source code, for programs that link the allocator and should need no variable."""

from __future__ import annotations

from hztune.export.provenance import provenance, slashed
from hztune.profile import Profile

_UNDO = "remove this file from the program"
_WEAK = f"{_UNDO}; %s in the environment still overrides it"
_STRONG = f"{_UNDO}; until then it overrides what the environment says"
_INT_MAX = 2**31 - 1

# What mallopt can set, of what GLIBC_TUNABLES can: there is no mallopt for tcache_* and hugetlb.
_MALLOPT = {
    "glibc.malloc.arena_max": "M_ARENA_MAX",
    "glibc.malloc.arena_test": "M_ARENA_TEST",
    "glibc.malloc.mmap_max": "M_MMAP_MAX",
    "glibc.malloc.mmap_threshold": "M_MMAP_THRESHOLD",
    "glibc.malloc.mxfast": "M_MXFAST",
    "glibc.malloc.top_pad": "M_TOP_PAD",
    "glibc.malloc.trim_threshold": "M_TRIM_THRESHOLD",
}


def c_glibc(profile: Profile) -> str:
    """C that calls mallopt before main; what mallopt cannot set is named in the comment."""
    tunables = _pairs(profile.environment.get("GLIBC_TUNABLES", ""), ":", "=")
    calls, left = [], []
    for name, value in tunables:
        if name in _MALLOPT and int(value) <= _INT_MAX:
            calls.append(f"    mallopt({_MALLOPT[name]}, {value});")
        else:
            left.append(f"missing: {name}={value} has no mallopt; set it through GLIBC_TUNABLES")
    return "\n".join(
        [
            slashed([*provenance(profile, _STRONG), *left]).rstrip(),
            "#include <malloc.h>",
            "",
            "#ifdef __GLIBC__",
            "__attribute__((constructor)) static void hztune_mallopt(void)",
            "{",
            *calls,
            "}",
            "#endif",
            "",
        ]
    )


def c_jemalloc(profile: Profile) -> str:
    """C that defines malloc_conf; jemalloc reads it when it is linked with the program."""
    symbol, variable, value = _conf(profile)
    works = "works when the program is linked with jemalloc, or exports the symbol and preloads it"
    if profile.adapter.is_inside:
        works = f"works in the program that has this jemalloc inside, which reads {symbol}"
    return (
        slashed([*provenance(profile, _WEAK % variable), f"{works};", *_beside(profile)])
        + f"extern const char *{symbol};\n"
        + f'const char *{symbol} = "{value}";\n'
    )


def rust_jemalloc(profile: Profile) -> str:
    """Rust that exports malloc_conf."""
    symbol, variable, value = _conf(profile)
    comments = [*provenance(profile, _WEAK % variable), *_beside(profile)]
    return (
        "".join(f"// {line}\n" for line in comments) + f'#[unsafe(export_name = "{symbol}")]\n'
        f'pub static MALLOC_CONF: &[u8] = b"{value}\\0";\n'
    )


def _conf(profile: Profile) -> tuple[str, str, str]:
    """The symbol that this build of jemalloc reads, its variable, and what they say."""
    prefix = profile.adapter.prefix
    variable = f"{prefix.upper()}MALLOC_CONF"
    config = {**profile.allocator.given, **profile.params}
    said = profile.adapter.settings(config, profile.allocator.as_installed())
    return f"{prefix}malloc_conf", variable, said.get(variable, "")


def _beside(profile: Profile) -> list[str]:
    """What one must know of other builds, or of a program that has such a symbol already."""
    if profile.adapter.is_inside:
        return [
            "it takes the place of a symbol of that name that the program has now, and says what",
            "the program gave it; a variable that the program sets itself still overrides it",
        ]
    return ["builds with a prefix want _rjem_malloc_conf (Rust's jemalloc-sys) or je_malloc_conf"]


def c_mimalloc(profile: Profile) -> str:
    """C that sets the options in a constructor, before most of the program has allocated."""
    # A size has its unit in the variable; an option is in KiB by itself.
    calls = [
        f"    mi_option_set(mi_option_{key.removeprefix('MIMALLOC_').lower()}, "
        f"{value.removesuffix('K')});"
        for key, value in profile.environment.items()
    ]
    how = [f"options: as mimalloc {profile.allocator.version} names them"]
    return "\n".join(
        [
            slashed([*provenance(profile, _STRONG), *how]).rstrip(),
            "#include <mimalloc.h>",
            "",
            "__attribute__((constructor)) static void hztune_options(void)",
            "{",
            *calls,
            "}",
            "",
        ]
    )


def _pairs(text: str, between: str, within: str) -> list[tuple[str, str]]:
    """The pairs of "a=1:b=2"; none of an empty text."""
    parted = [part.partition(within) for part in text.split(between) if part]
    return [(key, value) for key, _, value in parted]
