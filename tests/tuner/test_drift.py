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
CheckAll = Callable[..., tuple[int, str, str]]
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "all"


@pytest.fixture
def check_all(folder: Path, answers: object, capsys: pytest.CaptureFixture[str]) -> CheckAll:
    """Status and output of `hztune verify --all` of `folder`."""

    def check(*more: str) -> tuple[int, str, str]:
        status = cli.status_of(["verify", "--all", str(folder), "--quiet", *more])
        return status, *capsys.readouterr()

    return check


def save(tuned: Profile, path: Path, words: str | None = None) -> Path:
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
    later = check(NOW + timedelta(days=1))
    history.append(later)
    assert history.read() == [check(), later]


@pytest.mark.parametrize(
    "line", ["", "[]", "{}", '{"schema": "hztune-check/2"}', "\xff", "null", "[" * 5000]
)
def test_a_line_that_is_no_check_is_passed_over_and_counted(
    line: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history.append(check())
    with state.open("a") as held:
        held.write(f"{line}\n")
    assert history.read() == [check()]
    assert cli.status_of(["history"]) == 0
    told, left_out = capsys.readouterr(), "hztune: 1 line is left out of the history"
    assert "holds" in told.out and told.err.startswith(left_out) == bool(line)


def test_a_history_that_cannot_be_written_or_read_is_said_and_costs_no_answer(
    tuned: Profile, folder: Path, answers: object, capsys: pytest.CaptureFixture[str]
) -> None:
    history.history_file().mkdir(parents=True)
    assert cli.status_of(["history"]) == HztuneError.exit_status
    assert "history.jsonl': it is not a regular file" in capsys.readouterr().err
    path = save(tuned, folder / "one.json")
    for words, said in (
        (["--all", str(folder), "--due"], "one.json: holds"),
        ([str(path)], "holds"),
    ):
        assert cli.status_of(["verify", *words]) == 0
        told = capsys.readouterr()
        assert said in told.out and "warning: this check is not in the history: " in told.err


def test_a_check_without_an_interval_is_kept_without_one(tuned: Profile) -> None:
    endless = replace(finding("cannot tell"), interval=Interval(0.1, -math.inf, math.inf, 2))
    history.append(history.rechecked(tuned, (), endless))
    assert [(one.found, one.pairs) for one in history.read()] == [(None, 2)]


def test_the_history_is_told_profile_by_profile_with_what_changed(
    tuned: Profile, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history.append(check())
    later = check(NOW + timedelta(days=7), "does not hold", 1.0)
    history.append(structs.replace(later, here={"kernel": "6.2"}))
    assert cli.status_of(["history"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "larson T=32: hz thp=on  (0123456789abcdef)",
        "  claimed           1.140x [1.100, 1.200]",
        "  2026-03-01 12:00  1.100x [1.080, 1.120], 8 pairs, 1.05x the memory: holds",
        "  2026-03-08 12:00  1.000x [0.980, 1.020], 8 pairs, 1.05x the memory: does not hold",
        "      another kernel since 2026-03-01: 6.1.0 then, 6.2 now",
    ]
    assert cli.status_of(["history", str(save(tuned, folder / "one.json"))]) == 0
    assert "no profile was measured again yet" in capsys.readouterr().out


# ---- what is due ---------------------------------------------------------------------------------

MADE = datetime(2026, 1, 31, 12, 0, 0, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("last", "here", "now", "said"),
    [
        (None, {}, MADE + timedelta(days=89), ""),
        (None, {}, MADE + timedelta(days=90), "90 days have passed, and its term is 90 days"),
        (check(), {}, NOW + timedelta(days=89), ""),
        (check(), {}, NOW + timedelta(days=90), "90 days have passed, and its term is 90 days"),
        *(
            (check(answer=no), {}, NOW, f"the last time, 2026-03-01, the answer was: {no}")
            for no in ("does not hold", "cannot tell")
        ),
        *(
            (check(), {name: "other"}, NOW, f"another {what} then, other now")
            for name, what in (
                ("kernel", "kernel since 2026-03-01: 6.1.0"),
                ("library", "library of the allocator since 2026-03-01: 0.1.0 abc"),
                ("program:web", "file of the program web since 2026-03-01: abc"),
            )
        ),
    ],
)
def test_a_profile_is_due_after_its_term_or_a_bad_answer_or_a_change(
    last: Recheck | None, here: dict[str, str], now: datetime, said: str, tuned: Profile
) -> None:
    assert history.due(tuned, last, {**HERE, **here}, now) == said


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
    path = save(structs.replace(tuned, term_days=30), tmp_path / "one.json")
    assert profile.load(path).term_days == 30
    assert history.due(profile.load(path), check(), HERE, NOW + timedelta(days=30))


# ---- a folder ------------------------------------------------------------------------------------


def test_all_profiles_of_a_folder_are_measured_and_the_worst_answer_decides(
    tuned: Profile, answers: dict[str, VerifyAnswer], folder: Path, check_all: CheckAll
) -> None:
    save(tuned, folder / "one.json")
    save(of_program(tuned), folder / "web.json", "-- sh -c web")
    save(tuned, folder / "results" / "profile.json")
    answers["web"] = "does not hold"
    status, out, _ = check_all()
    told = out.splitlines()
    assert status == 4
    assert [line.partition(" (")[0] for line in told if not line.startswith(" ")] == [
        f"{folder}/one.json: holds",
        f"{folder}/results/profile.json: holds",
        f"{folder}/web.json: does not hold",
        "3 profiles: 2 holds, 1 does not hold",
    ]
    assert [one.answer for one in history.read()].count("does not hold") == 1
    assert sum("before: " in line for line in told) == 1  # two files hold the same profile
    told = check_all()[1].splitlines()
    assert sum(line.startswith("  before: ") for line in told) == 2 + 3 + 1
    assert any(line.endswith("1.05x the memory: does not hold") for line in told)


def test_only_what_is_due_is_measured_when_that_is_asked(
    tuned: Profile, answers: dict[str, VerifyAnswer], folder: Path, check_all: CheckAll
) -> None:
    save(tuned, folder / "one.json")
    for answer, status, told in (
        ("cannot tell", 1, "cannot tell"),  # made in January: its term has passed
        ("holds", 0, "holds"),
        ("holds", 0, "not due"),
    ):
        answers["remote"] = answer  # type: ignore[assignment]
        found = check_all("--due", "--json")
        assert (found[0], json.loads(found[1])[0]["answer"]) == (status, told)
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
    words: str | None, why: str, tuned: Profile, folder: Path, check_all: CheckAll
) -> None:
    save(of_program(tuned), folder / "a.json", words)
    save(tuned, folder / "b.json")
    status, out, _ = check_all()
    assert status == 1 and why.lower() in out.lower()
    assert "1 not measured, 1 holds" in out


NOTHING = Claim("ops_per_s", None, None, None, 0, "no_gain")


@pytest.mark.parametrize(
    ("changed", "status", "said"),
    [
        ({"created": "2026-02-31T12:00:00Z"}, 1, "created is '2026-02-31T12:00:00Z'; legal is a"),
        ({"params": {}, "claim": NOTHING}, 0, "no claim (its verdict is no_gain)"),
        (None, 1, "is not a valid profile"),
    ],
    ids=["of a day that does not exist", "without a claim", "damaged"],
)
def test_a_profile_that_cannot_be_measured_is_named_and_the_others_are_measured(
    changed: dict[str, object] | None,
    status: int,
    said: str,
    tuned: Profile,
    folder: Path,
    check_all: CheckAll,
) -> None:
    path = save(structs.replace(tuned, **(changed or {})), folder / "a.json")
    if changed is None:
        path.write_text("{")
    save(tuned, folder / "b.json")
    found = check_all()
    assert found[0] == status and said in found[1]
    assert len(history.read()) == 1


def test_what_a_profile_leaves_of_its_time_goes_to_the_next(
    tuned: Profile, folder: Path, check_all: CheckAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_s: list[float] = []

    def verify(tuned: Profile, *, budget_s: float, **_: object) -> Verification:
        given_s.append(budget_s)
        return finding("cannot tell")

    monkeypatch.setattr(api, "verify", verify)
    for name in "abc":
        save(tuned, folder / f"{name}.json")
    check_all("--budget", "30m")
    assert [round(each / 1800) for each in given_s] == [1, 2, 3]


def test_a_profile_is_measured_again_by_the_command_beside_it(
    tuned: Profile, answers: dict[str, VerifyAnswer], tmp_path: Path
) -> None:
    path = save(of_program(tuned), tmp_path / "profile.json")
    kept_command.write(path, ("--allocator", "any", "--budget", "9s", "--", "sh", "-c", "web"))
    answers["web"] = "does not hold"
    assert cli.status_of(["verify", str(path), "--quiet"]) == 4


def piped(words: Path) -> None:
    words.unlink()
    os.mkfifo(words, 0o600)


def linked(words: Path) -> None:
    words.symlink_to(words.rename(words.parent.parent / "own"))


def led_to(words: Path) -> None:
    own = words.parent.rename(words.parent.with_name("own"))
    words.parent.symlink_to(own)
    os.chown(words.parent, 12345, -1, follow_symlinks=False)


ARGUMENTS_OF_OTHERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "all may write it": (lambda words: words.chmod(0o666), "may be written by another user"),
    "all may write its folder": (lambda words: words.parent.chmod(0o777), "by another user"),
    "its folder is another's": (lambda words: os.chown(words.parent, 12345, -1), "another user"),
    "another's link leads to its folder": (led_to, "may be written by another user"),
    "it is another's": (lambda words: os.chown(words, 12345, -1), "may be written by another user"),
    "it is a link": (linked, "which holds a command: it is a link"),
    "it is a FIFO": (piped, "not a regular file"),
}


@pytest.mark.parametrize("case", ARGUMENTS_OF_OTHERS)
def test_a_command_that_others_may_have_put_there_is_not_run(
    case: str, tuned: Profile, folder: Path, check_all: CheckAll
) -> None:
    change, why = ARGUMENTS_OF_OTHERS[case]
    if "another's" in case and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    path = save(of_program(tuned), folder / "web.json", "-- sh -c web")
    change(path.with_suffix(".args"))
    status, out, _ = check_all()
    assert status == 1 and why in out
    assert history.read() == []


def test_a_folder_that_may_not_be_looked_into_is_named_and_the_others_are_measured(
    tuned: Profile, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tuned, folder / "one.json")
    (folder / "closed").mkdir()
    is_file = Path.is_file

    def refused(path: Path) -> bool:
        if path.parent.name == "closed":
            raise PermissionError(13, "Permission denied")
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refused)
    found = {each.path.parent.name: each.fault for each in api.profiles_in(folder)}
    assert found["all"] == "" and "cannot read" in found["closed"]


def test_a_name_that_a_terminal_would_obey_is_shown_in_quotes() -> None:
    found = FolderAnswer(Path("a\x1b[2J\udcff.json"), "holds", "so it was made up")
    assert found.lines() == ["'a\\x1b[2J\\udcff.json': holds (so it was made up)"]


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
