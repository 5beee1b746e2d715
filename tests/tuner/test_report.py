"""The report of a study: one page that says what was found, from whatever stands in the samples.

And the dashboard's view of it: an Optuna storage of its search, also while it is running.
"""

import html
import math
import re
import shlex
from dataclasses import dataclass, replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import optuna
import pytest
from lab.replay import ReplayExecutor, Truth, VirtualClock
from msgspec import structs

from hztune import api, cli, params, report
from hztune.blocks import Arm
from hztune.cli import profile as cli_profile
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.measure import SeveralExecutor
from hztune.profile import Claim, MemoryClaim, WorkloadId
from hztune.progress import duration
from hztune.report import charts
from hztune.result import figures
from hztune.result.summary import summary_lines
from hztune.store.log import LocalStudy, recording
from hztune.study.ledger import ArmRecord, Ledger, interval_of
from hztune.study.proof import Proof
from hztune.tuning import session

from .conftest import QUIET, Kept, tell

HOSTILE = "</title><script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"
MACHINE = Machine(HOSTILE, 2, None, "6.1.0", "glibc 2.36", 4096, "madvise", "", "", 8, None)
SPIN = Arm.of("hz", {"depot_lock": "spin"})
SPACE = 'schema = 1\nallocator = "hz"\n' + "".join(
    f"[parameters.{name}]\n"
    for name in ("depot_lock", "magazine_growth", "magazine_cap", "depot_slots", "thp")
)
SPACE += 'values = ["off", "on"]\n'


@dataclass
class Recorded(Kept):
    """An executor that replays, counts, and keeps its samples; it may be stopped on the way."""

    stop_at: float = math.inf

    def measure(self, arms, *, role, rounds, number):
        if self.inner.clock() > self.stop_at:
            raise KeyboardInterrupt
        block = self.inner.measure(arms, role=role, rounds=rounds, number=number)
        outcomes = []
        for index, outcome in enumerate(block.outcomes):
            count = 131_000 if outcome.arm.config.get("depot_lock") == "spin" else 943_000
            detail = f"{outcome.detail} {HOSTILE}" if outcome.detail else ""
            counted = {"ring_full": count, HOSTILE: index}
            outcomes.append(replace(outcome, counters=counted, detail=detail))
        altered = replace(block, outcomes=tuple(outcomes))
        tell(self.sink, altered)
        return altered


def spin_wins(arm):
    """The spin lock is worth a quarter; no other parameter matters, and one value crashes."""
    if arm.config.get("magazine_growth") == "full":
        return Truth(status="crash")
    return Truth(0.25 if arm.config.get("depot_lock") == "spin" else 0.0)


@pytest.fixture(scope="module")
def make_results(tmp_path_factory):
    """Runs a study on a virtual clock and leaves its results directory."""

    def make(landscape, workloads="remote@medium", **how):
        folder, clock = tmp_path_factory.mktemp("study"), VirtualClock()
        (folder / "few.toml").write_text(SPACE)

        def one(seed, sink):
            inner = ReplayExecutor(landscape, QUIET, seed=seed, clock=clock, turn_ms=200.0)
            return Recorded(inner, sink, **how)

        def executor(asked, machine, sink, *more):
            parts = [(str(i), partial(one, i)) for i in range(2)]
            return SeveralExecutor(parts, sink) if "," in workloads else one(2, sink)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session, "executor_of", executor)
            patch.setattr(session, "system_clock", clock)
            patch.setattr(Machine, "here", lambda *_: MACHINE)
            patch.setattr("hztune.doctor.remarks", lambda: [])
            asked = {"threads": 2, "params": ["remote=50"], "budget": "400s", "trials": 24}
            asked |= {"max_loss": "1%"} if "," in workloads else {}
            place = {"space": str(folder / "few.toml"), "out": folder / "out"}
            command = ("--allocator", "any", "--workload", "a b")
            api.tune(api.request(workloads, panel=False, command=command, **asked, **place))
        return folder / "out"

    return make


@pytest.fixture(scope="module")
def improved(make_results):
    """A study that found the spin lock."""
    return make_results(spin_wins)


@pytest.fixture(scope="module")
def found(improved):
    """What that study's directory says."""
    return figures.read(improved)


@pytest.fixture(scope="module")
def page(improved):
    """Its report."""
    return report.render(improved)


class Reader(HTMLParser):
    """Reads a page as a browser does, and complains of what is not closed."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.seen = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in ("br", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data if self.open and self.open[-1] != "style" else ""


def text_of(folder):
    """What a reader sees of a study's report, with single blanks."""
    return " ".join(Reader(report.render(folder)).text.split())


# ---- the page ------------------------------------------------------------------------------------


def test_the_verdict_stands_first_in_one_sentence_with_its_interval(improved):
    assert re.search(
        r"remote@medium with remote=50 and 2 threads does 2\d\.\d % more operations a second with "
        r"1 parameter of hz 0\.1\.0 set\. ?95 % interval \+\d+\.\d % to \+\d+\.\d % against the "
        r"default of hz, from \d+ pairs",
        text_of(improved),
    )


def test_the_page_is_whole_safe_and_needs_nothing_but_itself(page):
    reader = Reader(page)
    assert reader.open == []
    assert not {name for name, _ in reader.seen} & {"script", "link", "img", "iframe", "object"}
    attributes = {name for _, found in reader.seen for name in found}
    assert not attributes & {"src", "href", "srcset", "action"}
    assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in page and "@import" not in page and "//" not in page.replace("://", "")
    assert "default-src 'none'" in page
    assert reader.text.count("<script>alert(1)</script>") >= 3, "what samples hold is text"
    pictures = [attributes for name, attributes in reader.seen if name == "svg"]
    assert len(pictures) >= 4 and all(each["aria-label"] for each in pictures)
    classes = [found.get("class") for name, found in reader.seen if name == "div"]
    assert classes.count("wide") == classes.count("narrow") > 1


def test_counters_failures_the_command_and_the_way_back_are_told(page):
    assert "<td>full remote rings handed over</td>" in page and "943,000" in page
    assert "the landscape says crash" in page
    assert "unset HZ_DEPOT_LOCK LD_PRELOAD" in page
    assert "hztune tune --allocator any --workload &#39;a b&#39;" in page


# ---- what it rests on ----------------------------------------------------------------------------


def test_the_profile_and_every_configuration_are_found_again_among_the_samples(found):
    assert found.winner == SPIN and SPIN.key in found.ledger.fresh_by_arm
    candidates = found.candidates
    assert [each.number for each in candidates] == list(range(1, len(candidates) + 1))
    assert all(each.interval or each.record.failures for each in candidates)
    assert [status for status, _, _ in found.failures] == ["crash"]


def test_the_unchanged_program_is_one_configuration_with_the_defaults_that_it_runs_on():
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
        chances.append(figures.likely_effects(ledger, "hz", knobs)["depot_lock"])
    assert chances == [pytest.approx(1.0, abs=0.05)] * 2


def test_the_report_shows_the_intervals_that_the_proof_judged(found):
    claim, added = found.result.profile.claim, found.result.account.added
    shown, (step, pairs) = found.judged[found.winner], found.steps[0]
    interval = step.interval
    assert shown.ratio == pytest.approx((claim.ratio, claim.ci_low, claim.ci_high))
    assert step.changes == {"depot_lock": "spin"} and len(pairs) == interval.pairs
    assert added == (step,) and step.arm == found.winner
    gain = f"depot_lock = spin  adds +{100.0 * (interval.ratio.estimate - 1.0):.1f} % ["
    assert any(gain in each for each in summary_lines(found.result))
    plain = interval_of(found.ledger.fresh(found.winner).log_ratios)
    assert plain is not None and plain.ratio != pytest.approx(shown.ratio)


def test_a_finalist_that_was_refused_is_named_so(found):
    arm, account = Arm.of("hz", {"depot_slots": 8}), found.result.account
    refused = Proof(arm, "futile", None)
    account = replace(account, attempts=(*account.attempts, refused))
    told = replace(found, result=replace(found.result, account=account))
    label, fate, is_proved = charts.fate_of(told, arm, 7)
    assert (label, is_proved) == ("finalist 7", False)
    assert "its gain is below what this budget can prove" in fate
    assert charts.fate_of(told, found.winner, 1) == ("the profile", "proved", True)
    fresh = {**found.ledger.fresh_by_arm, arm.key: ArmRecord(arm)}
    told = replace(told, ledger=replace(found.ledger, fresh_by_arm=fresh))
    _, *strips = charts.proof_strips(told, "the default of hz")[0]
    proved = [(strip.kind == "gain", "not proved" in strip.note) for strip in strips]
    assert proved == [(True, False), (False, True)]


# ---- in words ------------------------------------------------------------------------------------


CHANGES = {1.16: "+16.0\u00a0%", 0.5: "-50.0\u00a0%", 2.9: "+190.0\u00a0%", 13.66: "13.7x"}


@pytest.mark.parametrize(("ratio", "told"), CHANGES.items())
def test_a_change_is_told_in_percent_and_far_above_as_a_factor(ratio, told):
    assert charts.change(math.log(ratio)) == told


SMALL = Claim("ops_per_s", 0.95, 0.92, 0.98, 12, "less_memory", MemoryClaim(0.7, 0.68, 0.72))
VERDICTS = {
    "in time": (Claim("wall_s", 1.14, 1.1, 1.2, 8, "improved"), "runs 14.0 % faster with 2 para"),
    "in latency": (Claim("p99_ns", 1.14, 1.1, 1.2, 8, "improved"), "is 14.0 % better in p99 lat"),
    "many times": (Claim("p99_ns", 4.0, 3.1, 5.0, 8, "improved"), "is 4.0 times as good in p99 l"),
    "at rest": (Claim("kept_kb", 1.25, 1.1, 1.3, 8, "improved"), "keeps 20 % less kept memory at"),
    "less memory": (SMALL, "takes 30 % less peak memory with 2"),
    "limits": (Claim("ops_per_s", None, None, None, 0, "infeasible"), "No configuration of hz 0."),
    "too short": (Claim("ops_per_s", None, None, None, 0, "not_enough_data"), "budget was too sm"),
    "none": (Claim("ops_per_s", 1.01, 0.98, 1.04, 9, "no_gain"), "Nothing was proved better than"),
}


def said(what, *of):
    sentences = report.templates().get_template("words.html").module
    return html.unescape(getattr(sentences, what)(*of)).replace("\u00a0", " ")


@pytest.mark.parametrize(("claim", "sentence"), VERDICTS.values(), ids=VERDICTS)
def test_a_verdict_claims_what_was_proved_and_no_more(claim, sentence, make_profile):
    made = make_profile(claim=claim)
    assert sentence in said("verdict", made)
    assert ("fresh processes" in said("interval", made)) == made.makes_a_claim


def test_a_gain_is_told_with_the_memory_that_it_costs(make_profile):
    seen = (MemoryClaim(1.57, 1.5, 1.64), MemoryClaim(0.9, 0.8, 1.0, "kept"))
    assert said("verdict", make_profile(memory=seen)).endswith(", for 57 % more peak memory")


def hyperfine(found):
    """The commands of the page."""
    targets = charts.hyperfine_targets(found)
    return "\n".join(said("hyperfine", found.result.profile, each) for each in targets)


def test_the_hyperfine_command_gives_both_sides_the_same_work(found):
    told = shlex.split(hyperfine(found))
    default, tuned = told[told.index("default") + 1], told[told.index("tuned") + 1]
    assert tuned.replace("HZ_DEPOT_LOCK=spin ", "") == default
    assert re.search(r"remote@medium --remote 50 --threads 2 --ops [125]0+$", default)


def test_a_study_is_repeated_by_its_own_command_or_by_none(found):
    server = WorkloadId("program", "server", "", {}, "d" * 64)
    made = structs.replace(found.result.profile, workload=server, threads=0)
    bare = replace(found, result=replace(found.result, profile=made), command=())
    assert (charts.program_words(bare), hyperfine(bare)) == ("", "")
    asked = replace(bare, command=("--allocator", "any", "--", "./web", "a b", "$x"))
    assert charts.program_words(asked) == "./web 'a b' '$x'"
    assert hyperfine(asked).count("./web 'a b' '\\$x'\"") == 2
    latency = structs.replace(made, claim=structs.replace(made.claim, metric="p99_ns"))
    assert hyperfine(replace(asked, result=replace(found.result, profile=latency))) == ""


# ---- other ends ----------------------------------------------------------------------------------


def test_a_study_without_a_gain_says_so_and_leaves_the_defaults(make_results):
    folder = make_results(lambda arm: Truth(0.0 if arm.is_default else -0.1))
    found, text = figures.read(folder), text_of(folder)
    assert "Nothing was proved better than the default of hz on remote@medium" in text
    assert "There is nothing to apply" in text
    assert "hyperfine" not in text, "it would compare two equal commands"
    assert not re.search(r"against itself ([+-]|scattered)", text), "one noise is told"
    whole_s = max(found.lasted_s, found.result.account.wall_s)
    assert re.search(rf"time ?{duration(whole_s)}", text)


def test_several_workloads_are_told_one_by_one(make_results):
    folder = make_results(spin_wins, "remote@medium,larson")
    found, text = figures.read(folder), text_of(folder)
    assert [name for name, _, _ in found.shares] == ["remote@medium remote=50", "larson"]
    told = [(share.ratio, share.ci_low, share.ci_high) for share in found.result.profile.shares]
    assert [interval and interval.ratio for _, _, interval in found.shares] == told
    assert "remote@medium and larson with remote=50 and 2 threads do 2" in text
    assert "Each workload" in text and "none loses over 1%" in text
    assert text.count("hyperfine -N") == 2


def test_a_study_that_ended_before_it_knew_its_noise_tells_none(found, monkeypatch):
    claim = Claim("ops_per_s", None, None, None, 0, "not_enough_data")
    made = structs.replace(found.result.profile, claim=claim, params={})
    account = replace(found.result.account, noise_floor=None, attempts=())
    result = replace(found.result, profile=made, account=account)
    monkeypatch.setattr(figures, "read", lambda folder: replace(found, result=result))
    text = text_of(Path())
    assert "The budget was too small for a study" in text and "against itself" in text
    assert "noise floor" not in text.replace("grey band is the noise floor", "")


def test_a_study_that_has_not_ended_has_no_page(make_results):
    with pytest.raises(UsageError, match=r"holds no study that has ended .*--resume"):
        report.render(make_results(spin_wins, stop_at=40.0))


# ---- the dashboard -------------------------------------------------------------------------------


def test_a_storage_holds_every_configuration_once_also_of_a_study_that_is_running(tmp_path):
    """Each parameter stands there with its allocator."""
    arms = [Arm("none"), SPIN, Arm("hz"), Arm("glibc")]
    with LocalStudy(tmp_path, {"workload": "x"}, MACHINE) as store:
        report.write_storage(tmp_path)  # nothing is measured yet
        executor = Recorded(ReplayExecutor(spin_wins, QUIET, seed=1), store)
        executor.measure(arms, role="search", rounds=2, number=0)
        before = recording(tmp_path).lines
        path = report.write_storage(tmp_path)
        assert path == report.write_storage(tmp_path) == tmp_path / "study.journal"
        assert recording(tmp_path).lines == before
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    (name,) = optuna.get_all_study_names(storage)
    trials = optuna.load_study(study_name=name, storage=storage).trials
    assert [one.params for one in trials] == [
        {"allocator": "hz", "hz.depot_lock": "spin"},
        {"allocator": "hz", "hz.depot_lock": "default"},
        {"allocator": "glibc", "hz.depot_lock": "-"},
    ]


def test_the_dashboard_is_given_the_storage_or_is_named(improved, monkeypatch, capsys):
    started = []
    places = iter(["dashboard", None])
    monkeypatch.setattr(cli_profile.shutil, "which", lambda name, path: next(places))
    monkeypatch.setattr(cli_profile.os, "execv", lambda program, argv: started.extend(argv))
    assert cli.status_of(["report", str(improved), "--dashboard"]) == 0
    assert started == ["dashboard", str(improved / "study.journal")]
    assert cli.status_of(["report", str(improved), "--dashboard"]) == 2
    assert "pip install 'hztune[dashboard]'" in capsys.readouterr().err
