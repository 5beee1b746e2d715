"""The summary of a result: as lines for people (summary.txt), and as JSON for machines."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Template

from hztune.blocks import Arm
from hztune.profile import Profile, ratio_text
from hztune.rests import MEMORIES
from hztune.result import Result, front_file
from hztune.result.kept import FAULTS, slope_words
from hztune.stats.intervals import ratio_json
from hztune.study.proof import Proof
from hztune.templates import templates_in
from hztune.workload import METRICS

_SHOWN = ("ratio", "ci_low", "ci_high")


def summary_json(result: Result) -> dict[str, Any]:
    """The summary for machines: one flat object, whose keys stay as they are.

    `verdict` is the profile's; each member of a front has its own. `ratio`, `ci_low` and `ci_high`
    are tuned / control with the 95 % interval, null where nothing was measured.
    """
    made, account = result.profile, msgspec.to_builtins(result.account)
    for name in ("kept", "waited_s", "seen_within"):  # only what is there
        if not account[name]:
            del account[name]
    kept = {step.arm for step in result.account.added}
    account["attempts"] = [_attempt_json(one, kept) for one in result.account.attempts]
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
        "added": [
            {
                "params": one.changes,
                "reason": "limit" if one.answer == "kept" else "gain",
                **ratio_json(one.interval),
            }
            for one in result.account.added
        ],
        "elsewhere": [
            {
                "workload": one.workload,
                "on": one.phrase,
                "state": one.state,
                "speed": one.speed and one.speed.ratio,
                "memory": one.memory and one.memory.ratio,
                "pairs": one.speed.pairs if one.speed else 0,
                "failure": one.failure,
                "missing": one.missing,
            }
            for one in result.account.elsewhere
        ],
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
        worth={name: one for one in account.added for name in one.changes},
        labels=_labels(made),
    )
    return text.splitlines()


@cache
def _template() -> Template:
    made = templates_in(Path(__file__).parent)
    made.globals |= {"memories": MEMORIES, "ratio": ratio_text, "slope_words": slope_words}
    return made.get_template("summary.txt")


def _control(made: Profile) -> str:
    return made.objective.control or made.allocator.name


def _labels(made: Profile) -> list[str]:
    """Each workload as the study calls it: "remote@main remote=90 T=32"."""
    goals = (goal for goal in ("p99", "kept") if METRICS[goal] == made.objective.metric)
    goal = next((f" by {goal}" for goal in goals), "")
    return [f"{share.workload.label} T={made.threads}{goal}" for share in made.shares]


def _attempt_json(one: Proof, kept: Collection[Arm]) -> dict[str, Any]:
    steps = [
        {
            "arm": {"allocator": step.arm.allocator, "params": step.arm.config},
            "params": step.changes,
            "answer": step.answer,
            "is_kept": step.arm in kept,
            "adds": ratio_json(step.interval),
            "total": ratio_json(step.total),
        }
        for step in one.steps
    ]
    shown = {"answer": one.answer, **ratio_json(one.interval), "steps": steps}
    return {"allocator": one.arm.allocator, "params": one.arm.config, **shown}


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
