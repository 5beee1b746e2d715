"""The summary of a result: as lines for people (summary.txt), and as JSON for machines."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from hztune.profile import Profile, ratio_text
from hztune.progress import duration, percent
from hztune.rests import MEMORIES
from hztune.result import Result, front_file, stored_form
from hztune.result.kept import slope_words
from hztune.study.counters import FAULTS
from hztune.workload import METRICS

_SHOWN = ("ratio", "ci_low", "ci_high")


def summary_json(result: Result) -> dict[str, Any]:
    """The summary for machines: one flat object, whose keys stay as they are.

    `verdict` is the profile's; each member of a front has its own. `ratio`, `ci_low` and `ci_high`
    are tuned / control with the 95 % interval, null where nothing was measured.
    """
    made, account = result.profile, stored_form(result.account)
    for name in ("kept", "waited_s", "seen_within"):  # only what is there
        if not account[name]:
            del account[name]
    later = {name: account.pop(name) for name in ("changes", "elsewhere", "left_out")}
    outliers = [_with_params(each) for each in account.pop("outliers")]
    account["attempts"] = [_with_params(each) for each in account["attempts"]]
    for step in (step for attempt in account["attempts"] for step in attempt["steps"]):
        step.update(arm=_with_params({"arm": step["arm"]}), params=dict(step["params"]))
    counters = (each for each in result.account.changes if each.counter != FAULTS)
    return {
        "verdict": made.claim.verdict,
        "why": account.pop("why"),
        "allocator": made.allocator.name,
        "control": _control(made),
        "params": made.arm.config,
        **{name: getattr(made.claim, name) for name in (*_SHOWN, "pairs")},
        "shares": {
            label: (share.ratio, share.ci_low, share.ci_high)
            for share, label in zip(made.shares, _labels(made), strict=True)
            if share.ratio is not None
        },
        "trials": made.search.trials,
        **account,
        "counters": {each.counter: (each.default, each.tuned) for each in counters},
        "out": str(result.folder or ""),
        "front": [_member(number, each) for number, each in enumerate(result.front, start=1)],
        **later,
        "added": [
            {
                "params": dict(one.params),
                "reason": "limit" if one.answer == "kept" else "gain",
                **stored_form(one.adds),
            }
            for one in result.account.added
        ],
        "outliers": outliers,
        "warnings": [each.text for each in made.cautions],
    }


def summary_lines(result: Result) -> list[str]:
    """The summary for people: the verdict and what it costs; the report has all the rest."""
    made, account = result.profile, result.account
    text = _template().render(
        result=result,
        made=made,
        account=account,
        base="unchanged program" if _control(made) == "none" else "default",
        control=_control(made),
        seeks_kept=made.claim.metric == METRICS["kept"],
        worth={name: one for one in account.added for name, _ in one.params},
        labels=_labels(made),
    )
    return text.splitlines()


@cache
def _template() -> Template:
    made = Environment(
        extensions=["jinja2.ext.do"],
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # for a terminal
    )
    made.globals |= {"duration": duration, "memories": MEMORIES, "percent": percent}
    made.globals |= {"ratio": ratio_text, "slope_words": slope_words}
    return made.from_string(Path(__file__).with_name("summary.txt").read_text())


def _control(made: Profile) -> str:
    """What it was compared with: an allocator with its defaults, or `none`."""
    return made.objective.control or made.allocator.name


def _labels(made: Profile) -> list[str]:
    """Each workload as the study calls it: "remote@main remote=90 T=32"."""
    goals = (goal for goal in ("p99", "kept") if METRICS[goal] == made.objective.metric)
    goal = next((f" by {goal}" for goal in goals), "")
    return [f"{share.workload.label} T={made.threads}{goal}" for share in made.shares]


def _with_params(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose arm stands in two keys, its parameters by name."""
    arm = row.pop("arm")
    return {"allocator": arm["allocator"], "params": dict(arm["params"]), **row}


def _member(number: int, made: Profile) -> dict[str, Any]:
    """A member of a front; ratios to the control, each with its 95 % interval."""
    claim, memory = made.claim, made.claim.memory
    assert memory is not None  # every member has one
    return {
        "file": str(front_file(number)),
        "verdict": claim.verdict,
        "allocator": made.allocator.name,
        "params": made.arm.config,
        "pairs": claim.pairs,
        **{name: getattr(claim, name) for name in _SHOWN},
        "rss_ratio": memory.ratio,
        "rss_low": memory.ci_low,
        "rss_high": memory.ci_high,
        **({"memory": memory.of} if memory.of != "rss" else {}),
    }
