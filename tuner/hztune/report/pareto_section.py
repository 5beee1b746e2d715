"""The section of a report about a front: speed against memory, and its members."""

from __future__ import annotations

from hztune.profile import Profile, ratio_text
from hztune.report import charts, words
from hztune.report.markup import Html, figure, join, table, tag
from hztune.rests import MEMORIES
from hztune.result import front_file
from hztune.result.figures import Figures


def section(found: Figures) -> Html:
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
        figure(
            lambda width: charts.pareto_plot(
                found.candidates, found.front, found.floor, width, MEMORIES[found.ledger.memory]
            )
        ),
        _members(found, control),
    )


def _members(found: Figures, control: str) -> Html:
    """The members with their figures, or that the default is alone."""
    if not found.front:
        return tag("p", f"No configuration is proved to be on the front beside {control}.")
    head = ("profile", "speed", MEMORIES[found.ledger.memory], "pairs", "configuration")
    rows = [_row(*member) for member in enumerate(found.front, start=1)]
    caption = f"The front: ratios to {control} with their 95 % intervals, the fastest first"
    return table(caption, head, rows, numbers=(1, 2, 3), wide=4)


def _row(number: int, member: Profile) -> tuple[str, ...]:
    claim, memory = member.claim, member.claim.memory
    assert memory is not None  # every member has one
    return (
        tag("code", str(front_file(number))),
        ratio_text(claim),
        ratio_text(memory),
        str(claim.pairs),
        tag("code", words.arm_words(member.arm)),
    )
