"""HTML and SVG by construction: text that is no markup is escaped wherever it stands.

Names of workloads, programs and machines come from outside. A child of an element, or a value of an
attribute, is text unless it was made here, so that no page can be written in which one is markup.
Sections are made of charts in two widths, and of tables that scroll.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

_WIDE, _NARROW = 792.0, 343.0

Attribute = str | int | float | bool | None


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(element: str, *children: str | Iterable[str], **attributes: Attribute) -> Html:
    """Returns one element.

    Args:
        element: Its name.
        children: Text, markup, or iterables of them.
        attributes: `class_="x"` for class, `stroke_width=2` for stroke-width; None and False leave
            one out.
    """
    words = "".join(
        f' {_attribute_name(name)}="{_attribute_text(value)}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{element}{words}>{join(*children)}</{element}>")


def join(*children: str | Iterable[str]) -> Html:
    """Returns children one after another, escaped where they are text."""
    return Html("".join(_written(child) for child in children))


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
                    tag("tr", [tag("td", _cell(c), class_=kind(i)) for i, c in enumerate(row)])
                    for row in rows
                ],
            ),
        ),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def _cell(text: str) -> str | Sequence[str]:
    """A cell; the interval behind a number gets a line of its own where the page is narrow."""
    number, bracket, interval = text.partition(" [")
    if isinstance(text, Html) or not bracket:
        return text
    return number, " ", tag("span", f"[{interval}", class_="interval")


def _written(child: str | Iterable[str]) -> str:
    if isinstance(child, Html):
        return child
    if isinstance(child, str):
        return escape(child)
    return "".join(_written(each) for each in child)


def _attribute_name(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _attribute_text(value: Attribute) -> str:
    return f"{value:.5g}" if isinstance(value, float) else escape(str(value))
