"""The command line: what is dispatched, what goes where, and how it says no."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hztune import api, arguments, cli, export, params, profile
from hztune.cli import tune as cli_tune
from hztune.doctor import Check, Fitness
from hztune.errors import HztuneError
from hztune.machine import Machine
from hztune.profile import TERM_DAYS, Caution, Profile
from hztune.progress import Plain
from hztune.rests import DEFAULT_IDLE_S
from hztune.tune.request import DEFAULT_BUDGET_S

MakeProfile = Callable[..., Profile]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def saved(make_profile: MakeProfile, tmp_path: Path) -> Path:
    """A valid profile in a file, beside a program and two search spaces that are not valid."""
    path = tmp_path / "profile.json"
    profile.save(make_profile(), path)
    (tmp_path / "BUILT").touch(mode=0o755)
    (tmp_path / "BAD.toml").write_text("schema = ")
    (tmp_path / "ODD.toml").write_text('schema = 1\nallocator = "hz"\n[parameters.magazin_cap]\n')
    return path


# ---- dispatch ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "dispatched"),
    [
        ([], ["--help"]),
        (["--help"], ["--help"]),
        (["--version"], ["--version"]),
        (["params", "--json"], ["params", "--json"]),
        (["tune", "--workload", "larson"], ["tune", "--workload", "larson"]),
        (["--workload", "larson"], ["tune", "--workload", "larson"]),
        (["--", "./program", "params"], ["tune", "--", "./program", "params"]),
        (["./program"], ["tune", "./program"]),
    ],
)
def test_tune_is_meant_where_no_command_is_named(words: list[str], dispatched: list[str]) -> None:
    assert cli.with_command(words) == dispatched


def test_every_command_has_its_own_help_and_no_words_at_all_print_that_of_all(
    hztune: Run, hztune_here: Run, root: Path
) -> None:
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


QUICK = {
    "tune help": ["tune", "--help"],
    "params": ["params"],
    "show": ["show", "PROFILE"],
    "export": ["export", "PROFILE", "--format", "env"],
    "list formats": ["list", "formats"],
    "refusal": ["tune", "--workload", "larson", "--budget", "1s"],
}


@pytest.mark.parametrize("what", QUICK)
def test_a_quick_command_imports_nothing_heavy(what: str, saved: Path, core_build: Path) -> None:
    """What `tune` refuses it judges with the statistics, so that numpy is there."""
    script = (
        "import sys; from hztune.cli import status_of; status = status_of(sys.argv[1:]);"
        "print(status, sorted({'optuna', 'numpy'} & set(sys.modules)),"
        " file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *(str(saved) if w == "PROFILE" else w for w in QUICK[what])],
        env={**os.environ, "HZTUNE_CORE": str(core_build)},
        capture_output=True,
        text=True,
    )
    assert done.stderr.splitlines()[-1] == ("2 ['numpy']" if what == "refusal" else "0 []")


# ---- how it says no ------------------------------------------------------------------------------


TUNE = ["tune", "--threads", "2", "--workload", "remote"]

BAD = {
    "unknown option": (["params", "--jsn"], "--jsn"),
    "unknown format": (["export", "PROFILE", "--format", "heder"], "did you mean header"),
    "format of another allocator": (
        ["export", "PROFILE", "--format", "c-glibc"],
        "legal is one of",
    ),
    "format missing": (["export", "PROFILE"], "--format"),
    "profile missing": (["show"], "PROFILE"),
    "profile that is not there": (["show", "absent.json"], "absent.json"),
    "profile that is a directory": (["export", "/", "--format", "env"], "give the profile.json of"),
    "unknown allocator": (["params", "--allocator", "jemaloc"], "did you mean jemalloc"),
    "program missing": (["run", "PROFILE"], "PROGRAM"),
    "program that is not there": (["run", "PROFILE", "--", "no-such-program"], "no-such-program"),
    "word that is no command": (["dragons"], "'dragons' is no command of hztune"),
    "workload as a command": (["larson"], "it is a workload: hztune --workload larson"),
    "workload after tune": (["tune", "larson"], "hztune --workload larson"),
    "workload after an option": (["--threads", "2", "larson"], "hztune --workload larson"),
    "nearly a workload": (["larsen"], "did you mean hztune --workload larson?"),
    "program by its path": (["/bin/sh"], "it is a program: hztune -- /bin/sh"),
    "program beside": (["BUILT"], "it is a program: hztune -- ./BUILT"),
    "pipeline": (["--", "cat", "x", "|", "sort"], "no shell reads the '|' before sort"),
    "pipeline in quotes": (["--", "cat x | sort"], "so write: sh -c 'cat x | sort'"),
    "file that is no program": (["ODD.toml"], "not executable: hztune -- INTERPRETER ODD.toml"),
    "workload missing": (["tune"], "--workload is missing"),
    "unknown workload": ([*TUNE[:-1], "larsen"], "larson"),
    "parameter of a workload out of range": ([*TUNE, "-p", "remote=101"], "from 0 to 100"),
    "no threads": ([*TUNE, "--threads", "0"], "threads"),
    "unknown allocator to tune": ([*TUNE, "--allocator", "hx"], "there is no allocator 'hx'"),
    "unknown space": ([*TUNE, "--space", "hzz"], "hzz"),
    "space of an unknown parameter": ([*TUNE, "--space", "ODD.toml"], "did you mean magazine_cap"),
    "budget that is no time": ([*TUNE, "--budget", "soon"], "legal is a number with s, m or h"),
    "budget that is too short": ([*TUNE, "--budget", "1s"], "legal is from"),
    "no trials": ([*TUNE, "--trials", "0"], "--trials is 0"),
    "limit that is empty": ([*TUNE, "--max-kept", ""], "--max-kept is empty; give it a value"),
    "rests beyond the budget": (
        ["compare", "none", "glibc", "--rests=x", "--idle-s=60", "--budget=20s", "--", "true"],
        "takes 480 s in 4 runs of each contender without the loads, and a row has 20 s",
    ),
    "rest without an end": ([*TUNE, "--idle-s", "inf"], "'inf' is not a number; legal is one"),
    "rest that is no number": ([*TUNE, "--idle-s", "2s"], "'2s' is not a number; legal is one"),
    "process that is no number": (["doctor", "--pid", "me"], "'me' is no whole number"),
    "container of a folder": (["verify", "--all", ".", "--cpus", "1"], "write it into the .args"),
    "limit that is none": ([*TUNE, "--max-rss", "lots"], "--max-rss 'lots': legal is"),
    "loss of one workload": ([*TUNE, "--max-loss", "2%"], "is for several workloads or commands"),
    "negative seed": ([*TUNE, "--seed", "-1"], "--seed"),
    "resume of nothing": ([*TUNE, "--resume", "--out", "absent"], "absent"),
}


@pytest.mark.parametrize(("words", "said"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_sentence_on_stderr_and_status_2(
    words: list[str], said: str, saved: Path, hztune_here: Run, hztune: Run
) -> None:
    before = sorted(path.name for path in saved.parent.iterdir())
    run = hztune if "--jsn" in words else hztune_here
    done = run(*[saved if word == "PROFILE" else word for word in words])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("hztune: ") and done.stderr.count("\n") == 1
    assert said in done.stderr
    assert sorted(path.name for path in saved.parent.iterdir()) == before, "no file changes"


def test_the_results_of_another_study_are_refused_and_kept(
    hztune_here: Run, tmp_path: Path
) -> None:
    samples = tmp_path / "other" / "samples.jsonl"
    samples.parent.mkdir()
    samples.write_text("the work of somebody else\n")
    for resume in ([], ["--resume"]):
        done = hztune_here(*TUNE, "--out", samples.parent, *resume)
        assert (done.returncode, done.stdout) == (2, "")
        assert "other" in done.stderr and done.stderr.count("\n") == 1
    assert samples.read_text() == "the work of somebody else\n"
    assert [path.name for path in samples.parent.iterdir()] == ["samples.jsonl"]


def test_a_dry_run_shows_the_plan_and_writes_nothing(hztune_here: Run, tmp_path: Path) -> None:
    done = hztune_here(*TUNE, "--dry-run", "--threads", "2")
    assert done.returncode == 0
    assert "budget: 3:00" in done.stdout and "magazine_cap" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_defaults_in_the_help_are_those_that_are_used() -> None:
    params = {option.name: option for option in cli_tune.tune_command.params}
    options = {name: option.default for name, option in params.items()}
    assert f"[default: {DEFAULT_IDLE_S:g} where" in str(getattr(params["idle_s"], "help", ""))
    assert arguments.parse_duration(str(options["budget"])) == DEFAULT_BUDGET_S
    assert options["term_days"] == TERM_DAYS


def test_a_broken_core_is_a_run_time_failure(hztune: Run, tmp_path: Path) -> None:
    done = hztune("paths", "--lib", HZTUNE_CORE=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no libhz.so" in done.stderr


def test_an_interruption_is_status_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **how: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hztune.cli.list._print", interrupted)
    assert cli.status_of(["list", "formats"]) == 130


def test_a_reader_that_leaves_early_is_no_disaster() -> None:
    piped = f"{sys.executable} -m hztune params | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", piped], capture_output=True, text=True)
    assert done.returncode in (0, 1)
    assert done.stderr == ""


def test_a_full_disk_is_one_sentence_and_ends_no_study() -> None:
    command = [sys.executable, "-m", "hztune", "params"]
    full = Path("/dev/full").open("w")  # noqa: SIM115 -- closing it fails
    done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    said = "hztune: cannot write to stdout: No space left on device; the output"
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(said)
    Plain(full).say("a line")
    with pytest.raises(OSError, match="No space left"):
        full.close()


def test_a_path_is_printed_as_it_is_also_where_it_is_no_utf_8(tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/odd-\xff"
    os.mkdir(odd)
    (Path(os.fsdecode(odd)) / "libhz.so").touch()
    done = subprocess.run(
        [sys.executable, "-m", "hztune", "paths", "--lib"],
        env={**os.environ, "HZTUNE_CORE": os.fsdecode(odd), "PYTHONUTF8": "1"},
        capture_output=True,
    )
    assert (done.stdout, done.stderr) == (odd + b"/libhz.so\n", b"")


# ---- lists ---------------------------------------------------------------------------------------


LISTED: dict[str, tuple[list[str], Callable[[], list[str]]]] = {
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
def test_a_list_names_all_for_people_and_for_machines(what: str, hztune_here: Run) -> None:
    words, known = LISTED[what]
    assert [row["name"] for row in json.loads(hztune_here(*words, "--json").stdout)] == known()
    told = [line.split()[0].partition("[")[0] for line in hztune_here(*words).stdout.splitlines()]
    assert set(known()) <= {each.partition(":")[0] for each in told}


def test_every_path_is_printed_and_hz_is_the_library_of_this_build(
    hztune_here: Run, core_build: Path
) -> None:
    rows = [line.split(maxsplit=1) for line in hztune_here("paths").stdout.splitlines()]
    assert [name for name, path in rows if not Path(path).exists() and name != "cmake"] == []
    assert hztune_here("paths", "--lib").stdout == f"{core_build / 'libhz.so'}\n"
    listed = json.loads(hztune_here("list", "allocators", "--json").stdout)
    assert [row["path"] for row in listed if row["name"] == "hz"] == [str(core_build / "libhz.so")]


# ---- the machine ---------------------------------------------------------------------------------


def test_doctor_says_what_it_looked_at_and_the_record_of_the_machine(hztune_here: Run) -> None:
    done, said = hztune_here("doctor", "--json"), hztune_here("doctor").stdout
    held = json.loads(done.stdout)
    assert (done.returncode, [*held]) == (0, ["findings", "machine"])
    assert all(f"{each['verdict']:8}{each['name']}: " in said for each in held["findings"])
    assert all(f" {name}: {value}\n" in said for name, value in Machine.here().described())
    assert Machine(**held["machine"]) == Machine.here()


class Measured(HztuneError):
    """Stands for a study that was begun."""

    exit_status = 77


@pytest.mark.parametrize(
    ("words", "verdict", "status"),
    [
        (["doctor", "--strict"], "warn", 0),
        (["doctor", "--strict"], "unfit", 5),
        (["doctor"], "unfit", 0),
        ([*TUNE, "--strict"], "warn", 77),
        ([*TUNE, "--strict"], "unfit", 5),
        ([*TUNE], "unfit", 77),
    ],
)
def test_strict_refuses_a_machine_that_is_unfit(
    words: list[str], verdict: Fitness, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(*_: object) -> None:
        raise Measured

    monkeypatch.setattr("hztune.doctor.examine", lambda: (Check("load", verdict, "busy"),))
    monkeypatch.setattr("hztune.tune.session.tune", begin)
    assert cli.status_of(words) == status


# ---- show, export, run ---------------------------------------------------------------------------


def test_show_prints_the_claim_and_the_parameters(hztune_here: Run, saved: Path) -> None:
    shown = hztune_here("show", saved).stdout
    assert "14.0 % better in ops_per_s" in shown
    assert "magazine_cap  512  (default 256)" in shown
    assert hztune_here("show", saved, "--json").stdout == saved.read_text()


def test_an_export_prints_the_same_as_it_writes(hztune_here: Run, saved: Path) -> None:
    for form in ("env", "wrapper"):
        target = saved.with_name(form)
        printed = hztune_here("export", saved, "--format", form)
        written = hztune_here("export", saved, "--format", form, "--output", target)
        assert (printed.returncode, written.returncode, written.stdout) == (0, 0, "")
        assert target.read_text() == printed.stdout
        assert os.access(target, os.X_OK) == (form == "wrapper")


def test_run_gives_the_program_the_profile_and_nothing_that_was_set_before(
    hztune: Run, saved: Path, core_build: Path, profile_of: Callable[[str], Profile]
) -> None:
    done = hztune("run", saved, "--", "env", HZ_MAGAZINE_CAP="8", HZ_THP="on", UNRELATED="kept")
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert {name for name in seen if name.startswith("HZ_")} == {"HZ_MAGAZINE_CAP", "HZ_DEPOT_LOCK"}
    assert (seen["HZ_MAGAZINE_CAP"], seen["UNRELATED"]) == ("512", "kept")
    assert seen["LD_PRELOAD"] == str(core_build / "libhz.so")
    profile.save(profile_of("jemalloc"), saved)  # beside it stands what RTLD_DEEPBIND needs
    done = hztune("run", saved, "--", "php", "-r", "echo getenv('LD_PRELOAD');")
    beside = f"libjemalloc.so.2:{core_build / 'libhz-deepbind.so'}"
    assert (done.returncode, done.stdout) == (0, beside)


@pytest.mark.parametrize(
    ("words", "status", "printed"),
    [
        (["sh", "-c", 'echo "$1"; exit 7', "sh", "--help  me"], 7, "--help  me\n"),
        (["sh", "-c", "kill -TERM $$"], -signal.SIGTERM, ""),
    ],
)
def test_run_keeps_the_words_and_the_end_of_the_program(
    words: list[str], status: int, printed: str, hztune: Run, saved: Path
) -> None:
    done = hztune("run", saved, "--", *words)
    assert (done.returncode, done.stdout) == (status, printed)


@pytest.mark.parametrize("words", [("run", "--", "true"), ("export", "--format", "compose")])
def test_run_and_export_warn_of_harm_and_of_another_machine(
    words: tuple[str, ...], hztune: Run, make_profile: MakeProfile, tmp_path: Path
) -> None:
    harm = Caution("speed", "programs with large blocks", "large", {"magazine_cap": 512},
                   0.03, 0.02, 0.04)  # fmt: skip
    here = make_profile().machine
    machine = type(here)("Other CPU", 4096, None, "6.1", "glibc 2.36", 4096, "always")
    profile.save(make_profile(cautions=(harm,), machine=machine), tmp_path / "p.json")
    word, *options = words
    done = hztune(word, tmp_path / "p.json", *options)
    assert done.returncode == 0
    assert f"hztune: warning: {harm.text}\n" in done.stderr
    assert "another number of CPUs: 4096 there" in done.stderr


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


@pytest.mark.parametrize(
    "begin", ["interrupt.end_in_order()\nif True:", "with interrupt.interruptible():"]
)
def test_a_terminal_that_is_closed_may_send_its_signal_twice(begin: str) -> None:
    script = CLOSED_TERMINAL.replace("BEGIN", begin)
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == 0


IGNORED = """
import os, signal
from hztune import interrupt
for one in ENDS:
    signal.signal(one, signal.SIG_IGN)
with interrupt.interruptible() as asked:
    for one in ENDS:
        os.kill(os.getpid(), one)
    assert not asked.is_set()
assert all(signal.getsignal(one) == signal.SIG_IGN for one in ENDS)
""".replace("ENDS", "(signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)")


def test_a_signal_that_the_caller_ignores_ends_no_measurement() -> None:
    """A shell without job control ignores SIGINT for what it starts with `&`."""
    assert subprocess.run([sys.executable, "-c", IGNORED], check=False).returncode == 0


@pytest.mark.parametrize("closed", ["<&-", "<&- 2>&-"])
def test_closed_streams_lose_no_child(closed: str) -> None:
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


def test_as_the_first_process_of_a_container_it_leaves_no_zombies() -> None:
    first = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*first, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no container can be made here")
    assert subprocess.run([*first, sys.executable, "-c", FIRST], check=False).returncode == 7
