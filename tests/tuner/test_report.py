"""The report of a study: one page that says what was found, from whatever stands in the samples."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import pytest
from lab.replay import Landscape, ReplayExecutor, Truth, VirtualClock
from msgspec import structs

from hztune import cli, params, profile, report
from hztune.blocks import Arm
from hztune.errors import UsageError
from hztune.measure import Executor, SeveralExecutor
from hztune.profile import Claim, MemoryClaim, Objective, Profile, SearchInfo, Share, WorkloadId
from hztune.progress import Quiet, duration
from hztune.report import words
from hztune.report.page import Page
from hztune.result import Attempt, Decision, Result, ending, figures
from hztune.result.figures import Figures, likely_effects
from hztune.result.summary import summary_lines
from hztune.space import Space
from hztune.store import Sink, kept_command
from hztune.store.log import SAMPLES, LocalStudy
from hztune.study.bench import Budget, Workbench
from hztune.study.counters import Outlier
from hztune.study.ledger import Ledger
from hztune.study.limits import LossLimit
from hztune.study.proof import interval_of
from hztune.tune.conclusion import account_of
from hztune.tune.story import Story

from .report_studies import HOSTILE, MACHINE, QUIET, Recorded, space_of_hz, spin_wins

MakeProfile = Callable[..., Profile]
MakeResults = Callable[..., Path]
BUDGET_S = 400.0
REMOTE = WorkloadId("bench", "remote", "medium", {"remote": 50})
LARSON = WorkloadId("bench", "larson", "", {})
SERVER = WorkloadId("program", "server", "", {}, "d" * 64)
VOID = {"br", "meta"}


def nothing_wins(arm: Arm) -> Truth:
    return Truth(0.0 if arm.is_default else -0.1)


def claim_of(decision: Decision, metric: str) -> Claim:
    """What a profile says of a decision."""
    if decision.interval is None:
        return Claim(metric, None, None, None, 0, decision.verdict)
    return Claim(metric, *decision.interval.ratio, decision.interval.pairs, decision.verdict)


def shares_of(decision: Decision) -> tuple[Share, ...]:
    """What a profile says of each of two workloads."""
    return tuple(
        Share(workload, *(interval.ratio if interval else (None, None, None)))
        for workload, interval in zip((REMOTE, LARSON), decision.each, strict=False)
    )


def together(
    landscapes: Sequence[Landscape], store: LocalStudy, clock: VirtualClock
) -> SeveralExecutor:
    """An executor over several workloads, each with a noise of its own."""

    def make(seed: int, landscape: Landscape, sink: Sink) -> Recorded:
        inner = ReplayExecutor(landscape, QUIET, seed=seed, clock=clock, turn_ms=200.0)
        return Recorded(inner, sink)

    return SeveralExecutor(
        [(str(i), partial(make, i, each)) for i, each in enumerate(landscapes)], store
    )


@pytest.fixture(scope="module")
def hz_space(tmp_path_factory: pytest.TempPathFactory) -> Space:
    return space_of_hz(tmp_path_factory.mktemp("space"))


@pytest.fixture(scope="module")
def make_results(
    hz_space: Space, make_profile: MakeProfile, tmp_path_factory: pytest.TempPathFactory
) -> MakeResults:
    """Runs a study on a virtual clock and leaves its results directory."""

    def make(
        landscape: Landscape,
        *,
        stop_at: float = math.inf,
        beside: Landscape | None = None,
    ) -> Path:
        folder = tmp_path_factory.mktemp("study")
        identity = {"workload": HOSTILE, "space": hz_space.fingerprint(), "library": HOSTILE}
        with LocalStudy(folder, identity, MACHINE) as store:
            clock = VirtualClock()
            max_loss = LossLimit.of("1%") if beside is not None else None
            inner = ReplayExecutor(landscape, QUIET, seed=2, clock=clock, turn_ms=200.0)
            executor: Executor = Recorded(inner, store, stop_at)
            if beside is not None:
                executor = together((landscape, beside), store, clock)
            bench = Workbench(executor, Ledger(None, max_loss), Budget(clock, BUDGET_S), Quiet())
            study = Story(bench, hz_space, 1, max_trials=24)
            decision = study.run()
            claimed = make_profile(
                dict(decision.arm.params),
                workload=REMOTE,
                threads=2,
                objective=Objective("ops_per_s", {"max_loss": "1%"} if beside else {}),
                shares=shares_of(decision),
                claim=claim_of(decision, "ops_per_s"),
                search=SearchInfo(
                    "tpe", 1, BUDGET_S, bench.ledger.configurations, hz_space.fingerprint()
                ),
            )
            profile.save(claimed, folder / "profile.json")
            if decision.verdict != "interrupted":
                store.conclude(ending(Result(claimed, account_of(study, decision, clock.now()))))
        return folder

    return make


@pytest.fixture(scope="module")
def improved(make_results: MakeResults) -> Path:
    """A study that found the spin lock."""
    return make_results(spin_wins)


@pytest.fixture(scope="module")
def found(improved: Path) -> Figures:
    """What that study's directory says."""
    return figures.read(improved)


@pytest.fixture(scope="module")
def page(improved: Path) -> str:
    """Its report."""
    return report.render(improved)


@pytest.fixture(scope="module")
def in_vain(make_results: MakeResults) -> Path:
    """A study that found nothing."""
    return make_results(nothing_wins)


def text_of(folder: Path) -> str:
    """What a reader sees of a study's report, with single blanks."""
    return " ".join(Reader(report.render(folder)).text.split())


class Reader(HTMLParser):
    """Reads a page as a browser does, and complains of what is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data if self.open and self.open[-1] != "style" else ""


# ---- the page ------------------------------------------------------------------------------------


def test_the_verdict_stands_first_in_one_sentence_with_its_interval(improved: Path) -> None:
    assert re.search(
        r"remote@medium with remote=50 and 2 threads does 2\d\.\d % more operations a second with "
        r"1 parameter of hz 0\.1\.0 set\. ?95 % interval \+\d+\.\d % to \+\d+\.\d % against the "
        r"default of hz, from \d+ pairs",
        text_of(improved),
    )


def test_the_page_is_whole_and_needs_nothing_but_itself(page: str) -> None:
    reader = Reader(page)
    assert reader.open == []
    names = {name for name, _ in reader.seen}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "base"}
    attributes = {name for _, found in reader.seen for name in found}
    assert not attributes & {"src", "href", "srcset", "action"}
    assert "url(" not in page and "@import" not in page and "//" not in page.replace("://", "")
    assert "default-src 'none'" in page


def test_what_stands_in_the_samples_is_text_and_never_markup(page: str) -> None:
    reader = Reader(page)
    assert reader.text.count("<script>alert(1)</script>") >= 3
    assert not [name for _, found in reader.seen for name in found if name.startswith("on")]


def test_every_chart_has_a_title_and_each_wide_one_a_narrow_one(page: str) -> None:
    seen = Reader(page).seen
    charts = [attributes for name, attributes in seen if name == "svg"]
    assert len(charts) > 4
    assert all(chart["aria-label"] and chart["role"] == "img" for chart in charts)
    classes = [found.get("class") for name, found in seen if name == "div"]
    assert classes.count("wide") == classes.count("narrow") > 1


def test_counters_failures_and_the_way_back_are_told(page: str) -> None:
    assert "fewer full remote rings handed over: 943,000 -&gt; 131,000 per process" in page
    assert "the landscape says crash" in page
    assert "unset HZ_DEPOT_LOCK LD_PRELOAD" in page


def test_pairs_far_from_the_others_are_told_of(
    improved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = [Outlier(Arm("hz"), 3, 1.2, 16),
           Outlier(Arm.of("hz", {"depot_lock": "spin"}), 57, 0.86, 39)]  # fmt: skip
    monkeypatch.setattr("hztune.result.figures.outlying_pairs", lambda ledger: far)
    text = text_of(improved)
    assert re.search(r"the 16 pairs of .* against itself lies far .*1\.20x .*block 3", text)
    assert re.search(r"39 pairs of .*spin lies far .*0\.86x .*block 57.* counts all the same", text)


def test_each_allocator_with_its_defaults_has_a_strip(
    improved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = figures.read(improved)
    ran = next(each for each in found.candidates if each.interval)
    crashed = next(each for each in found.candidates if each.record.failures)
    bare = [
        replace(each, record=replace(each.record, arm=Arm(name)))
        for each, name in ((ran, "glibc"), (crashed, "tbb"))
    ]
    vars(found)["candidates"] = (*found.candidates, *bare)
    monkeypatch.setattr(figures, "read", lambda folder: found)
    assert ran.interval is not None
    strip = f"Allocators .*glibc {re.escape(words.interval_words(ran.interval))}.* tbb crash"
    text = text_of(improved).replace("\u00a0", " ")
    assert "in the search, against the default of hz" in text
    assert re.search(strip.replace("\u00a0", " ").replace("\\ ", " "), text)


# ---- what it rests on ----------------------------------------------------------------------------


def test_the_profile_and_every_configuration_are_found_again_among_the_samples(
    found: Figures,
) -> None:
    assert found.winner.config == {"depot_lock": "spin"}
    assert found.winner.key in found.ledger.fresh_by_arm
    candidates = found.candidates
    assert [each.number for each in candidates] == list(range(1, len(candidates) + 1))
    assert all(each.interval or each.record.failures for each in candidates)
    times = [each.at_s for each in candidates]
    assert times == sorted(times) and times[0] > 0.0
    assert [status for status, _, _ in found.failures] == ["crash"]


def test_the_trace_ends_at_the_gain(found: Figures) -> None:
    assert found.trace[-1][1] == pytest.approx(0.25, abs=0.06)
    assert [role for role, _, _ in found.phases[:3]] == ["aa", "search", "confirm"]


def test_the_parameter_that_matters_is_the_likeliest_to_have_an_effect(found: Figures) -> None:
    assert set(found.importance) <= set(found.params)
    assert next(iter(found.importance)) == "depot_lock"
    assert all(0.0 <= chance <= 1.0 + 1e-9 for chance in found.importance.values())


def test_the_unchanged_program_is_one_configuration_with_the_defaults_that_it_runs_on() -> None:
    executor = ReplayExecutor(spin_wins, QUIET, seed=1)
    arms = [Arm.of("hz", {"depot_lock": "spin", "magazine_cap": 64 << n}) for n in range(4)]
    knobs = {row.name: row for row in params.table()}
    chances = []
    for name in ("hz", "none"):
        ledger = Ledger()
        for number in range(4):
            block = executor.measure([Arm("hz"), *arms], role="search", rounds=2, number=number)
            control = replace(block.control, arm=Arm(name))
            ledger.add(replace(block, outcomes=(control, *block.outcomes[1:])))
        chances.append(likely_effects(ledger, "hz", knobs)["depot_lock"])
    assert chances == [pytest.approx(1.0, abs=0.05)] * 2


def test_the_report_shows_the_intervals_that_the_proof_judged(found: Figures, page: str) -> None:
    assert found.result is not None
    claim, adds = found.profile.claim, found.result.account.added[0].adds
    shown, step = found.proved(found.ledger.fresh_by_arm[found.winner.key]), found.steps[0]
    assert shown is not None and step.interval is not None
    assert shown.ratio == pytest.approx((claim.ratio, claim.ci_low, claim.ci_high))
    assert step.interval.ratio == pytest.approx((adds.ratio, adds.ci_low, adds.ci_high))
    assert step.names == ("depot_lock",) and len(step.pairs) == step.interval.pairs
    assert all(each.is_kept == ({*each.names} <= {*found.tuned}) for each in found.steps)
    gain = 100.0 * (step.interval.ratio.estimate - 1.0)
    assert any(
        f"depot_lock = spin  adds +{gain:.1f} % [" in each for each in summary_lines(found.result)
    )
    assert not found.made_anew and "are made for this page" not in page
    plain = interval_of([pair.log_ratio for pair in found.ledger.fresh(found.winner).pairs])
    assert plain is not None and plain.ratio != pytest.approx(shown.ratio)


def test_a_finalist_that_was_refused_is_named_so(found: Figures) -> None:
    assert found.result is not None
    arm = Arm.of("hz", {"depot_slots": 8})
    refused = Attempt(arm, "futile", None, None, None, 4)
    account = found.result.account
    account = replace(account, attempts=(*account.attempts, refused))
    page = Page(replace(found, result=replace(found.result, account=account)))
    label, fate, is_proved = page.fate(arm, 7)
    assert (label, is_proved) == ("finalist 7", False)
    assert "its gain is below what this budget can prove" in fate
    assert page.fate(found.winner, 1) == ("the profile", "proved", True)
    strips, _ = Page(found).proof
    assert [strip.kind for strip in strips].count("gain") == 1


def test_a_response_curve_holds_every_configuration_under_its_value(found: Figures) -> None:
    curve = found.curves[0]
    assert curve.param.name == "depot_lock" and curve.tuned == "spin"
    ran = [each for each in found.candidates if each.interval]
    assert sum(len(level.estimates) for level in curve.levels) == len(ran)
    means = {level.value: level.interval.estimate for level in curve.levels}
    assert means["spin"] == pytest.approx(0.25, abs=0.06)
    assert means["mutex"] == pytest.approx(0.0, abs=0.06)


# ---- in words ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ops", "told"),
    [(0.3, 1), (1.0, 1), (4.9, 2), (7e6, 5_000_000), (999999999.9999998, 1_000_000_000)],
)
def test_a_count_of_operations_is_rounded_to_what_reads_well(ops: float, told: int) -> None:
    assert words.round_ops(ops) == told


@pytest.mark.parametrize(
    ("ratio", "told"),
    [(1.16, "+16.0\u00a0%"), (0.5, "-50.0\u00a0%"), (2.9, "+190.0\u00a0%"), (13.66, "13.7x")],
)
def test_a_change_is_told_in_percent_and_far_above_as_a_factor(ratio: float, told: str) -> None:
    assert words.change(math.log(ratio)) == told


VERDICTS: dict[str, tuple[Claim, str]] = {
    "in time": (Claim("wall_s", 1.14, 1.1, 1.2, 8, "improved"), "runs 14.0 % faster with 2 para"),
    "in latency": (Claim("p99_ns", 1.14, 1.1, 1.2, 8, "improved"), "is 14.0 % better in p99 lat"),
    "many times": (Claim("p99_ns", 4.0, 3.1, 5.0, 8, "improved"), "is 4.0 times as good in p99 l"),
    "at rest": (Claim("kept_kb", 1.25, 1.1, 1.3, 8, "improved"), "keeps 20 % less kept memory at"),
    "less memory": (
        Claim("ops_per_s", 0.95, 0.92, 0.98, 12, "less_memory", MemoryClaim(0.7, 0.68, 0.72)),
        "takes 30 % less peak memory with 2",
    ),
    "limits": (Claim("ops_per_s", None, None, None, 0, "infeasible"), "No configuration of hz 0."),
    "stopped": (Claim("ops_per_s", None, None, None, 0, "interrupted"), "was stopped before it"),
    "none": (Claim("ops_per_s", 1.01, 0.98, 1.04, 9, "no_gain"), "Nothing was proved better than"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_a_verdict_claims_what_was_proved_and_no_more(name: str, make_profile: MakeProfile) -> None:
    claim, said = VERDICTS[name]
    made = make_profile(claim=claim)
    assert said in words.verdict_words(made).replace("\u00a0", " ")
    assert ("fresh processes" in words.interval_sentence(made)) == made.makes_a_claim


def test_a_gain_is_told_with_the_memory_that_it_costs(make_profile: MakeProfile) -> None:
    seen = (MemoryClaim(1.57, 1.5, 1.64), MemoryClaim(0.9, 0.8, 1.0, "kept"))
    said = words.verdict_words(make_profile(memory=seen))
    assert said.endswith(", for 57\u00a0% more peak memory")


def test_the_hyperfine_command_gives_both_sides_the_same_work(found: Figures) -> None:
    target = words.bench_command(REMOTE, 2, 5000)
    told = shlex.split(words.hyperfine_command(found.profile, target))
    default, tuned = told[told.index("default") + 1], told[told.index("tuned") + 1]
    assert tuned.replace("HZ_DEPOT_LOCK=spin ", "") == default
    assert default.endswith("remote@medium --remote 50 --threads 2 --ops 5000")


# ---- other ends ----------------------------------------------------------------------------------


def test_a_study_without_a_gain_says_so_and_leaves_the_defaults(in_vain: Path) -> None:
    text = text_of(in_vain)
    assert "Nothing was proved better than the default of hz on remote@medium" in text
    assert "There is nothing to apply" in text
    assert "hyperfine" not in text, "it would compare two equal commands"


def test_a_page_tells_one_noise_and_all_of_the_time(in_vain: Path) -> None:
    found, text = figures.read(in_vain), text_of(in_vain)
    assert not re.search(r"against itself ([+-]|scattered)", text)
    assert found.result is not None and found.timed[-1][2] < found.result.account.wall_s
    assert re.search(rf"time ?{duration(found.result.account.wall_s)}", text)


def test_an_interrupted_study_is_no_claim(make_results: MakeResults) -> None:
    text = text_of(make_results(spin_wins, stop_at=40.0))
    assert "was stopped before it could prove anything" in text
    assert "proved better" not in text


def test_a_study_is_repeated_by_its_own_command_or_by_none(found: Figures) -> None:
    made = structs.replace(found.profile, workload=SERVER, threads=0)
    bare = replace(found, profile=made, command=())
    assert (Page(bare).program, Page(bare).hyperfine) == ("", "")
    asked = replace(bare, command=("--allocator", "any", "--", "./web", "a b", "$x"))
    assert Page(asked).program == "./web 'a b' '$x'"
    assert Page(asked).hyperfine.count("./web 'a b' '\\$x'\"") == 2
    latency = structs.replace(made, claim=structs.replace(made.claim, metric="p99_ns"))
    assert Page(replace(asked, profile=latency)).hyperfine == ""


def test_several_workloads_are_told_one_by_one(make_results: MakeResults) -> None:
    folder = make_results(spin_wins, beside=lambda arm: spin_wins(arm))
    asked = ("--allocator", "any", "--workload", "a b")
    kept_command.write(folder / "profile.json", asked)
    found, text = figures.read(folder), text_of(folder)
    assert [name for name, _, _ in found.shares] == ["remote@medium remote=50", "larson"]
    told = [(share.ratio, share.ci_low, share.ci_high) for share in found.profile.shares]
    assert [interval and interval.ratio for _, _, interval in found.shares] == told
    assert "remote@medium and larson with remote=50 and 2 threads do 2" in text
    assert "Each workload" in text and "none loses over 1%" in text
    assert text.count("hyperfine -N") == 2
    assert "hztune tune --allocator any --workload 'a b'" in text


def test_a_profile_of_another_study_is_refused(improved: Path, tmp_path: Path) -> None:
    other = profile.load(improved / "profile.json")
    search = structs.replace(other.search, space_sha256="c" * 64)
    profile.save(structs.replace(other, search=search), tmp_path / "profile.json")
    (tmp_path / SAMPLES).write_bytes((improved / SAMPLES).read_bytes())
    with pytest.raises(UsageError, match="different studies"):
        report.render(tmp_path)


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_writes_the_page_and_says_where(
    improved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.status_of(["report", str(improved)]) == 0
    assert capsys.readouterr().out == f"{improved / 'report.html'}\n"
    assert (improved / "report.html").read_text().startswith("<!doctype html>")


def test_a_directory_without_a_study_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.status_of(["report", str(tmp_path)]) == 2
    assert "it has no samples.jsonl" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
