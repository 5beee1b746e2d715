"""The sections of a report, in the order in which a reader asks: what, is it so, why, how."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from hztune.blocks import Arm
from hztune.progress import duration
from hztune.report import advice, charts, kept_section, panel_section, pareto_section, words
from hztune.report.markup import Html, figure, join, table, tag
from hztune.result import front_file
from hztune.result.figures import Candidate, Curve, Effect, Figures
from hztune.stats.intervals import Interval
from hztune.study.counters import CounterChange, Outlier
from hztune.study.ledger import ArmRecord
from hztune.workload import METRICS

_SMALL = 380.0
"""Width of a response curve: two stand side by side."""

_MOST_ROWS = 300
_IMPORTANT = 10
_ANSWERS = {
    "proved": "proved, and then extended or examined",
    "kept": "kept the limit",
    "": "not judged before the study was stopped",
    "futile": "not confirmed: its gain is below what this budget can prove",
    "out_of_time": "not confirmed: time was up",
    "failed": "not confirmed: it failed in a fresh process",
    "over_loss": "not confirmed: it may lose more than --max-loss",
    "over_limit": "not confirmed: it is not shown to meet the limit",
    "dominated": "confirmed, but a faster one takes no more memory, or hardly more",
}


def body(found: Figures) -> Html:
    """Returns everything between <body> and </body>."""
    sections: tuple[Callable[[Figures], Html], ...] = (
        _configuration,
        pareto_section.section,
        _proof,
        kept_section.memory_over_time,
        kept_section.smallest,
        kept_section.live,
        _shares,
        panel_section.on_other_programs,
        _allocators,
        _search,
        _additions,
        _importance,
        _counters,
        _failures,
        advice.use,
        advice.repeat,
        advice.machine,
    )
    return join(
        tag("main", _head(found), [section(found) for section in sections]), advice.foot(found)
    )


# ---- what ----------------------------------------------------------------------------------------


def _head(found: Figures) -> Html:
    profile = found.profile
    verdict = profile.claim.verdict
    result = found.result
    reason = result.account.why if result and (verdict != "improved" or result.front) else ""
    told = f"{reason[:1].upper()}{reason[1:]}. " if reason else ""
    return tag(
        "header",
        tag(
            "p",
            "hztune report: ",
            tag("span", verdict.replace("_", " "), class_=f"verdict {verdict}"),
            class_="kicker",
        ),
        tag("h1", words.verdict_words(profile), "."),
        tag("p", told, words.interval_sentence(profile), class_="lead"),
        tag("dl", [_tile(*tile) for tile in _tiles(found)], class_="tiles"),
    )


def _tile(name: str, value: str, note: str) -> Html:
    return tag("div", tag("dt", name), tag("dd", value, tag("small", note)))


def _tiles(found: Figures) -> Iterator[tuple[str, str, str]]:
    """Yields the figures of the head: name, value, note."""
    profile = found.profile
    result = profile.claim
    seeks_kept = result.metric == METRICS["kept"]
    if result.ratio is not None and result.verdict != "no_gain" and not seeks_kept:
        note = f"{result.ci_low:.3f} to {result.ci_high:.3f} of the control's"
        yield "speed", f"{result.ratio:.3f}x", note
    if found.rss_ratio is not None:
        limit = profile.objective.limits.get("max_rss", "")
        note = f"of the control's; limit {limit}" if limit else "of the control's"
        yield "peak memory", f"{found.rss_ratio:.2f}x", note
    kept = found.kept
    if kept is not None and kept.ratio is not None:
        limit = profile.objective.limits.get("max_kept", "")
        note = f"of the control's; limit {limit}" if limit else "of the control's"
        yield "kept memory", f"{kept.ratio[0]:.2f}x", note
    floor = words.change(found.floor, sign=False)
    yield "noise floor", floor, "how far two runs of the control differ by chance"
    failed = sum(bool(one.record.failures) for one in found.candidates)
    yield "configurations", str(len(found.candidates)), f"searched; {failed} failed"
    turns, disturbed = found.turns
    wall_s = max(found.times[-1][1], found.result.account.wall_s if found.result else 0.0)
    yield "time", duration(wall_s), f"{turns} turns, {disturbed} of them disturbed"


def _configuration(found: Figures) -> Html:
    title = tag("h2", "The configuration")
    if not found.tuned:
        whose = words.allocator_words(found.profile)
        claims = found.profile.makes_a_claim
        said = f"{whose} with its defaults." if claims else "Everything stays as it is."
        return join(title, tag("p", said))
    rows = [
        (
            join(tag("code", name), tag("small", found.params[name].doc)),
            _value(found, name, value),
            _value(found, name, found.params[name].default),
        )
        for name, value in found.tuned.items()
    ]
    head = ("parameter", "tuned", "default")
    return join(title, table("What differs from the defaults", head, rows, wide=0))


def _value(found: Figures, name: str, value: str | int) -> Html:
    param = found.params[name]
    short = words.value_words(value, param.unit)
    unit = f" {param.unit}" if param.unit and short == str(value) and short.isdigit() else ""
    return tag("span", short, unit, class_="value", title=str(value))


# ---- is it so ------------------------------------------------------------------------------------


def _proof(found: Figures) -> Html:
    rows = []
    if found.calibration is not None:
        note = f"noise floor {words.change(found.floor, sign=False)}"
        name = f"{_control(found)} against itself"
        rows.append(charts.Strip(name, note, found.calibration_pairs, None, "neutral"))
    attempts = {}
    for arm, record in found.proofs:
        row, answer = _attempt(found, arm, record)
        rows.append(row)
        attempts[row.label] = (answer, arm)
    if not rows:
        return Html()
    return join(
        tag("h2", "Is it so?"),
        tag(
            "p",
            "Each dot is one pair of fresh processes, default and candidate, measured side by "
            "side; the bar is the 95 % interval of their mean. The search has not seen these "
            "pairs. The grey band is the noise floor: nothing within it is claimed.",
            class_="soft",
        ),
        _made_anew(found),
        figure(lambda width: charts.strips(rows, found.floor, width, "Pairs of fresh processes")),
        tag("ul", [_attempt_line(label, *each) for label, each in attempts.items()], class_="soft"),
        *(tag("p", _outlier_words(found, outlier), class_="soft") for outlier in found.outliers),
    )


def _made_anew(found: Figures) -> Html:
    """Says that some intervals are not those of the proof, where that is so."""
    if not found.made_anew:
        return Html()
    said = (
        "Intervals that no proof has judged yet are made for this page, as Student's, of the pairs "
        "that there are."
    )
    return tag("p", said, class_="soft")


def _outlier_words(found: Figures, outlier: Outlier) -> Html:
    """What is told of a pair that lies far from the others of its kind."""
    itself = outlier.arm == found.control
    whose = f"{_control(found)} against itself" if itself else words.arm_words(outlier.arm)
    return join(
        f"One of the {outlier.pairs} pairs of ",
        tag("code", whose),
        f" lies far from the others, at {outlier.ratio:.2f}x of their middle (block "
        f"{outlier.block}): one of its processes was not like its equals. It counts all the same.",
    )


def _attempt(found: Figures, arm: Arm, record: ArmRecord) -> tuple[charts.Strip, str]:
    """The row of an arm that was measured on fresh pairs, and what came of it in words."""
    interval = found.proved(record)
    name, answer = _fate(found, arm)
    is_proved = answer.startswith("proved")
    note = words.interval_words(interval) if interval is not None else "too few pairs"
    kind = "gain" if is_proved else "neutral"
    note = note if is_proved else f"{note} - not proved"
    return charts.Strip(name, note, record.log_ratios, interval, kind), answer


def _fate(found: Figures, arm: Arm) -> tuple[str, str]:
    """What to call an arm that was measured on fresh pairs, and what came of it."""
    for number, member in enumerate(found.front, start=1):
        if member.arm == arm:
            is_faster = member.claim.verdict == "improved"
            answer = "proved" if is_faster else "of which less memory is proved"
            return str(front_file(number)), answer
    if arm == found.winner and found.profile.makes_a_claim:
        return "the profile", "proved"
    answer = found.answer(arm)
    number = [each for each, _ in found.proofs].index(arm) + 1
    if not answer and found.result is not None and not found.seeks_front:
        fate = _ANSWERS.get(found.step_answer(arm), "")
        beside = "measured beside a finalist, and not proved to add to it"
        return f"configuration {number}", fate if fate.startswith(("proved", "kept")) else beside
    return f"{'finalist' if answer else 'configuration'} {number}", _ANSWERS[answer]


def _attempt_line(label: str, answer: str, arm: Arm) -> Html:
    return tag("li", f"{label}, {answer}: ", tag("code", words.arm_words(arm)))


def _shares(found: Figures) -> Html:
    """What the profile does on each of several workloads."""
    if not found.shares:
        return Html()
    rows = [_share(*share) for share in found.shares]
    limit = found.profile.objective.limits.get("max_loss", "")
    said = (
        "The result is the geometric mean of these ratios, each with its own 95 % interval from "
        f"the fresh pairs. A gain is claimed only where these show that none loses over {limit}."
    )
    return join(
        tag("h2", "Each workload"),
        tag("p", said, class_="soft"),
        figure(lambda width: charts.strips(rows, 0.0, width, "Ratio on each workload")),
    )


def _share(name: str, pairs: list[float], interval: Interval | None) -> charts.Strip:
    note = words.interval_words(interval) if interval is not None else "too few pairs"
    kind = "neutral"
    if interval is not None and not interval.has_zero:
        kind = "gain" if interval.low > 0.0 else "loss"
    return charts.Strip(name, note, pairs, interval, kind)


def _allocators(found: Figures) -> Html:
    """Every allocator with its defaults, where a study chose between several."""
    bare = [each for each in found.candidates if each.arm.is_default]
    if not bare:
        return Html()
    rows = [_as_it_comes(candidate) for candidate in sorted(bare, key=_rank)]
    said = f"Each allocator with its defaults, in the search, against {_control(found)}."
    return join(
        tag("h2", "Each allocator with its defaults"),
        tag("p", said, class_="soft"),
        figure(lambda width: charts.strips(rows, found.floor, width, "Allocators")),
    )


def _as_it_comes(candidate: Candidate) -> charts.Strip:
    name, record = candidate.arm.allocator, candidate.record
    if record.failures or candidate.interval is None:
        status = record.failures[0].status if record.failures else "not measured"
        return charts.Strip(name, status, (), None, "loss")
    note = words.interval_words(candidate.interval)
    return charts.Strip(name, note, record.log_ratios, candidate.interval, "neutral")


def _control(found: Figures) -> str:
    return words.control_words(found.profile)


# ---- why -----------------------------------------------------------------------------------------


def _search(found: Figures) -> Html:
    if not found.candidates:
        return Html()
    return join(
        tag("h2", "The search"),
        tag(
            "p",
            "Each configuration with its 95 % interval, at the time of its first measurement. The "
            "line is the best mean so far, shrunk towards the others since the best of many noisy "
            "means is too good to be true. Green dots are fresh pairs of finalists. A cross is a "
            "configuration that failed. Those far slower than the default are on the lower edge.",
            class_="soft",
        ),
        figure(
            lambda width: charts.trace(
                found.candidates,
                found.trace,
                found.fresh_pairs,
                found.phases,
                winner=found.winner.key,
                floor=found.floor,
                width=width,
            )
        ),
        _all_candidates(found),
    )


def _all_candidates(found: Figures) -> Html:
    ranked = sorted(found.candidates, key=_rank)
    rows = [_candidate_row(candidate) for candidate in ranked[:_MOST_ROWS]]
    head = ("no.", "against the default", "pairs", "memory", "configuration")
    shown = f"the best {_MOST_ROWS}" if len(ranked) > _MOST_ROWS else "all"
    caption = f"Configurations of the search, {shown} of {len(ranked)}, the fastest first"
    return tag(
        "details",
        tag("summary", f"All {len(ranked)} configurations"),
        table(caption, head, rows, numbers=(0, 1, 2, 3), wide=4),
    )


def _rank(candidate: Candidate) -> float:
    usable = candidate.interval is not None and not candidate.record.failures
    return -candidate.interval.estimate if usable and candidate.interval else math.inf


def _candidate_row(candidate: Candidate) -> tuple[str, ...]:
    record = candidate.record
    speed = words.interval_words(candidate.interval) if candidate.interval else "-"
    if record.failures:
        speed = record.failures[0].status
    memory = "-" if record.rss_ratio is None else f"{record.rss_ratio:.2f}x"
    told = tag("code", words.arm_words(candidate.arm))
    return str(candidate.number), speed, str(len(record.pairs)), memory, told


def _additions(found: Figures) -> Html:
    rows = [_addition_row(step) for step in found.steps]
    if not rows:
        return Html()
    return join(
        tag("h2", "What each parameter adds"),
        tag(
            "p",
            "Proved on fresh pairs: each configuration was measured side by side with the one "
            "before it. A parameter is in the profile only if its interval is above zero.",
            class_="soft",
        ),
        figure(lambda width: charts.strips(rows, 0.0, width, "What each parameter adds")),
    )


def _addition_row(step: Effect) -> charts.Strip:
    fate = "in the profile" if step.is_kept else "dropped"
    told = words.interval_words(step.interval) if step.interval else "too few pairs"
    label = ", ".join(step.names) or "the allocator itself"
    kind = "gain" if step.is_kept else "neutral"
    return charts.Strip(label, f"{told} - {fate}", step.pairs, step.interval, kind)


def _importance(found: Figures) -> Html:
    if not found.importance and not found.curves:
        return Html()
    return join(tag("h2", "What matters"), _importance_shares(found), _curves(found))


def _importance_shares(found: Figures) -> Html:
    if not found.importance:
        return tag("p", "Too few configurations ran to say which parameters matter.", class_="soft")
    shares = list(found.importance.items())[:_IMPORTANT]
    rows = [(tag("code", name), _bar(share), f"{100.0 * share:.0f} %") for name, share in shares]
    return join(
        tag(
            "p",
            "The chance that a parameter has any effect on speed, gain or loss, by the model of "
            "the search, which assumes that most parameters have none until they show one.",
            class_="soft",
        ),
        table("Which parameters matter", ("parameter", "chance", ""), rows, numbers=(2,)),
    )


def _bar(share: float) -> Html:
    return tag("span", class_="share", style=f"width:{100.0 * share:.1f}%", aria_hidden="true")


def _curves(found: Figures) -> Html:
    if not found.curves:
        return Html()
    pictures = [_curve(curve, found.floor) for curve in found.curves]
    return join(
        tag("h3", "Response curves"),
        tag(
            "p",
            "Each configuration by its value of one parameter, with its 95 % interval; the large "
            "dots are means. Other parameters vary, too: this shows a correlation, not a cause.",
            class_="soft",
        ),
        tag("div", pictures, class_="curves"),
    )


def _curve(curve: Curve, floor: float) -> Html:
    tuned = "" if curve.tuned == curve.param.default else f", tuned {curve.tuned}"
    told = f" (default {curve.param.default}{tuned})"
    name = tag("figcaption", tag("code", curve.param.name), told)
    return tag("figure", name, charts.response(curve, floor, _SMALL))


def _counters(found: Figures) -> Html:
    if not found.changes:
        return Html()
    rows = [
        (
            each.noun,
            tag("code", each.counter),
            *each.figures,
            words.factor_words(*each.shown),
        )
        for each in found.changes
    ]
    head = ("what", "counter", "default", "tuned", "unit", "change")
    return join(
        tag("h2", "What the allocator did differently"),
        tag(
            "p",
            tag("strong", _telling(found.changes).text),
            ". Counters are of slow paths, from the start of a process to its end.",
        ),
        table("Medians over the fresh pairs", head, rows, numbers=(2, 3, 5)),
    )


def _telling(changes: Sequence[CounterChange]) -> CounterChange:
    """The change to tell first: of events, and counted under both."""
    both = (each for each in changes if all(each.shown) and not each.counter.endswith("_bytes"))
    return next(both, changes[0])


def _failures(found: Figures) -> Html:
    if not found.failures:
        return Html()
    rows = [
        (
            each.status,
            str(each.count),
            join(tag("code", words.arm_words(each.example.arm)), ": ", each.example.detail),
        )
        for each in found.failures
    ]
    head = ("how", "processes", "for example")
    return join(
        tag("h2", "What failed"),
        tag(
            "p",
            "The search treats a failed configuration as infeasible.",
            class_="soft",
        ),
        table("Failed processes by kind", head, rows, numbers=(1,), wide=2),
    )
