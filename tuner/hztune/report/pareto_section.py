"""The section of a report about a front: speed against memory, and its members."""

from __future__ import annotations

from hztune.report import charts, parts, words
from hztune.report.markup import Html, join, tag
from hztune.report.reading import FrontMember, StudyReading
from hztune.stats import Interval


def section(found: StudyReading) -> Html:
    """The front that a study was asked for; nothing where it was asked for speed alone."""
    if not found.seeks_front:
        return Html()
    control = words.control_words(found.profile)
    return join(
        tag("h2", "Speed and memory"),
        tag(
            "p",
            f"Every configuration of the search as a dot, against {control}, which is where the "
            "two zero lines meet: further up is faster, further left takes less. The numbered ones "
            "are the confirmed front, each with its 95 % intervals from fresh pairs; what is far "
            "slower, or takes far more, lies on the edge.",
            class_="soft",
        ),
        parts.figure(lambda width: charts.plane(found.candidates, found.front, found.floor, width)),
        _members(found, control),
    )


def _members(found: StudyReading, control: str) -> Html:
    """The members with their figures, or that the default is alone."""
    if not found.front:
        return tag("p", f"No configuration is proved to be on the front beside {control}.")
    head = ("profile", "speed", "peak memory", "pairs", "configuration")
    rows = [_row(member) for member in found.front]
    caption = f"The front: ratios to {control} with their 95 % intervals, the fastest first"
    return parts.table(caption, head, rows, numbers=(1, 2, 3), wide=4)


def _row(member: FrontMember) -> tuple[str, ...]:
    return (
        tag("code", member.file),
        _interval(member.speed),
        _interval(member.memory),
        str(member.speed.pairs),
        tag("code", words.arm_words(member.arm)),
    )


def _interval(interval: Interval) -> str:
    ratio, low, high = interval.ratio
    return f"{ratio:.3f}x [{low:.3f}, {high:.3f}]"
