"""A profile in the form that its consumer reads: a file for a shell, a container, a compiler.

Every form is made from the profile alone, opens with what was measured where, and says how to undo
it. A form is one entry of formats.toml, which `hztune list formats` prints.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from jinja2 import DictLoader, Environment, StrictUndefined

from hztune import files
from hztune.errors import UsageError
from hztune.export.view import View
from hztune.profile import Profile


@dataclass(frozen=True, slots=True)
class Format:
    """One form of export; formats.toml says what its fields mean."""

    name: str
    doc: str
    template: str
    allocators: tuple[str, ...] = ()
    executable: bool = False


_TABLE = files.read_toml(Path(__file__).with_name("formats.toml"), 1 << 16)
FORMATS = tuple(
    Format(**{**row, "allocators": tuple(row.get("allocators", ()))}) for row in _TABLE["format"]
)


def render(profile: Profile, format_name: str) -> str:
    """The text of `profile` in the form called `format_name`.

    Raises:
        UsageError: there is no such form, or not for the profile's allocator.
    """
    form = find(format_name)
    family = profile.adapter.family
    if form.allocators and family not in form.allocators:
        legal = " ".join(f.name for f in FORMATS if not f.allocators or family in f.allocators)
        raise UsageError(
            f"the format {form.name} exists for {' and '.join(form.allocators)}, and this profile "
            f"is for {profile.allocator.name}; legal is one of: {legal}"
        )
    return _templates().get_template(form.name).render(it=View(profile), profile=profile)


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


@cache
def _templates() -> Environment:
    made = Environment(
        loader=DictLoader({form.name: _TABLE["shared"] + form.template for form in FORMATS}),
        extensions=["jinja2.ext.do"],
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # none of the forms is HTML
    )
    made.filters["hashed"] = lambda texts: "\n".join(
        f"# {line}" for text in texts for line in text.splitlines()
    )
    made.filters["slashed"] = lambda texts: "\n".join(
        f" * {line}".rstrip() for text in texts for line in text.splitlines() or [""]
    ).join(("/*\n", "\n */"))
    made.filters["sh"] = lambda value: "'" + value.replace("'", "'\"'\"'") + "'"
    made.filters["json"] = json.dumps
    return made
