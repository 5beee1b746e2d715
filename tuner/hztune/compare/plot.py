"""The ratios of a comparison as a picture (SVG): a dot with its interval for each contender."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path

from hztune import files
from hztune.arguments import printable
from hztune.compare.standings import Standing, Standings

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
"""Told apart by colour-blind readers, too (Okabe & Ito, 2008)."""

_XOf = Callable[[float], float]
_LEFT, _WIDTH, _STEP, _TOP = 260.0, 560.0, 14.0, 40.0
_TICKS = (0.1, 0.2, 0.5, 0.8, 1.0, 1.25, 2.0, 5.0, 10.0)


def write(rows: Sequence[Standings], path: Path) -> None:
    """Draws the rows into a file.

    Raises:
        HztuneError: The file system refused.
    """
    files.write_whole(path, draw(rows))


def draw(rows: Sequence[Standings]) -> str:
    """Returns the picture; ratios are to the first contender, on a logarithmic axis."""
    low, high = _range(rows)
    others = [each.name for each in rows[0].all[1:]]
    height = _TOP + sum(_height(row) for row in rows) + 30.0

    def x_of(log_ratio: float) -> float:
        return _LEFT + _WIDTH * (log_ratio - low) / (high - low)

    shapes = [*_axis(low, high, height, x_of), *_legend(rows[0].all[0].name, others)]
    top = _TOP
    for row in rows:
        shapes.append(svg_text(_LEFT - 10, top + 0.5 * _height(row), row.label, "end"))
        for index, standing in enumerate(row.all[1:]):
            shapes += _mark(standing, top + (index + 1) * _STEP, _COLOURS[index % 8], x_of)
        top += _height(row)
    body = "\n".join(shapes)
    width = _LEFT + _WIDTH + 40.0
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        'font-family="sans-serif" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _height(row: Standings) -> float:
    return _STEP * (len(row.all) + 0.5)


def _range(rows: Sequence[Standings]) -> tuple[float, float]:
    """Returns the ends of the axis in log ratios: all intervals, 1, and a little room."""
    ends = [0.0]
    for row in rows:
        for each in row.all[1:]:
            if each.speed is not None:
                ends += [e for e in (each.speed.low, each.speed.high) if math.isfinite(e)]
                ends.append(each.speed.estimate)
    return min(ends) - 0.1, max(ends) + 0.1


def _axis(low: float, high: float, height: float, x_of: _XOf) -> Iterator[str]:
    for tick in _TICKS:
        if low <= math.log(tick) <= high:
            x = x_of(math.log(tick))
            colour = "#000000" if tick == 1.0 else "#d0d0d0"
            yield (
                f'<line x1="{x:.1f}" y1="{_TOP:g}" x2="{x:.1f}" y2="{height - 25:.1f}" '
                f'stroke="{colour}"/>'
            )
            yield svg_text(x, height - 10, f"{tick:g}", "middle")


def _legend(first: str, others: Sequence[str]) -> Iterator[str]:
    yield svg_text(_LEFT - 10, 20, f"speed / {first}", "end")
    step = _WIDTH / max(1, len(others))
    for index, name in enumerate(others):
        x = _LEFT + index * step
        yield f'<circle cx="{x + 4:.1f}" cy="16" r="4" fill="{_COLOURS[index % 8]}"/>'
        yield svg_text(x + 12, 20, name, "start")


def _mark(standing: Standing, y: float, colour: str, x_of: _XOf) -> Iterator[str]:
    """Yields the dot of a contender, and its interval where it has one."""
    speed = standing.speed
    if speed is None:
        return
    if math.isfinite(speed.half_width):
        yield (
            f'<line x1="{x_of(speed.low):.1f}" y1="{y:.1f}" x2="{x_of(speed.high):.1f}" '
            f'y2="{y:.1f}" stroke="{colour}" stroke-width="2"/>'
        )
    yield f'<circle cx="{x_of(speed.estimate):.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'


def svg_text(x: float, y: float, text: str, anchor: str) -> str:
    """Returns text that begins, has its middle or ends at `x`, without what XML cannot hold."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(printable(text))}</text>'
