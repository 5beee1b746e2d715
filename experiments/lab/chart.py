"""The picture of an experiment (SVG): its first arm beside each of the others, over all rows.

A line stands for one other arm, the first line for the fastest of them on each row. A small dot is
one row; the large one is the geometric mean of all rows with its 95 % interval. Speed is on the
left, peak memory on the right: the first arm's figure divided by the other's, on a logarithmic
axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from hztune.arguments import printable
from hztune.comparing.gate import Standings, geometric_mean
from hztune.comparing.table import interval_text
from hztune.stats.intervals import Interval

_LEFT, _PANEL, _GAP, _STEP, _TOP, _FOOT = 150.0, 330.0, 24.0, 36.0, 48.0, 42.0
_TICKS = (0.01, 0.03, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0, 30.0, 100.0)
_BETTER, _WORSE = "#0072b2", "#d55e00"
"""Colour-blind readers can tell these apart (Okabe & Ito, 2008)."""

_BEST = "best on each row"


@dataclass(frozen=True, slots=True)
class _Line:
    """The first arm against another one: the log ratio of each row, and their mean."""

    name: str
    rows: tuple[Interval, ...]
    mean: Interval


@dataclass(frozen=True, slots=True)
class _Panel:
    """One of the two pictures.

    Attributes:
        left: Where it begins, pixels.
        title: Above it.
        foot: Below it: how to read it.
        is_better_above: Whether ratios above 1 are in the first arm's favour.
        lines: In the order of the picture; None leaves a line empty.
    """

    left: float
    title: str
    foot: str
    is_better_above: bool
    lines: Sequence[_Line | None]

    def shapes(self) -> Iterator[str]:
        """Yields the axis, then the dots of each line."""
        ends = [each.estimate for line in self.lines if line for each in line.rows]
        low, high = min([0.0, *ends]) - 0.12, max([0.0, *ends]) + 0.12
        scale = _PANEL / (high - low)
        bottom = _TOP + _STEP * len(self.lines)
        yield svg_text(self.left + _PANEL / 2, _TOP - 12, self.title, "middle")
        for tick in [each for each in _TICKS if low <= math.log(each) <= high]:
            x = self.left + scale * (math.log(tick) - low)
            colour = "#000000" if tick == 1.0 else "#dddddd"
            yield f'<path d="M{x:.1f} {_TOP:g}V{bottom:g}" stroke="{colour}"/>'
            yield svg_text(x, bottom + 16, f"{tick:g}", "middle")
        yield svg_text(self.left + _PANEL / 2, bottom + 34, self.foot, "middle")
        for index, line in enumerate(self.lines):
            if line is not None:
                yield from self._dots(line, _TOP + _STEP * index, low, scale)

    def _dots(self, line: _Line, top: float, low: float, scale: float) -> Iterator[str]:
        """Yields the rows of a line, and their mean with its figure above it."""
        middle = top + 0.66 * _STEP
        for each in line.rows:
            x = self.left + scale * (each.estimate - low)
            paint = f'fill="{self._colour(each)}" fill-opacity="0.25"'
            yield f'<circle cx="{x:.1f}" cy="{middle:.1f}" r="3" {paint}/>'
        colour = self._colour(line.mean)
        start, x, end = (
            self.left + scale * (value - low)
            for value in (line.mean.low, line.mean.estimate, line.mean.high)
        )
        yield f'<path d="M{start:.1f} {middle:.1f}H{end:.1f}" stroke="{colour}" stroke-width="3"/>'
        yield f'<circle cx="{x:.1f}" cy="{middle:.1f}" r="5" fill="{colour}"/>'
        yield svg_text(x, middle - 9, interval_text(line.mean), "middle")

    def _colour(self, interval: Interval) -> str:
        is_above = interval.estimate >= 0.0
        return _BETTER if is_above == self.is_better_above else _WORSE


def draw(rows: Sequence[Standings]) -> str:
    """Returns the picture of at least one row, all with the same arms, of which two or more ran."""
    first, *others = (each.name for each in rows[0].all)
    speed = [_line(name, [_reversed(row.of(name).speed) for row in rows]) for name in others]
    lines = sorted(filter(None, speed), key=lambda line: line.mean.estimate)
    lines = [*filter(None, [_line(_BEST, [row.lead for row in rows])]), *lines]
    memory = [
        _line(line.name, [_reversed(row.of(line.name).memory) for row in rows])
        if line.name != _BEST
        else None
        for line in lines
    ]
    speeds = f"speed of {first} / speed of the other"
    memories = f"peak memory of {first} / that of the other"
    panels = (
        _Panel(_LEFT, speeds, f"right of 1: {first} is faster", True, lines),
        _Panel(_LEFT + _PANEL + _GAP, memories, f"left of 1: {first} takes less", False, memory),
    )
    height, width = _TOP + _STEP * len(lines) + _FOOT, _LEFT + 2 * _PANEL + _GAP + 12
    shapes = [svg_text(_LEFT - 12, _TOP - 12, f"{len(rows)} rows", "end")]
    shapes += [
        svg_text(_LEFT - 12, _TOP + _STEP * (index + 0.66) + 4, line.name, "end")
        for index, line in enumerate(lines)
    ]
    body = "\n".join([*shapes, *(shape for panel in panels for shape in panel.shapes())])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'font-family="sans-serif" font-size="12">\n<title>{escape(first)} beside its peers</title>'
        f'\n<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _line(name: str, ratios: Sequence[Interval | None]) -> _Line | None:
    """Returns the line of some log ratios of the first arm over another; None: there are none."""
    known = tuple(each for each in ratios if each is not None)
    mean = geometric_mean(known)
    return _Line(name, known, mean) if mean is not None else None


def _reversed(interval: Interval | None) -> Interval | None:
    """Returns the interval of the reciprocal ratio, where it is known."""
    return interval.reciprocal if interval is not None else None


def svg_text(x: float, y: float, text: str, anchor: str) -> str:
    """Text that begins, has its middle or ends at `x`, without what XML cannot hold."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(printable(text))}</text>'
