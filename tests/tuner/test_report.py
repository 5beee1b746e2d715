"""The report of a study: one page that says what was found, from whatever stands in the samples."""

from __future__ import annotations

import math
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import pytest
from lab.replay import Landscape, ReplayExecutor, Truth, VirtualClock
from msgspec import structs

from hztune import profile, report
from hztune.blocks import Arm
from hztune.errors import UsageError
from hztune.measure import Executor, SeveralExecutor
from hztune.profile import Claim, Objective, Profile, SearchInfo, Share, WorkloadId
from hztune.progress import Quiet, duration
from hztune.report import words
from hztune.result import Decision, Result, ending, figures
from hztune.result.figures import Figures
from hztune.space import Space
from hztune.store import Sink, kept_command
from hztune.store.log import SAMPLES, LocalStudy
from hztune.study.bench import Budget, Workbench
from hztune.study.counters import Outlier
from hztune.study.ledger import Ledger
from hztune.study.limits import LossLimit, MemoryLimit
from hztune.study.proof import interval_of
from hztune.tune.conclusion import account_of
from hztune.tune.story import Story

from .report_studies import HOSTILE, MACHINE, QUIET, Recorded, space_of_hz, spin_wins

Run = Callable[..., "subprocess.CompletedProcess[str]"]
MakeProfile = Callable[..., Profile]
MakeResults = Callable[..., Path]
BUDGET_S = 400.0
REMOTE = WorkloadId("bench", "remote", "medium", {"remote": 50})
LARSON = WorkloadId("bench", "larson", "", {})
SERVER = WorkloadId("program", "server", "", {}, "d" * 64)
VOID = {"br", "meta"}


def cap_hardly_matters(arm: Arm) -> Truth:
    """Beside the spin lock a large magazine is worth a little, too, but not a parameter."""
    bonus = 0.015 if arm.config.get("magazine_cap") == 1024 else 0.0
    return Truth(bonus + (0.25 if arm.config.get("depot_lock") == "spin" else 0.0))


def nothing_wins(arm: Arm) -> Truth:
    return Truth(0.0 if arm.is_default else -0.1)


def claim_of(decision: Decision, metric: str) -> Claim:
    """What a profile says of a decision."""
    if decision.interval is None:
        return Claim(metric, None, None, None, 0, decision.verdict)
    return Claim(metric, *decision.interval.ratio, decision.interval.pairs, decision.verdict)


def limits_of(*limits: MemoryLimit | LossLimit | None) -> dict[str, str]:
    """The limits of a profile, by name."""
    return {
        "max_rss" if isinstance(limit, MemoryLimit) else "max_loss": limit.text
        for limit in limits
        if limit is not None
    }


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
        target: WorkloadId = REMOTE,
        metric: str = "ops_per_s",
        limit: MemoryLimit | None = None,
        stop_at: float = math.inf,
        beside: Landscape | None = None,
        seed: int = 1,
    ) -> Path:
        folder = tmp_path_factory.mktemp("study")
        identity = {"workload": HOSTILE, "space": hz_space.fingerprint(), "library": HOSTILE}
        with LocalStudy(folder, identity, MACHINE) as store:
            clock = VirtualClock()
            max_loss = LossLimit.of("1%") if beside is not None else None
            inner = ReplayExecutor(landscape, QUIET, seed=1 + seed, clock=clock, turn_ms=200.0)
            executor: Executor = Recorded(inner, store, stop_at)
            if beside is not None:
                executor = together((landscape, beside), store, clock)
            bench = Workbench(executor, Ledger(limit, max_loss), Budget(clock, BUDGET_S), Quiet())
            study = Story(bench, hz_space, seed, max_trials=24)
            decision = study.run()
            claimed = make_profile(
                dict(decision.arm.params),
                workload=target,
                threads=2 if target is REMOTE else 0,
                objective=Objective(metric, limits_of(limit, max_loss)),
                shares=shares_of(decision),
                claim=claim_of(decision, metric),
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


def test_pairs_far_from_the_others_are_told_of(
    improved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = [Outlier(Arm("hz"), 3, 1.2, 16),
           Outlier(Arm.of("hz", {"depot_lock": "spin"}), 57, 0.86, 39)]  # fmt: skip
    monkeypatch.setattr("hztune.result.figures.outlying_pairs", lambda ledger: far)
    text = Reader(report.render(improved)).text
    assert re.search(r"the 16 pairs of .* against itself lies far .*1\.20x .*block 3", text)
    assert re.search(r"39 pairs of .*spin lies far .*0\.86x .*block 57.* counts all the same", text)


def test_the_verdict_stands_first_in_one_sentence_with_its_interval(page: str) -> None:
    text = " ".join(Reader(page).text.split())
    assert re.search(
        r"remote@medium with remote=50 and 2 threads does 2\d\.\d % more operations a second with "
        r"1 parameter of hz 0\.1\.0 set\. ?95 % interval \+\d+\.\d % to \+\d+\.\d % against the "
        r"default of hz, from \d+ pairs",
        text,
    )


def test_every_element_is_closed_and_every_chart_has_a_title(page: str) -> None:
    reader = Reader(page)
    assert reader.open == []
    charts = [attributes for name, attributes in reader.seen if name == "svg"]
    assert len(charts) > 4
    assert all(chart["aria-label"] and chart["role"] == "img" for chart in charts)


def test_the_page_needs_nothing_but_itself(page: str) -> None:
    reader = Reader(page)
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


def test_the_page_holds_a_wide_and_a_narrow_drawing_of_each_wide_chart(page: str) -> None:
    classes = [found.get("class") for name, found in Reader(page).seen if name == "div"]
    assert classes.count("wide") == classes.count("narrow") > 1


def test_a_counter_that_changed_is_told_in_words_with_both_counts(page: str) -> None:
    assert "fewer full remote rings handed over: 943,000 -&gt; 131,000 per process" in page


def test_failures_are_named_with_an_example(page: str, found: Figures) -> None:
    assert [status for status, _, _ in found.failures] == ["crash"]
    assert "the landscape says crash" in page


def test_the_way_back_names_every_variable_that_the_profile_sets(page: str) -> None:
    assert "unset HZ_DEPOT_LOCK LD_PRELOAD" in page


# ---- what it rests on ----------------------------------------------------------------------------


def test_the_profile_is_found_again_among_the_samples(found: Figures) -> None:
    assert found.winner.config == {"depot_lock": "spin"}
    assert found.winner.key in found.ledger.fresh_by_arm


def test_every_configuration_of_the_search_has_a_number_a_time_and_an_interval(
    found: Figures,
) -> None:
    candidates = found.candidates
    assert [each.number for each in candidates] == list(range(1, len(candidates) + 1))
    assert all(each.interval or each.record.failures for each in candidates)
    times = [each.at_s for each in candidates]
    assert times == sorted(times) and times[0] > 0.0


def test_the_trace_ends_at_the_gain(found: Figures) -> None:
    assert found.trace[-1][1] == pytest.approx(0.25, abs=0.06)
    assert [role for role, _, _ in found.phases[:3]] == ["aa", "search", "confirm"]


def test_the_parameter_that_matters_is_the_likeliest_to_have_an_effect(found: Figures) -> None:
    assert set(found.importance) <= set(found.params)
    assert next(iter(found.importance)) == "depot_lock"
    assert all(0.0 <= chance <= 1.0 + 1e-9 for chance in found.importance.values())


def test_what_each_parameter_adds_is_told_with_its_interval(found: Figures) -> None:
    first = found.steps[0]
    assert first.names == ("depot_lock",) and first.is_kept
    assert first.interval is not None and first.interval.low > 0.0
    assert len(first.pairs) == first.interval.pairs
    assert all(step.is_kept == ({*step.names} <= {*found.tuned}) for step in found.steps)


def test_the_report_shows_the_intervals_that_the_proof_judged(found: Figures, page: str) -> None:
    assert found.result is not None
    claim, adds = found.profile.claim, found.result.account.added[0].adds
    shown = found.proved(found.ledger.fresh_by_arm[found.winner.key])
    assert shown is not None and found.steps[0].interval is not None
    assert shown.ratio == pytest.approx((claim.ratio, claim.ci_low, claim.ci_high))
    assert found.steps[0].interval.ratio == pytest.approx((adds.ratio, adds.ci_low, adds.ci_high))
    assert not found.made_anew and "are made for this page" not in page
    plain = interval_of([pair.log_ratio for pair in found.ledger.fresh(found.winner).pairs])
    assert plain is not None and plain.ratio != pytest.approx(shown.ratio)


def test_a_response_curve_holds_every_configuration_under_its_value(found: Figures) -> None:
    curve = found.curves[0]
    assert curve.param.name == "depot_lock" and curve.tuned == "spin"
    ran = [each for each in found.candidates if each.interval]
    assert sum(len(level.estimates) for level in curve.levels) == len(ran)
    means = {level.value: level.interval.estimate for level in curve.levels}
    assert means["spin"] == pytest.approx(0.25, abs=0.06)
    assert means["mutex"] == pytest.approx(0.0, abs=0.06)


# ---- repeating it --------------------------------------------------------------------------------


def test_the_hyperfine_command_gives_both_sides_the_same_work(found: Figures) -> None:
    target = words.bench_command(REMOTE, 2, 5000)
    told = shlex.split(words.hyperfine_command(found.profile, target))
    default, tuned = told[told.index("default") + 1], told[told.index("tuned") + 1]
    assert tuned.replace("HZ_DEPOT_LOCK=spin ", "") == default
    assert default.endswith("remote@medium --remote 50 --threads 2 --ops 5000")


# ---- other ends ----------------------------------------------------------------------------------


def test_a_study_without_a_gain_says_so_and_leaves_the_defaults(make_results: MakeResults) -> None:
    text = Reader(report.render(make_results(nothing_wins))).text
    assert "Nothing was proved better than the default of hz on remote@medium" in text
    assert "There is nothing to apply" in text
    assert "hyperfine" not in text, "it would compare two equal commands"


def test_a_page_tells_one_noise_and_all_of_the_time(make_results: MakeResults) -> None:
    folder = make_results(nothing_wins)
    found = figures.read(folder)
    text = " ".join(Reader(report.render(folder)).text.split())
    assert not re.search(r"against itself ([+-]|scattered)", text)
    assert found.result is not None and found.times[-1][1] < found.result.account.wall_s
    assert re.search(rf"time ?{duration(found.result.account.wall_s)}", text)


def test_an_interrupted_study_is_no_claim(make_results: MakeResults) -> None:
    text = Reader(report.render(make_results(spin_wins, stop_at=40.0))).text
    assert "was stopped before it could prove anything" in text
    assert "proved better" not in text


def test_a_study_that_no_configuration_can_keep_the_limits_of_says_so(
    make_results: MakeResults,
) -> None:
    limit = MemoryLimit.of("50M")
    text = Reader(report.render(make_results(nothing_wins, limit=limit))).text
    assert "No configuration of hz 0.1.0 keeps the limits" in text


def test_a_study_is_repeated_by_its_own_command_or_by_none(make_results: MakeResults) -> None:
    folder = make_results(spin_wins, target=SERVER, metric="wall_s")
    text = " ".join(Reader(report.render(folder)).text.split())
    assert re.search(r"server runs 2\d\.\d % faster with 1 parameter", text)
    assert "The command of the study was not kept." in text and "hyperfine" not in text
    asked = ("--allocator", "any", "--", "./web", "a b", "$x")
    kept_command.write(folder / "profile.json", asked)
    text = " ".join(Reader(report.render(folder)).text.split())
    assert "hztune tune --allocator any -- ./web 'a b' '$x'" in text
    assert f"hztune run {folder}/profile.json -- ./web 'a b' '$x'" in text
    assert text.count("./web 'a b' '\\$x'\"") == 2


def test_a_study_of_latencies_is_told_and_repeated_as_one(make_results: MakeResults) -> None:
    folder = make_results(spin_wins, metric="p99_ns")
    text = " ".join(Reader(report.render(folder)).text.split())
    assert re.search(r"is 2\d\.\d % better in p99 latency with 1 parameter", text)
    assert "hyperfine" not in text


def test_several_workloads_are_told_one_by_one(make_results: MakeResults) -> None:
    folder = make_results(spin_wins, beside=lambda arm: spin_wins(arm))
    found = figures.read(folder)
    assert [name for name, _, _ in found.shares] == ["remote@medium remote=50", "larson"]
    told = [(share.ratio, share.ci_low, share.ci_high) for share in found.profile.shares]
    assert [interval and interval.ratio for _, _, interval in found.shares] == told
    text = " ".join(Reader(report.render(folder)).text.split())
    assert "remote@medium and larson with remote=50 and 2 threads do 2" in text
    assert "Each workload" in text and "none loses over 1%" in text
    assert text.count("hyperfine -N") == 2


def test_a_directory_without_a_study_is_refused(tmp_path: Path, hztune: Run) -> None:
    done = hztune("report", tmp_path)
    assert done.returncode == 2
    assert "it has no samples.jsonl" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_profile_of_another_study_is_refused(
    make_results: MakeResults, improved: Path, tmp_path: Path
) -> None:
    other = profile.load(improved / "profile.json")
    search = structs.replace(other.search, space_sha256="c" * 64)
    profile.save(structs.replace(other, search=search), tmp_path / "profile.json")
    (tmp_path / SAMPLES).write_bytes((improved / SAMPLES).read_bytes())
    with pytest.raises(UsageError, match="different studies"):
        report.render(tmp_path)


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_writes_the_page_and_says_where(improved: Path, hztune: Run) -> None:
    done = hztune("report", improved)
    assert done.stdout == f"{improved / 'report.html'}\n"
    assert (improved / "report.html").read_text().startswith("<!doctype html>")
