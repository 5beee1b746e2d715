"""The summary of a result: as lines for people, and as JSON for machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hztune.profile import Profile, Share, Verdict, ratio_text
from hztune.progress import duration, percent
from hztune.rests import MEMORIES, RestPlan
from hztune.result import Account, Addition, Result, front_file, stored_form
from hztune.result.kept import Ends, KeptMemory, slope_words
from hztune.study.counters import FAULTS
from hztune.workload import METRICS, Goal

_CLAIMED: tuple[Verdict, ...] = ("improved", "within_limit", "less_memory")
_STATES = {"harmed": "harm on", "safe": "no harm on", "open": "not shown on"}
_WAITED_S = 1.0
"""Seconds of waiting for another hztune from which on that is told."""

_SPECIAL: tuple[Goal, ...] = ("p99", "kept")
"""Goals that are told where a workload is named."""


def summary_json(result: Result) -> dict[str, Any]:
    """The summary for machines: one flat object, whose keys stay as they are.

    `verdict` is the profile's; each member of a front has its own. `ratio`, `ci_low` and `ci_high`
    are tuned / control with the 95 % interval, null where nothing was measured.
    """
    made, account = result.profile, stored_form(result.account)
    for name in ("kept", "survivors", "live", "waited_s", "seen_within"):  # only what is there
        if not account[name]:
            del account[name]
    later = {name: account.pop(name) for name in ("changes", "elsewhere", "left_out")}
    for one in later["left_out"]:
        one["params"] = dict(one["params"])
    later["added"] = [_added(one) for one in result.account.added]
    later["outliers"] = [_with_params(each) for each in account.pop("outliers")]
    later["strays"] = later["outliers"]  # what they were called before
    account["attempts"] = [_attempt(each) for each in account["attempts"]]
    return {
        "verdict": made.claim.verdict,
        "why": account.pop("why"),
        "allocator": made.allocator.name,
        "control": _control(made),
        "params": made.arm.config,
        "ratio": made.claim.ratio,
        "ci_low": made.claim.ci_low,
        "ci_high": made.claim.ci_high,
        "pairs": made.claim.pairs,
        "shares": {
            _label(made, share): (share.ratio, share.ci_low, share.ci_high)
            for share in made.shares
            if share.ratio is not None
        },
        "trials": made.search.trials,
        **account,
        "counters": {
            each.counter: (each.default, each.tuned)
            for each in result.account.changes
            if each.counter != FAULTS
        },
        "out": str(result.folder or ""),
        "front": [_member(number, each) for number, each in enumerate(result.front, start=1)],
        **later,
        "warnings": [each.text for each in made.cautions],
    }


def summary_lines(result: Result) -> list[str]:
    """The summary for people: the verdict and what it costs; the report has all the rest."""
    text = [f"verdict: {result.profile.claim.verdict} ({result.account.why})"]
    text += _front_lines(result) if result.front else _profile_lines(result)
    text += [f"  warning: {each.text}" for each in result.profile.cautions]
    text += [f"  left out: {each.text}" for each in result.account.left_out]
    text += _elsewhere_lines(result)
    text += _account_lines(result)
    return [*text, f"results: {result.folder}"] if result.folder else text


def _elsewhere_lines(result: Result) -> Iterator[str]:
    """Yields what the panel has shown of a profile that changes something, and what it has not."""
    if result.profile.claim.verdict not in _CLAIMED:
        return
    seen = result.account.elsewhere
    told = []
    for state, words in _STATES.items():
        names = [each.workload for each in seen if each.state == state and not each.missing]
        told += [f"{words} {', '.join(names)}"] if names else []
    told += [f"{each.workload} was not measured: {each.missing}" for each in seen if each.missing]
    yield f"  on other programs: {'; '.join(told) or 'nothing was measured'}"


def _control(made: Profile) -> str:
    """What it was compared with: an allocator with its defaults, or `none`."""
    return made.objective.control or made.allocator.name


def _label(made: Profile, share: Share) -> str:
    """A workload as the study calls it: "remote@main remote=90 T=32"."""
    goal = next((f" by {goal}" for goal in _SPECIAL if METRICS[goal] == made.objective.metric), "")
    return f"{share.workload.label} T={made.threads}{goal}"


def _with_params(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose arm stands in two keys, its parameters by name."""
    arm = row.pop("arm")
    return {"allocator": arm["allocator"], "params": dict(arm["params"]), **row}


def _attempt(row: dict[str, Any]) -> dict[str, Any]:
    """A finalist; what its steps changed stands by name."""
    for step in (told := _with_params(row))["steps"]:
        step.update(arm=_with_params({"arm": step["arm"]}), params=dict(step["params"]))
    return told


def _added(one: Addition) -> dict[str, Any]:
    """What a parameter of the profile, or several together, adds to those before it."""
    reason = "limit" if one.answer == "kept" else "gain"
    return {"params": dict(one.params), "reason": reason, **stored_form(one.adds)}


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
        "ratio": claim.ratio,
        "ci_low": claim.ci_low,
        "ci_high": claim.ci_high,
        "rss_ratio": memory.ratio,
        "rss_low": memory.ci_low,
        "rss_high": memory.ci_high,
        **({"memory": memory.of} if memory.of != "rss" else {}),
    }


def _front_lines(result: Result) -> Iterator[str]:
    """Yields the front, each member with its configuration below."""
    for number, made in enumerate(result.front, start=1):
        claim, memory = made.claim, made.claim.memory
        assert memory is not None  # every member has one
        speed, taken = ratio_text(claim), ratio_text(memory)
        what = "memory" if memory.of == "rss" else MEMORIES[memory.of]
        yield f"  {front_file(number)}  {claim.verdict}: speed {speed}, {what} {taken}"
        yield f"    {made.arm.text}"


def _profile_lines(result: Result) -> Iterator[str]:
    """Yields what the one profile is worth, and its configuration."""
    made, claim, base = result.profile, result.profile.claim, _base(result)
    if claim.ratio is not None and claim.verdict != "no_gain":
        interval = f"[{claim.ci_low:.3f}, {claim.ci_high:.3f}]"
        of = (
            f"{base}'s kept memory / tuned"
            if claim.metric == METRICS["kept"]
            else f"tuned / {base}"
        )
        yield f"  {of}: {claim.ratio:.3f}x, 95 % interval {interval}"
        for share in made.shares:
            if share.ratio is not None:
                yield f"    on {_label(made, share)}: {ratio_text(share)}"
    if made.objective.quota is not None:
        yield f"  each run in a container with {made.objective.quota.text}"
    if result.account.rss_ratio is not None:
        yield f"  peak memory: {result.account.rss_ratio:.2f}x of the {base}'s"
    if result.account.idle_ratio is not None:
        yield f"  idle memory: {result.account.idle_ratio:.2f}x of the {base}'s"
    if result.account.kept is not None:
        yield from _kept_lines(result.account.kept, made.objective.rest, base)
    least = ((one.arm.text, one.least.words) for one in result.account.survivors)
    yield from (f"  smallest memory of {name}: {words}" for name, words in least)
    if made.allocator.name != _control(made):
        yield f"  allocator = {made.allocator.name}"
    worth = {name: _worth(one) for one in result.account.added for name, _ in one.params}
    for name, value in made.arm.params:
        yield f"  {name} = {value}{worth.get(name, '')}"


def _kept_lines(kept: KeptMemory, rest: RestPlan | None, base: str) -> Iterator[str]:
    """Yields what stays at rest."""
    when = f" (after {rest.text})" if rest is not None else ""
    both = ((f"the {base}", kept.default), ("tuned", kept.tuned))
    told = [f"{name} {one.words}" for name, one in both if one is not None]
    yield f"  kept memory{when}: {', '.join(told)}"
    if kept.ratio is not None:
        yield f"    tuned / {base}: {_ends(kept.ratio)} on {kept.pairs} fresh pairs"
    if kept.speed is not None:
        yield f"    speed of the loads, tuned / {base}: {_ends(kept.speed)}"
    for name, one in both:
        if one is not None and one.slope_words:
            yield f"    growth per round, {name}: {one.slope_words}"
    if kept.slope_change_kb is not None:
        yield f"    growth per round, tuned - {base}: {slope_words(kept.slope_change_kb)}"


def _ends(ends: Ends) -> str:
    return "{:.3f}x [{:.3f}, {:.3f}]".format(*ends)


def _worth(one: Addition) -> str:
    """What a parameter is in the profile for, in words."""
    if one.answer == "kept":
        return ", which meets the memory limit"
    shown = (one.adds.ratio, one.adds.ci_low, one.adds.ci_high)
    gain, low, high = (f"{100.0 * (each - 1.0):+.1f} %" for each in shown if each is not None)
    whose = "" if len(one.params) == 1 else f" with {', '.join(name for name, _ in one.params)}"
    return f"  adds {gain} [{low}, {high}]{whose}"


def _base(result: Result) -> str:
    """What the control is, in words."""
    return "unchanged program" if _control(result.profile) == "none" else "default"


def _account_lines(result: Result) -> Iterator[str]:
    account = result.account
    if account.as_they_come:
        within = account.seen_within
        seen = [
            f"{name} {_seen(one, within.get(name))}" for name, one in account.as_they_come.items()
        ]
        yield f"with their defaults, in the search: {', '.join(seen)}"
    failed = ", ".join(f"{count} {status}" for status, count in sorted(account.failures.items()))
    failed = f"; failures: {failed}" if failed else ""
    trials, took = result.profile.search.trials, duration(account.wall_s)
    if account.waited_s >= _WAITED_S:
        took += f", {duration(account.waited_s)} of it waiting"
    yield f"searched: {trials} configurations in {took}{failed}"
    if account.noise_floor is not None and account.detectable is not None:
        yield f"noise floor: {100 * account.noise_floor:.1f} %; {_findable(account)}"
    if account.follow_on is not None:
        yield (
            f"fresh pairs are like those before them (correlation {account.follow_on:.2f}): the "
            "gain changed with time, and its interval may be too narrow; `hztune verify` asks again"
        )


def _findable(account: Account) -> str:
    """How small a gain this budget sees."""
    assert account.detectable is not None
    if account.findable is None:
        return f"a gain of {100 * account.detectable:.1f} % is proved three times in four"
    return (
        f"a parameter that gains {100 * account.findable:.1f} % is found and proved nine times in "
        "ten; a larger --budget finds smaller gains"
    )


def _seen(ratio: float | str, within: float | None) -> str:
    """A ratio with half of its interval, if that is known, or a failure, in words."""
    if isinstance(ratio, str):
        return ratio
    return f"{ratio:.2f}x" + ("" if within is None else f" ± {percent(within, sign=False)}")
