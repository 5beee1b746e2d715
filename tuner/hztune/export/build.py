"""Exports for building hz: the header, and a CMake cache script that holds it."""

from __future__ import annotations

from collections.abc import Mapping

from hztune import params
from hztune.export.provenance import provenance, slashed
from hztune.params import Param, Value
from hztune.profile import Profile


def header(profile: Profile) -> str:
    """hz_config.h: one macro for each row of the table, those at their default too.

    The defaults are written out because the file states a whole configuration: it must give the
    same library after a default has changed.
    """
    comment = provenance(profile, "build hz without HZ_CONFIG_HEADER")
    use = [
        "defaults:  cmake -S core -B build -DHZ_CONFIG_HEADER=/path/of/this/file",
        "constants: the same with -DHZ_FROZEN=ON; parameters in HZ_* are then ignored",
    ]
    return slashed([*comment, "", *use]) + macros(profile.params)


def macros(given: Mapping[str, Value]) -> str:
    """What hz_config.h says to the compiler: a whole configuration."""
    config = params.complete(given)
    changed = [_define(row, config[row.name]) for row in params.table() if _is_changed(row, config)]
    kept = [
        _define(row, config[row.name]) for row in params.table() if not _is_changed(row, config)
    ]
    body = [
        "#ifndef HZ_TUNED_CONFIG_H",
        "#define HZ_TUNED_CONFIG_H",
        "",
        f"#define HZ_CONFIG_SCHEMA {params.schema()}",
        "",
        *(["/* ---- found by the search ---- */", *changed, ""] if changed else []),
        *(["/* ---- at their defaults ---- */", *kept, ""] if kept else []),
        "#endif",
    ]
    return "\n".join(body) + "\n"


def cmake(profile: Profile) -> str:
    """A cache script that writes the header into the build directory and points hz at it."""
    return (
        "# A cache script: cmake -C THIS_FILE -S core -B build\n"
        "# Add -DHZ_FROZEN=ON to make the parameters constants.\n"
        "# undo:    configure a fresh build directory without -C\n"
        f'file(WRITE "${{CMAKE_BINARY_DIR}}/hz_config.h" [==[\n{header(profile)}]==])\n'
        'set(HZ_CONFIG_HEADER "${CMAKE_BINARY_DIR}/hz_config.h" CACHE FILEPATH "made by hztune")\n'
    )


def macro_value(row: Param, value: Value) -> str:
    """The value as hz_config.h spells it: HZ_AUTO, the enumerator of a word, or a number."""
    if value == "auto" and row.may_be_auto:
        return "HZ_AUTO"
    return f"{row.env}_{str(value).upper()}" if row.kind == "enum" else str(value)


def _define(row: Param, value: Value) -> str:
    unit = f" ({row.unit})" if row.unit else ""
    was = "" if value == row.default else f"; default {row.default}"
    return f"/* {row.doc}{unit}{was} */\n#define {row.macro} {macro_value(row, value)}"


def _is_changed(row: Param, config: dict[str, Value]) -> bool:
    return config[row.name] != row.default
