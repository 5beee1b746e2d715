"""The canary: groups, effects and verdicts, without a clock."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace

from hztune import api
from hztune.canary.effects import critical, effect_of, levels
from hztune.canary.spec import CanaryMetric, GuardRail
from hztune.canary.timetable import growth
from hztune.canary.verdict import log_odds, verdict_of
from hztune.cli import status_of
from hztune.errors import UsageError

from .fleet import CPU, START, START_S, canary, fleet, rows_of

OOM = GuardRail(name="oom")
P99 = CanaryMetric(name="p99", margin="5%")
ALL = [f"u{unit}" for unit in range(20)]
TREATED = ALL[10:]


def counts(units, values, first=0):
    """Rows of oom: these units count alike."""
    return rows_of("oom", np.array([[*values]] * len(units)).T, first, units)


def without(rows, units, since, until=math.inf, step=1):
    """Rows but for those of units in blocks from `since` on, or but for one of `step` of those."""
    return [row for row in rows if row.unit not in units
            or not since < (block := (row.at_s - START_S) / 60.0) <= until
            or (step > 1 and block % step == 0)]  # fmt: skip


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


# ---- effects -------------------------------------------------------------------------------------


def test_a_counter_that_has_fallen_began_again_at_nothing_and_a_sum_lost_a_part():
    grown, gaps, fell = growth(np.array([[5.0, 7.0, math.nan, 3.0, 2.0]]).T)
    assert grown[[1, 3], 0].tolist() == [2.0, 3.0] and gaps[3, 0] == 2.0
    assert fell[:, 0].tolist() == [False, False, False, True, True] and math.isnan(grown[4, 0])


def test_an_effect_is_found_beneath_unlike_hosts_and_the_time_of_day():
    found = verdict_of(fleet(treated=0.98), canary())
    assert found.answer == "promote"
    assert found.effects[0].interval.estimate == pytest.approx(math.log(0.98), abs=0.003)


def test_a_loss_beyond_the_margin_is_reverted_and_alike_groups_are_held_for_good():
    assert verdict_of(fleet(treated=1.05), canary()).answer == "revert"
    found = verdict_of(fleet(), canary())
    assert (found.answer, found.is_settled) == ("hold", True)


def test_targets_share_the_error_and_so_do_the_ways_to_revert():
    asked = canary(), canary(metrics=(CPU, replace(CPU, name="p99"))), canary(rails=[OOM])
    alone, both, railed = (verdict_of(fleet(), each).effects[0] for each in asked)
    assert both.most > alone.most == railed.most and railed.least < alone.least
    assert asked[2].spec.revert_error == pytest.approx(0.02 / 5)


def test_where_more_is_better_the_signs_turn():
    more = [replace(CPU, more_is_better=True)]
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


def test_units_that_came_a_short_time_ago_weigh_little():
    rows = without(fleet(), [f"u{unit}" for unit in (3, 4, 5, 13, 14, 15)], -math.inf, 110)
    assert verdict_of(rows, canary()).effects[0].interval.half_width < 0.1


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


def test_one_or_two_units_a_group_claim_nothing_and_hear_how_many_would():
    assert "in strata with both groups" in verdict_of(fleet(1), canary(1)).reasons[0]
    assert "a group would show" in verdict_of(fleet(2, treated=0.98), canary(2)).reasons[0]


@pytest.mark.parametrize("rows", [[], fleet(before=60, after=0)])
def test_a_canary_whose_start_lies_ahead_says_when_it_begins(rows):
    found, begins = verdict_of(rows, canary(step_s=300.0)), f"it begins at {START}"
    assert (found.passed_s, found.unseen, begins in found.reasons[0]) == (0.0, (), True)


def test_zeros_and_figures_that_are_none_are_said_and_hold():
    zeros = [row._replace(value=0.0) for row in fleet()]
    assert "are 0 or less" in verdict_of(zeros, canary()).reasons[0]
    nans = [row._replace(value=math.nan) for row in fleet(count=2)]
    assert verdict_of(fleet(treated=0.98) + nans, canary()).answer == "promote"
    amount = [CanaryMetric(name="cpu", margin=0.1, target=True)]
    assert verdict_of(zeros, canary(metrics=amount)).effects[0].interval.estimate == 0.0


@pytest.mark.parametrize(
    "value, told", [(math.inf, "infinite, or divided by 0"), (0.0, "are 0 or less")]
)
def test_a_tenth_of_one_groups_figures_that_cannot_be_compared_hold(value, told):
    treated = {f"u{unit}" for unit in range(10, 20)}
    rows = [row._replace(value=value) if row.unit in treated and row.at_s % 600 == 0 else row
            for row in fleet(treated=0.98)]  # fmt: skip
    assert told in verdict_of(rows, canary()).reasons[0]


def test_what_is_divided_by_nothing_is_infinite():
    rows = fleet(treated=0.98)
    rows += [row._replace(metric="requests", value=float(row.at_s % 600 > 0)) for row in rows]
    asked = canary(metrics=[replace(CPU, per="requests")])
    assert "divided by 0" in verdict_of(rows, asked).reasons[0]


def test_a_metric_that_is_not_told_any_more_is_no_more_judged_as_no_worse():
    rows = fleet(treated=0.97)
    rows += [row._replace(metric="p99") for row in rows if row.at_s <= START_S + 3600.0]
    found = verdict_of(rows, canary(metrics=(CPU, P99)))
    assert (found.answer, found.reasons) == ("hold", ("p99: it is not told since 1:00:00",))
    assert found.effects[1].interval is not None


def test_units_of_types_that_one_group_alone_has_are_compared_all_the_same():
    types = [str(at) if at in (*range(4), *range(16, 20)) else "a" for at in range(20)]
    units = map(lambda unit, name: unit._replace(stratum=name), canary().units, types)
    rows = [row._replace(value=1.5 * row.value) if row.unit in ALL[16:] and row.at_s > START_S
            else row for row in fleet(treated=0.97)]  # fmt: skip
    assert verdict_of(rows, canary()._replace(units=tuple(units))).answer == "hold"


def test_a_clock_that_is_ahead_changes_nothing():
    rows = [row._replace(at_s=row.at_s + 1e8 * (row.unit == "u1")) for row in fleet(treated=0.98)]
    found = verdict_of(rows, canary())
    assert (found.answer, found.passed_s) == ("promote", 7200.0)


def test_counters_are_compared_by_their_growth_for_each_request():
    random = np.random.default_rng(2)
    requests = random.uniform(90.0, 110.0, (180, 20))
    cpu = requests * np.exp(random.normal(0.0, 0.01, (180, 20)))
    cpu[:, 10:] *= 0.97
    rows = rows_of("cpu", cpu.cumsum(axis=0)) + rows_of("requests", requests.cumsum(axis=0))
    found = verdict_of(rows, canary(metrics=[replace(CPU, counter=True, per="requests")]))
    assert found.effects[0].interval.estimate == pytest.approx(math.log(0.97), abs=0.003)


@pytest.mark.parametrize(
    "lost, per", [("scrapes", "requests"), ("process", "requests"), ("process", "")]
)
def test_a_counter_that_lost_time_is_not_less_nor_divided_by_one_that_did_not(lost, per):
    """CPU scrapes of treated units that fail, and processes that begin again behind a balancer."""
    random, requests = np.random.default_rng(3), np.tile(np.arange(1.0, 181.0), (20, 1)).T
    cpu = 100.0 + np.exp(random.normal(0.0, 0.01, (180, 20))).cumsum(axis=0)
    is_lost = random.random((180, 20)) < 0.1 * (np.arange(20) >= 10)
    if lost == "process":
        cpu -= np.maximum.accumulate(np.where(is_lost, cpu - random.random((180, 20)), 0.0))
    else:
        cpu[is_lost] = math.nan
    rows = rows_of("cpu", cpu, -60) + rows_of("requests", requests, -60)
    found = verdict_of(rows, canary(metrics=[replace(CPU, counter=True, per=per)]))
    assert found.effects[0].interval.estimate == pytest.approx(0.0, abs=0.006)


def test_a_counter_that_seldom_grows_has_no_ratio():
    often = np.random.default_rng(4).poisson(0.3, (120, 20))
    metric = CanaryMetric(name="errors", margin="30%", target=True, counter=True)
    found = verdict_of(rows_of("errors", often.cumsum(axis=0)), canary(metrics=[metric]))
    assert "are 0 or less" in found.reasons[-1]


def test_nothing_is_promoted_before_a_quarter_of_the_time_but_it_may_be_reverted():
    early = [row for row in fleet(treated=0.97) if row.at_s <= START_S + 1200.0]
    found = verdict_of(early, canary())
    assert (found.answer, found.is_settled) == ("hold", False) and "30:00" in found.reasons[0]
    for blocks, times, answer in ((3, 2.0, "hold"), (20, 1.05, "revert")):
        worse = [row for row in fleet(treated=times) if row.at_s <= START_S + 60.0 * blocks]
        assert verdict_of(worse, canary()).answer == answer


@pytest.mark.parametrize(
    "lost", [dict(units=TREATED[:7], since=10), dict(units=TREATED, since=91),
             dict(units=TREATED, since=0, step=3), dict(units=TREATED, since=60, until=68)]
)  # fmt: skip
def test_a_metric_that_treated_units_tell_less_often_than_control_holds(lost):
    rows = fleet(treated=0.97)
    told = without([row._replace(metric="p99") for row in fleet(sd=0.001)], **lost)
    for began in (-60, -10, 0):  # but for a pilot
        new = [row for row in told if row.at_s > START_S + 60.0 * began or row.unit == "u1"]
        found = verdict_of(rows + new, canary(metrics=(CPU, replace(P99, margin="20%"))))
        assert found.answer == "hold" and "treated units tell" in found.reasons[0]


@pytest.mark.parametrize("settle_s, lost, answer, why", [
    (300.0, dict(units=TREATED, since=60, until=64), "promote", "is better"),  # within settle_s
    (300.0, dict(units=TREATED[:1], since=60), "promote", "is better"),
    (300.0, dict(units=TREATED[:2], since=10, step=2), "hold", "treated units tell"),
    (300.0, dict(units=TREATED[:1], since=-math.inf, until=10), "promote", "is better"),
    (300.0, dict(units=TREATED[:8], since=-math.inf, until=40), "hold", "treated units tell"),
    (300.0, dict(units=TREATED[:5], since=2), "hold", "treated units tell"),  # never settled
    (0.0, dict(units=TREATED, since=60, until=61), "promote", "is better"),  # missed by none
    (0.0, dict(units=TREATED, since=60, until=64), "hold", "treated units tell"),
    (0.0, dict(units=TREATED[:3], since=-math.inf, until=2), "hold",
     "3 treated units are new, and 0 of control"),
])  # fmt: skip
def test_one_gap_of_each_unit_or_all_of_one_is_no_loss_of_figures_and_more_is(
    settle_s, lost, answer, why
):
    found = verdict_of(without(fleet(treated=0.95), **lost), canary(settle_s=settle_s))
    assert (found.answer, why in found.reasons[0]) == (answer, True)


@pytest.mark.parametrize("units, answer", [(["u25"], "hold"), (["u5", "u25"], "promote")])
def test_units_that_seldom_tell_a_figure_hold_where_more_of_them_are_treated(units, answer):
    rows = [row for row in fleet(20, treated=0.97)
            if row.unit not in units or row.at_s <= START_S or row.at_s % 300 < 120]  # fmt: skip
    rows += [row._replace(metric="p99", value=1.0) for row in fleet(20)]
    assert verdict_of(rows, canary(20, metrics=(CPU, P99))).answer == answer


def test_what_a_zone_loses_is_no_loss_of_the_treated_though_they_are_more_of_it():
    units = [unit._replace(stratum="a" if at in (*range(4), *range(10, 15)) else "b")
             for at, unit in enumerate(canary().units)]  # fmt: skip
    zone = [unit.name for unit in units if unit.stratum == "a"]
    rows = without(fleet(treated=0.95), zone, 60, 80)
    assert verdict_of(rows, canary()._replace(units=tuple(units))).answer == "promote"


@pytest.mark.parametrize("away, late", [(TREATED, dict(since=0, step=2)), (["u1", "u2"], None)])
def test_what_a_group_lost_before_the_start_makes_nothing_good_and_is_no_debt(away, late):
    rows = without(fleet(treated=0.95), away, -50, -10)
    rows = without(rows, TREATED, **late) if late else rows
    assert verdict_of(rows, canary()).answer == ("hold" if late else "promote")


def test_what_began_just_before_the_start_has_the_change_and_no_baseline():
    def change(table):
        table[45:60, 10:] *= 1.15

    rows = without(fleet(treated=1.15, change=change), ALL, -math.inf, -14)
    found = verdict_of(rows, canary()).effects[0].interval
    assert found.half_width > 0.2  # of unlike hosts: their own past is not known


@pytest.mark.parametrize("lost, answer", [([], "promote"), (TREATED[:7], "hold")])
def test_what_treated_units_lose_of_a_metric_that_begins_at_the_start_is_missed(lost, answer):
    rows, p99 = fleet(treated=0.97), CanaryMetric(name="p99", margin="50%")
    told = [row._replace(metric="p99") for row in rows if row.at_s > START_S]
    found = verdict_of(rows + without(told, lost, 10), canary(metrics=(CPU, p99)))
    assert found.answer == answer


def test_of_few_units_one_that_joins_late_does_not_hide_the_others():
    rows = without(fleet(4, treated=0.9), ["u4"], -math.inf, 20)
    assert verdict_of(rows, canary(4)).answer == "promote"


def test_a_tenth_of_the_figures_of_treated_units_is_missed():
    def fail(table):
        table[60:, 10:][np.random.default_rng(2).random((120, 10)) < 0.1] = math.nan

    found = verdict_of(fleet(treated=0.9, change=fail), canary())
    assert found.answer == "hold" and "treated units tell" in found.reasons[0]


def test_what_a_unit_never_told_is_not_missed():
    rows, told = fleet(treated=0.97), [row._replace(metric="p99") for row in fleet(seed=2)]
    rows += [row._replace(value=math.nan) if row.unit in ("u12", "u13") else row for row in told]
    assert verdict_of(rows, canary(metrics=(CPU, P99))).answer == "promote"


@pytest.mark.parametrize("dead, answer", [(ALL[15:17], "hold"), ([], "promote")])
@pytest.mark.parametrize("late", [ALL[10:12], ALL[:2]])
def test_the_time_before_a_unit_came_is_neither_missed_nor_made_good(dead, answer, late):
    rows = without(without(fleet(treated=0.95), late, -math.inf, -20), dead, 20)
    assert verdict_of(rows, canary()).answer == answer


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_one_treated_unit_that_is_there_and_tells_no_figure_holds(value):
    rows = [row._replace(value=value) if row.unit == "u35" and row.at_s > START_S else row
            for row in fleet(20, treated=1.03)]  # fmt: skip
    rows += [row._replace(metric="p99", value=1.0) for row in fleet(20)]
    found = verdict_of(rows, canary(20, metrics=(replace(CPU, more_is_better=True), P99)))
    assert "1 treated units that are there seldom tell it, and 0" in found.reasons[0]


@pytest.mark.parametrize("since, baseline_s", [(-60, 3600.0), (-10, 3600.0), (0, 0.0)])
def test_nothing_is_promoted_of_which_treated_units_did_not_come_up(since, baseline_s):
    dead = ("u10", "u11", "u12")
    rows = without(without(fleet(treated=0.95), dead, -math.inf, since), dead, 0)
    found = verdict_of(rows, canary(baseline_s=baseline_s))
    assert (found.answer, found.unseen) == ("hold", dead)
    assert "not seen since the start" in found.reasons[0]


@pytest.mark.parametrize("since, count", [(-60, 1), (-10, 1), (-math.inf, 6)])
def test_treated_units_that_are_one_or_never_were_there_are_named_and_not_lost(since, count):
    found = verdict_of(without(fleet(treated=0.95), TREATED[:count], since), canary())
    assert (found.answer, found.unseen) == ("promote", tuple(TREATED[:count]))


def test_of_many_units_a_few_more_treated_ones_are_lost_by_chance():
    lost = [f"u{unit}" for unit in (*range(4), *range(40, 46))]
    rows = without(fleet(40, treated=0.95), lost, -10)
    assert verdict_of(rows, canary(40)).answer == "promote"


def test_few_treated_that_die_are_not_hidden_by_as_many_of_a_large_control():
    rows = without(fleet(treated=0.95), ["u1", "u18", "u19"], 0)
    assert "not seen since the start" in verdict_of(rows, canary(control=15)).reasons[0]


@pytest.mark.parametrize("came, is_lost", [(5, True), (1, False)])
def test_new_units_that_do_not_come_up_are_lost_where_others_do_but_one_alone(came, is_lost):
    rows = without(fleet(treated=0.95), [f"u{unit}" for unit in range(came)], -math.inf, -10)
    found = verdict_of(without(rows, TREATED[:5], -math.inf), canary())
    assert found.answer == ("hold" if is_lost else "promote")
    assert ("not seen since the start" in found.reasons[0]) == is_lost


# ---- guard rails ---------------------------------------------------------------------------------


ALIKE = np.zeros(20, dtype=int)  # strata


def test_bets_on_first_events_win_in_no_more_cases_than_their_error():
    random, won = np.random.default_rng(1), 0
    for _ in range(1000):
        treated = random.permutation(np.arange(20) >= 10)
        found = np.eye(20)[:, random.permutation(20)]  # each unit has one, at another time
        odds = [log_odds(found[:look], treated, ALIKE, 0) for look in range(5, 21)]
        won += max(odds) >= math.log(50)
    assert won <= 0.02 * 1000


def test_a_bet_is_on_the_units_that_are_left():
    treated = np.array([True, True, False, False])
    won = [r * 4 / (2 * r + 2) * r * 3 / (r + 2) for r in (2, 4, 16, 256)]
    assert log_odds(np.eye(4)[:2], treated, ALIKE[:4], 0) == pytest.approx(math.log(sum(won) / 4))


def test_events_of_one_moment_prove_nothing_in_whatever_order_units_are_listed():
    for treated in (np.arange(20) < 10, np.arange(20) >= 10):
        assert log_odds(np.ones((1, 20)), treated, ALIKE, 0) < 0.0


def test_a_bet_is_within_a_stratum():
    treated, strata = np.arange(20) < 10, np.where(np.arange(20) < 9, 1, 0)
    found = np.eye(20)[:9]  # all of one stratum, which has no control
    assert log_odds(found, treated, strata, 0) == pytest.approx(0.0)
    assert log_odds(found, treated, ALIKE, 0) > math.log(50)


def test_a_counter_that_begins_with_its_first_event_has_counted_it():
    rows = fleet() + counts(TREATED, [1], 9)
    assert verdict_of(rows, canary(rails=[OOM])).answer == "revert"


def test_a_rail_is_crossed_by_units_not_by_one_that_restarts_all_night():
    one = counts(["u12"], range(100))
    assert verdict_of(fleet() + one, canary(rails=[OOM])).answer == "hold"
    many = rows_of("oom", [[0] * 10, range(2, 12)], units=TREATED)
    found = verdict_of(fleet() + many, canary(rails=[OOM]))
    assert (found.answer, found.rails[0].hit) == ("revert", (0, 10))
    assert verdict_of(fleet() + one, canary(rails=[replace(OOM, most=50)])).answer == "revert"


def test_a_rail_is_crossed_by_more_events_where_each_unit_has_had_one():
    often = np.random.default_rng(4).poisson([0.2] * 10 + [0.5] * 10, (120, 20))
    found = verdict_of(fleet() + rows_of("oom", often.cumsum(axis=0)), canary(rails=[OOM]))
    assert (found.answer, found.rails[0].hit) == ("revert", (10, 10))


def test_units_that_fall_silent_are_a_rail_and_a_source_that_does_is_none():
    assert "silent" in verdict_of(without(fleet(), TREATED, 60), canary()).reasons[0]
    assert verdict_of(without(fleet(), ALL, 40, 80), canary()).rails[-1].hit == (0, 0)


def test_a_unit_of_which_only_another_exporter_tells_is_silent():
    rows = without(fleet(treated=0.97), TREATED[:7], 10)
    rows += counts(ALL, [0] * 180, -60)
    assert "silent" in verdict_of(rows, canary(rails=[OOM])).reasons[0]
    # as a balancer counts
    assert "silent" in verdict_of(rows, canary(metrics=[replace(CPU, per="oom")])).reasons[0]


def test_the_dead_are_told_while_a_fleet_settles():
    rows = [row for row in without(fleet(), TREATED, 2) if row.at_s <= START_S + 1200.0]
    assert verdict_of(rows, canary(settle_s=3600.0)).answer == "revert"
    back, settle_s = without(fleet(sd=0.05), TREATED, 2, 9), (0.0, 300.0)
    answers = [verdict_of(back, canary(settle_s=each)).answer for each in settle_s]
    assert answers == ["revert", "hold"]


def test_a_bet_is_on_units_that_had_come_by_then():
    treated, came = np.arange(20) < 10, np.where(np.arange(20) < 12, 0, 30)
    found = np.eye(20)[np.r_[:5, 10, 5:10, 11]]  # all that are there, and one in six is of control
    assert log_odds(found, treated, ALIKE, 0) > math.log(30) > log_odds(found, treated, ALIKE, came)


@pytest.mark.parametrize("units", [TREATED, TREATED[:9], ALL])
def test_a_rail_that_is_not_told_any_more_holds_but_one_of_events_alone_does_not(units):
    rails, rows = [OOM], fleet(treated=0.97)
    told = counts(ALL, [0] * 180, -60)
    found = verdict_of(rows + without(told, units, 10), canary(rails=rails))
    why = (
        "the guard rail oom is not told any more; if no series means no event, let its query give 0"
    )
    assert (found.answer, found.reasons) == ("hold", (why,))
    assert verdict_of(rows + without(told, units, 105), canary(rails=rails)).answer == "promote"
    seldom = [row for row in without(told, units, 10) if row.at_s % 180.0 == 0.0]
    new = [row for row in without(told, units, 10) if row.at_s > START_S - 300.0]
    pods = without(rows, ALL, -math.inf, -14)
    for each, lost in ((rows, seldom), (rows, new), (pods, without(told, TREATED, -math.inf))):
        assert verdict_of(each + lost, canary(rails=rails)).reasons[0] == why
    for events in (
        counts(["u3"], [1, 2, 3, 4, 5, 6], 9),
        counts(ALL[:6] + ALL[10:16], [1], 9),
        counts(["u12"], [1] * 40, -60),
        counts(ALL[:16], [1] * 170, -50),
    ):
        assert verdict_of(rows + events, canary(rails=rails)).answer == "promote"


def test_units_that_are_listed_and_not_there_are_none_to_bet_on():
    """One in five that live is of control, and so is one in five that have their first event."""
    rows = [row for row in fleet(40, sd=0.05) if int(row.unit[1:]) >= 30]
    for at in range(50):
        unit = 30 + at // 5 if at % 5 == 2 else 40 + 4 * (at // 5) + at % 5 - (at % 5 > 2)
        rows += counts([f"u{unit}"], [0] * (at + 1) + [1] * 60)
    found = verdict_of(rows, canary(40, rails=[OOM]))
    assert (found.rails[0].hit, found.rails[0].is_crossed) == ((10, 40), False)


@pytest.mark.parametrize("back, answer", [(4, "hold"), (30, "revert"), (math.inf, "revert")])
def test_the_restart_that_brings_the_change_is_no_silence_if_it_ends(back, answer):
    rows = without(fleet(sd=0.05), TREATED, -3, back)
    found = verdict_of(rows, canary())
    assert found.answer == answer and ("too early" in found.reasons[0]) == (answer == "revert")
    early = [row for row in rows if row.at_s <= START_S + 240.0]
    assert verdict_of(early, canary()).answer == "hold"


def test_time_goes_on_where_half_of_a_small_fleet_has_died():
    found = verdict_of(without(fleet(2), ["u1", "u2"], 60), canary(2))
    assert (found.passed_s, found.rails[-1].hit) == (7200.0, (1, 1))


def test_kills_of_units_that_never_told_a_figure_count():
    rows = without(fleet(), TREATED, -math.inf) + counts(TREATED, range(20), -3)
    assert verdict_of(rows, canary(rails=[OOM])).rails[0].hit == (0, 10)


def test_a_kill_in_the_first_block_counts_and_few_alike_counts_do_not_cross():
    kills = counts(TREATED, [0, 1])
    for baseline_s in (3600.0, 0.0):
        found = verdict_of(fleet() + kills, canary(rails=[OOM], baseline_s=baseline_s))
        assert found.rails[0].hit == (0, 10)
    found = verdict_of(fleet(2) + counts(["u2", "u3"], [0, 1]), canary(2, rails=[OOM]))
    assert (found.rails[0].events, found.rails[0].is_crossed) == ((0, 2), False)


def test_the_most_events_are_those_beyond_a_control_as_large():
    asked = canary(rails=[replace(OOM, most=10)], control=4)
    found = verdict_of(fleet() + counts(ALL, [0, 1, 2], 1), asked).rails[0]
    assert (found.events, found.is_crossed) == ((8, 32), False)


def test_the_death_of_most_of_the_fleet_is_no_silence_of_its_source():
    assert verdict_of(without(fleet(), ALL[4:], 20), canary(control=4)).answer == "revert"


def test_the_operators_own_restart_just_before_the_start_is_no_event():
    rows = fleet() + counts(TREATED, [0, 1, 1], -1)
    assert verdict_of(rows, canary(rails=[OOM])).answer == "hold"
