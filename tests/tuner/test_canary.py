"""The canary: groups, rows, effects and verdicts, without a clock; a watch with its failures."""

from __future__ import annotations

import json
import math
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlparse

import numpy as np
import pytest
import tomllib

import hztune.prometheus
from hztune import api, schema
from hztune.canary import sources, vigil
from hztune.canary.effects import critical, effect_of, levels
from hztune.canary.groups import FleetUnit
from hztune.canary.sources import FleetRow, parsed_rows
from hztune.canary.spec import Canary, CanaryMetric, CanarySpec, GuardRail
from hztune.canary.timetable import growth
from hztune.canary.verdict import log_odds, verdict_of
from hztune.cli import canary as canary_commands
from hztune.cli import status_of
from hztune.errors import HztuneError, UsageError
from hztune.govern.policy import FigureSource

START = "2026-01-01T00:00:00Z"
START_S = 1767225600.0
CPU = CanaryMetric(name="cpu", margin="2%", target=True)


def fleet(count=10, before=60, after=120, seed=1, treated=1.0, sd=0.01, change=None):
    """Rows of cpu of two groups on unlike hosts; `change` may alter the table before it is cut."""
    random = np.random.default_rng(seed)
    table = random.normal(0.0, 0.3, 2 * count) + random.normal(0.0, sd, (before + after, 2 * count))
    table += np.sin(np.arange(before + after) / 20.0)[:, None]  # the time of day
    table = np.exp(table)
    table[before:, count:] *= treated
    if change:
        change(table)
    return [
        FleetRow(START_S + 60.0 * (block - before + 1), f"u{unit}", "cpu", float(value))
        for (block, unit), value in np.ndenumerate(table)
        if not math.isnan(value)
    ]


def canary(count=10, metrics=(CPU,), rails=(), folder=None, **more):
    units = tuple(FleetUnit(f"u{unit}", unit >= count, "") for unit in range(2 * count))
    more = {"settle_s": 0.0, "planned_s": 7200.0, "file": "rows.csv", **more}
    spec = CanarySpec("a test", START, "groups.csv", tuple(metrics), tuple(rails), **more)
    return Canary(spec, folder, units, START_S)


def counts(name, unit, values, first=0):
    return [
        FleetRow(START_S + 60.0 * (first + at), unit, name, float(value))
        for at, value in enumerate(values)
    ]


# ---- groups --------------------------------------------------------------------------------------


def test_each_stratum_gives_its_share_and_what_is_no_whole_unit_goes_to_the_next(tmp_path):
    path = tmp_path / "units.csv"
    path.write_text("unit,type\n" + "".join(f"u{n},{'abc'[n % 3]}\n" for n in range(21)))
    drawn = api.assigned(path, 0.5, seed=3)
    treated = [unit.stratum for unit in drawn if unit.is_treated]
    assert sorted(treated.count(each) for each in "abc") == [3, 4, 4]
    assert drawn == api.assigned(path, 0.5, seed=3) != api.assigned(path, 0.5, seed=4)


def test_groups_are_printed_for_pods_inventories_and_shells_and_read_back(tmp_path, capsys):
    path = tmp_path / "units.csv"
    path.write_text('unit\nweb-1,"a,b"\nweb-2,"a,b"\n', encoding="utf-8-sig")  # as Excel does
    for form, told in (
        ("kubectl", "kubectl label pod --overwrite hztune-canary=treated web-"),
        ("ansible", "[treated]\nweb-"), ("shell", "TREATED='web-"), ("csv", ",treated,"),
    ):  # fmt: skip
        assert status_of(["canary", "assign", str(path), "--format", form]) == 0
        out = capsys.readouterr().out
        assert told in out
    (tmp_path / "groups.csv").write_text(out)
    (tmp_path / "spec.toml").write_text(
        f'doc = "d"\nstart = "{START}"\ngroups = "groups.csv"\nfile = "rows.csv"\n'
        '[[metrics]]\nname = "cpu"\nmargin = "2%"\ntarget = true\n', encoding="utf-8-sig",
    )  # fmt: skip
    units = api.canary(tmp_path / "spec.toml").units
    assert {unit.is_treated for unit in units} == {True, False}
    assert {unit.stratum for unit in units} == {"a,b"}


@pytest.mark.parametrize(
    "text, told", [("a b\n", "can be called"), ("a\na\n", "twice"), ("a\n", "has none")]
)
def test_units_that_no_shell_could_name_or_no_draw_could_part_are_refused(tmp_path, text, told):
    (tmp_path / "units.csv").write_text(text)
    with pytest.raises(UsageError, match=told):
        api.assigned(tmp_path / "units.csv", 0.5, seed=1)


# ---- rows ----------------------------------------------------------------------------------------


def test_rows_are_read_from_csv_and_from_lines_of_json():
    text = f"\ufefftime,unit,metric,value\n{START_S},u1,cpu,2\n\n{START_S},u1,c"
    line = json.dumps({"time": START_S, "unit": "u1", "metric": "cpu", "value": 2})
    read = [*parsed_rows(text.encode(), "x"), *parsed_rows(f"{line}\n".encode(), "x")]
    assert read == [FleetRow(START_S, "u1", "cpu", 2.0)] * 2


@pytest.mark.parametrize("kind", [CanarySpec, FigureSource])
def test_a_prometheus_is_asked_over_http_alone(kind):
    for asked in ("file:///etc", "localhost:9090"):
        with pytest.raises(UsageError, match=f"prometheus is '{asked}'.*https"):
            schema.judged({"prometheus": asked}, kind)


def test_the_file_that_help_shows_is_a_canary():
    shown = canary_commands.judge_command.help.replace("\b", "")
    text = shown[shown.index("doc =") : shown.index("exit status")]
    spec = schema.judged(tomllib.loads(text), CanarySpec)
    assert [each.name for each in (*spec.metrics, *spec.rails)] == ["cpu", "restarts"]


@pytest.mark.parametrize(
    "line", ["1,u,cpu", "x,u,cpu,1", "17e11,u,cpu,1", "1,u,cpu,y", '{"time": 1}', "{]"]
)
def test_a_row_that_is_none_is_shown_with_its_line(line):
    with pytest.raises(UsageError, match="line 1 is"):
        [*parsed_rows(f"{line}\n".encode(), "x")]


def test_a_counter_that_has_fallen_began_again_at_nothing_and_a_sum_lost_a_part():
    grown, gaps, fell = growth(np.array([[5.0, 7.0, math.nan, 3.0, 2.0]]).T)
    assert grown[[1, 3], 0].tolist() == [2.0, 3.0] and gaps[3, 0] == 2.0
    assert fell[:, 0].tolist() == [False, False, False, True, True] and math.isnan(grown[4, 0])


# ---- effects -------------------------------------------------------------------------------------


def test_an_effect_is_found_beneath_unlike_hosts_and_the_time_of_day():
    found = verdict_of(fleet(treated=0.98), canary())
    assert found.answer == "promote"
    assert found.effects[0].interval.estimate == pytest.approx(math.log(0.98), abs=0.003)


def test_a_loss_beyond_the_margin_is_reverted_and_alike_groups_are_held_for_good():
    assert verdict_of(fleet(treated=1.05), canary()).answer == "revert"
    found = verdict_of(fleet(), canary())
    assert (found.answer, found.is_settled) == ("hold", True)


def test_where_more_is_better_the_signs_turn():
    more = [CanaryMetric(name="cpu", margin="2%", target=True, more_is_better=True)]
    assert verdict_of(fleet(treated=1.05), canary(metrics=more)).answer == "promote"
    assert verdict_of(fleet(treated=0.95), canary(metrics=more)).answer == "revert"
    half = CanaryMetric(name="rate", margin="50%", more_is_better=True)
    assert half.worst == pytest.approx(math.log(2.0))  # half as many requests are twice the cost


def test_a_unit_that_vanishes_or_comes_later_moves_nobody_else():
    def change(table):
        table[100:, 3] = math.nan
        table[:130, 14] = math.nan
        table[70:75, :5] = math.nan
        table[:, 0] *= 50.0  # a host so unlike that its absence would show

    found = verdict_of(fleet(treated=0.98, change=change), canary())
    assert found.effects[0].interval.estimate == pytest.approx(math.log(0.98), abs=0.004)


def test_the_variance_is_that_between_units_however_long_one_looks():
    """Noise that stays with its unit is no less after a hundred times as many blocks."""
    treated, strata = np.arange(20) >= 10, np.zeros(20, dtype=int)
    noise = np.random.default_rng(1).normal(0.0, 1.0, 20)
    errors = [
        effect_of(levels(np.tile(noise, (blocks, 1))), np.full(20, math.nan), treated, strata,
                  np.ones(20)).error for blocks in (5, 500)
    ]  # fmt: skip
    assert errors[0] == pytest.approx(errors[1])
    assert errors[0] == pytest.approx(math.sqrt(sum(noise[g].var(ddof=1) / 10
                                                    for g in (treated, ~treated))))  # fmt: skip


def test_a_mean_over_time_passes_its_bound_at_any_look_in_no_more_cases_than_its_error():
    steps = np.random.default_rng(5).normal(size=(4000, 1000)).cumsum(axis=1)
    looks = np.unique(np.geomspace(5, 1000, 80).astype(int))
    bounds = np.array([critical(look / 1000, 0.01, 5000.0) for look in looks])
    assert (steps[:, looks - 1] / np.sqrt(looks) > bounds).any(axis=1).mean() <= 0.01


def test_two_units_a_group_claim_nothing_and_hear_how_many_would():
    assert "a group would tell" in verdict_of(fleet(2, treated=0.98), canary(2)).reasons[0]


@pytest.mark.parametrize("rows", [[], fleet(before=60, after=0)])
def test_a_canary_whose_start_lies_ahead_says_when_it_begins(rows):
    found = verdict_of(rows, canary(step_s=300.0))
    assert found.passed_s == 0.0 and f"it begins at {START}" in found.reasons[0]


def test_zeros_and_figures_that_are_none_are_said_and_hold():
    zeros = [row._replace(value=0.0) for row in fleet()]
    assert "are 0 or less" in verdict_of(zeros, canary()).reasons[0]
    nans = [row._replace(value=math.nan) for row in fleet(count=2)]
    assert verdict_of(fleet(treated=0.98) + nans, canary()).answer == "promote"
    amount = [CanaryMetric(name="cpu", margin=0.1, target=True)]
    assert verdict_of(zeros, canary(metrics=amount)).effects[0].interval.estimate == 0.0


def test_infinite_figures_of_one_group_are_said_and_hold():
    treated = {f"u{unit}" for unit in range(10, 20)}
    rows = [row._replace(value=math.inf) if row.unit in treated and at % 3 else row
            for at, row in enumerate(fleet(treated=0.98))]  # fmt: skip
    assert "figures are infinite" in verdict_of(rows, canary()).reasons[0]


def test_an_effect_that_rests_on_one_unit_of_a_group_claims_nothing():
    asked = canary(2)
    strata = dict(u0="x", u1="z", u2="x", u3="y")  # only u0 and u2 share one
    asked = asked._replace(units=tuple(e._replace(stratum=strata[e.name]) for e in asked.units))
    assert "in strata with both groups" in verdict_of(fleet(2, treated=0.9), asked).reasons[0]


def test_a_clock_that_is_ahead_changes_nothing():
    rows = [row._replace(at_s=row.at_s + 1e8 * (row.unit == "u1")) for row in fleet(treated=0.98)]
    found = verdict_of(rows, canary())
    assert (found.answer, found.passed_s) == ("promote", 7200.0)


def test_counters_are_compared_by_their_growth_for_each_request():
    metric = CanaryMetric(name="cpu", margin="2%", target=True, counter=True, per="requests")
    rows, random = [], np.random.default_rng(2)
    for unit in range(20):
        requests = random.uniform(90.0, 110.0, 180)
        cpu = requests * np.exp(random.normal(0.0, 0.01, 180)) * (0.97 if unit >= 10 else 1.0)
        rows += counts("cpu", f"u{unit}", np.cumsum(cpu))
        rows += counts("requests", f"u{unit}", np.cumsum(requests))
    found = verdict_of(rows, canary(metrics=[metric]))
    assert found.effects[0].interval.estimate == pytest.approx(math.log(0.97), abs=0.003)


@pytest.mark.parametrize("lost", ["scrapes", "process"])
def test_a_counter_that_lost_time_alone_is_not_divided_by_one_that_did_not(lost):
    """CPU scrapes of treated units that fail, and processes that begin again behind a balancer."""
    metric = CanaryMetric(name="cpu", margin="2%", target=True, counter=True, per="requests")
    rows, random = [], np.random.default_rng(3)
    for unit in range(20):
        cpu = 100.0 + np.cumsum(np.exp(random.normal(0.0, 0.01, 180)))
        is_lost = random.random(180) < 0.1 * (unit >= 10)
        if lost == "process":
            began = np.maximum.accumulate(np.where(is_lost, cpu - 0.2, 0.0))
            rows += counts("cpu", f"u{unit}", cpu - began, -60)
        else:
            rows += [row for row, is_gone in zip(counts("cpu", f"u{unit}", cpu, -60), is_lost,
                                                 strict=True) if not is_gone]  # fmt: skip
        rows += counts("requests", f"u{unit}", np.arange(1.0, 181.0), -60)
    found = verdict_of(rows, canary(metrics=[metric]))
    assert found.effects[0].interval.estimate == pytest.approx(0.0, abs=0.006)


def test_a_counter_that_seldom_grows_has_no_ratio():
    rows, often = [], np.random.default_rng(4).poisson(0.3, (120, 20))
    for unit in range(20):
        rows += counts("errors", f"u{unit}", np.cumsum(often[:, unit]))
    metric = CanaryMetric(name="errors", margin="30%", target=True, counter=True)
    assert "are 0 or less" in verdict_of(rows, canary(metrics=[metric])).reasons[-1]


def test_nothing_is_promoted_before_a_quarter_of_the_time_but_it_may_be_reverted():
    early = [row for row in fleet(treated=0.97) if row.at_s <= START_S + 1200.0]
    found = verdict_of(early, canary())
    assert (found.answer, found.is_settled) == ("hold", False) and "30:00" in found.reasons[0]
    worse = [row for row in fleet(treated=1.05) if row.at_s <= START_S + 1200.0]
    assert verdict_of(worse, canary()).answer == "revert"


def test_nothing_is_promoted_of_which_treated_units_never_came_up():
    rows = [row for row in fleet(treated=0.97) if row.unit not in ("u10", "u11", "u12")]
    found = verdict_of(rows, canary())
    assert found.answer == "hold" and "never seen" in found.reasons[0]


# ---- guard rails ---------------------------------------------------------------------------------


ALIKE = np.zeros(20, dtype=int)  # strata


def test_bets_on_first_events_win_in_no_more_cases_than_their_error():
    random, won = np.random.default_rng(1), 0
    for _ in range(1000):
        treated = random.permutation(np.arange(20) >= 10)
        found = np.eye(20)[:, random.permutation(20)]  # each unit has one, at another time
        won += any(log_odds(found[:look], treated, ALIKE) >= math.log(50) for look in range(5, 21))
    assert won <= 0.02 * 1000


def test_a_bet_is_on_the_units_that_are_left():
    treated = np.array([True, True, False, False])
    won = [r * 4 / (2 * r + 2) * r * 3 / (r + 2) for r in (2, 4, 16, 256)]
    assert log_odds(np.eye(4)[:2], treated, ALIKE[:4]) == pytest.approx(math.log(sum(won) / 4))


def test_events_of_one_moment_prove_nothing_in_whatever_order_units_are_listed():
    for treated in (np.arange(20) < 10, np.arange(20) >= 10):
        assert log_odds(np.ones((1, 20)), treated, ALIKE) < 0.0


def test_a_bet_is_within_a_stratum():
    treated, strata = np.arange(20) < 10, np.where(np.arange(20) < 9, 1, 0)
    found = np.eye(20)[:9]  # all of one stratum, which has no control
    assert log_odds(found, treated, strata) == pytest.approx(0.0)
    assert log_odds(found, treated, ALIKE) > math.log(50)


def test_a_counter_that_begins_with_its_first_event_has_counted_it():
    rows = [row for unit in range(10, 20) for row in counts("oom", f"u{unit}", [1], 9)] + fleet()
    assert verdict_of(rows, canary(rails=[GuardRail(name="oom")])).answer == "revert"


def test_a_rail_is_crossed_by_units_not_by_one_that_restarts_all_night():
    rail = GuardRail(name="oom")
    one = counts("oom", "u12", range(100))
    assert verdict_of(fleet() + one, canary(rails=[rail])).answer == "hold"
    many = [row for unit in range(10, 20) for row in counts("oom", f"u{unit}", [0, unit - 8])]
    found = verdict_of(fleet() + many, canary(rails=[rail]))
    assert (found.answer, found.rails[0].hit) == ("revert", (0, 10))
    assert (
        verdict_of(fleet() + one, canary(rails=[GuardRail(name="oom", most=50)])).answer == "revert"
    )


def test_a_rail_is_crossed_by_more_events_where_each_unit_has_had_one():
    rows, often = fleet(), np.random.default_rng(4).poisson([0.2] * 10 + [0.5] * 10, (120, 20))
    for unit in range(20):
        rows += counts("oom", f"u{unit}", np.cumsum(often[:, unit]))
    found = verdict_of(rows, canary(rails=[GuardRail(name="oom")]))
    assert (found.answer, found.rails[0].hit) == ("revert", (10, 10))


def test_units_that_fall_silent_are_a_rail_and_a_source_that_does_is_none():
    def treated_die(table):
        table[120:, 10:] = math.nan

    def all_pause(table):
        table[100:140] = math.nan

    assert "silent" in verdict_of(fleet(change=treated_die), canary()).reasons[0]
    assert verdict_of(fleet(change=all_pause), canary()).rails[-1].hit == (0, 0)


def test_a_kill_in_the_first_block_counts_and_few_alike_counts_do_not_cross():
    rail = GuardRail(name="oom")
    kills = [row for unit in range(10, 20) for row in counts("oom", f"u{unit}", [0, 1])]
    assert verdict_of(fleet() + kills, canary(rails=[rail])).rails[0].hit == (0, 10)
    two = [row for unit in (2, 3) for row in counts("oom", f"u{unit}", [0, 1])]
    found = verdict_of(fleet(2) + two, canary(2, rails=[rail]))
    assert (found.rails[0].events, found.rails[0].is_crossed) == ((0, 2), False)


def test_a_rail_that_is_never_seen_is_said():
    asked = canary(rails=[GuardRail(name="oom")])
    page = api.canary_page(verdict_of(fleet(), asked), asked)
    assert "| oom | 0 (0) | 0 (0) | no row yet |" in page


def test_the_death_of_most_of_the_fleet_is_no_silence_of_its_source():
    def treated_die(table):
        table[80:, 4:] = math.nan

    asked = canary()
    asked = asked._replace(units=tuple(unit._replace(is_treated=at >= 4)
                                       for at, unit in enumerate(asked.units)))  # fmt: skip
    assert verdict_of(fleet(change=treated_die), asked).answer == "revert"


# ---- the watch -----------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """Time passes when the watch sleeps."""
    now = [START_S]
    monkeypatch.setattr(vigil.time, "time", lambda: now[0])
    monkeypatch.setattr(vigil.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(vigil.time, "sleep", lambda seconds: now.append(now.pop() + seconds))
    return now


class _Prometheus(BaseHTTPRequestHandler):
    rows, now, broken, times = [], [START_S], (0.0, 0.0), 1
    found, most_s, login = None, math.inf, None

    def do_GET(self):
        type(self).login = self.headers["Authorization"]
        asked = {name: values[0] for name, values in parse_qs(urlparse(self.path).query).items()}
        series = {}
        for row in self.rows:
            if float(asked["start"]) <= row.at_s <= float(asked["end"]):
                series.setdefault(row.unit, []).append([row.at_s, str(row.value)])
        found = [{"metric": {"instance": unit}, "values": each} for unit, each in series.items()]
        found = self.found or found * self.times
        is_broken = self.broken[0] <= self.now[0] < self.broken[1]
        is_broken |= float(asked["end"]) - float(asked["start"]) > self.most_s
        body = {"error": "too busy"} if is_broken else {"data": {"result": found}}
        self.send_response(503 if is_broken else 200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def prometheus():
    with HTTPServer(("127.0.0.1", 0), _Prometheus) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_watch_outlasts_failures_tells_them_once_runs_its_hook_and_keeps_its_answer(
    tmp_path, clock, prometheus, monkeypatch
):
    _Prometheus.rows, _Prometheus.now = fleet(treated=1.05, sd=0.002), clock
    monkeypatch.setattr(_Prometheus, "broken", (START_S + 120.0, START_S + 400.0))
    asked = canary(folder=tmp_path, file="", prometheus=prometheus, hook="cat >> page.md")
    told, log = [], tmp_path / "rows.jsonl"
    found = api.judge_canary(asked, told.append, log=log, for_s=math.inf)
    assert found.answer == "revert"
    assert [line for line in told if "503: too busy" in line] == [told[-2]], told
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("# Canary: revert") and "cpu is worse by more than 2%" in page
    again = api.judge_canary(asked, told.append, log=log, for_s=math.inf)
    assert (again.answer, (tmp_path / "page.md").read_text()) == ("revert", page)


def test_a_watch_that_was_killed_goes_on_from_its_log_and_a_full_disk_stops_none(
    tmp_path, clock, prometheus
):
    _Prometheus.rows, _Prometheus.now = fleet(sd=0.05), clock
    asked, log = canary(folder=tmp_path, file="", prometheus=prometheus), tmp_path / "rows.jsonl"
    assert api.judge_canary(asked, print, log=log, for_s=600.0).answer == "hold"
    _Prometheus.rows = [row for row in _Prometheus.rows if row.at_s > START_S + 300.0]
    seen = api.judge_canary(asked, print, log=log, for_s=600.0)
    before = [row for row in fleet(sd=0.05) if row.at_s <= clock[0]]
    assert seen.effects == verdict_of(before, asked).effects
    told = []
    api.judge_canary(asked, told.append, log=tmp_path / "none" / "log", for_s=300.0)
    assert sum("cannot write" in line for line in told) == 1


def test_a_log_that_a_full_disk_has_cut_is_whole_again_at_the_next_step(
    tmp_path, clock, prometheus, monkeypatch
):
    _Prometheus.rows, _Prometheus.now = fleet(sd=0.05), clock
    asked, log, told = canary(folder=tmp_path, file="", prometheus=prometheus), tmp_path / "l", []

    whole = vigil.files.append_to

    def cut(path, text, option):
        monkeypatch.setattr(vigil.files, "append_to", whole)
        path.write_text(path.read_text() + text[:20])
        raise UsageError("full")

    monkeypatch.setattr(vigil.files, "append_to", cut)
    api.judge_canary(asked, told.append, log=log, for_s=600.0)
    assert "full; watching goes on" in told
    assert {row.at_s for row in parsed_rows(log.read_bytes(), "x")} >= {clock[0] - 60.0}


def test_the_command_answers_with_its_status_a_page_and_a_picture(tmp_path, capsys):
    lines = [f"{row.at_s},{row.unit},cpu,{row.value}\n" for row in fleet(treated=0.97)]
    (tmp_path / "rows.csv").write_text("".join(lines))
    (tmp_path / "groups.csv").write_text(
        "".join(f"u{unit},{'treated' if unit >= 10 else 'control'}\n" for unit in range(20))
    )
    spec = tmp_path / "spec.toml"
    spec.write_text(
        f'doc = "d"\nstart = "{START}"\ngroups = "groups.csv"\ncommand = "cat rows.csv"\n'
        'planned_s = 7200\n[[metrics]]\nname = "cpu"\nmargin = "2%"\ntarget = true\n'
    )
    assert status_of(["canary", "judge", str(spec), "--picture", str(tmp_path / "p.svg")]) == 0
    assert "# Canary: promote" in capsys.readouterr().out
    assert "<circle" in (tmp_path / "p.svg").read_text()
    spec.write_text(spec.read_text().replace("cat rows.csv", "exit 3"))
    assert status_of(["canary", "judge", str(spec)]) == 1
    assert "exit status 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    "found", [[1, "2"], [{"metric": {"instance": 5}, "values": []}],
              [{"metric": {}, "values": [["1", "a"]]}], [{"metric": {}, "values": [[1, "a"]]}]]
)  # fmt: skip
def test_an_answer_of_another_shape_is_told(clock, prometheus, monkeypatch, found):
    monkeypatch.setattr(_Prometheus, "found", found)
    with pytest.raises(HztuneError, match="does not answer"):
        api.judge_canary(canary(file="", prometheus=prometheus), print)


def test_an_answer_without_end_is_given_up(clock, prometheus, monkeypatch):
    monkeypatch.setattr(hztune.prometheus, "_MOST_BYTES", 1000)
    _Prometheus.rows = fleet()
    with pytest.raises(HztuneError, match="no end after"):
        api.judge_canary(canary(file="", prometheus=prometheus), print)


def test_prometheus_is_asked_for_no_more_points_than_it_gives(clock, prometheus, monkeypatch):
    monkeypatch.setattr(sources, "_MOST_POINTS", 7)
    monkeypatch.setattr(_Prometheus, "most_s", 6 * 60.0)
    _Prometheus.rows = fleet()
    clock[0] = START_S + 7200.0
    asked = canary(file="", prometheus=prometheus, baseline_s=3600.0)
    assert sorted(sources.fetched(asked, asked.spec.wanted, START_S - 3600.0, clock[0])) == sorted(
        row for row in fleet() if row.at_s <= clock[0]
    )


def test_two_series_of_a_unit_at_once_are_refused(clock, prometheus, monkeypatch):
    _Prometheus.rows = fleet()
    monkeypatch.setattr(_Prometheus, "times", 2)
    with pytest.raises(UsageError, match="two series of 'u0' at once"):
        api.judge_canary(canary(file="", prometheus=prometheus), print)


def test_a_login_in_the_url_is_given(prometheus):
    asked = canary(file="", prometheus=prometheus.replace("//", "//me:a%40b@"))
    sources.fetched(asked, ["cpu"], START_S, START_S)
    assert _Prometheus.login == "Basic bWU6YUBi"  # me:a@b


def test_a_point_with_two_series_is_left_out(clock, prometheus):
    rows = fleet(treated=0.97)
    _Prometheus.rows = rows + [row for row in rows if row.unit == "u10" and row.at_s > START_S]
    found = sources.fetched(canary(file="", prometheus=prometheus), ["cpu"], START_S, 1e10)
    assert {row.unit for row in found if row.at_s > START_S} == {f"u{at}" for at in range(20)} - {
        "u10"
    }


def test_a_query_that_fails_takes_no_other_with_it(clock, monkeypatch):
    def fetched(canary, names, since_s, until_s):
        if names == ["p99"] and until_s > START_S + 600.0:
            raise HztuneError("too many samples")
        return [row._replace(metric=names[0]) for row in fleet() if row.at_s <= until_s]

    monkeypatch.setattr(vigil, "fetched", fetched)
    metrics, told = (CanaryMetric(name="p99", margin="2%"), CPU), []
    clock[0] += 600.0
    asked = canary(metrics=metrics, file="", prometheus="http://x")
    found = api.judge_canary(asked, told.append, for_s=600.0)
    assert (found.passed_s, found.reasons[0]) == (1200.0, "'p99' is not answered now")
    assert told.count("too many samples; watching goes on") == 1


def test_a_hook_that_fails_is_run_again_also_by_a_watch_that_begins_anew(tmp_path, clock):
    lines = [f"{row.at_s},{row.unit},cpu,{row.value}\n" for row in fleet(treated=1.05)]
    (tmp_path / "rows.csv").write_text("".join(lines))
    hook = "echo x >> tries; test $(wc -l < tries) -ge 12"
    asked, log, told = canary(folder=tmp_path, hook=hook), tmp_path / "log", []
    found = api.judge_canary(asked, told.append, log=log, for_s=math.inf)
    assert (found.answer, len((tmp_path / "tries").read_text())) == ("revert", 20)
    assert "the hook has failed" in found.reasons[-1]
    for _ in range(2):
        found = api.judge_canary(asked, told.append, log=log, for_s=math.inf)
        assert (found.answer, len((tmp_path / "tries").read_text())) == ("revert", 24)
    assert "decided before" in found.reasons[0] and "cpu is worse" in found.reasons[1]
    log.write_text(log.read_text().replace(START, "2025-01-01T00:00:00Z"))  # another canary's
    assert "decided before" not in api.judge_canary(asked, print, log=log).reasons[0]


def test_a_watch_that_is_interrupted_tells_what_it_knows(tmp_path, clock, monkeypatch):
    lines = [f"{row.at_s},{row.unit},cpu,{row.value}\n" for row in fleet(sd=0.05)]
    (tmp_path / "rows.csv").write_text("".join(lines))

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(vigil.time, "sleep", interrupted)
    told = []
    with pytest.raises(KeyboardInterrupt):
        api.judge_canary(canary(folder=tmp_path), told.append, for_s=math.inf)
    assert told[-1].startswith("# Canary: hold")


def test_rows_of_other_metrics_than_the_asked_are_told(tmp_path):
    (tmp_path / "rows.csv").write_text(f"{START_S},u1,cpu_typo,1\n")
    with pytest.raises(UsageError, match="such as 'cpu'; there is 'cpu_typo'"):
        api.judge_canary(canary(folder=tmp_path), print)


def test_the_operators_own_restart_just_before_the_start_is_no_event():
    rows = [row for unit in range(10, 20) for row in counts("oom", f"u{unit}", [0, 1, 1], -1)]
    assert verdict_of(fleet() + rows, canary(rails=[GuardRail(name="oom")])).answer == "hold"
