"""The section of a report about memory over time: what stays at rest, and whether it grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hztune.measure.live_share import LiveReading
from hztune.report import words
from hztune.report.markup import Html, figure, join, table, tag
from hztune.report.shapes import PlotScale, drawing, lettering, rectangle, segment, time_ticks
from hztune.rests import Rested, RestRound
from hztune.result.figures import Figures
from hztune.result.kept import Ends, Keeper, KeptMemory, slope_words

_HEIGHT, _TOP, _LEFT = 280.0, 26.0, 58.0
_MOST_FAINT = 12
_STEPS_MB = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000)


def memory_over_time(found: Figures) -> Html:
    """Memory over time; nothing where none was looked at."""
    kept = found.kept
    default, tuned = found.rested
    if kept is None or not default:
        return Html()
    control = words.control_words(found.profile)
    said = (
        f"Resident memory of {control}"
        + (" (grey) and tuned (green)" if tuned else "")
        + ", from the start of a process. The thick line is the process with the median of kept "
        "memory; thin lines are the others. The shaded bands are the loads of the thick grey line, "
        "with rests between them. The curve includes memory that was returned lazily, which is "
        "resident until the kernel needs it; kept memory does not."
    )
    return join(
        tag("h2", "Memory over time"),
        tag("p", said, class_="soft"),
        figure(lambda width: curves(default, tuned, width)),
        _table(kept, control),
        tag("ul", [tag("li", line) for line in _findings(kept, control)], class_="soft"),
    )


def smallest(found: Figures) -> Html:
    """The smallest memory that was survived; nothing where it was not sought."""
    survivors = found.result.account.survivors if found.result else ()
    if not survivors:
        return Html()
    said = (
        "Each run is in a container with a memory limit, found by bisection and confirmed by "
        "several surviving runs. Nothing is claimed about other loads."
    )
    rows = [
        (
            tag("code", words.arm_words(one.arm)),
            f"{one.least.kb / 1024:.1f}\u00a0MiB",
            one.least.words,
        )
        for one in survivors
    ]
    head = ("configuration", "survives", "how sure")
    return join(
        tag("h2", "The smallest memory"),
        tag("p", said, class_="soft"),
        table("Smallest limits that were survived", head, rows, numbers=(1,)),
    )


def live(found: Figures) -> Html:
    """Live and held memory; nothing where it was not asked."""
    asked = found.result.account.live if found.result else ()
    if not asked:
        return Html()
    said = (
        "Live memory is in use by the program; held memory is resident in its allocator. The "
        "difference is unused, or fragmentation. Both come from one more run of each after the "
        "measurements: at the reading with most held memory, and at the last one."
    )
    head = ("configuration", "held at most", "live then", "ratio",
            "held at the last reading", "live then", "ratio")  # fmt: skip
    rows = [(one.name, *_reading(one.share.most), *_reading(one.share.last)) for one in asked]
    unknown = dict.fromkeys(f"{one.name}: {one.share.why}" for one in asked if one.share.why)
    return join(
        tag("h2", "Live and held memory"),
        tag("p", said, class_="soft"),
        table("One run of each", head, rows, numbers=range(1, 7)),
        tag("ul", [tag("li", f"not known: {each}") for each in unknown], class_="soft")
        if unknown
        else "",
    )


def _reading(found: LiveReading | None) -> tuple[str, str, str]:
    if found is None:
        return "-", "-", "-"
    live = "-" if found.live_kb is None else size_words(found.live_kb)
    return size_words(found.held_kb), live, "-" if found.ratio is None else f"{found.ratio:.2f}x"


def curves(default: Sequence[Rested], tuned: Sequence[Rested], width: float) -> Html:
    """Draws memory over time, with the loads as bands.

    Args:
        default: Processes of the control.
        tuned: Those of the configuration; empty: nothing was proved of any.
        width: Of the drawing, pixels.
    """
    shown = [*default[:_MOST_FAINT], *tuned[:_MOST_FAINT]]
    last_s = max(each.rounds[-1].end_ms for each in shown) * 1e-3
    most_mb = max(kb for each in shown for _, kb, _ in _line_of(each)) / 1024
    bottom = _HEIGHT - 42.0
    x = PlotScale(0.0, max(0.1, last_s), _LEFT, width - 8.0)
    y = PlotScale(0.0, 1.05 * max(0.1, most_mb), bottom, _TOP)
    shapes = [*_bands(_middle(default).rounds, x, bottom), *_ticks(x, y, width)]
    for group, kind in ((default, "neutral"), (tuned, "gain")):
        shapes += [_curve(each, x, y, f"memory faint {kind}") for each in group[:_MOST_FAINT]]
    for group, kind in ((default, "neutral"), (tuned, "gain")):
        if group:
            shapes.append(_curve(_middle(group), x, y, f"memory {kind}"))
    return drawing(width, _HEIGHT, "Resident memory over time", shapes)


def _middle(group: Sequence[Rested]) -> Rested:
    """The process that keeps the median."""
    return sorted(group, key=lambda each: each.kept_kb)[len(group) // 2]


def _line_of(rested: Rested) -> list[tuple[int, int, int]]:
    """Its points, at least the ends of its rests."""
    ends = [(one.end_ms, one.kept_kb + one.lazy_kb, one.lazy_kb) for one in rested.rounds]
    return sorted([*rested.points, *ends])


def _curve(rested: Rested, x: PlotScale, y: PlotScale, kind: str) -> Html:
    points = [f"{x(at * 1e-3):.1f} {y(kb / 1024):.1f}" for at, kb, _ in _line_of(rested)]
    told = f"keeps {size_words(rested.kept_kb)}"
    return tag("path", tag("title", told), d="M" + "L".join(points), class_=kind)


def _bands(rounds: Sequence[RestRound], x: PlotScale, bottom: float) -> Iterator[Html]:
    loads = [(x(one.load_ms * 1e-3), x(one.rest_ms * 1e-3)) for one in rounds]
    narrowest = min(end - begin for begin, end in loads)
    named = "load " if len(rounds) == 1 or narrowest > 48.0 else ""
    for number, (begin, end) in enumerate(loads, start=1):
        yield rectangle(begin, _TOP, end - begin, bottom - _TOP, "load")
        if named or narrowest > 12.0:
            at = (begin + end) / 2.0
            yield lettering(at, _TOP - 9.0, f"{named}{number}", "tick", "middle")


def _ticks(x: PlotScale, y: PlotScale, width: float) -> Iterator[Html]:
    step = next((each for each in _STEPS_MB if y.high / each <= 6), _STEPS_MB[-1])
    for index in range(int(y.high / step) + 1):
        at = y(index * step)
        yield segment(_LEFT, at, x.end, at, "zero" if index == 0 else "grid")
        yield lettering(_LEFT - 6.0, at + 4.0, f"{index * step:g} MiB", "tick", "end")
    yield from time_ticks(x, y.start, width)


def _table(kept: KeptMemory, control: str) -> Html:
    rows = [_row(control, kept.default)]
    if kept.tuned is not None:
        rows.append(_row("tuned", kept.tuned))
    head = ("", "kept", "returned lazily", "growth per round")
    return table("At the end of the last rest, means over processes", head, rows, numbers=(1, 2, 3))


def _row(name: str, one: Keeper) -> tuple[str, ...]:
    slope = slope_words(one.slope_kb) if one.slope_kb else "-"
    return name, size_words(one.kept_kb), size_words(one.lazy_kb), slope


def _findings(kept: KeptMemory, control: str) -> Iterator[str]:
    if kept.ratio is not None:
        yield f"kept memory: {ends_words(kept.ratio)} of {control}, on {kept.pairs} fresh pairs"
    if kept.speed is not None:
        yield f"speed of the loads: {ends_words(kept.speed)} of {control}"
    if kept.slope_change_kb is not None:
        yield f"each round keeps {slope_words(kept.slope_change_kb)} more than with {control}"
    for name, one in ((control, kept.default), ("tuned", kept.tuned)):
        if one is not None and one.grows:
            yield f"{name}: each round keeps more than the one before, a leak or fragmentation"
        if one is not None and one.charged_kb:
            charged = size_words(one.charged_kb)
            yield f"{name}: its control group is charged {charged} that cannot be reclaimed"


def size_words(kb: float) -> str:
    """An amount of memory: "31.4 MiB"."""
    if abs(kb) < 1024:
        return f"{kb:.0f}\u00a0KiB"
    return f"{kb / 1024:.1f}\u00a0MiB"


def ends_words(ratio: Ends) -> str:
    """A ratio with its interval: "0.62x [0.60, 0.65]"."""
    return f"{ratio[0]:.3f}x [{ratio[1]:.3f}, {ratio[2]:.3f}]"
