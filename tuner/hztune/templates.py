"""Texts for people as templates, which look like what they print."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from hztune.progress import duration, mib, percent


@cache
def templates_in(folder: Path) -> Environment:
    """The templates of a folder; HTML and XML are escaped, and a name that is missing is an error.

    Whoever adds to it, adds for all of the folder.
    """
    made = Environment(
        loader=FileSystemLoader(folder),
        extensions=["jinja2.ext.do"],
        autoescape=select_autoescape(("html", "xml")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"duration": duration, "percent": percent}
    made.filters |= {"mib": mib, "grouped": "{:,.0f}".format}
    return made


def rendered(template: Path, **facts: object) -> list[str]:
    """The lines of a text, from the template in a file."""
    text = templates_in(template.parent).get_template(template.name).render(facts)
    return text.strip("\n").splitlines()
