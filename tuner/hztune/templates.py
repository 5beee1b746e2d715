"""Texts for people as templates, which look like what they print."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from hztune.progress import duration, mib, percent


@cache
def templates_in(folder: Path) -> Environment:
    """HTML and XML are escaped. It is cached: what is added to it is there for the whole folder."""
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
    text = templates_in(template.parent).get_template(template.name).render(facts)
    return text.strip("\n").splitlines()
