"""`--prove-on`: searched on a trace, proved on its program; and what is said of a trace itself."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from lab.replay import ReplayExecutor
from tests.bench import traces

from hztune import profile, report
from hztune.blocks import Arm
from hztune.errors import StoppedByUser
from hztune.export import provenance
from hztune.measure.program import described
from hztune.progress import Reporter
from hztune.result import ending, read
from hztune.store.log import recording
from hztune.study.ledger import Ledger
from hztune.tuning import session
from hztune.tuning.request import TuneRequest, understand
from hztune.workload import WorkloadSpec

from .conftest import ONE_KNOB, QUIET, Kept, Stopped, spin_wins

PROGRAM = described((sys.executable, "-c", "pass"))


@pytest.fixture
def trace(tmp_path):
    path = traces.write(tmp_path / "app.hzt", [traces.churn(400)])
    return WorkloadSpec.from_text(f"trace:{path}")


@pytest.fixture
def carry_out(core_build, tmp_path, monkeypatch, trace, simulate):
    """Carries out a study of a trace, whose program has a landscape of its own."""
    monkeypatch.setenv("HZTUNE_CORE", str(core_build))
    (tmp_path / "one.toml").write_text(ONE_KNOB)

    def carried_out(on_program, *, stop_after=1000, **more):
        clock = simulate(spin_wins(0.4, "depot_lock"), QUIET, rss_scatter=0.01)
        own = spin_wins(on_program, "depot_lock")
        drawn = ReplayExecutor(own, QUIET, seed=2, clock=clock, rss_scatter=0.01)
        program = Stopped(drawn, stop_after, StoppedByUser("stopped by the user"))
        monkeypatch.setattr(session, "executor_for", lambda program_, to, **_: Kept(program, to))
        request = TuneRequest(
            trace, space=str(tmp_path / "one.toml"), budget_s=180.0, out=tmp_path / "out",
            panel=False, prove_on=PROGRAM,
        )  # fmt: skip
        return session.tune(understand(replace(request, **more)), Reporter())

    return carried_out


def test_a_confirmed_gain_is_claimed_of_the_program(carry_out, tmp_path):
    result = carry_out(0.1)
    made = result.profile
    assert made.claim.verdict == "improved" and made.claim.metric == "wall_s"
    assert made.claim.ratio is not None and 1.05 < made.claim.ratio < 1.16
    assert (made.workload.kind, made.threads) == ("program", 0)
    assert made.workload.words_sha256 == profile.hash_of_words(PROGRAM.argv)
    assert made.found_on is not None and made.found_on.name == "trace:app.hzt"
    assert made.cautions == (), "what is proved on the program needs no check of the trace"
    assert "fresh pairs of" in result.account.why and "; on its trace, +" in result.account.why
    assert profile.load(tmp_path / "out" / "profile.json") == made
    assert any("found on trace:app.hzt" in line for line in provenance(made, undo=""))
    assert "The search, whose figures follow, was on trace:app.hzt" in report.render(
        tmp_path / "out"
    )
    assert read(json.loads(json.dumps(ending(result))), result.folder) == result

    blocks = recording(tmp_path / "out").blocks
    ledger = Ledger.of(blocks)
    assert {block.role for block in ledger.on_program} == {"aa", "confirm"}
    assert [block.number for block in blocks] == list(range(len(blocks)))
    on_trace = ledger.fresh(Arm.of("hz", {"depot_lock": "spin"})).log_ratios
    assert sum(on_trace) / len(on_trace) > 0.3, "no block of the program is among them"


def test_a_gain_of_the_trace_alone_is_none(carry_out):
    result = carry_out(0.0)
    assert result.profile.claim.verdict == "no_gain" and result.profile.params == {}
    assert "itself does not confirm it" in result.account.why
    assert result.profile.workload.kind == "program"


def test_a_study_stopped_on_the_program_goes_on(carry_out, tmp_path):
    assert carry_out(0.1, stop_after=5).profile.claim.verdict == "interrupted"
    before = Ledger.of(recording(tmp_path / "out").blocks).on_program
    assert len(before) == 5
    result = carry_out(0.1, resume=True)
    assert result.profile.claim.verdict == "improved" and result.profile.found_on is not None
    assert Ledger.of(recording(tmp_path / "out").blocks).on_program[:5] == before


# ---- the request ---------------------------------------------------------------------------------


def test_another_program_makes_another_study(trace):
    plain, proved = TuneRequest(trace), TuneRequest(trace, prove_on=PROGRAM)
    assert "proved on" not in understand(plain).identity
    other = replace(proved, prove_on=replace(PROGRAM, argv=(sys.executable, "-c", "1")))
    told = [understand(each).identity["proved on"] for each in (proved, other)]
    assert told[0] != told[1]


# ---- a trace alone -------------------------------------------------------------------------------


def test_what_a_trace_proved_says_so(carry_out):
    result = carry_out(0.1, prove_on=None)
    line = "trace:app.hzt: proved on a trace only, not on its program"
    assert [each.text for each in result.profile.cautions] == [line]
