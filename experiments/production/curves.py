"""Keeps what servers held over time, and draws it as the report does.

`python curves.py NAME STUDY CONFIGURATION` keeps, as NAME.json, the first processes that the study
in the directory STUDY ran by default and under CONFIGURATION, such as `hz` or `jemalloc
dirty_decay_ms=500`; `python curves.py` draws each such file again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from hztune import report
from hztune.rests import Rested
from hztune.store.log import recording

HERE = Path(__file__).parent
WIDTH, MOST_PROCESSES = 792.0, 5
HEIGHT = 280.0
SIDES = ("default", "tuned")


def keep(study: Path, tuned: str, path: Path) -> None:
    """Writes the first processes of the control, which every study begins with, and of `tuned`."""
    rows = (json.loads(line) for line in recording(study).lines)
    seen = [(_words(row), row["rested"]) for row in rows if row.get("rested")]
    names = (seen[0][0], tuned)
    kept = {
        side: [rested for words, rested in seen if words == name][:MOST_PROCESSES]
        for side, name in zip(SIDES, names, strict=True)
    }
    path.write_text(json.dumps(kept, separators=(",", ":")) + "\n")


def _words(row: dict[str, Any]) -> str:
    params = (f"{name}={value}" for name, value in sorted(row["params"].items()))
    return " ".join([row["allocator"].removeprefix("inside:"), *params])


def picture(path: Path) -> str:
    """The curves of a kept file as an SVG that carries the report's style, light and dark."""
    kept = json.loads(path.read_text())
    default, tuned = ([msgspec.convert(one, Rested) for one in kept[side]] for side in SIDES)
    style = (report.HERE / "page.css").read_text()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" '
        f'font-family="sans-serif"><style>{style}</style>'
        '<rect width="100%" height="100%" style="fill: var(--paper)"/>'
        f"{report.memory_chart(default, tuned, WIDTH)}</svg>"
    )


def main() -> None:
    """Keeps a study where one is named, and draws all that is kept."""
    if len(sys.argv) == 4:
        name, study, tuned = sys.argv[1:]
        keep(Path(study), tuned, HERE / f"{name}.json")
    for path in sorted(HERE.glob("*.json")):
        path.with_suffix(".svg").write_text(picture(path) + "\n")


if __name__ == "__main__":
    main()
