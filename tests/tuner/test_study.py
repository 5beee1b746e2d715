"""Proposals: legal, new, repeatable, and better where the findings are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random

import pytest

from hztune.params import Value
from hztune.search.proposer import (
    TOLD_BEST,
    TOLD_NEWEST,
    Observation,
    config_key,
    importance,
    propose,
    worth_telling,
)
from hztune.space import Config, Space

GOOD = {"ran": -1.0, "max_rss": -1.0}
CRASHED = {"ran": 1.0, "max_rss": -1.0}


def findings(space: Space, count: int, seed: int = 3) -> list[Observation]:
    """Random configurations of which those with a spin lock are the faster ones."""
    rng = Random(seed)
    configs = [space.sample(rng) for _ in range(count)]
    return [Observation(c, 0.2 if c.get("lock") == "spin" else 0.0, GOOD) for c in configs]


def asked(space: Space, told: list[Observation], count: int = 4, **changes: object) -> list[Config]:
    options: dict[str, object] = {"incumbents": [{}], "taken": set(), "seed": 1, **changes}
    return propose(space, told, count, **options)  # type: ignore[arg-type]


def test_every_proposal_is_legal_different_and_not_the_default(toy_space: Space) -> None:
    proposals = asked(toy_space, findings(toy_space, 20), count=12)
    assert len({config_key(config) for config in proposals} - {config_key({})}) == 12
    assert [toy_space.objection(config) for config in proposals] == [None] * 12


def test_what_was_measured_is_not_proposed_again(toy_space: Space) -> None:
    first = asked(toy_space, [], count=6)
    second = asked(toy_space, [], count=6, taken={config_key(config) for config in first})
    assert not {config_key(c) for c in first} & {config_key(c) for c in second}


def test_the_same_seed_and_findings_give_the_same_proposals(toy_space: Space) -> None:
    known = findings(toy_space, 15)
    assert asked(toy_space, known) == asked(toy_space, known)
    assert asked(toy_space, known, seed=2) != asked(toy_space, known)


def test_new_findings_do_not_repeat_the_start(toy_space: Space) -> None:
    """Optuna repeats its random start when a study is made anew with the same seed."""
    assert asked(toy_space, []) != asked(toy_space, findings(toy_space, 1))


def share_of(proposals: list[Config], name: str, value: Value) -> float:
    return sum(config.get(name) == value for config in proposals) / len(proposals)


def test_the_model_goes_where_the_findings_are_better(
    toy_space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hztune.search.proposer.INHERITED_SHARES", (0.0,))
    proposals = asked(toy_space, findings(toy_space, 60), count=20)
    assert share_of(proposals, "lock", "spin") > 0.5


def test_the_model_keeps_away_from_what_crashed(
    toy_space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hztune.search.proposer.INHERITED_SHARES", (0.0,))
    known = [
        Observation(f.config, f.value, CRASHED if f.config.get("pages") == "on" else GOOD)
        for f in findings(toy_space, 60)
    ]
    proposals = asked(toy_space, known, count=20)
    assert share_of(proposals, "pages", "on") < 0.3


def test_a_proposal_keeps_most_of_the_incumbent(toy_space: Space) -> None:
    incumbent: Mapping[str, Value] = {"cap": 64, "lock": "spin", "delay": 0, "pages": "on"}
    proposals = asked(toy_space, findings(toy_space, 30), count=20, incumbents=[incumbent])
    kept = [sum(c.get(k) == v for k, v in incumbent.items()) for c in proposals]
    assert sum(kept) / len(kept) > 2.0


def test_the_sampler_is_told_of_the_best_and_the_newest_of_many_findings() -> None:
    values = Random(1).sample(range(1000), 1000)
    many = [Observation({"cap": v}, v, CRASHED if v >= 950 else GOOD) for v in values]
    worth = [f.value if f.feasible else -math.inf for f in many]
    told = [many[place] for place in worth_telling(worth)]
    newest = many[-TOLD_NEWEST:]
    older = sorted((f for f in many[:-TOLD_NEWEST] if f.feasible), key=lambda f: -f.value)
    assert told[-TOLD_NEWEST:] == newest
    assert sorted(told[:-TOLD_NEWEST], key=lambda f: -f.value) == older[:TOLD_BEST]
    assert told == [finding for finding in many if finding in told]
    assert worth_telling(worth[-TOLD_NEWEST:]) == list(range(TOLD_NEWEST))


def test_proposals_go_on_where_the_sampler_is_told_of_as_many_as_before(toy_space: Space) -> None:
    told = findings(toy_space, 30)
    assert asked(toy_space, told, known=300) != asked(toy_space, told, known=306)
    assert asked(toy_space, told, known=30) == asked(toy_space, told)


def test_a_space_that_is_used_up_gives_what_is_left(toy_space: Space) -> None:
    pages = tuple(d for d in toy_space.dimensions if d.name == "pages")
    small = Space("hz", pages, (), (), toy_space.params)
    assert asked(small, [], count=5) == [{"pages": "on"}]
    assert asked(small, [], count=5, taken={config_key({"pages": "on"})}) == []


def test_an_infeasible_finding_has_no_value_and_is_no_error(toy_space: Space) -> None:
    known = [Observation({"cap": 8}, float("nan"), CRASHED)]
    assert len(asked(toy_space, known)) == 4


def test_the_parameter_that_decides_is_the_most_important(toy_space: Space) -> None:
    defaults = {param.name: param.default for param in toy_space.params}
    shares = importance(findings(toy_space, 60), defaults)
    assert next(iter(shares)) == "lock"
    assert sum(shares.values()) == pytest.approx(1.0)


def test_too_few_configurations_say_nothing_of_importance(toy_space: Space) -> None:
    assert importance(findings(toy_space, 9), {"lock": "mutex"}) == {}
