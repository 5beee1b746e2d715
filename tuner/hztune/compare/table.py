"""Standings as text: one paragraph a row for a terminal, one line a row for a Markdown document."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hztune.compare.contenders import Amount
from hztune.compare.gate import Ruling, whole
from hztune.compare.standings import Standings, geometric_mean
from hztune.stats.intervals import Interval

_NO_FIGURE = "-"
_FIGURES: dict[Amount, str] = {
    "ops_per_s": "Mops/s", "seconds": "time", "higher": "metric", "lower": "metric",
}  # fmt: skip


def plain(
    rows: Sequence[Standings], rulings: Sequence[Ruling] = (), *, counters: bool = False
) -> str:
    """Returns the rows for a terminal; with `counters` also what allocators hold and count."""
    width = max((len(each.name) for row in rows for each in row.all), default=0)
    paragraphs = [_paragraph(row, width, counters) for row in rows]
    return "\n\n".join([*paragraphs, *_summary(rows), *_ruled(rulings)])


def markdown(rows: Sequence[Standings], rulings: Sequence[Ruling] = ()) -> str:
    """Returns the rows as a table, under a gate one of its answers; empty without rows."""
    if not rows:
        return ""
    if rulings:
        return _gate_table(rows, rulings)
    first, *others = (each.name for each in rows[0].all)
    head = ["row", f"{first}: {_FIGURES[rows[0].amount]}, MiB"]
    head += [f"{name} / {first}, MiB" for name in others]
    if others:
        head += [f"{first} / best of the others", "memory / median of the others"]
    text = lines(head, [_cells(row) for row in rows])
    return "\n".join([*text, "", *_kept_table(rows), *_summary(rows)]).rstrip()


def _ruled(rulings: Sequence[Ruling]) -> list[str]:
    """What a gate says: of each row where there are several, and of all."""
    if not rulings:
        return []
    if len(rulings) == 1:
        return [f"{rulings[0].answer}: {rulings[0].why}"]
    each = "\n".join(f"{ruling.label}: {ruling.answer} ({ruling.why})" for ruling in rulings)
    return [each, whole(rulings)]


def _gate_table(rows: Sequence[Standings], rulings: Sequence[Ruling]) -> str:
    """What a gate says, as a heading and a table for a page of CI."""
    base, new = (each.name for each in rows[0].all)
    head = ["row", f"speed, {new} / {base}", "peak memory", "pairs", "answer", "why"]
    cells = [
        [
            ruling.label,
            _NO_FIGURE if ruling.speed is None else interval_text(ruling.speed, digits=3),
            _NO_FIGURE if ruling.memory is None else f"{math.exp(ruling.memory):.2f}x",
            f"{ruling.pairs} of {ruling.planned}" if ruling.planned else f"{ruling.pairs}",
            ruling.answer,
            ruling.why,
        ]
        for ruling in rulings
    ]
    return "\n".join([f"### {new} against {base}: {whole(rulings)}", "", *lines(head, cells)])


def lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table for a Markdown document."""
    return [_line(head), "|" + "---|" * len(head), *(_line(row) for row in rows)]


def interval_text(interval: Interval | None, digits: int = 2) -> str:
    """Returns a ratio with its interval: "1.14 [1.10, 1.19]"."""
    if interval is None:
        return _NO_FIGURE
    ratio, low, high = interval.ratio
    if not math.isfinite(interval.half_width):
        return f"{ratio:.{digits}f}"
    return f"{ratio:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _paragraph(row: Standings, width: int, counters: bool) -> str:
    text = [row.label]
    for each in row.all:
        rate, cpu_s = row.rate(each), row.cpu_s(each)
        figure = amount_text(rate, row.amount) if rate else _NO_FIGURE
        told = f"{interval_text(each.speed):<20}  {figure:>17}  "
        told += f"{each.rss_mb:>8.1f} MiB" if each.rss_mb else f"{_NO_FIGURE:>8}    "
        if each.rss_mb and each.memory:
            told += f"  ({math.exp(each.memory.estimate):.2f}x)"
        if cpu_s is not None:  # other programs disturb it less than the length of a run
            told += f"  CPU {seconds_text(cpu_s)} ({interval_text(each.cpu)})"
        if each.failures:
            told += f"  failed {len(each.failures)} times ({each.failures[-1]})"
        text.append(f"  {each.name:{width}}  {told}")
    text += _kept_lines(row, width)
    if counters:
        text += _counter_lines(row)
    return "\n".join(text)


def _kept_lines(row: Standings, width: int) -> list[str]:
    """What each contender keeps at rest, and how much more each round; nothing without a rest."""
    told = []
    for each in row.all:
        if each.keeps is not None:
            more = f", growth per round {said}" if (said := each.keeps.slope_words) else ""
            ratio = f"{interval_text(each.kept):<20}"
            told.append(f"    {each.name:{width}}  {ratio}  {each.keeps.words}{more}")
    return ["  kept memory, at the end of the last rest:", *told] if told else []


def _counter_lines(row: Standings) -> list[str]:
    """One line for each counter that is not 0 everywhere, with its value in every contender."""
    counting = [(each.name, each.counters) for each in row.all if each.counters]
    told = []
    for counter in dict.fromkeys(name for _, counters in counting for name in counters):
        if any(counters.get(counter) for _, counters in counting):
            cells = (
                f"{name} {counters[counter]:.0f}" if counter in counters else f"{name} {_NO_FIGURE}"
                for name, counters in counting
            )
            told.append(f"    {counter}: " + ", ".join(cells))
    return told


def _kept_table(rows: Sequence[Standings]) -> list[str]:
    """What is kept as a table."""
    head = ["row", "contender", "kept memory at rest", "ratio", "growth per round"]
    cells = [
        [row.label, each.name, each.keeps.words, interval_text(each.kept), each.keeps.slope_words]
        for row in rows
        for each in row.all
        if each.keeps is not None
    ]
    return [*lines(head, cells), ""] if cells else []


def _cells(row: Standings) -> list[str]:
    first, *others = row.all
    figure = amount_text(first.ops_per_s, row.amount).removesuffix(" Mops/s")
    cells = [row.label, f"{figure}, {first.rss_mb:.1f}"]
    for each in others:
        failed = each.failures[-1] if each.failures else _NO_FIGURE
        told = f"{interval_text(each.speed)}, {each.rss_mb:.1f}"
        cells.append(failed if each.speed is None else told)
    if others:
        lead = interval_text(row.lead)
        cells.append(f"{lead} ({row.best})" if row.best else lead)
        cells.append(_NO_FIGURE if row.frugality is None else f"{row.frugality:.2f}")
    return cells


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _summary(rows: Sequence[Standings]) -> list[str]:
    """The geometric means over several rows; nothing for a single one."""
    if len(rows) < 2 or len(rows[0].all) < 2:
        return []
    first, *others = (each.name for each in rows[0].all)
    each = {f"{name} / {first}": [row.of(name).speed for row in rows] for name in others}
    each[f"{first} / best of the others"] = [row.lead for row in rows]
    means = [
        f"{what} {interval_text(geometric_mean([one for one in those if one]), digits=3)}"
        for what, those in each.items()
    ]
    return [f"geometric means over {len(rows)} rows: " + "; ".join(means)]


def amount_text(rate: float, amount: Amount) -> str:
    """A contender's figure for a reader, with its unit where that is known."""
    if amount == "ops_per_s":
        return f"{rate / 1e6:.3f} Mops/s"
    if amount == "higher":
        return f"{rate:.5g}"
    figure = 1.0 / rate if rate else 0.0
    return f"{figure:.5g}" if amount == "lower" else seconds_text(figure)


def seconds_text(seconds: float) -> str:
    """A time in its unit: "1.204 s", "17.30 ms"."""
    return f"{seconds:.3f} s" if seconds >= 1.0 else f"{1e3 * seconds:.2f} ms"
