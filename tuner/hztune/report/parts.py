"""What the sections of a report are made of: charts in two widths, tables that scroll."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hztune.report.markup import Html, tag

_WIDE, _NARROW = 792.0, 343.0


def figure(draw: Callable[[float], Html]) -> Html:
    """A chart in two widths, of which the style sheet shows the one that fits."""
    return tag(
        "figure",
        tag("div", draw(_WIDE), class_="wide"),
        tag("div", draw(_NARROW), class_="narrow"),
    )


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Sequence[int] = (),
    wide: int | None = None,
) -> Html:
    """A table in a box of its own, in which it scrolls; `numbers` are columns set to the right."""

    def kind(column: int) -> str | None:
        return "number" if column in numbers else "wide-cell" if column == wide else None

    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption),
            tag(
                "thead",
                tag("tr", [tag("th", t, scope="col", class_=kind(i)) for i, t in enumerate(head)]),
            ),
            tag(
                "tbody",
                [
                    tag("tr", [tag("td", cell, class_=kind(i)) for i, cell in enumerate(row)])
                    for row in rows
                ],
            ),
        ),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )
