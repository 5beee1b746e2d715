"""Profiles are measured again over time: what is due, what was found, what changed since."""

from __future__ import annotations

import json
import os
import shutil
from datetime import datetime, timedelta, timezone

import pytest
from msgspec import structs

from hztune import api, cli, profile
from hztune.blocks import Ratio
from hztune.errors import HztuneError
from hztune.profile import Claim, WorkloadId
from hztune.stats.intervals import Interval
from hztune.store import kept_command
from hztune.verifying import history
from hztune.verifying.claim import Verification
from hztune.verifying.history import Recheck

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc)
HERE = {"kernel": "6.1.0", "library": "0.1.0 abc", "program:web": "abc"}


def check(at=NOW, answer="holds"):
    return Recheck(
        at=at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        profile="0123456789abcdef",
        label="larson T=32: hz thp=on",
        answer=answer,
        why="the gain is there",
        pairs=8,
        found=Ratio(1.1, 1.08, 1.12),
        claimed=Ratio(1.14, 1.1, 1.2),
        rss_ratio=1.05,
        here=HERE,
    )


@pytest.fixture
def state(state_home):
    """The history of this test alone."""
    return state_home / "hztune" / "history.jsonl"


@pytest.fixture
def tuned(made_here):
    """A profile that was made on this machine, and claims 1.14x."""
    return structs.replace(made_here, params={"thp": "on"})


class Folder:
    """Profiles in a folder, and what measuring each again shows: it holds where nothing is said."""

    def __init__(self, path, tuned, capsys):
        self.path, self.tuned, self.capsys = path, tuned, capsys
        self.answers, self.given_s = {}, []

    def verify(self, tuned, programs, budget_s, *_):
        self.given_s.append(budget_s)
        name = programs[0].argv[-1] if programs else tuned.workload.name
        answer = self.answers.get(name, "holds")
        return Verification(answer, "so it was made up", Interval(0.1, 0.08, 0.12, 8), 1.05)

    def save(self, name, words=None, **changes):
        """Saves a profile; that of a program with words has them beside it."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        profile.save(structs.replace(self.tuned, **changes), path)
        if words is not None:
            path.with_suffix(".args").write_text(words)
        return path

    def check_all(self, *more):
        """Status and output of `hztune verify --all`."""
        status = cli.status_of(["verify", "--all", str(self.path), "--quiet", *more])
        return status, self.capsys.readouterr().out


OF_PROGRAM = {"workload": WorkloadId("program", "sh", "", {}), "threads": 0}


@pytest.fixture
def folder(tuned, tmp_path, capsys, monkeypatch):
    made = Folder(tmp_path / "all", tuned, capsys)
    monkeypatch.setattr("hztune.verifying.claim.verify", made.verify)
    return made


# ---- the history ---------------------------------------------------------------------------------


def test_what_is_kept_is_read_again_in_the_order_of_time(state):
    later, earlier = check(NOW + timedelta(hours=1), "cannot tell"), check()
    history.append(later)
    history.append(earlier)
    assert history.history()[0] == [earlier, later]
    assert state.stat().st_mode & 0o077 == 0


def test_a_line_that_was_cut_by_a_kill_costs_no_other_one(state):
    history.append(check())
    whole = state.read_bytes()
    state.write_bytes(whole + whole[: len(whole) // 2])
    later = check(NOW + timedelta(days=1))
    history.append(later)
    assert history.history()[0] == [check(), later]


@pytest.mark.parametrize(
    "line", ["", "[]", "{}", '{"schema": "hztune-check/1"}', "\xff", "null", "[" * 5000]
)
def test_a_line_that_is_no_check_is_passed_over_and_counted(line, state, capsys):
    history.append(check())
    with state.open("a") as held:
        held.write(f"{line}\n")
    assert history.history()[0] == [check()]
    assert cli.status_of(["history"]) == 0
    told, left_out = capsys.readouterr(), "hztune: 1 line is left out of the history"
    assert "holds" in told.out and told.err.startswith(left_out) == bool(line)


def test_a_history_that_cannot_be_written_or_read_costs_no_answer(folder):
    history.history_file().mkdir(parents=True)
    assert cli.status_of(["history"]) == HztuneError.exit_status
    assert "history.jsonl': it is not a regular file" in folder.capsys.readouterr().err
    path = folder.save("one.json")
    for words in (["--all", str(folder.path), "--due"], [str(path)]):
        assert cli.status_of(["verify", *words]) == 0
        told = folder.capsys.readouterr()
        assert "holds" in told.out and "this check is not in the history: " in told.err


# ---- what is due ---------------------------------------------------------------------------------

MADE = datetime(2026, 1, 31, 12, 0, 0, tzinfo=timezone.utc)
TERM = "90 days have passed, and its term is 90 days"
SINCE = "since 2026-03-01:"


DUE = [
    (None, {}, MADE + timedelta(days=89), ""),
    (None, {}, MADE + timedelta(days=90), TERM),
    (check(), {}, NOW + timedelta(days=89), ""),
    (check(), {}, NOW + timedelta(days=90), TERM),
    (check(answer="cannot tell"), {}, NOW,
     "the last time, 2026-03-01, the answer was: cannot tell"),
    (check(), {"kernel": "6.2"}, NOW, f"another kernel {SINCE} 6.1.0 then, 6.2 now"),
    (check(), {"library": "x"}, NOW,
     f"another library of the allocator {SINCE} 0.1.0 abc then, x now"),
    (check(), {"program:web": "x"}, NOW,
     f"another file of the program web {SINCE} abc then, x now"),
]  # fmt: skip


@pytest.mark.parametrize(("last", "here", "now", "said"), DUE)
def test_a_profile_is_due_after_its_term_or_a_bad_answer_or_a_change(last, here, now, said, tuned):
    assert history.due(tuned, last, {**HERE, **here}, now) == said


def test_a_program_that_was_built_again_is_seen(tuned, tmp_path):
    file = tmp_path / "program"
    program, of_program = api.program([str(file)]), structs.replace(tuned, **OF_PROGRAM)
    shutil.copy("/bin/true", file)
    before = history.surroundings(of_program, [program])
    shutil.copy("/bin/false", file)
    now = history.surroundings(of_program, [program])
    assert {name for name in now if now[name] != before[name]} == {"program:program"}


# ---- a folder ------------------------------------------------------------------------------------


def test_all_profiles_of_a_folder_are_measured_and_the_worst_decides(folder):
    folder.save("one.json")
    folder.save("web.json", "-- sh -c web", **OF_PROGRAM)
    folder.save("results/profile.json")
    folder.answers["web"] = "does not hold"
    status, out = folder.check_all()
    told = out.splitlines()
    assert status == 4
    assert [line.partition(" (")[0] for line in told if not line.startswith(" ")] == [
        f"{folder.path}/one.json: holds",
        f"{folder.path}/results/profile.json: holds",
        f"{folder.path}/web.json: does not hold",
        "3 profiles: 2 holds, 1 does not hold",
    ]
    assert [one.answer for one in history.history()[0]].count("does not hold") == 1
    assert sum("before: " in line for line in told) == 1  # two files hold the same profile
    told = folder.check_all()[1].splitlines()
    assert sum(line.startswith("  before: ") for line in told) == 2 + 3 + 1
    assert any(line.endswith("1.05x the memory: does not hold") for line in told)


def test_only_what_is_due_is_measured_when_that_is_asked(folder):
    folder.save("one.json")
    found = []
    for answer in ("cannot tell", "holds", "holds"):  # made in January: its term has passed
        folder.answers["remote"] = answer
        status, out = folder.check_all("--due", "--json")
        found.append((status, json.loads(out)[0]["answer"]))
    assert found == [(1, "cannot tell"), (0, "holds"), (0, "not due")]
    assert [one.answer for one in history.history()[0]] == ["cannot tell", "holds"]


NOTHING = Claim("ops_per_s", None, None, None, 0, "no_gain")
LEFT_OUT = {
    "a program without its words": (OF_PROGRAM, None, 1, "is missing: write the words"),
    "half of a word": (OF_PROGRAM, "-- sh 'o", 1, "be split into words: No closing quotation"),
    "an option that is none": (OF_PROGRAM, "--no-such-option -- sh", 1, "No such option"),
    "a command that is none": (OF_PROGRAM, "sh", 1, "no command of hztune"),
    "of a day that does not exist": (
        {"created": "2026-02-31T12:00:00Z"}, None, 1, "created is '2026-02-31T12:00:00Z'; legal is",
    ),
    "without a claim": (
        {"params": {}, "claim": NOTHING}, None, 0, "no claim (its verdict is no_gain)",
    ),
    "damaged": ({}, "{", 1, "is not a valid profile"),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT_OUT)
def test_what_cannot_be_measured_is_named_and_the_others_are(case, folder):
    changes, words, status, why = LEFT_OUT[case]
    path = folder.save("a.json", words, **changes)
    if case == "damaged":
        path.write_text("{")
    folder.save("b.json")
    found = folder.check_all()
    assert found[0] == status and why in found[1] and "1 holds" in found[1]
    assert len(history.history()[0]) == 1


def test_what_a_profile_leaves_of_its_time_goes_to_the_next(folder):
    for name in "abc":
        folder.save(f"{name}.json")
    folder.check_all("--budget", "30m")
    assert [round(each / 1800) for each in folder.given_s] == [1, 2, 3]


def test_a_profile_is_measured_again_by_the_command_beside_it(folder):
    path = folder.save("profile.json", **OF_PROGRAM)
    kept_command.write(path, ("--allocator", "any", "--budget", "9s", "--", "sh", "-c", "web"))
    folder.answers["web"] = "does not hold"
    assert cli.status_of(["verify", str(path), "--quiet"]) == 4


def piped(words):
    words.unlink()
    os.mkfifo(words, 0o600)


def linked(words):
    words.symlink_to(words.rename(words.parent.parent / "own"))


def led_to(words):
    own = words.parent.rename(words.parent.with_name("own"))
    words.parent.symlink_to(own)
    os.chown(words.parent, 12345, -1, follow_symlinks=False)


ARGUMENTS_OF_OTHERS = {
    "others may write it": (lambda words: words.chmod(0o602), "may be written by another user"),
    "its group may write its folder": (lambda words: words.parent.chmod(0o720), "by another user"),
    "its folder is another's": (lambda words: os.chown(words.parent, 12345, -1), "another user"),
    "another's link leads to its folder": (led_to, "may be written by another user"),
    "it is another's": (lambda words: os.chown(words, 12345, -1), "may be written by another user"),
    "it is a link": (linked, "which holds a command: it is a link"),
    "it is a FIFO": (piped, "not a regular file"),
}


@pytest.mark.parametrize("case", ARGUMENTS_OF_OTHERS)
def test_a_command_that_others_may_have_put_there_is_not_run(case, folder):
    change, why = ARGUMENTS_OF_OTHERS[case]
    if "another's" in case and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    change(folder.save("web.json", "-- sh -c web", **OF_PROGRAM).with_suffix(".args"))
    status, out = folder.check_all()
    assert status == 1 and why in out
    assert history.history()[0] == []
