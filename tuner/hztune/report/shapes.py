"""The shapes of charts: what an SVG is made of, and where a value lies in it.

Kinds are classes of the page's style sheet, which colours them, light and dark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hztune.report.markup import Html, join, tag


@dataclass(frozen=True, slots=True)
class PlotScale:
    """A linear map from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value; what lies outside is put on the edge."""
        inside = min(max(value, self.low), self.high)
        share = (inside - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def drawing(width: float, height: float, title: str, shapes: Sequence[Html]) -> Html:
    """The whole of a chart; `title` is what is read aloud where it is not seen."""
    return tag(
        "svg",
        tag("title", title),
        join(shapes),
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=title,
    )


def rectangle(x: float, y: float, width: float, height: float, kind: str) -> Html:
    """A rectangle of a kind."""
    return tag("rect", x=x, y=y, width=max(0.0, width), height=max(0.0, height), class_=kind)


def segment(x1: float, y1: float, x2: float, y2: float, kind: str) -> Html:
    """A straight line of a kind."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def dot(x: float, y: float, radius: float, kind: str, told: str) -> Html:
    """A dot with a text that is shown when it is pointed at."""
    return tag("circle", tag("title", told), cx=x, cy=y, r=radius, class_=kind)


def lettering(x: float, y: float, text: str, kind: str, anchor: str = "start") -> Html:
    """Text that begins, has its middle or ends at `x`."""
    return tag("text", text, x=x, y=y, class_=kind, text_anchor=anchor)


def time_ticks(x: PlotScale, bottom: float, width: float) -> Iterator[Html]:
    """Yields round times below an axis of seconds."""
    steps = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
    step = next((s for s in steps if x.high / s <= width / 70), steps[-1])
    for index in range(int(x.high / step) + 1):
        seconds = index * step
        yield lettering(x(seconds), bottom + 17.0, _time_words(seconds), "tick", "middle")
    yield lettering(x.end, bottom + 34.0, "time", "tick", "end")


def _time_words(seconds: int) -> str:
    if seconds < 60:
        return f"{seconds} s"
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours}:{minutes:02d} h" if hours else f"{minutes}:{seconds % 60:02d}"
