"""The command line: what is dispatched, what goes where, and how it says no."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.conftest import finished

from hztune import api, arguments, cli, export, params, profile
from hztune.cli import tune as cli_tune
from hztune.doctor import Check
from hztune.machine import Machine
from hztune.profile import TERM_DAYS, Caution
from hztune.progress import Plain
from hztune.rests import DEFAULT_IDLE_S
from hztune.tuning.request import DEFAULT_BUDGET_S


@pytest.fixture
def saved(make_profile, tmp_path):
    """A valid profile in a file."""
    path = tmp_path / "profile.json"
    profile.save(make_profile(), path)
    return path


# ---- dispatch ------------------------------------------------------------------------------------


DISPATCHED = [
    ([], ["--help"]),
    (["--help"], ["--help"]),
    (["--version"], ["--version"]),
    (["params", "--json"], ["params", "--json"]),
    (["tune", "--workload", "larson"], ["tune", "--workload", "larson"]),
    (["--workload", "larson"], ["tune", "--workload", "larson"]),
    (["--", "./program", "params"], ["tune", "--", "./program", "params"]),
    (["./program"], ["tune", "./program"]),
]


@pytest.mark.parametrize(("words", "dispatched"), DISPATCHED)
def test_tune_is_meant_where_no_command_is_named(words, dispatched):
    assert cli.with_command(words) == dispatched


def test_every_command_has_its_own_help(hztune, hztune_here, root):
    done = hztune()
    assert (done.returncode, done.stdout) == (0, hztune_here("--help").stdout)
    assert "..." not in done.stdout.partition("Commands:")[2], "a first sentence is too long"
    for name in cli.COMMANDS:
        assert f"\n  {name} " in done.stdout
        own = hztune_here(name, "--help")
        assert (own.returncode, own.stderr) == (0, "")
        assert f"Usage: hztune {name}" in own.stdout and "\\b" not in own.stdout
    version = hztune_here("--version").stdout.split()[1]
    assert f"project(hz VERSION {version} " in (root / "core" / "CMakeLists.txt").read_text()


# ---- quick answers -------------------------------------------------------------------------------


TUNE = ["tune", "--threads", "2", "--workload", "remote"]
QUICK = {
    "params": ["params"],
    "export": ["export", "PROFILE", "--format", "env"],
    "refusal": ["tune", "--workload", "larson", "--budget", "1s"],
}


@pytest.mark.parametrize("what", QUICK)
def test_a_quick_command_imports_nothing_heavy(what, saved, core_build):
    """What `tune` refuses it judges with the statistics, so that numpy is there."""
    script = (
        "import sys; from hztune.cli import status_of; status = status_of(sys.argv[1:])\n"
        "print(status, sorted({'optuna', 'numpy'} & set(sys.modules)), file=sys.stderr)"
    )
    words = [saved if word == "PROFILE" else word for word in QUICK[what]]
    own = {**os.environ, "HZTUNE_CORE": str(core_build)}
    done = finished([sys.executable, "-c", script, *words], env=own)
    assert done.stderr.splitlines()[-1] == ("2 ['numpy']" if what == "refusal" else "0 []")


def test_a_dry_run_shows_the_plan_and_writes_nothing(hztune_here, tmp_path):
    done = hztune_here(*TUNE, "--dry-run", "--threads", "2")
    assert done.returncode == 0
    assert "budget: 3:00" in done.stdout and "magazine_cap" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_defaults_in_the_help_are_those_that_are_used():
    params = {option.name: option for option in cli_tune.tune_command.params}
    options = {name: option.default for name, option in params.items()}
    assert f"[default: {DEFAULT_IDLE_S:g} where" in str(getattr(params["idle_s"], "help", ""))
    assert arguments.parse_duration(str(options["budget"])) == DEFAULT_BUDGET_S
    assert options["term_days"] == TERM_DAYS


def test_a_broken_core_is_a_run_time_failure(hztune, tmp_path):
    done = hztune("paths", "--lib", HZTUNE_CORE=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no libhz.so" in done.stderr


def test_a_reader_that_leaves_early_is_no_disaster():
    piped = f"{sys.executable} -m hztune params | true; exit ${{PIPESTATUS[0]}}"
    done = finished(["bash", "-c", piped])
    assert (done.returncode in (0, 1), done.stderr) == (True, "")


def test_a_full_disk_is_one_sentence_and_ends_no_study():
    command = [sys.executable, "-m", "hztune", "params"]
    full = Path("/dev/full").open("w")  # noqa: SIM115 -- closing it fails
    done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    said = "hztune: cannot write to stdout: No space left on device; the output"
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(said)
    Plain(full).say("a line")
    with pytest.raises(OSError, match="No space left"):
        full.close()


def test_a_path_is_printed_as_it_is_also_where_it_is_no_utf_8(tmp_path):
    odd = os.fsencode(tmp_path) + b"/odd-\xff"
    os.mkdir(odd)
    (Path(os.fsdecode(odd)) / "libhz.so").touch()
    own = {**os.environ, "HZTUNE_CORE": os.fsdecode(odd), "PYTHONUTF8": "1"}
    words = [sys.executable, "-m", "hztune", "paths", "--lib"]
    done = subprocess.run(words, env=own, capture_output=True)
    assert (done.stdout, done.stderr) == (odd + b"/libhz.so\n", b"")


# ---- lists ---------------------------------------------------------------------------------------


LISTED = {
    "all parameters": (["params", "--all"], lambda: [row.name for row in params.table()]),
    "parameters for users": (
        ["params"], lambda: [row.name for row in params.table() if not row.is_experimental]
    ),
    "formats": (["list", "formats"], lambda: [form.name for form in export.FORMATS]),
    "spaces": (["list", "spaces"], lambda: [path.stem for path in api.spaces()]),
    "workloads": (["list", "workloads"], lambda: [each.name for each in api.workloads()]),
    "allocators": (["list", "allocators"], lambda: [*api.allocator_names()]),
}  # fmt: skip


@pytest.mark.parametrize("what", LISTED)
def test_a_list_names_all_for_people_and_for_machines(what, hztune_here):
    words, known = LISTED[what]
    assert [row["name"] for row in json.loads(hztune_here(*words, "--json").stdout)] == known()
    told = [line.split()[0].partition("[")[0] for line in hztune_here(*words).stdout.splitlines()]
    assert set(known()) <= {each.partition(":")[0] for each in told}


def test_every_path_is_printed_with_hz_of_this_build(hztune_here, core_build):
    rows = [line.split(maxsplit=1) for line in hztune_here("paths").stdout.splitlines()]
    assert [name for name, path in rows if not Path(path).exists() and name != "cmake"] == []
    assert hztune_here("paths", "--lib").stdout == f"{core_build / 'libhz.so'}\n"
    listed = json.loads(hztune_here("list", "allocators", "--json").stdout)
    assert [row["path"] for row in listed if row["name"] == "hz"] == [str(core_build / "libhz.so")]


# ---- the machine ---------------------------------------------------------------------------------


def test_doctor_says_what_it_looked_at_and_the_record_of_the_machine(hztune_here):
    done, said = hztune_here("doctor", "--json"), hztune_here("doctor").stdout
    held = json.loads(done.stdout)
    assert (done.returncode, [*held]) == (0, ["findings", "machine"])
    assert all(f" {each['name']}: " in said for each in held["findings"])
    assert all(f" {name}: {value}\n" in said for name, value in Machine.here().described())
    assert Machine(**held["machine"]) == Machine.here()


def test_strict_refuses_a_machine_that_is_unfit(monkeypatch):
    begun = 130  # a study that is begun is interrupted at once
    monkeypatch.setattr("hztune.tuning.session.tune", Mock(side_effect=KeyboardInterrupt))
    for fitness, words, status in (
        ("warn", ["doctor", "--strict"], 0), ("unfit", ["doctor", "--strict"], 5),
        ("unfit", ["doctor"], 0), ("warn", [*TUNE, "--strict"], begun),
        ("unfit", [*TUNE, "--strict"], 5), ("unfit", TUNE, begun),
    ):  # fmt: skip
        found = (Check("load", fitness, "busy"),)
        monkeypatch.setattr("hztune.doctor.examine", lambda found=found: found)
        assert cli.status_of(words) == status, (fitness, words)


# ---- show, export, run ---------------------------------------------------------------------------


def test_show_prints_the_claim_and_the_parameters(hztune_here, saved):
    shown = hztune_here("show", saved).stdout
    assert "14.0 % better in ops_per_s" in shown
    assert "magazine_cap  512  (default 256)" in shown
    assert hztune_here("show", saved, "--json").stdout == saved.read_text()


def test_an_export_prints_the_same_as_it_writes(hztune_here, saved):
    for form in ("env", "wrapper"):
        target = saved.with_name(form)
        printed = hztune_here("export", saved, "--format", form)
        written = hztune_here("export", saved, "--format", form, "--output", target)
        assert (printed.returncode, written.returncode, written.stdout) == (0, 0, "")
        assert target.read_text() == printed.stdout
        assert os.access(target, os.X_OK) == (form == "wrapper")


def test_run_gives_the_profile_and_nothing_set_before(hztune, saved, core_build, make_profile):
    done = hztune("run", saved, "--", "env", HZ_MAGAZINE_CAP="8", HZ_THP="on", UNRELATED="kept")
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert {name for name in seen if name.startswith("HZ_")} == {"HZ_MAGAZINE_CAP", "HZ_DEPOT_LOCK"}
    assert (seen["HZ_MAGAZINE_CAP"], seen["UNRELATED"]) == ("512", "kept")
    assert seen["LD_PRELOAD"] == str(core_build / "libhz.so")
    profile.save(make_profile(of="jemalloc"), saved)  # beside it stands what RTLD_DEEPBIND needs
    done = hztune("run", saved, "--", "php", "-r", "echo getenv('LD_PRELOAD');")
    beside = f"libjemalloc.so.2:{core_build / 'libhz-deepbind.so'}"
    assert (done.returncode, done.stdout) == (0, beside)


def test_run_keeps_the_words_and_the_end_of_the_program(hztune, saved):
    done = hztune("run", saved, "--", "sh", "-c", 'echo "$1"; exit 7', "sh", "--help  me")
    assert (done.returncode, done.stdout) == (7, "--help  me\n")
    done = hztune("run", saved, "--", "sh", "-c", "kill -TERM $$")
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")


def test_run_and_export_warn_of_harm(hztune, make_profile, saved):
    harm = Caution("speed", "programs with large blocks", "large", {"magazine_cap": 512},
                   0.03, 0.02, 0.04)  # fmt: skip
    profile.save(make_profile(cautions=(harm,)), saved)
    for words in (("run", saved, "--", "true"), ("export", saved, "--format", "compose")):
        done = hztune(*words)
        assert done.returncode == 0 and f"hztune: warning: {harm.text}\n" in done.stderr


CLOSED_TERMINAL = """
import os, signal
from contextlib import suppress
from hztune import interrupt
signal.signal(signal.SIGHUP, signal.SIG_DFL)
BEGIN
    with suppress(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGHUP)
        raise SystemExit("no signal came")
    os.kill(os.getpid(), signal.SIGHUP)
"""
IGNORED = """
import os, signal
from hztune import interrupt
ENDS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
for one in ENDS:
    signal.signal(one, signal.SIG_IGN)
with interrupt.interruptible() as asked:
    for one in ENDS:
        os.kill(os.getpid(), one)
    assert not asked.is_set()
assert all(signal.getsignal(one) == signal.SIG_IGN for one in ENDS)
"""


SIGNALS = {
    "twice to a command": CLOSED_TERMINAL.replace("BEGIN", "interrupt.end_in_order()\nif True:"),
    "twice to a measurement": CLOSED_TERMINAL.replace("BEGIN", "with interrupt.interruptible():"),
    "ignored, as a shell does with `&`": IGNORED,
}


@pytest.mark.parametrize("script", SIGNALS.values(), ids=SIGNALS)
def test_a_signal_that_comes_twice_or_is_ignored_ends_nothing_else(script):
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize("closed", ["<&-", "<&- 2>&-"])
def test_closed_streams_lose_no_child(closed):
    command = f"'{sys.executable}' -m hztune list allocators {closed}"
    listed = subprocess.run(["sh", "-c", command], check=True, capture_output=True).stdout
    assert b"libhz.so\n" in listed and b"HZ_CONFIRM" not in listed


FIRST = """
import subprocess, sys, time
from pathlib import Path
from hztune import interrupt
interrupt.work_in_child_of_first()
orphan = int(subprocess.check_output(["sh", "-c", "sleep 0.01 >&- 2>&- & echo $!"]))
deadline = time.monotonic() + 30
while Path(f"/proc/{orphan}").exists() and time.monotonic() < deadline:
    time.sleep(0.01)
sys.exit(8 if Path(f"/proc/{orphan}").exists() else 7)
"""


def test_as_the_first_process_of_a_container_it_leaves_no_zombies():
    first = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*first, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no container can be made here")
    assert subprocess.run([*first, sys.executable, "-c", FIRST], check=False).returncode == 7
