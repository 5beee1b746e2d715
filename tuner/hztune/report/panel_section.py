"""The section on other programs: what the panel saw of the winner, and what is to be told."""

from __future__ import annotations

from hztune.report.markup import Html, join, table, tag
from hztune.result import PanelRatios
from hztune.result.figures import Figures

_WORDS = {"harmed": "harmed", "safe": "no harm", "open": "not shown"}


def on_other_programs(found: Figures) -> Html:
    """What a profile does elsewhere; nothing where nothing is known of that."""
    account = found.result.account if found.result else None
    told = [each.text for each in found.profile.cautions]
    gone = [f"left out: {each.text}" for each in (account.left_out if account else ())]
    seen = account.elsewhere if account else ()
    if not (told or gone or seen):
        return Html()
    lines = tag("ul", [tag("li", line) for line in (*told, *gone)]) if told or gone else Html()
    return join(tag("h2", "On other programs"), lines, _table(seen) if seen else Html())


def _table(seen: tuple[PanelRatios, ...]) -> Html:
    head = ("programs", "workload", "speed", "memory", "pairs", "verdict")
    rows = [
        (
            each.on.removeprefix("programs ") if each.on.startswith("programs ") else each.on,
            each.workload,
            _ratio(each.speed),
            _ratio(each.memory),
            str(each.pairs),
            each.failure or _missing(each) or _WORDS[each.state],
        )
        for each in seen
    ]
    return table("The winner on other workloads, as a multiple of the default", head, rows)


def _missing(seen: PanelRatios) -> str:
    """That nothing was measured, and why."""
    return f"not measured: {seen.missing}" if seen.missing else ""


def _ratio(ends: tuple[float, float, float] | None) -> str:
    """A ratio with its interval."""
    return "-" if ends is None else f"{ends[0]:.2f}x [{ends[1]:.2f}, {ends[2]:.2f}]"
