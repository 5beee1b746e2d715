"""Draws what `real.py --series FILE` has seen: memory, work and settings over time, as SVG.

python experiments/govern/draw.py FILE > experiments/govern/web.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

WIDTH, HEIGHT, LEFT, GAP = 900, 150, 60, 40
RUNS = {"start": "#888888", "governed": "#0b6e4f"}
ARMS = {"start": "#dddddd", "lean": "#f4b942", "keep": "#6b9ac4"}


def line(points: Sequence[tuple[float, float]], top: float, last_s: float, colour: str) -> str:
    """A curve of points (seconds, share of the panel's height)."""
    shown = " ".join(
        f"{LEFT + (WIDTH - LEFT) * at_s / last_s:.1f},{top + HEIGHT * (1.0 - share):.1f}"
        for at_s, share in points
    )
    return f'<polyline points="{shown}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def text(x: float, y: float, words: str, colour: str = "#222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}">{words}</text>'


def panel(seen: dict[str, list[tuple[float, float]]], top: float, last_s: float,
          title: str) -> list[str]:  # fmt: skip
    most = max(value for points in seen.values() for _, value in points)
    shapes = [text(LEFT, top - 8, title), text(0, top + 10, f"{most:.0f}"),
              text(0, top + HEIGHT, "0")]  # fmt: skip
    for run, points in seen.items():
        scaled = [(at_s, value / most) for at_s, value in points]
        shapes.append(line(scaled, top, last_s, RUNS[run]))
    return shapes


def main() -> None:
    rows = [json.loads(row) for row in Path(sys.argv[1]).read_text().splitlines()]
    began = min(row["time"] for row in rows)
    samples = [row for row in rows if row.get("run") in RUNS]
    last_s = max(row["time"] for row in samples) - began
    memory: dict[str, list[tuple[float, float]]] = {run: [] for run in RUNS}
    work: dict[str, list[tuple[float, float]]] = {run: [] for run in RUNS}
    before = dict.fromkeys(RUNS, (0.0, 0.0))
    for row in samples:
        at_s, run = row["time"] - began, row["run"]
        memory[run].append((at_s, row["mib"]))
        then_s, done = before[run]
        if row["work"] is not None and at_s - then_s >= 1.0:
            work[run].append((at_s, (row["work"] - done) / (at_s - then_s)))
            before[run] = at_s, row["work"]
    tops = [GAP + each * (HEIGHT + GAP) for each in range(3)]
    shapes = panel(memory, tops[0], last_s, "resident, MiB")
    shapes += panel(work, tops[1], last_s, "requests a second")
    shapes.append(text(LEFT, tops[2] - 8, "setting of the governed one"))
    actions = [(row["time"] - began, row["arm"]) for row in rows
               if row.get("what") in ("switched", "trying", "relief")]  # fmt: skip
    ends = [at_s for at_s, _ in actions[1:]] + [last_s]
    for (from_s, arm), to_s in zip([(0.0, "start"), *actions], [actions[0][0], *ends], strict=True):
        x, end = (LEFT + (WIDTH - LEFT) * at_s / last_s for at_s in (from_s, to_s))
        shapes.append(f'<rect x="{x:.1f}" y="{tops[2]:.1f}" width="{end - x:.1f}" height="20" '
                      f'fill="{ARMS[arm]}"><title>{arm}</title></rect>')  # fmt: skip
    for at, (name, colour) in enumerate((*RUNS.items(), *ARMS.items())):
        x = LEFT + 130 * at
        shapes.append(f'<rect x="{x}" y="{tops[2] + 34}" width="12" height="12" fill="{colour}"/>')
        shapes.append(text(x + 16, tops[2] + 45, name if at < len(RUNS) else f"setting {name}"))
    size = f'viewBox="0 0 {WIDTH} {tops[2] + 60}" font-family="sans-serif" font-size="12"'
    print(f'<svg xmlns="http://www.w3.org/2000/svg" {size}>')
    print('<rect width="100%" height="100%" fill="#fff"/>')
    print("\n".join(shapes) + "\n</svg>")


if __name__ == "__main__":
    main()
