"""The governor: what it believes, tries, adopts and lets go, without a clock; and one process."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from threading import Thread
from urllib.request import urlopen

import pytest

from hztune import api, artifacts
from hztune.allocator.base import tables
from hztune.attach import statistics_of
from hztune.attach.channel import Process
from hztune.errors import HztuneError, UsageError
from hztune.govern import context, policy, steer
from hztune.govern.context import ByLoad
from hztune.govern.governor import Governor
from hztune.govern.learner import Learner
from hztune.govern.metrics import exposition, server
from hztune.govern.observe import Observation, Watched
from hztune.govern.policy import Brakes, FigureSource, Policy, PolicyArm
from hztune.stats.intervals import has_won, lower_end, upper_end

from .conftest import processes_naming

ARMS = ("start", "lean")
LOOK_S = 0.5


# ---- evidence ------------------------------------------------------------------------------------


def test_without_an_effect_the_bets_ever_win_in_no_more_cases_than_their_error():
    won = 0
    for seed in range(400):
        rng, drift, seen = Random(seed), 0.0, []
        for _ in range(50):
            drift += rng.gauss(0.0, 0.05)  # the order of a pair is random, so its sign is
            seen.append(rng.choice((-1, 1)) * (drift + rng.gauss(0.0, 0.1)) * rng.choice((1, 1, 9)))
            if has_won(seen, 0.05):
                won += 1
                break
    assert won <= 0.05 * 400 + 2 * math.sqrt(0.05 * 0.95 * 400)


def test_an_effect_is_found_in_few_pairs_and_lies_in_its_interval():
    rng = Random(1)
    seen = [rng.gauss(-0.3, 0.1) for _ in range(12)]
    assert lower_end(seen, 0.005) < -0.3 < upper_end(seen, 0.005) < 0.0
    assert upper_end(seen[:6], 0.005) == math.inf  # six signs alone cannot show so much


# ---- contexts ------------------------------------------------------------------------------------


def test_a_load_is_told_by_its_own_peak_whichever_of_cpu_and_work_shows_it():
    told, sight = ByLoad(), Observation(0.0, 0.0, 0, 0.0)
    words = []
    for cpus, rate in ((0.8, 100.0), (0.8, 5.0), (0.1, 25.0), (0.04, 0.1)):
        for _ in range(20):
            at_s, work = sight.at_s + LOOK_S, (sight.work or 0.0) + rate * LOOK_S
            sight = Observation(at_s, sight.cpu_s + cpus * LOOK_S, 0, work)
            word = told(sight)
        words.append(word)
    assert words == ["burst", "burst", "steady", "idle"]


@pytest.mark.parametrize("name", ["os:getcwd", "fractions:Fraction"])
def test_a_context_of_the_user_that_fails_is_named(name):
    with pytest.raises(HztuneError, match=f"context '{name}' has failed"):
        context.named(name)(Observation(0.0, 0.0, 0))


# ---- the figure ----------------------------------------------------------------------------------


def test_of_a_log_a_line_that_is_not_yet_whole_is_not_read(tmp_path):
    log = tmp_path / "log"
    log.write_text("17\n18\n1")
    watched = Watched(os.getpid(), FigureSource(log=str(log), regex="([0-9]+)"))
    assert watched.look().figure == 18.0
    watched.close()


def test_a_log_with_lines_of_which_none_matches_is_told(tmp_path, monkeypatch):
    log = tmp_path / "log"
    log.write_text("")
    monkeypatch.setattr("hztune.govern.observe._UNREADABLE_S", 0.0)
    watched = Watched(os.getpid(), FigureSource(command="seq 99999"))
    with pytest.raises(HztuneError, match=r"^.{1,600}$"):
        watched.look()
    watched = Watched(os.getpid(), FigureSource(log=str(log), regex="done ([0-9]+)"))
    assert watched.look().figure is None
    log.write_text("ready\n")
    with pytest.raises(HztuneError, match=r"no line at the end of .* matches 'done \(\[0-9\]"):
        watched.look()
    watched.close()


def test_a_figure_that_is_no_amount_or_no_answer_is_not_there_for_a_while():
    with socket.create_server(("127.0.0.1", 0)) as rubbish:
        Thread(target=lambda: rubbish.accept()[0].sendall(b"no HTTP\r\n\r\n"), daemon=True).start()
        url = f"http://127.0.0.1:{rubbish.getsockname()[1]}"
        of_rubbish = FigureSource(prometheus=url, query="up")
        for source in (FigureSource(command="echo inf"), FigureSource(command="no"), of_rubbish):
            watched = Watched(os.getpid(), source)
            assert watched.look().figure is None
            watched.close()


# ---- the learner and the governor on a process without a clock -----------------------------------


def chosen(epoch_s=4.0, **more):
    arms = (PolicyArm("lean", {"hz": {"decay_ms": 0}}),)
    return Policy(doc="", arms=arms, epoch_s=epoch_s, **more)


def governed(of, *, seconds, cost=lambda arm: 1.0, work=lambda arm: None, mib=lambda arm: 100.0,
             pressure=lambda arm: 0.0, first=None, unread=0.0, names=ARMS,
             told=lambda sight: "steady"):  # fmt: skip
    """Governs a process whose CPU time is `cost` of the arm in effect now; actions, arms.

    `unread`: share of looks in which its work cannot be read.
    """
    rng, actions, arms = Random(1), [], []
    learner = Learner(names, error=of.error, most_loss=of.most_loss, rng=rng, first=first)
    made = Governor(of, names, learner, told, rng, actions.append)
    noise, sight, done = Random(2), Observation(0.0, 0.0, 0, 0.0), 0.0
    while sight.at_s < seconds:
        arms.append(made.look(sight))
        cpu_s = sight.cpu_s + cost(arms[-1]) * math.exp(noise.gauss(0.0, 0.05)) * LOOK_S
        done += (work(arms[-1]) or 0.0) * LOOK_S
        read = None if work(arms[-1]) is None or noise.random() < unread else done
        at_s, now = sight.at_s + LOOK_S, pressure(arms[-1])
        sight = Observation(at_s, cpu_s, int(mib(arms[-1]) * 2**20), read, pressure=now)
    return actions, arms


def test_what_costs_less_is_adopted_and_its_line_says_what_was_expected_and_what_came():
    actions, arms = governed(chosen(), seconds=1200.0, cost=lambda arm: 0.7 if arm else 1.0)
    adopted = [each for each in actions if each.what == "adopted"]
    assert [each.arm for each in adopted] == ["lean"]
    assert "expected" in adopted[0].told and "came 0." in adopted[0].told
    assert arms[-1] == 1


def test_what_has_no_effect_is_hardly_tried_beyond_its_share():
    _, arms = governed(chosen(exploring="5%"), seconds=3600.0)
    assert sum(arms) / len(arms) < 0.05 + 30.0 / 3600.0 + 0.02


@pytest.mark.parametrize("first", [{}, {"steady": 1}])
def test_what_costs_less_and_serves_less_is_left_alone_even_if_the_policy_names_it(first):
    actions, arms = governed(
        chosen(figure=FigureSource(command="x", counts_work=True)),
        seconds=2400.0,
        cost=lambda arm: 0.5 if arm else 1.0,
        work=lambda arm: 90.0 if arm else 100.0,
        first=first,
    )
    assert not [each for each in actions if each.what == "adopted"]
    assert not any(arms[-200:])


def test_a_look_that_could_not_read_the_figure_tells_nothing_of_a_setting():
    of = chosen(figure=FigureSource(command="x", counts_work=True))
    actions, _ = governed(of, seconds=2400.0, work=lambda arm: 100.0, unread=0.3)
    came = [
        float(each.told.split("came ")[1].split("x")[0]) for each in actions if "came" in each.told
    ]
    assert len(came) > 10
    assert min(came) > 0.8 and max(came) < 1.25


def test_a_trial_ends_though_the_figure_cannot_be_read_any_more():
    of = chosen(figure=FigureSource(command="x"))
    learner = Learner(ARMS, error=0.02, most_loss=0.02, rng=Random(1))
    made = Governor(of, ARMS, learner, lambda sight: "steady", Random(1), print)
    arms, figure = [0], 5.0
    while len(arms) < 400:
        figure = None if arms[-1] else figure
        arms.append(made.look(Observation(LOOK_S * len(arms), len(arms), 1 << 20, figure=figure)))
    assert 0 < sum(arms) <= of.epoch_s / LOOK_S


def test_a_trial_whose_epochs_are_never_counted_stays_within_the_share_of_exploring():
    of, actions = chosen(epoch_s=10.0), []
    learner = Learner(ARMS, error=0.02, most_loss=0.02, rng=Random(1))
    words = iter(("steady", "burst")[at // 4 % 2] for at in range(7201))  # 2 s each
    made = Governor(of, ARMS, learner, lambda sight: next(words), Random(1), actions.append)
    arms = [made.look(Observation(LOOK_S * at, at, 1 << 20)) for at in range(7200)]
    assert 0.01 < sum(arms) / len(arms) < 0.1
    assert {each.what for each in actions} == {"trying", "switched"}


def test_a_context_that_is_always_shorter_than_an_epoch_gets_shorter_trials():
    actions, _ = governed(
        chosen(epoch_s=10.0), seconds=3600.0, cost=lambda arm: 1.0 - 0.5 * arm,
        told=lambda sight: ("steady", "burst")[int(sight.at_s) // 5 % 2],
    )  # fmt: skip
    assert {each.context for each in actions if each.what == "adopted"} == {"steady", "burst"}


def test_two_pairs_that_are_alike_by_chance_bar_no_setting():
    learner = Learner(ARMS, error=0.02, most_loss=0.02, rng=Random(1))
    assert [learner.add("steady", 1, -0.1, loss) for loss in (0.030, 0.031)] == ["trial", "trial"]
    assert "barred" in [learner.add("burst", 1, -0.1, loss) for loss in (0.30, 0.31)]


def test_under_pressure_nothing_is_tried():
    of = chosen(brakes=Brakes(most_pressure=20.0))
    assert not any(
        governed(of, seconds=600.0, cost=lambda arm: 1.0 - 0.5 * arm, pressure=lambda arm: 30.0)[1]
    )


def test_pressure_makes_no_trial_shorter():
    actions, _ = governed(chosen(epoch_s=10.0), seconds=3600.0, pressure=lambda arm: 90.0 * arm,
                          told=lambda sight: "ab"[int(sight.at_s) // 30 % 2])  # fmt: skip
    assert {each.told for each in actions if each.what == "trying"} == {"for 10 s"}


def test_the_arm_that_a_policy_names_for_a_context_is_left_when_another_is_proved():
    actions, arms = governed(
        chosen(), seconds=1200.0, cost=lambda arm: 1.0 + 0.6 * arm, first={"steady": 1}
    )
    assert (arms[0], arms[-1]) == (1, 0)
    assert [each.arm for each in actions if each.what == "adopted"] == ["start"]


def test_beyond_the_limit_the_last_arm_is_used_until_there_is_room_again():
    of = chosen(minimise="cpu", limit="120M")
    actions, arms = governed(of, seconds=60.0, mib=lambda arm: 100.0 if arm else 130.0)
    assert (actions[0].what, actions[0].arm) == ("relief", "lean")
    assert 0 in arms[20:]
    assert len(actions) < 60.0 / of.epoch_s


def test_a_trial_pays_for_the_relief_that_it_leads_to():
    of, names = chosen(minimise="cpu", limit="120M", exploring="5%"), ("start", "keep", "lean")
    _, arms = governed(of, seconds=3600.0, mib=lambda arm: 100 + 30 * (arm == 1), names=names)
    assert 0.01 < 1.0 - arms.count(0) / len(arms) < 0.06


def test_beyond_the_limit_the_last_arm_is_used_whatever_was_seen_in_other_contexts():
    of, names = chosen(minimise="cpu", limit="120M"), ("start", "keep", "lean")
    learner = Learner(
        names, error=0.02, most_loss=0.02, rng=Random(1), first={"steady": 1, "burst": 2}
    )
    words = iter(["steady"] * 20 + ["burst"] * 20 + ["steady"] * 20)
    made = Governor(of, names, learner, lambda sight: next(words), Random(1), print)
    arms = [made.look(Observation(at_s, at_s, mib << 20, pressure=90.0))
            for at_s, mib in enumerate([50] * 20 + [110] * 20 + [50] * 19 + [130])]  # fmt: skip
    assert arms[-2:] == [1, 2]


@pytest.mark.parametrize("of", [chosen(epoch_s=60.0), chosen(epoch_s=10.0, exploring="2%")])
def test_a_long_epoch_or_a_small_share_of_exploring_only_delays_trials(of):
    actions, _ = governed(of, seconds=7200.0, cost=lambda arm: 1.0 - 0.5 * arm)
    assert "adopted" in [each.what for each in actions]


def test_epochs_in_which_the_least_trial_may_lose_too_much_of_the_figure_are_refused():
    of = chosen(epoch_s=21.0, figure=FigureSource(command="x", counts_work=True))
    with pytest.raises(UsageError, match=r"epoch_s must be at most 20\.2 under this brakes"):
        governed(of, seconds=0.0)


def test_the_errors_of_all_claims_sum_up_to_that_of_the_policy():
    learner, total = Learner(ARMS, error=0.02, most_loss=0.02, rng=Random(1)), 0.0
    for context_name in map(str, range(60)):
        for arm in (1, 0) * 8:
            total += learner.comparison(context_name, arm).error
            while learner.add(context_name, arm, -0.5, None) != "adopted":
                continue
    assert 0.019 < total < 0.02


# ---- policies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", policy.shipped())
def test_every_shipped_policy_names_levers_alone(name):
    found = policy.load(name)
    for arm in found.arms:
        for family, settings in arm.settings.items():
            assert settings.keys() <= live(family), (arm.name, family)


ILLEGAL = [
    ('doc = "x"', "arms"),
    ('doc = "x"\narms = []\nlimit = "2x"', "legal is a size"),
    ('doc = "x"\narms = []\nspeed = 1', "speed"),
    ('doc = "x"\narms = []\nepoch_s = 0.5', "epoch_s"),
    ('doc = "x"\narms = [{name = "start", settings = {}}]', "start"),
    ('doc = "x"\narms = []\nfigure = {log = "f"}', "one source"),
    ('doc = "x"\narms = [{name = "a", settings = {}, contexts = ["busy"]}]', "idle, steady"),
]


@pytest.mark.parametrize(("words", "said"), ILLEGAL)
def test_a_policy_that_is_not_legal_is_refused(tmp_path, words, said):
    path = tmp_path / "p.toml"
    path.write_text(words)
    with pytest.raises(UsageError, match=said):
        policy.load(str(path))


def test_the_levers_of_the_agent_are_those_that_the_tables_call_live():
    source = (Path(__file__).parents[2] / "core" / "agent" / "levers.c").read_text()
    known = {line.split('.name = "')[1].split('"')[0] for line in source.splitlines()
             if '.name = "' in line}  # fmt: skip
    assert known == {name for family in tables() if family != "hz" for name in live(family)}


def live(family):
    """The parameters of an allocator that may change while a process runs."""
    if family == "hz":
        return {each.name for each in api.parameters() if each.is_live}
    return {row.name for row in tables()[family].rows if row.live}


# ---- a process -----------------------------------------------------------------------------------

READY = "import time\nprint('ready', flush=True)\n"
HASTY = """
from hztune import cli
from hztune.govern import steer
steer.LEASE_S, steer._RENEWED_S = 6, 1.0
cli.main()
"""
"""hztune with a lease that ends sooner."""

BUSY = READY + "while True:\n x = [bytes(9999) for _ in range(99)]\n time.sleep(0.01)"


@pytest.fixture
def busy(started):
    """A Python on hz that takes requests."""
    env = {**os.environ, "HZ_CONTROL": "1", "LD_PRELOAD": str(artifacts.library())}
    return started([sys.executable, "-c", BUSY], **env)


def decay(child):
    return statistics_of(Process.of(child.pid)).parts[0].levers["decay_ms"]


@pytest.mark.slow
def test_a_governed_process_has_its_own_settings_again_whatever_ends_the_governor(busy, tmp_path):
    lean = 'doc = "x"\n[[arms]]\nname = "lean"\ncontexts = ["steady", "idle", "burst"]\n'
    path, log = tmp_path / "p.toml", tmp_path / "log"
    path.write_text(lean + "settings.hz = { decay_ms = 0 }\n")
    words = [sys.executable, "-c", HASTY, "govern", str(path), "--pid", str(busy.pid)]
    for number in (signal.SIGTERM, signal.SIGKILL):
        governor = subprocess.Popen([*words, "--log", str(log)], stderr=subprocess.PIPE)
        await_true(lambda: decay(busy) == 0)
        governed_now = exposition([statistics_of(Process.of(busy.pid))])
        assert f'hztune_governed{{pid="{busy.pid}",process="python' in governed_now
        assert f'hztune_cpu_seconds_total{{pid="{busy.pid}"' in governed_now
        assert governed_now.count("} 1\n")
        governor.send_signal(number)
        if number == signal.SIGKILL:  # what is in effect now are not the values of the start
            with pytest.raises(UsageError, match="lost one some seconds ago"):
                steer.Levers.of(busy.pid, chosen())
        said = governor.communicate()[1]
        await_true(lambda: decay(busy) == 100)
        assert (b"told to end; the process has the" in said) == (number == signal.SIGTERM)
    first, second, *_ = map(json.loads, log.read_text().splitlines())
    assert (first["what"], first["arm"], second["what"]) == ("switched", "lean", "let go")


HOLDS = "import time\nx = [bytes(9999) for _ in range(9999)]\n"
FREES = {
    "before": "del x[:-1]\nprint(flush=True)\ninput()",
    "later": "print(flush=True)\ntime.sleep(0.5)\ndel x[:-1]\ninput()",
}


@pytest.mark.slow
@pytest.mark.parametrize("freed", FREES)
def test_an_arm_that_trims_returns_what_was_freed_before_it_began_and_later(freed, monkeypatch):
    monkeypatch.setattr(steer, "_RENEWED_S", 0.1)
    monkeypatch.setattr(steer, "_TRIMMED_S", 0.1 if freed == "later" else 60.0)
    lean = PolicyArm("lean", {"glibc": {"top_pad": 0}}, ("idle", "steady", "burst"), True)
    env = {**os.environ, "HZ_CONTROL": "1", "LD_PRELOAD": str(artifacts.agent())}
    command = [sys.executable, "-c", HOLDS + FREES[freed]]
    with subprocess.Popen(command, env=env, stdin=-1, stdout=-1) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert Process.of(child.pid).memory().resident_bytes > 100_000_000
        steer.steered(child.pid, Policy("", (lean,)), print, for_s=1.5)
        held = Process.of(child.pid).memory().resident_bytes
        child.kill()
    assert held < 50_000_000


@pytest.mark.slow
def test_a_value_that_no_process_would_take_is_refused_at_the_start(busy):
    of = Policy(doc="", arms=(PolicyArm("lean", {"hz": {"decay_ms": 60001}}),))
    await_true(lambda: decay(busy) == 100)
    with pytest.raises(UsageError, match="legal is a whole number from 0 to 60000"):
        steer.steered(busy.pid, of, print, for_s=0.0)


@pytest.mark.slow
def test_a_log_that_cannot_be_written_is_named_and_nothing_is_left_set(busy):
    lean = PolicyArm("lean", {"hz": {"decay_ms": 0}}, contexts=("steady", "idle", "burst"))
    end = steer.steered(busy.pid, Policy("", (lean,)), [].append, log=Path("/dev/full"), for_s=9.0)
    assert end.why.startswith("--log '/dev/full' cannot be written")
    assert decay(busy) == 100


@pytest.mark.slow
def test_a_governor_that_run_starts_has_nothing_of_the_program_open_but_stderr():
    words = [sys.executable, "-m", "hztune", "run", "--govern", "lean-when-idle", "--", "cat"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, **pipes) as child:
        governor = f"govern\0lean-when-idle\0--pid\0{child.pid}\0"
        await_true(lambda: processes_naming(governor))
        own = opened(child.pid, "[01]")
        assert len(own) == 2 and not own & opened(processes_naming(governor)[0], "*")
        child.communicate(b"")
        assert child.returncode == 0
    await_true(lambda: not processes_naming(governor))


def opened(pid, pattern):
    found = set()
    for each in Path("/proc", str(pid), "fd").glob(pattern):
        with suppress(FileNotFoundError):  # closed since it was listed
            found.add(os.readlink(each))
    return found


@pytest.mark.slow
def test_a_governor_lets_go_of_what_somebody_else_changes(busy):
    levers = steer.Levers.of(busy.pid, chosen())
    levers.hold("lean")
    api.change_process(busy.pid, {"decay_ms": "7"})
    assert levers.hold("lean") == "somebody else has changed decay_ms"
    assert levers.let_go().endswith("the settings of its start but for decay_ms=7")
    assert decay(busy) == 7


def await_true(holds):
    ends = time.monotonic() + 30.0
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.1)


def test_metrics_are_served_whatever_stands_behind_their_path():
    with server("127.0.0.1", 0) as served:
        Thread(target=served.handle_request).start()
        url = f"http://127.0.0.1:{served.server_port}/metrics?a=b"
        assert urlopen(url, timeout=60).status == 200
