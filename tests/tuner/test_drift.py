"""Profiles are measured again over time: what is due, what was found, what changed since."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from msgspec import structs

from hztune import allocator, api, cli, profile
from hztune.cli.verify import FolderAnswer
from hztune.errors import HztuneError, UsageError
from hztune.machine import Machine
from hztune.measure.program import Program
from hztune.profile import AllocatorId, Claim, MachineId, Objective, Profile, WorkloadId
from hztune.stats.intervals import Interval
from hztune.store import kept_command
from hztune.verify import history
from hztune.verify.claim import Verification, VerifyAnswer
from hztune.verify.history import RatioRange, Recheck

MakeProfile = Callable[..., Profile]
NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc)
HERE = {"kernel": "6.1.0", "library": "0.1.0 abc", "program:web": "abc"}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A history of this test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "hztune" / "history.jsonl"


@pytest.fixture
def tuned(make_profile: MakeProfile, core_build: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    """A profile that was made on this machine, and claims 1.14x."""
    monkeypatch.setenv("HZTUNE_CORE", str(core_build))
    return make_profile(
        params={"thp": "on"},
        allocator=AllocatorId.of(allocator.get("hz").installed()),
        machine=MachineId.of(Machine.here()),
        objective=Objective("ops_per_s", {}),
    )


def check(at: datetime = NOW, answer: VerifyAnswer = "holds", ratio: float = 1.1) -> Recheck:
    return Recheck(
        at=at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        profile="0123456789abcdef",
        label="larson T=32: hz thp=on",
        answer=answer,
        why="the gain is there",
        pairs=8,
        found=RatioRange(ratio, ratio - 0.02, ratio + 0.02),
        claimed=RatioRange(1.14, 1.1, 1.2),
        rss_ratio=1.05,
        here=HERE,
    )


def finding(answer: VerifyAnswer, low: float = 0.08, high: float = 0.12) -> Verification:
    return Verification(answer, "so it was made up", Interval(0.1, low, high, 8), 1.05)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, VerifyAnswer]:
    """What measuring again shows of each target, by its name; it holds where nothing is said."""
    told: dict[str, VerifyAnswer] = {}

    def verify(
        tuned: Profile, programs: tuple[Program, ...], *_: object, **__: object
    ) -> Verification:
        name = programs[0].argv[-1] if programs else tuned.workload.name
        return finding(told.get(name, "holds"))

    monkeypatch.setattr("hztune.verify.claim.verify", verify)
    return told


def _save(tuned: Profile, path: Path, words: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    profile.save(tuned, path)
    if words is not None:
        path.with_suffix(".args").write_text(words)
    return path


def of_program(tuned: Profile) -> Profile:
    return structs.replace(tuned, workload=WorkloadId("program", "sh", "", {}), threads=0)


# ---- the history ---------------------------------------------------------------------------------


def test_what_is_kept_is_read_again_in_the_order_of_time(state: Path) -> None:
    later, earlier = check(NOW + timedelta(hours=1), "cannot tell"), check()
    history.append(later)
    history.append(earlier)
    assert history.read() == [earlier, later]
    assert state.stat().st_mode & 0o077 == 0


def test_a_line_that_was_cut_by_a_kill_costs_no_other_one(state: Path) -> None:
    history.append(check())
    whole = state.read_bytes()
    state.write_bytes(whole + whole[: len(whole) // 2])
    history.append(check(NOW + timedelta(days=1)))
    assert [one.at for one in history.read()] == ["2026-03-01T12:00:00Z", "2026-03-02T12:00:00Z"]


@pytest.mark.parametrize(
    "line", ["", "[]", "{}", '{"schema": "hztune-check/2"}', "\xff", "null", "[" * 5000]
)
def test_a_line_that_is_no_check_is_passed_over(line: str, state: Path) -> None:
    history.append(check())
    with state.open("a") as held:
        held.write(f"{line}\n")
    assert history.read() == [check()]
    assert history.unreadable() == bool(line)


def test_lines_that_are_no_checks_are_counted_where_the_history_is_told(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history.append(check())
    assert cli.status_of(["history"]) == 0
    assert not capsys.readouterr().err
    with state.open("a") as held:
        held.write("neither\nof these\n")
    assert cli.status_of(["history"]) == 0
    told = capsys.readouterr()
    assert "holds" in told.out
    assert told.err == "hztune: 2 lines are left out of the history: no check can be read there\n"


def test_a_full_disk_is_told_and_the_answer_is_not_lost(
    tuned: Profile, answers: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    path = _save(tuned, tmp_path / "one.json")
    assert cli.status_of(["verify", str(path)]) == 0
    told = capsys.readouterr()
    assert "the claim holds" in told.out
    assert "this check is not in the history: " in told.err


def test_a_ratio_of_nothing_is_no_check(state: Path) -> None:
    history.append(check(ratio=0.02))  # its interval begins at 0
    assert '"ci_low":0.0' in state.read_text()
    assert history.read() == []


def test_a_history_that_cannot_be_read_is_said_and_stops_no_check(
    tuned: Profile, answers: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history.history_file().mkdir(parents=True)
    assert cli.status_of(["history"]) == HztuneError.exit_status
    assert "history.jsonl': it is not a regular file" in capsys.readouterr().err
    _save(tuned, tmp_path / "profiles" / "one.json")
    assert cli.status_of(["verify", "--all", str(tmp_path / "profiles"), "--due"]) == 0
    told = capsys.readouterr()
    assert "one.json: holds" in told.out
    assert "warning: this check is not in the history" in told.err


def test_a_check_without_an_interval_is_kept_without_one(tuned: Profile) -> None:
    endless = replace(finding("cannot tell"), interval=Interval(0.1, -math.inf, math.inf, 2))
    history.append(history.rechecked(tuned, (), endless))
    assert [(one.found, one.pairs) for one in history.read()] == [(None, 2)]


def test_a_profile_of_a_day_that_does_not_exist_is_said_and_not_measured(
    tuned: Profile, answers: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _save(
        structs.replace(tuned, created="2026-02-31T12:00:00Z"), tmp_path / "profiles" / "a.json"
    )
    assert cli.status_of(["verify", "--all", str(path.parent), "--quiet"]) == 1
    assert "created is '2026-02-31T12:00:00Z'; legal is a day that" in capsys.readouterr().out


# ---- what is due ---------------------------------------------------------------------------------


def test_a_profile_of_this_place_is_due_when_its_term_has_passed(tuned: Profile) -> None:
    made = datetime(2026, 1, 31, 12, 0, 0, tzinfo=timezone.utc)
    assert history.due(tuned, None, HERE, made + timedelta(days=89)) == ""
    late = history.due(tuned, None, HERE, made + timedelta(days=90))
    assert late == "90 days have passed, and its term is 90 days"
    short = structs.replace(tuned, term_days=7)
    assert history.due(short, None, HERE, made + timedelta(days=8)) != ""


def test_a_profile_that_held_is_due_a_term_later(tuned: Profile) -> None:
    late = NOW + timedelta(days=89)
    assert history.due(tuned, check(), HERE, late) == ""
    assert history.due(tuned, check(), HERE, late + timedelta(days=1)) != ""


@pytest.mark.parametrize("answer", ["does not hold", "cannot tell"])
def test_a_profile_that_did_not_hold_is_due(tuned: Profile, answer: VerifyAnswer) -> None:
    assert answer in history.due(tuned, check(answer=answer), HERE, NOW)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kernel", "another kernel since 2026-03-01: 6.1.0 then, other now"),
        ("library", "another library of the allocator since 2026-03-01: 0.1.0 abc then, other now"),
        ("program:web", "another file of the program web since 2026-03-01: abc then, other now"),
    ],
)
def test_what_changed_since_the_last_check_is_named(tuned: Profile, name: str, words: str) -> None:
    assert history.due(tuned, check(), {**HERE, name: "other"}, NOW) == words


def test_a_program_that_was_built_again_is_seen(tuned: Profile, tmp_path: Path) -> None:
    file = tmp_path / "program"
    shutil.copy("/bin/true", file)
    program = api.program([str(file)])
    before = history.surroundings(of_program(tuned), [program])
    shutil.copy("/bin/false", file)
    now = history.surroundings(of_program(tuned), [program])
    assert {name for name in now if now[name] != before[name]} == {"program:program"}


@pytest.mark.parametrize("days", [0, -1, 36501])
def test_a_term_that_no_profile_can_hold_is_refused_before_anything_is_measured(days: int) -> None:
    with pytest.raises(UsageError, match=f"--term is {days}; legal is a number of days from 1 to"):
        api.plan(api.request("larson", term_days=days))


def test_the_term_travels_in_the_file_and_only_where_it_is_another_one(
    tuned: Profile, tmp_path: Path
) -> None:
    assert "term_days" not in profile.dumps(tuned)
    path = _save(structs.replace(tuned, term_days=30), tmp_path / "one.json")
    assert profile.load(path).term_days == 30


# ---- a folder ------------------------------------------------------------------------------------


def test_all_profiles_of_a_folder_are_measured_and_the_worst_answer_decides(
    tuned: Profile,
    answers: dict[str, VerifyAnswer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "profiles"
    _save(tuned, folder / "one.json")
    _save(of_program(tuned), folder / "web.json", "-- sh -c web")
    _save(tuned, folder / "results" / "profile.json")
    answers["web"] = "does not hold"
    assert cli.status_of(["verify", "--all", str(folder), "--quiet"]) == 4
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(" (")[0] for line in told if not line.startswith(" ")] == [
        f"{folder}/one.json: holds",
        f"{folder}/results/profile.json: holds",
        f"{folder}/web.json: does not hold",
        "3 profiles: 2 holds, 1 does not hold",
    ]
    assert [one.answer for one in history.read()].count("does not hold") == 1
    assert sum("before: " in line for line in told) == 1  # two files hold the same profile
    assert cli.status_of(["verify", "--all", str(folder), "--quiet"]) == 4
    told = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("  before: ") for line in told) == 2 + 3 + 1
    assert any(line.endswith("1.05x the memory: does not hold") for line in told)


def test_only_what_is_due_is_measured_when_that_is_asked(
    tuned: Profile,
    answers: dict[str, VerifyAnswer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "profiles"
    _save(tuned, folder / "one.json")
    run = ["verify", "--all", str(folder), "--due", "--json", "--quiet"]
    answers["remote"] = "cannot tell"
    assert cli.status_of(run) == 1  # made in January: its term has passed
    answers["remote"] = "holds"
    assert cli.status_of(run) == 0
    capsys.readouterr()
    assert cli.status_of(run) == 0
    assert json.loads(capsys.readouterr().out)[0]["answer"] == "not due"
    assert [one.answer for one in history.read()] == ["cannot tell", "holds"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (None, "is missing: write the words"),
        ("-- sh 'open", "cannot be split into words: No closing quotation"),
        ("--no-such-option -- sh", "no such option"),
        ("sh", "no command of hztune"),
    ],
)
def test_a_program_whose_command_is_not_known_is_not_measured_and_the_others_are(
    words: str | None,
    why: str,
    tuned: Profile,
    answers: object,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "profiles"
    _save(of_program(tuned), folder / "a.json", words)
    _save(tuned, folder / "b.json")
    assert cli.status_of(["verify", "--all", str(folder), "--quiet"]) == 1
    told = capsys.readouterr().out
    assert why.lower() in told.lower()
    assert "1 not measured, 1 holds" in told


def test_what_a_profile_leaves_of_its_time_goes_to_the_next(
    tuned: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_s: list[float] = []

    def verify(tuned: Profile, *, budget_s: float, **_: object) -> Verification:
        given_s.append(budget_s)
        return finding("cannot tell")

    monkeypatch.setattr(api, "verify", verify)
    for name in "abc":
        _save(tuned, tmp_path / "all" / f"{name}.json")
    cli.status_of(["verify", "--all", str(tmp_path / "all"), "--budget", "30m", "--quiet"])
    assert [round(each / 1800) for each in given_s] == [1, 2, 3]


def test_a_profile_is_measured_again_by_the_command_beside_it(
    tuned: Profile, answers: dict[str, VerifyAnswer], tmp_path: Path
) -> None:
    path = _save(of_program(tuned), tmp_path / "profile.json")
    kept_command.write(path, ("--allocator", "any", "--budget", "9s", "--", "sh", "-c", "web"))
    answers["web"] = "does not hold"
    assert cli.status_of(["verify", str(path), "--quiet"]) == 4


def _piped(words: Path) -> None:
    words.unlink()
    os.mkfifo(words, 0o600)


def _linked(words: Path) -> None:
    own = words.rename(words.parent.parent / "own")
    words.symlink_to(own)
    own.chmod(0o666)


def _led_to(words: Path) -> None:
    own = words.parent.rename(words.parent.with_name("own"))
    words.parent.symlink_to(own)
    os.chown(words.parent, 12345, -1, follow_symlinks=False)


ARGUMENTS_OF_OTHERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "all may write it": (lambda words: words.chmod(0o666), "may be written by another user"),
    "all may write its folder": (lambda words: words.parent.chmod(0o777), "by another user"),
    "its folder is another's": (lambda words: os.chown(words.parent, 12345, -1), "another user"),
    "another's link leads to its folder": (_led_to, "may be written by another user"),
    "it is another's": (lambda words: os.chown(words, 12345, -1), "may be written by another user"),
    "it is a link to what all may write": (_linked, "may be written by another user"),
    "it is a FIFO": (_piped, "not a regular file"),
}


@pytest.mark.parametrize("case", ARGUMENTS_OF_OTHERS)
def test_a_command_that_others_may_have_put_there_is_not_run(
    case: str,
    tuned: Profile,
    answers: object,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change, why = ARGUMENTS_OF_OTHERS[case]
    if "another's" in case and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    path = _save(of_program(tuned), tmp_path / "profiles" / "web.json", "-- sh -c web")
    change(path.with_suffix(".args"))
    assert cli.status_of(["verify", "--all", str(path.parent), "--quiet"]) == 1
    assert why in capsys.readouterr().out
    assert history.read() == []


def test_a_damaged_profile_is_named_and_the_others_are_measured(
    tuned: Profile, answers: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _save(tuned, tmp_path / "profiles" / "b.json")
    (path.parent / "a.json").write_text("{")
    assert cli.status_of(["verify", "--all", str(path.parent), "--quiet"]) == 1
    assert "is not a valid profile" in capsys.readouterr().out
    assert len(history.read()) == 1


def test_a_folder_that_may_not_be_looked_into_is_named_and_the_others_are_measured(
    tuned: Profile, answers: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save(tuned, tmp_path / "all" / "one.json")
    (tmp_path / "all" / "closed").mkdir()
    is_file = Path.is_file

    def refused(path: Path) -> bool:
        if path.parent.name == "closed":
            raise PermissionError(13, "Permission denied")
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refused)
    found = {each.path.parent.name: each.fault for each in api.profiles_in(tmp_path / "all")}
    assert found["all"] == ""
    assert "cannot read" in found["closed"]


def test_a_name_that_a_terminal_would_obey_is_shown_in_quotes() -> None:
    found = FolderAnswer(Path("a\x1b[2J\udcff.json"), "holds", "so it was made up")
    assert found.lines() == ["'a\\x1b[2J\\udcff.json': holds (so it was made up)"]


def test_a_profile_without_a_claim_is_left_out(
    tuned: Profile, answers: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = Claim("ops_per_s", None, None, None, 0, "no_gain")
    path = _save(structs.replace(tuned, params={}, claim=claim), tmp_path / "profiles" / "a.json")
    assert cli.status_of(["verify", "--all", str(path.parent), "--quiet"]) == 0
    assert "no claim (its verdict is no_gain)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--all", "{folder}", "one.json"], "leave these out"),
        (["--all", "{folder}", "--pid", "1"], "leave these out"),
        (["--all", "{folder}", "--trace", "one.trace"], "leave these out"),
        (["--all", "{folder}", "--", "./one"], "leave these out"),
        (["--all", ""], "--all is empty; give it a value"),
        ([""], "PROFILE is empty; give it a value"),
        (["--due", "one.json"], "--all DIR, with which"),
        ([], "give a PROFILE, or --all DIR"),
        (["--all", "{folder}"], "there is no profile in"),
        (["--all", "{folder}/none"], "cannot read the folder"),
    ],
)
def test_what_does_not_go_together_is_refused(
    words: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.format(folder=tmp_path) for word in words]
    assert cli.status_of(["verify", *given]) == UsageError.exit_status
    assert why in capsys.readouterr().err


# ---- what is shown -------------------------------------------------------------------------------


def test_the_history_is_told_profile_by_profile_with_what_changed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    history.append(check())
    later = structs.replace(
        check(NOW + timedelta(days=7), "does not hold", 1.0), here={"kernel": "6.2"}
    )
    history.append(later)
    assert cli.status_of(["history"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "larson T=32: hz thp=on  (0123456789abcdef)",
        "  claimed           1.140x [1.100, 1.200]",
        "  2026-03-01 12:00  1.100x [1.080, 1.120], 8 pairs, 1.05x the memory: holds",
        "  2026-03-08 12:00  1.000x [0.980, 1.020], 8 pairs, 1.05x the memory: does not hold",
        "      another kernel since 2026-03-01: 6.1.0 then, 6.2 now",
    ]


def test_the_history_of_one_profile_holds_no_other_one(
    tuned: Profile, answers: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history.append(check())
    path = _save(tuned, tmp_path / "one.json")
    assert cli.status_of(["history", str(path)]) == 0
    assert "no profile was measured again yet" in capsys.readouterr().out
    assert cli.status_of(["verify", str(path), "--quiet"]) == 0
    capsys.readouterr()
    assert cli.status_of(["history", str(path), "--json"]) == 0
    (held,) = json.loads(capsys.readouterr().out)
    assert (held["answer"], held["pairs"]) == ("holds", 8)
