"""Keeps what servers held over time, and draws it as the report does.

`python curves.py NAME STUDY` keeps the first processes of the study in the directory STUDY as
NAME.json; `python curves.py` draws each such file again.
"""

from __future__ import annotations

import json
import sys
from importlib.resources import files as resources
from pathlib import Path

from hztune.report.kept_section import curves
from hztune.report.markup import Html, tag
from hztune.rests import Rested
from hztune.result import figures

HERE = Path(__file__).parent
WIDTH, MOST_PROCESSES = 792.0, 5
HEIGHT = 280.0
SIDES = ("default", "tuned")


def keep(study: Path, path: Path) -> None:
    """Writes the first processes of both sides of a study's fresh pairs."""
    both = zip(SIDES, figures.read(study).rested, strict=True)
    kept = {side: [one.written() for one in found[:MOST_PROCESSES]] for side, found in both}
    path.write_text(json.dumps(kept, separators=(",", ":")) + "\n")


def picture(path: Path) -> str:
    """The curves of a kept file as an SVG that carries the report's style, light and dark."""
    kept = json.loads(path.read_text())
    default, tuned = ([Rested.read(one) for one in kept[side]] for side in SIDES)
    style = (resources("hztune.report") / "page.css").read_text()
    return tag(
        "svg",
        tag("style", Html(style)),
        tag("rect", width="100%", height="100%", style="fill: var(--paper)"),
        curves(default, tuned, WIDTH),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        font_family="sans-serif",
    )


def main() -> None:
    """Keeps a study where one is named, and draws all that is kept."""
    if len(sys.argv) == 3:
        keep(Path(sys.argv[2]), HERE / f"{sys.argv[1]}.json")
    for path in sorted(HERE.glob("*.json")):
        path.with_suffix(".svg").write_text(picture(path) + "\n")


if __name__ == "__main__":
    main()
