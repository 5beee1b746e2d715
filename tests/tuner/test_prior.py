"""Lessons, the state directory, the odds, and what they cannot do."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from hztune.blocks import Arm
from hztune.errors import HztuneError, UsageError
from hztune.lab.replay import Landscape, ModelNoise, Truth
from hztune.prior import NOTHING, Gain, Learned, Lesson, Prior, Subject, state, weighed
from hztune.prior.lesson import MOST_BYTES, dumps, parse
from hztune.prior.weighing import MOST_FACTOR
from hztune.space import Choice, Space
from hztune.sparse.grid import ODDS
from hztune.trial import Workbench
from hztune.tune.learned import MUCH, learned_of
from hztune.tune.story import Story

MakeBench = Callable[..., Workbench]
NOW = datetime(2026, 11, 24, 12, tzinfo=timezone.utc)
HERE = Subject("0123 larson", 8, "ops_per_s", "abcdef")
VERSIONS = {"hz": "0.1.0"}
SPIN = Gain((("lock", "spin"),), 1.02, 1.10)
QUIET = ModelNoise(within=0.03, between=0.01, common=0.1)


def lesson(
    *gains: Gain, level: tuple[str, ...] = (), days: float = 0.0, version: str = "0.1.0",
    **subject: object,
) -> Lesson:  # fmt: skip
    learned = Learned("hz", version, gains, tuple((name, 20) for name in level))
    about = replace(HERE, **subject)  # type: ignore[arg-type]
    return Lesson(about, (learned,), "0.1.0", NOW - timedelta(days=days))


def odds_of(space: Space, *lessons: Lesson) -> dict[str, float]:
    """What a study in `space` begins with, here and now."""
    prior = weighed(lessons, HERE, space, VERSIONS, NOW)
    return dict(prior.odds.get("hz", {}))


@pytest.fixture
def bare_space(toy_space: Space) -> Space:
    """A space without presets."""
    return replace(toy_space, presets=())


# ---- lessons as files ----------------------------------------------------------------------------


def test_a_lesson_is_read_as_it_was_written() -> None:
    both = Gain((("lock", "spin"), ("cap", 512)), 1.02, 1.10)
    written = lesson(SPIN, both, level=("delay", "pages"))
    assert parse(dumps(written).encode()) == written


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "hztune-lesson/2"},
        {"created": "2026-02-31T00:00:00Z"},
        {"created": "yesterday"},
        {"subject": []},
        {"learned": [{"allocator": "hz"}]},
        {"learned": {}},
        {"hztune": "\x1b[31m"},
        {"more": 1},
    ],
)
def test_what_is_no_lesson_is_refused(change: dict[str, object]) -> None:
    held = {**json.loads(dumps(lesson(SPIN))), **change}
    with pytest.raises(UsageError):
        parse(json.dumps(held).encode())


def test_lessons_that_were_kept_are_read_the_newest_first() -> None:
    for days in (3, 1, 2):
        state.keep(lesson(SPIN, days=days))
    assert [each.created for each in state.read(NOW)] == [
        NOW - timedelta(days=d) for d in (1, 2, 3)
    ]


def test_what_cannot_be_read_is_passed_over(state_home: Path) -> None:
    state.keep(lesson(SPIN))
    folder = state_home / "hztune" / "lessons"
    for number, content in enumerate((b"", b"{}", b"\xff", b"[" * 9999, b"x" * (MOST_BYTES + 1))):
        (folder / f"20261124T13000{number}Z-0000000{number}.json").write_bytes(content)
    os.mkfifo(folder / "20261124T140000Z-00000001.json")
    (folder / "20261124T140000Z-00000002.json").mkdir()
    (folder / "20261124T140000Z-00000003.json").symlink_to("/nowhere")
    (folder / "notes.txt").write_text("mine")
    assert state.read(NOW) == [lesson(SPIN)]


def test_the_oldest_lessons_go_and_foreign_files_stay(
    state_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MOST_LESSONS", 3)
    folder = state_home / "hztune" / "lessons"
    folder.mkdir(parents=True)
    foreign = folder / "notes.txt"
    foreign.write_text("mine")
    torn = folder / ".20200101T000000Z-00000000.json.77.0badf00d"
    torn.write_text("torn")
    for days in (9, 3, 2, 1):
        state.keep(lesson(SPIN, days=days))
    assert [each.created for each in state.read(NOW)] == [
        NOW - timedelta(days=d) for d in (1, 2, 3)
    ]
    assert foreign.exists() and not torn.exists()


def test_lessons_of_a_clock_that_was_ahead_count_for_nothing_and_push_out_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "MOST_LESSONS", 3)
    for days in (-400, -300, -200):
        state.keep(lesson(SPIN, days=days))
    assert state.read(NOW) == []
    for days in (2, 1):
        state.keep(lesson(SPIN, days=days))
    assert [each.created for each in state.read(NOW)] == [NOW - timedelta(days=d) for d in (1, 2)]


def test_a_clock_that_is_an_hour_ahead_is_no_other_age() -> None:
    state.keep(lesson(SPIN, days=-1 / 24))
    assert len(state.read(NOW)) == 1


def test_a_lesson_of_a_clock_that_is_far_behind_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MOST_LESSONS", 3)
    for days in (3, 2, 1, 20000):
        state.keep(lesson(SPIN, days=days))
    assert len(state.read(NOW - timedelta(days=20000))) == 1
    assert [each.created for each in state.read(NOW)][:2] == [
        NOW - timedelta(days=d) for d in (1, 2)
    ]


def test_a_state_directory_that_cannot_be_made_is_an_error_that_says_so(state_home: Path) -> None:
    state_home.parent.mkdir(parents=True, exist_ok=True)
    state_home.write_text("in the way")
    with pytest.raises(HztuneError, match="cannot make"):
        state.keep(lesson(SPIN))
    assert state.read(NOW) == []


def keep_ten(folder: str) -> int:
    os.environ["XDG_STATE_HOME"] = folder
    for number in range(10):
        state.keep(lesson(SPIN, days=number))
    return len(state.read(NOW))


def test_several_processes_write_at_once_and_lose_nothing(state_home: Path) -> None:
    with ProcessPoolExecutor(4) as pool:
        list(pool.map(keep_ten, [str(state_home)] * 4))
    assert len(state.read(NOW)) == 40


def test_a_state_directory_is_absolute_or_in_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    assert state.folder() == Path("/home/me/.local/state/hztune/lessons")
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    assert state.folder() == Path("/var/state/hztune/lessons")


def test_the_tests_keep_away_from_the_users_own_state(state_home: Path) -> None:
    folder = state.folder()
    assert folder is not None and folder.is_relative_to(state_home)
    assert not folder.is_relative_to(Path.home())


# ---- from lessons to odds ------------------------------------------------------------------------


def test_what_mattered_is_likelier_and_what_showed_nothing_less_so(bare_space: Space) -> None:
    odds = odds_of(bare_space, lesson(SPIN, level=("delay",)))
    assert odds["lock"] > ODDS > odds["delay"]
    assert odds.keys() == {"lock", "delay"}


def test_a_lesson_counts_less_the_older_and_the_less_alike_it_is(bare_space: Space) -> None:
    worth = [
        odds_of(bare_space, each)["lock"]
        for each in (
            lesson(SPIN),
            lesson(SPIN, days=10),
            lesson(SPIN, threads=2),
            lesson(SPIN, workload="4567 remote"),
            lesson(SPIN, workload="4567 remote", days=300),
        )
    ]
    assert worth == sorted(worth, reverse=True) and len({*worth}) == len(worth)
    assert worth[-1] == pytest.approx(ODDS, abs=0.001)
    aged, other_version = lesson(SPIN, days=30), lesson(SPIN, version="0.0.9")
    assert odds_of(bare_space, aged) == pytest.approx(odds_of(bare_space, other_version))


@pytest.mark.parametrize("other", [{"machine": "fedcba"}, {"metric": "wall_s"}])
def test_a_lesson_of_another_machine_or_objective_counts_for_nothing(
    other: dict[str, Any], bare_space: Space
) -> None:
    prior = weighed([lesson(SPIN, **other)], HERE, bare_space, VERSIONS, NOW)
    assert prior.odds == {} and "no earlier study" in prior.text


def test_no_number_of_lessons_moves_the_odds_beyond_the_bound(bare_space: Space) -> None:
    odds = odds_of(bare_space, *[lesson(SPIN, level=("delay",)) for _ in range(200)])
    usual = ODDS / (1.0 - ODDS)
    assert odds["lock"] / (1.0 - odds["lock"]) == pytest.approx(usual * MOST_FACTOR)
    assert odds["delay"] / (1.0 - odds["delay"]) == pytest.approx(usual / MOST_FACTOR)


def test_a_preset_raises_the_odds_of_its_parameters_by_half_a_study(toy_space: Space) -> None:
    (name,) = toy_space.presets[0].config
    odds = odds_of(toy_space)
    assert odds.keys() == {name} and ODDS < odds[name] < odds_of(toy_space, lesson(SPIN))["lock"]


def test_parameters_that_the_space_does_not_have_are_passed_over(bare_space: Space) -> None:
    gone = Gain((("gone", 1),), 1.1, 1.2)
    prior = weighed([lesson(gone, level=("gone",))], HERE, bare_space, VERSIONS, NOW)
    assert prior.odds == {} and "gone" not in prior.text


def test_a_lesson_from_the_future_counts_as_new(bare_space: Space) -> None:
    assert odds_of(bare_space, lesson(SPIN, days=-400)) == odds_of(bare_space, lesson(SPIN))


def test_one_sentence_says_what_was_taken_from_where(bare_space: Space) -> None:
    lessons = [
        lesson(SPIN, level=("delay", "cap")),
        lesson(SPIN, level=("delay",)),
        lesson(level=("lock",), workload="4567 remote"),
    ]
    assert weighed(lessons, HERE, bare_space, VERSIONS, NOW).text == (
        "of 3 earlier studies on this machine (2 of this workload): lock=spin mattered in 2, "
        "delay, cap showed nothing"
    )


def test_allocators_of_a_choice_learn_apart(bare_space: Space) -> None:
    other = replace(bare_space, allocator="mimalloc")
    space = Choice((bare_space, other))
    prior = weighed([lesson(SPIN)], HERE, space, {**VERSIONS, "mimalloc": "2"}, NOW)
    assert prior.odds.keys() == {"hz"} and "hz lock=spin mattered in 1" in prior.text


def test_a_prior_is_stored_with_its_study_and_judged_when_it_is_read(bare_space: Space) -> None:
    prior = weighed([lesson(SPIN)], HERE, bare_space, VERSIONS, NOW)
    assert Prior.stored(json.loads(json.dumps(prior.plain()))) == prior
    assert Prior.stored(None) == NOTHING
    wrongs: tuple[object, ...] = (
        {"odds": {"hz": {"lock": 7}}, "text": ""},
        {"odds": {}, "text": "\x1b"},
        [],
    )
    for wrong in wrongs:
        with pytest.raises(UsageError):
            Prior.stored(wrong)


# ---- whole studies, simulated --------------------------------------------------------------------


def spin_wins(gain: float) -> Landscape:
    return lambda arm: Truth(gain if arm.config.get("lock") == "spin" else 0.0)


def told(bench: Workbench, space: Space, seed: int, prior: Prior) -> Arm:
    return Story(bench, space, seed, prior=prior).run().arm


WRONG = Prior({"hz": {"delay": 0.58, "pages": 0.58, "lock": 0.022}}, "a lie")


def test_a_study_learns_what_it_proved_and_what_showed_nothing(
    make_bench: MakeBench, toy_space: Space
) -> None:
    story = Story(make_bench(spin_wins(0.2), QUIET), toy_space, 1)
    learned = learned_of(toy_space, "0.1.0", story.bench.ledger, story.run())
    (gain,) = learned.gains
    assert gain.levels == (("lock", "spin"),) and 1.0 < gain.low < math.exp(0.2) < gain.high
    assert len(learned.level) >= 2 and "lock" not in dict(learned.level)
    assert min(dict(learned.level).values()) >= MUCH


def test_what_a_wrong_prior_promised_and_did_not_hold_is_unlearned(
    make_bench: MakeBench, bare_space: Space
) -> None:
    """A lesson is judged without the prior: one that repeated it would prove itself."""
    story = Story(make_bench(spin_wins(0.2), QUIET), bare_space, 1, prior=WRONG)
    learned = learned_of(bare_space, "0.1.0", story.bench.ledger, story.run())
    odds = odds_of(bare_space, Lesson(HERE, (learned,), "0.1.0", NOW))
    assert odds["delay"] < ODDS and odds["pages"] < ODDS < odds["lock"]


def test_a_wrong_prior_hides_no_gain_and_claims_none(
    make_bench: MakeBench, toy_space: Space
) -> None:
    for seed in range(3):
        gaining = make_bench(spin_wins(0.2), QUIET, seed=seed, budget_s=40.0)
        assert told(gaining, toy_space, seed, WRONG).config == {"lock": "spin"}
        equal = make_bench(spin_wins(0.0), QUIET, seed=seed, budget_s=40.0)
        assert told(equal, toy_space, seed, WRONG).is_default


def test_a_prior_changes_what_is_measured_and_no_prior_changes_nothing(
    make_bench: MakeBench, toy_space: Space
) -> None:
    def measured(prior: Prior) -> list[str]:
        bench = make_bench(spin_wins(0.05), QUIET, budget_s=40.0)
        told(bench, toy_space, 1, prior)
        return [outcome.arm.key for block in bench.ledger.blocks for outcome in block.outcomes]

    assert measured(WRONG) != measured(NOTHING) == measured(Prior({}, "only words"))
