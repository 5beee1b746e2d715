"""Watching a canary: its rows, and failures of their source, the disk, its hook and itself."""

from __future__ import annotations

import base64
import json
import math
import socket
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from unittest.mock import Mock
from urllib.parse import parse_qs, urlparse

import pytest
import tomllib

import hztune.prometheus
from hztune import api, schema
from hztune.canary import sources, vigil
from hztune.canary.sources import FleetRow, parsed_rows
from hztune.canary.spec import CanaryMetric, CanarySpec, GuardRail
from hztune.canary.verdict import verdict_of
from hztune.cli import canary as canary_commands
from hztune.cli import status_of
from hztune.errors import HztuneError, UsageError
from hztune.govern.policy import FigureSource

from .fleet import CPU, START, START_S, canary, fleet


@pytest.fixture
def clock(monkeypatch):
    """Time passes when the watch sleeps."""
    now = [START_S]
    monkeypatch.setattr(vigil.time, "time", lambda: now[0])
    monkeypatch.setattr(vigil.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(vigil.time, "sleep", lambda seconds: now.append(now.pop() + seconds))
    return now


def written(folder, rows):
    text = "".join(f"{row.at_s},{row.unit},{row.metric},{row.value}\n" for row in rows)
    (folder / "rows.csv").write_text(text)


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
        Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_rows_are_read_from_csv_and_from_lines_of_json():
    text = f"\ufefftime,unit,metric,value\n{START_S},u1,cpu,2\n\n{START_S},u1,c"
    line = json.dumps({"time": START_S, "unit": "u1", "metric": "cpu", "value": 2})
    read = [*parsed_rows(text.encode(), "x"), *parsed_rows(f"{line}\n".encode(), "x")]
    assert read == [FleetRow(START_S, "u1", "cpu", 2.0)] * 2


@pytest.mark.parametrize("kind", [CanarySpec, FigureSource])
def test_a_prometheus_is_asked_over_http_alone(kind):
    for asked, told in (("file:///etc", "file:///etc"), ("me:secret@here:9090", "...@here:9090")):
        with pytest.raises(UsageError, match=f"prometheus is '{told}'.*https"):
            schema.judged({"prometheus": asked}, kind)


def test_the_file_that_help_shows_is_a_canary():
    shown = canary_commands.judge_command.help.replace("\b", "")
    text = shown[shown.index("doc =") : shown.index("exit status")]
    spec = schema.judged(tomllib.loads(text), CanarySpec)
    assert [each.name for each in (*spec.metrics, *spec.rails)] == ["cpu", "restarts"]


NO_ROWS = ["1,u,cpu", "x,u,cpu,1", "17e11,u,cpu,1", "1,u,cpu,y", '{"time": 1}', "{]"]


@pytest.mark.parametrize("line", NO_ROWS)
def test_a_row_that_is_none_is_shown_with_its_line(line):
    with pytest.raises(UsageError, match="line 1 is"):
        [*parsed_rows(f"{line}\n".encode(), "x")]


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
    written(tmp_path, fleet(treated=0.97))
    groups = (f"u{unit},{'treated' if unit >= 10 else 'control'}\n" for unit in range(20))
    (tmp_path / "groups.csv").write_text("".join(groups))
    spec = tmp_path / "spec.toml"
    spec.write_text(
        f'doc = "d"\nstart = "{START}"\ngroups = "groups.csv"\ncommand = "cat rows.csv"\n'
        "baseline_s = 3600\nplanned_s = 7200\n"
        '[[metrics]]\nname = "cpu"\nmargin = "2%"\ntarget = true\n'
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


def test_an_answer_that_is_too_long_is_given_up(clock, prometheus, monkeypatch):
    monkeypatch.setattr(hztune.prometheus, "_MOST_BYTES", 1000)
    _Prometheus.rows = fleet()
    with pytest.raises(HztuneError, match="it has more than"):
        api.judge_canary(canary(file="", prometheus=prometheus), print)


def test_headers_without_end_are_given_up():
    def drip():
        taken, _ = listening.accept()
        with taken, suppress(OSError):  # until it is given up
            while not time.sleep(0.01):
                taken.sendall(b"HTTP/1.1 100 Continue\r\nA: b\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        Thread(target=drip, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(HztuneError, match="no end after"):
            hztune.prometheus.queried(url, "up", 0.2)


def test_prometheus_is_asked_for_no_more_points_than_it_gives(clock, prometheus, monkeypatch):
    monkeypatch.setattr(sources, "_MOST_POINTS", 7)
    monkeypatch.setattr(_Prometheus, "most_s", 6 * 60.0)
    _Prometheus.rows = fleet()
    clock[0] = START_S + 7200.0
    asked = canary(file="", prometheus=prometheus, baseline_s=3600.0)
    found = sources.fetched(asked, asked.spec.wanted, START_S - 3600.0, clock[0])
    assert sorted(found) == sorted(row for row in fleet() if row.at_s <= clock[0])


def test_two_series_of_a_unit_at_once_are_refused(clock, prometheus, monkeypatch):
    _Prometheus.rows = fleet()
    monkeypatch.setattr(_Prometheus, "times", 2)
    with pytest.raises(UsageError, match="two series of 'u0' at once"):
        api.judge_canary(canary(file="", prometheus=prometheus), print)


@pytest.mark.parametrize("written, meant", [("a%40b%2Fc", b"me:a@b/c"), ("a@b", b"me:a@b")])
def test_a_login_in_the_url_is_given(prometheus, written, meant):
    asked = canary(file="", prometheus=prometheus.replace("//", f"//me:{written}@"))
    sources.fetched(asked, ["cpu"], START_S, START_S)
    assert _Prometheus.login == f"Basic {base64.b64encode(meant).decode()}"


def test_a_point_with_two_series_shows_a_unit_and_no_figure(clock, prometheus):
    rows = fleet(treated=0.97)
    _Prometheus.rows = rows + [row for row in rows if row.unit == "u10" and row.at_s > START_S]
    asked = canary(file="", prometheus=prometheus)
    late = sources.fetched(asked, ["cpu"], START_S + 60.0, START_S + 7200.0)
    assert {row.unit for row in late} == {f"u{at}" for at in range(20)}
    assert {row.unit for row in late if math.isnan(row.value)} == {"u10"}


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
    written(tmp_path, fleet(treated=1.05))
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
    written(tmp_path, fleet(sd=0.05))
    monkeypatch.setattr(vigil.time, "sleep", Mock(side_effect=KeyboardInterrupt))
    told = []
    with pytest.raises(KeyboardInterrupt):
        api.judge_canary(canary(folder=tmp_path), told.append, for_s=math.inf)
    assert told[-1].startswith("# Canary: hold")


def test_a_rail_that_is_never_seen_is_said():
    asked = canary(rails=[GuardRail(name="oom")])
    page = api.canary_page(verdict_of(fleet(), asked), asked)
    assert "| oom | 0 (0) | 0 (0) | no row yet |" in page


def test_rows_of_other_metrics_than_the_asked_are_told(tmp_path):
    (tmp_path / "rows.csv").write_text(f"{START_S},u1,cpu_typo,1\n")
    with pytest.raises(UsageError, match="such as 'cpu'; there is 'cpu_typo'"):
        api.judge_canary(canary(folder=tmp_path), print)


def test_that_no_row_comes_is_told_though_one_clock_is_ahead(tmp_path, clock):
    written(tmp_path, [row._replace(at_s=row.at_s + 1e8 * (row.unit == "u1"))
                       for row in fleet(sd=0.05)])  # fmt: skip
    clock[0], told = START_S + 7200.0 + 240.0, []
    api.judge_canary(canary(folder=tmp_path), told.append, for_s=300.0)
    assert told.count("no row is of the last 5:00; watching goes on") == 1


def test_rows_of_clocks_far_ahead_wait(tmp_path, clock):
    clock[0] = START_S + 7200.0
    written(tmp_path, [*fleet(), *(FleetRow(9e10, f"u{unit}", "cpu", 1.0) for unit in range(20))])
    assert api.judge_canary(canary(folder=tmp_path), print).passed_s == 7200.0


def test_rows_that_come_half_an_hour_late_are_read(clock, monkeypatch):
    rows = fleet(sd=0.05)

    def fetched(canary, names, since_s, until_s):
        return [row for row in rows if since_s <= row.at_s and
                row.at_s <= until_s - 1800.0 * (row.unit in {"u12", "u13", "u14"})]  # fmt: skip

    monkeypatch.setattr(vigil, "fetched", fetched)
    asked = canary(file="", prometheus="http://x")
    clock[0] += 3000.0
    found = api.judge_canary(asked, print, for_s=4200.0 + 1800.0)
    assert found.effects == verdict_of(rows, asked).effects


def test_torn_marks_are_passed_over_and_those_of_other_canaries_kept(tmp_path, clock):
    clock[0] += 7200.0
    written(tmp_path, fleet(treated=1.05))
    log, other = tmp_path / "log", json.dumps({"decided": "hold", "start": "2025-01-01T00:00:00Z"})
    log.write_text(f'{{"decided": "rev{{"time": 1}}\n{other}\n')
    assert api.judge_canary(canary(folder=tmp_path), print, log=log).answer == "revert"
    assert other in log.read_text() and '"decided": "revert"' in log.read_text()


def test_a_hook_that_cannot_be_started_is_tried_again_and_told(tmp_path, clock, monkeypatch):
    clock[0] += 7200.0
    written(tmp_path, fleet(treated=1.05))
    monkeypatch.setattr(vigil.process, "run", Mock(side_effect=HztuneError("no hz-launch")))
    asked, told = canary(folder=tmp_path, hook="true", step_s=240.0), []
    found = api.judge_canary(asked, told.append, for_s=1200.0)
    assert found.reasons[-1] == "the hook could not be started: no hz-launch"
    assert (len(told), clock[0]) == (10, START_S + 7200.0 + 9 * 60.0)
