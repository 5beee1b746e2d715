"""The charts of a report: inline SVG, coloured by the page's style sheet, so light and dark.

Every chart is drawn for a width in CSS pixels, so that text keeps its size: the page holds a wide
and a narrow drawing and shows the one that fits. Positions on a speed axis are log ratios to the
default; its labels say them in percent,
or as factors where it reaches far. Dots carry their figures as a title (a tooltip).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hztune.profile import Profile
from hztune.report.markup import Html, tag
from hztune.report.shapes import (
    PlotScale,
    dot,
    drawing,
    lettering,
    rectangle,
    segment,
    time_ticks,
)
from hztune.report.words import change, config_words, interval_words, value_words
from hztune.result import front_file, intervals_of
from hztune.result.figures import Candidate, Curve, Level, Phase
from hztune.stats.intervals import Interval

_PERCENT_STEPS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_FACTORS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
_FAR = math.log(4.0)
"""An axis that reaches further says factors instead of percent."""

_MOST_TICKS = 7
_WORST_SHOWN = 1.5
"""What is further below the default than this times the best is above it is drawn at the edge."""

_LEAST_SPAN = 0.02
_ROW, _TALL_ROW = 44.0, 60.0
_ROOMY = 500.0
"""From this width on the label and the note of a row stand on one line."""

_CHARACTER = 6.4
"""Width of a letter of a label, about, in pixels."""


@dataclass(frozen=True, slots=True)
class Strip:
    """One comparison on a strip: a label above, dots and an interval on a line.

    Attributes:
        label: What is compared.
        note: What came of it.
        dots: The log ratio of each pair.
        interval: Of their mean; None: too few pairs.
        kind: Style class: "gain", "loss" or "neutral".
    """

    label: str
    note: str
    dots: Sequence[float]
    interval: Interval | None
    kind: str


def strips(rows: Sequence[Strip], floor: float, width: float, title: str) -> Html:
    """Draws comparisons below each other on one speed axis; `floor` is shaded around zero."""
    ends = [0.0, floor, -floor]
    for row in rows:
        ends += [*row.dots, *_ends(row.interval)]
    low, high = _padded(min(ends), max(ends))
    scale = PlotScale(low, high, 12.0, width - 12.0)
    height = _ROW if width >= _ROOMY else _TALL_ROW
    bottom = len(rows) * height + 6.0
    shapes = [
        rectangle(scale(-floor), 0, scale(floor) - scale(-floor), bottom, "floor"),
        *_speed_ticks(
            low, high, width / 90, lambda at, word: _vertical(scale(at), bottom, at, word)
        ),
    ]
    for index, row in enumerate(rows):
        shapes += _strip(row, index * height, (index + 1) * height - 13.0, scale, width)
    return drawing(width, bottom + 22.0, title, shapes)


def trace(
    candidates: Sequence[Candidate],
    steps: Sequence[tuple[float, float]],
    pairs: Sequence[tuple[float, float]],
    phases: Sequence[Phase],
    *,
    winner: str,
    floor: float,
    width: float,
) -> Html:
    """Draws the story of a search: phases, every configuration, and the best that was known.

    Args:
        candidates: What was measured.
        steps: (seconds, log ratio of the best by then).
        pairs: (seconds, log ratio) of each fresh pair.
        phases: Drawn as bands.
        winner: Key of the arm that is pointed out.
        floor: Noise floor, log units.
        width: Of the drawing, pixels.
    """
    height, top, left = 300.0, 26.0, 46.0
    found = [candidate.interval.estimate for candidate in candidates if candidate.interval]
    low, high = _speed_range([*found, *(ratio for _, ratio in [*steps, *pairs])], floor)
    y = PlotScale(low, high, height - 40.0, top)
    x = PlotScale(0.0, max(1.0, phases[-1].end_s), left, width - 8.0)
    shapes = [*_bands(phases, x, top, height - 40.0)]
    shapes.append(rectangle(left, y(floor), x.end - left, y(-floor) - y(floor), "floor"))
    shapes += _speed_ticks(low, high, 6, lambda at, word: _horizontal(left, x.end, y(at), at, word))
    shapes += time_ticks(x, height - 40.0, width)
    for candidate in candidates:
        kind = "winner" if candidate.arm.key == winner else "candidate"
        shapes += _candidate(candidate, x(candidate.at_s), y, kind)
    shapes += [dot(x(at), y(ratio), 3.2, "pair gain", change(ratio)) for at, ratio in pairs]
    if steps:
        shapes.append(_best_line(steps, x, y))
    return drawing(width, height, "Search trace: speed against the default over time", shapes)


def pareto_plot(
    candidates: Sequence[Candidate],
    members: Sequence[Profile],
    floor: float,
    width: float,
    memory_words: str = "peak memory",
) -> Html:
    """Draws speed against memory: each candidate as a dot, the front with its intervals and names.

    Args:
        candidates: What the search measured.
        members: The confirmed front, the fastest first.
        floor: Noise floor of speed, log units.
        width: Of the drawing, pixels.
        memory_words: Which memory it is.
    """
    height, top, left = 340.0, 12.0, 46.0
    dots = [
        (one, one.interval, _mean(one.record.memory)) for one in candidates if one.record.savings
    ]
    speeds = [interval.estimate for _, interval, _ in dots if interval]
    known = [intervals_of(member) for member in members]
    speeds += [end for speed, _ in known for end in _ends(speed)]
    savings = [-memory for _, _, memory in dots]
    savings += [-end for _, memory in known for end in _ends(memory)]
    (low, high), (least, most) = _speed_range(speeds, floor), _speed_range(savings, 0.0)
    y = PlotScale(low, high, height - 44.0, top)
    x = PlotScale(-most, -least, left, width - 12.0)
    shapes = [rectangle(left, y(floor), x.end - left, y(-floor) - y(floor), "floor")]
    shapes += _speed_ticks(low, high, 6, lambda at, word: _horizontal(left, x.end, y(at), at, word))
    shapes += _speed_ticks(
        x.low, x.high, width / 90, lambda at, word: _vertical(x(at), y.start, at, word)
    )
    shapes.append(lettering(x.end, height - 8.0, memory_words, "tick", "end"))
    for one, interval, memory in dots:
        if interval is not None and not one.record.failures:
            told = f"{one.number}: {config_words(one.arm.config)} - {interval_words(interval)}"
            shapes.append(dot(x(memory), y(interval.estimate), 3.2, "candidate faint", told))
    for number, member in enumerate(members, start=1):
        shapes += _member(member, number, x, y)
    return drawing(width, height, f"Speed against the default by {memory_words}", shapes)


def response(curve: Curve, floor: float, width: float) -> Html:
    """Draws what was measured along the values of one knob."""
    height, top, left = 200.0, 12.0, 46.0
    shown = [point.estimate for level in curve.levels for point in level.estimates]
    low, high = _speed_range(shown, floor)
    y = PlotScale(low, high, height - 34.0, top)
    step = (width - left - 8.0) / len(curve.levels)
    shapes = [rectangle(left, y(floor), width - 8.0 - left, y(-floor) - y(floor), "floor")]
    shapes += _speed_ticks(
        low, high, 5, lambda at, word: _horizontal(left, width - 8.0, y(at), at, word)
    )
    for index, level in enumerate(curve.levels):
        middle = left + (index + 0.5) * step
        shapes += _level(level, curve, middle, step, y)
        if (label := _level_label(curve, index, step)) is not None:
            marked = "tick tuned" if level.value == curve.tuned else "tick"
            shapes.append(lettering(middle, height - 16.0, label, marked, "middle"))
    shapes.append(_means_line(curve, left, step, y))
    return drawing(width, height, f"Speed against the default by {curve.param.name}", shapes)


def _member(member: Profile, number: int, x: PlotScale, y: PlotScale) -> Iterator[Html]:
    """Yields a member of a front with an error bar along each axis."""
    speed, memory = intervals_of(member)
    low, at, high = (x(value) for value in (memory.low, memory.estimate, memory.high))
    slow, line, fast = (y(value) for value in (speed.low, speed.estimate, speed.high))
    yield segment(low, line, high, line, "bar gain")
    yield segment(at, slow, at, fast, "bar gain")
    yield dot(at, line, 5.0, "winner", f"{front_file(number)}: {config_words(member.arm.config)}")
    yield lettering(at + 9.0, line - 9.0, str(number), "label")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _strip(row: Strip, top: float, line: float, scale: PlotScale, width: float) -> Iterator[Html]:
    """Yields a row that begins at `top` and has its dots on `line`; the note goes where it fits."""
    beside = width >= _ROOMY
    room = width - 24.0 - (len(row.note) + 2) * _CHARACTER * beside
    yield lettering(12.0, top + 15.0, _fitted(row.label, room), "label")
    if beside:
        yield lettering(width - 12.0, top + 15.0, row.note, f"note {row.kind}", "end")
    else:
        yield lettering(12.0, top + 31.0, row.note, f"note {row.kind}")
    for point in row.dots:
        yield dot(scale(point), line, 3.5, f"pair {row.kind}", change(point))
    if row.interval is not None:
        yield _interval(row.interval, line, scale, row.kind)


def _interval(interval: Interval, y: float, scale: PlotScale, kind: str) -> Html:
    low, high = (scale(end) for end in (interval.low, interval.high))
    middle = scale(interval.estimate)
    return tag(
        "g",
        tag("title", interval_words(interval)),
        segment(low, y, high, y, f"bar {kind}"),
        segment(low, y - 5, low, y + 5, f"bar {kind}"),
        segment(high, y - 5, high, y + 5, f"bar {kind}"),
        tag(
            "path",
            d=f"M{middle:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z",
            class_=f"mean {kind}",
        ),
    )


def _candidate(candidate: Candidate, x: float, y: PlotScale, kind: str) -> Iterator[Html]:
    told = f"{candidate.number}: {config_words(candidate.arm.config)}"
    interval = candidate.interval
    if candidate.record.failures or interval is None:
        status = candidate.record.failures[0].status if candidate.record.failures else "not run"
        at = y.start - 8.0
        yield tag(
            "path",
            tag("title", f"{told} - {status}"),
            d=f"M{x - 4:.1f} {at - 4:.1f}l8 8m0 -8l-8 8",
            class_="failed",
        )
        return
    yield segment(x, y(interval.low), x, y(interval.high), f"spread {kind}")
    told = f"{told} - {interval_words(interval)}"
    yield dot(x, y(interval.estimate), 5.5 if kind == "winner" else 3.2, kind, told)


def _best_line(steps: Sequence[tuple[float, float]], x: PlotScale, y: PlotScale) -> Html:
    path = f"M{x(steps[0][0]):.1f} {y(steps[0][1]):.1f}"
    for seconds, log_ratio in steps[1:]:
        path += f"H{x(seconds):.1f}V{y(log_ratio):.1f}"
    return tag(
        "path",
        tag("title", "the best mean by then, shrunk towards the others"),
        d=path,
        class_="best",
    )


def _bands(phases: Sequence[Phase], x: PlotScale, top: float, bottom: float) -> Iterator[Html]:
    for index, phase in enumerate(phases):
        begin, end = x(phase.begin_s), x(phase.end_s)
        yield rectangle(begin, top, end - begin, bottom - top, f"band band{index % 2}")
        word = _PHASE_WORDS[phase.role]
        if len(word) * _CHARACTER < end - begin:
            yield lettering((begin + end) / 2.0, top - 9.0, word, "tick", "middle")


_PHASE_WORDS = {
    "aa": "noise",
    "search": "search",
    "confirm": "prove",
    "explore": "explore",
    "panel": "panel",
}


def _level(level: Level, curve: Curve, x: float, step: float, y: PlotScale) -> Iterator[Html]:
    count = len(level.estimates)
    spread = min(0.5 * step, 6.0 * count)
    value = value_words(level.value, curve.param.unit)
    for index, point in enumerate(level.estimates):
        at = x + spread * ((index + 0.5) / count - 0.5)
        yield segment(at, y(point.low), at, y(point.high), "spread candidate")
        yield dot(at, y(point.estimate), 2.6, "candidate", f"{value}: {interval_words(point)}")
    kind = "winner" if level.value == curve.tuned else "neutral"
    told = f"mean of {count} with {value}: {change(level.interval.estimate)}"
    yield dot(x, y(level.interval.estimate), 5.0, f"mean {kind}", told)


def _means_line(curve: Curve, left: float, step: float, y: PlotScale) -> Html:
    """Joins the means; words have no order, and so no line."""
    points = [
        f"{left + (index + 0.5) * step:.1f} {y(level.interval.estimate):.1f}"
        for index, level in enumerate(curve.levels)
        if not isinstance(level.value, str)
    ]
    return tag("path", d="M" + "L".join(points), class_="means") if len(points) > 1 else Html()


def _level_label(curve: Curve, index: int, step: float) -> str | None:
    """The label of a value; where they are too dense, those of every second or third one."""
    words = [value_words(level.value, curve.param.unit) for level in curve.levels]
    widest = max(len(word) for word in words) * _CHARACTER + 6.0
    every = math.ceil(widest / step)
    return words[index] if index % every == 0 else None


def _speed_range(shown: Sequence[float], floor: float) -> tuple[float, float]:
    """Room for all that is good; what is far too slow is drawn at the lower edge."""
    high = max([floor, *shown])
    least = -_WORST_SHOWN * max(high, 2.0 * floor)
    return _padded(max(least, min([-floor, *shown])), high)


def _padded(low: float, high: float) -> tuple[float, float]:
    room = 0.08 * max(high - low, _LEAST_SPAN)
    return low - room, high + room


def _ends(interval: Interval | None) -> list[float]:
    ends = [interval.low, interval.high] if interval is not None else []
    return [end for end in ends if math.isfinite(end)]


def _speed_ticks(
    low: float, high: float, most: float, draw: Callable[[float, str], Iterator[Html]]
) -> Iterator[Html]:
    """Draws round percentages, or round factors where they reach far; `most` at the most."""
    if high - low > _FAR:
        for factor in _FACTORS:
            if low <= math.log(factor) <= high:
                yield from draw(math.log(factor), f"{factor:g}x")
        return
    most = min(float(_MOST_TICKS), max(2.0, most))
    first, last = 100.0 * math.expm1(low), 100.0 * math.expm1(high)
    step = next((s for s in _PERCENT_STEPS if (last - first) / s <= most), _PERCENT_STEPS[-1])
    tick = math.ceil(first / step)
    while tick * step <= last:
        sign = "+" if tick > 0 else ""
        yield from draw(math.log1p(tick * step / 100.0), f"{sign}{tick * step:g} %")
        tick += 1


def _horizontal(left: float, right: float, y: float, at: float, label: str) -> Iterator[Html]:
    yield segment(left, y, right, y, "zero" if abs(at) < 1e-9 else "grid")
    yield lettering(left - 6.0, y + 4.0, label, "tick", "end")


def _vertical(x: float, bottom: float, at: float, label: str) -> Iterator[Html]:
    yield segment(x, 0.0, x, bottom, "zero" if abs(at) < 1e-9 else "grid")
    yield lettering(x, bottom + 16.0, label, "tick", "middle")


def _fitted(label: str, room: float) -> str:
    """The label, cut where there is no room for it."""
    letters = int(room / _CHARACTER)
    return label if len(label) <= letters else label[: max(1, letters - 1)] + "…"
