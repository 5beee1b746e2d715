"""A study as one HTML page that needs nothing but itself: no script, no network, light and dark.

page.html is the page, words.html its sentences and charts.html its pictures. All text is escaped by
jinja2: names of workloads, programs and machines come from outside.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import optuna
from jinja2 import Environment
from markupsafe import Markup
from optuna.distributions import CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from hztune import export, files
from hztune.files import scratch_folder
from hztune.params import Value
from hztune.profile import PROFILE, TOLD_FROM, ratio_text
from hztune.report import charts
from hztune.rests import MEMORIES, Rested, weighed_memory
from hztune.result import figures
from hztune.result.figures import ordered
from hztune.result.kept import slope_words
from hztune.store.log import recording
from hztune.study.ledger import Ledger
from hztune.study.limits import limits_of
from hztune.templates import templates_in

__all__ = ["PAGE", "memory_chart", "render", "templates", "write", "write_storage"]

PAGE = "report.html"
HERE = Path(__file__).parent


def render(folder: Path) -> str:
    found = figures.read(folder)
    page = templates().get_template("page.html")
    return page.render(
        found=found,
        account=found.result.account,
        profile=found.result.profile,
        place=shlex.quote(str(folder / PROFILE)),
        command=shlex.join(["hztune", "tune", *found.command]),
        forms=export.FORMATS,
    )


def write(folder: str | Path, out: str | Path | None = None) -> Path:
    """Writes the study in a results directory as one HTML page, and returns the page's path.

    `out`: None: report.html in `folder`. UsageError: no study in it has ended. HztuneError: its
    samples are damaged, or the file system refused.
    """
    path = Path(folder) / PAGE if out is None else Path(out)
    files.write_whole(path, render(Path(folder)))
    return path


def memory_chart(default: Sequence[Rested], tuned: Sequence[Rested], width: float) -> str:
    """Memory of processes over time as an SVG, which the rules of page.css colour."""
    template = templates().from_string(
        '{% from "charts.html" import memory with context %}{{ memory(width, default, tuned) }}'
    )
    return template.render(width=width, default=default, tuned=tuned)


@cache
def templates() -> Environment:
    made = templates_in(HERE)
    made.globals |= {"words": charts, "axes": charts, "memories": MEMORIES}
    made.globals |= {"ratio": ratio_text, "slope_words": slope_words, "told_from": TOLD_FROM}
    made.filters |= {
        "cell": _cell,
        "fitted": _fitted,
        "count": charts.count_words,
        "px": "{:.5g}".format,
    }
    made.filters["polyline"] = lambda points: "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return made


def _fitted(text: str, room: float, beside: str | None) -> str:
    letters = int(room / charts.CHARACTER - (len(beside) + 2 if beside is not None else 0))
    return text if len(text) <= letters else text[: max(1, letters - 1)] + "…"


def _cell(text: str | int) -> str | int:
    """A cell; the interval behind a number gets a line of its own where the page is narrow."""
    number, bracket, interval = str(text).partition(" [")
    if isinstance(text, (int, Markup)) or not bracket:
        return text
    return Markup('{} <span class="interval">[{}</span>').format(number, interval)


# ---- the search as an Optuna storage -------------------------------------------------------------


optuna.logging.set_verbosity(optuna.logging.WARNING)

STORAGE = "study.journal"


def write_storage(folder: str | Path) -> Path:
    """Writes the search of a study as an Optuna storage, also while it runs; returns its path.

    It is made elsewhere: Optuna cannot open a journal that ends in the middle of a record.
    UsageError: there is no study. HztuneError: its samples are damaged, or the file system refused.
    """
    samples, path = recording(Path(folder)), Path(folder) / STORAGE
    text = samples.identity.get("limit", "none")
    texts = dict(each.split(" ", 1) for each in text.split(", ")) if text != "none" else {}
    memory = weighed_memory(samples.identity.get("objectives", ""))
    ledger = Ledger.of(samples.blocks, *limits_of(texts), memory=memory)
    with scratch_folder() as scratch:
        fresh = scratch / STORAGE
        study = optuna.create_study(
            study_name=samples.identity["workload"],
            storage=JournalStorage(JournalFileBackend(str(fresh))),
            direction="maximize",
        )
        for trial in _trials(ledger):
            study.add_trial(trial)
        files.write_whole(path, [fresh.read_bytes()])
    return path


def _trials(ledger: Ledger) -> Iterator[optuna.trial.FrozenTrial]:
    """Each configuration as a trial over the values that were measured, without what never varied.

    Of several allocators a parameter is called by both names: "default" where it is left, and "-"
    in a configuration of another allocator.
    """
    records = list(ledger.searched.values())
    arms = [record.arm for record in records]
    owners = dict.fromkeys((arm.allocator, name) for arm in arms for name in arm.config)
    columns: dict[str, list[Value]] = {"allocator": [arm.allocator for arm in arms]}
    several = len(set(columns["allocator"])) > 1
    for owner, name in owners:
        columns[f"{owner}.{name}" if several else name] = [
            arm.config.get(name, "default") if arm.allocator == owner else "-" for arm in arms
        ]
    varied = {
        called: CategoricalDistribution([str(value) for value in ordered(column)])
        for called, column in columns.items()
        if len(set(column)) > 1
    }
    values = {key: each.mean for key, each in ledger.estimates().items()}
    feasible = {each.arm.key for each in records if all(v <= 0 for v in each.violations.values())}
    worst = min((values.get(key, 0.0) for key in feasible), default=0.0)
    for row, record in enumerate(records):
        key = record.arm.key
        yield optuna.create_trial(
            params={called: str(columns[called][row]) for called in varied},
            distributions=dict(varied),
            value=values.get(key, 0.0) if key in feasible else worst,
            constraints=dict(record.violations),
        )
