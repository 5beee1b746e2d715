"""A profile in the form that its consumer reads: a file for a shell, a container, a compiler.

Every form is made from the profile alone, opens with what was measured where, and says how to undo
it. A form is one entry of formats.toml, which `hztune list formats` prints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from jinja2 import DictLoader, Environment, StrictUndefined

from hztune import allocator, artifacts, files, params
from hztune.errors import UsageError, did_you_mean
from hztune.params import Param, Value
from hztune.profile import LIMIT_ROOM, Profile, dumps
from hztune.quota import cpus_text
from hztune.rests import MEMORIES

_HERE = Path(__file__).parent
_PRELOADABLE = re.compile(r"[A-Za-z0-9_./+,=-]+")


@dataclass(frozen=True, slots=True)
class Format:
    """One form of export; formats.toml says what its fields mean."""

    name: str
    doc: str
    template: str
    allocators: tuple[str, ...] = ()
    executable: bool = False


_TABLE = files.read_toml(_HERE / "formats.toml", 1 << 16)
FORMATS = tuple(
    Format(**{**row, "allocators": tuple(row.get("allocators", ()))}) for row in _TABLE["format"]
)


def find(name: str) -> Format:
    """The form called `name`; UsageError: there is none; the text names all."""
    by_name = {form.name: form for form in FORMATS}
    if name not in by_name:
        hint, legal = did_you_mean(name, by_name), " ".join(by_name)
        raise UsageError(f"there is no format {name!r}{hint}; legal is one of: {legal}")
    return by_name[name]


def render(profile: Profile, format_name: str) -> str:
    """The text of `profile` in a form; UsageError: there is none, or not for its allocator."""
    form, family = find(format_name), profile.adapter.family
    if form.allocators and family not in form.allocators:
        legal = " ".join(f.name for f in FORMATS if not f.allocators or family in f.allocators)
        raise UsageError(
            f"the format {form.name} exists for {' and '.join(form.allocators)}, and this profile "
            f"is for {profile.allocator.name}; legal is one of: {legal}"
        )
    return _render(form.name, profile=profile, said=partial(provenance, profile))


def provenance(profile: Profile, undo: str = "") -> list[str]:
    """Lines of comment: what was proved where, how to check it, and `undo`, how to take it back."""
    check = allocator.get(profile.adapter.family).table.check
    return _render("provenance", profile=profile, undo=undo, check=check).splitlines()


def profile_lines(tuned: Profile) -> list[str]:
    """What a profile claims, where it was measured, and how to check it."""
    return provenance(tuned)[:-1]


def macros(given: Mapping[str, Value]) -> str:
    """What hz_config.h says to the compiler: a whole configuration."""
    config = params.complete(given)
    lines = ["#ifndef HZ_TUNED_CONFIG_H", "#define HZ_TUNED_CONFIG_H", ""]
    lines += [f"#define HZ_CONFIG_SCHEMA {params.schema()}", ""]
    for title, is_changed in (("found by the search", True), ("at their defaults", False)):
        rows = [row for row in params.table() if is_changed == (config[row.name] != row.default)]
        if rows:
            defined = [_define(row, config[row.name]) for row in rows]
            lines += [f"/* ---- {title} ---- */", *defined, ""]
    return "\n".join([*lines, "#endif"])


def _define(row: Param, value: Value) -> str:
    """A macro as hz_config.h spells it: HZ_AUTO, the enumerator of a word, or a number."""
    unit = f" ({row.unit})" if row.unit else ""
    was = "" if value == row.default else f"; default {row.default}"
    spelled = f"{row.env}_{str(value).upper()}" if row.kind == "enum" else str(value)
    spelled = "HZ_AUTO" if value == "auto" and row.may_be_auto else spelled
    return f"/* {row.doc}{unit}{was} */\n#define {row.macro} {spelled}"


def _variables(profile: Profile, hz: str = "", deepbind: str = "") -> dict[str, str]:
    """Every variable that a program needs, LD_PRELOAD last, where it is not the C library's.

    The paths are those in an image; without them those of this installation. Beside any library but
    libhz.so stands the one that takes RTLD_DEEPBIND out of dlopen.
    """
    soname, library = profile.allocator.soname, ""
    if profile.allocator.name == "hz":
        library = hz or _own(artifacts.library())
    elif soname:
        library = f"{soname}:{deepbind or _own(artifacts.deepbind())}"
    return {**profile.environment, **({"LD_PRELOAD": library} if library else {})}


def _own(library: Path) -> str:
    """A library of this installation, if LD_PRELOAD can carry its name."""
    path = str(library)
    if not _PRELOADABLE.fullmatch(path):
        raise UsageError(
            f"the library {path!r} lies under a name that LD_PRELOAD cannot carry safely; install "
            "hztune in a directory of letters, digits and _ . / + , = - only"
        )
    return path


def _render(template: str, **context: object) -> str:
    return _templates().get_template(template).render(context)


@cache
def _templates() -> Environment:
    texts = {form.name: _TABLE["shared"] + form.template for form in FORMATS}
    texts["provenance"] = (_HERE / "provenance.txt").read_text()
    made = Environment(
        loader=DictLoader(texts),
        extensions=["jinja2.ext.do"],
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # none of the forms is HTML
    )
    made.globals |= {"variables_of": _variables, "macros": macros, "dumps": dumps}
    made.globals |= {"memories": MEMORIES, "limit_room": LIMIT_ROOM, "cpus_text": cpus_text}
    made.filters["hashed"] = lambda texts: "\n".join(
        f"# {line}" for text in texts for line in text.splitlines()
    )
    made.filters["slashed"] = lambda texts: "\n".join(
        f" * {line}".rstrip() for text in texts for line in text.splitlines() or [""]
    ).join(("/*\n", "\n */"))
    made.filters["sh"] = lambda value: "'" + value.replace("'", "'\"'\"'") + "'"
    made.filters["json"] = json.dumps
    return made
