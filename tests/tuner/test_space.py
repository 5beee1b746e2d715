"""Search spaces: what may be proposed, each as indices, and what a bad file is told."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest

from hztune import artifacts, params, space
from hztune.blocks import Arm
from hztune.errors import UsageError
from hztune.params import Param, Value
from hztune.space import Space
from hztune.space.expression import Expression

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HEAD = 'schema = 1\nallocator = "hz"\n'


def accept(config: Mapping[str, Value]) -> None:
    """A check that finds nothing wrong."""


def load(tmp_path: Path, toy_params: tuple[Param, ...], text: str, **facts: int) -> Space:
    path = tmp_path / "space.toml"
    path.write_text(text)
    return space.load(path, toy_params, check=accept, facts={"cpus": 4, "threads": 8, **facts})


def values(made: Space, name: str) -> tuple[Value, ...]:
    return next(d.values for d in made.dimensions if d.name == name)


# ---- what a space holds --------------------------------------------------------------------------


def test_powers_of_two_are_listed_by_exponent(toy_space: Space) -> None:
    assert values(toy_space, "cap") == (8, 16, 32, 64, 128, 256, 512, 1024)


def test_a_special_word_stands_before_the_numbers(toy_space: Space) -> None:
    assert values(toy_space, "shards") == ("auto", 1, 2, 4, 8, 16)


def test_zero_stands_before_a_logarithmic_range_and_the_default_is_in_it(toy_space: Space) -> None:
    delays = values(toy_space, "delay")
    assert delays[:3] == (0, 1, 2)
    assert 100 in delays
    assert delays[-1] == 10000


def test_a_linear_range_is_listed_in_few_even_steps(tmp_path: Path) -> None:
    wide = Param("n", "int", 7, 0, 1000, "linear", "", (), False, "", "", "a number")
    made = load(tmp_path, (wide,), HEAD + "[parameters.n]")
    listed = values(made, "n")
    assert {0, 7, 1000} <= set(listed)
    assert len(listed) <= 36


def test_a_range_is_narrowed_by_an_expression_over_the_machine(
    tmp_path: Path, toy_params: tuple[Param, ...]
) -> None:
    made = load(tmp_path, toy_params, HEAD + '[parameters.shards]\nhigh = "2 * min(cpus, threads)"')
    assert values(made, "shards") == ("auto", 1, 2, 4, 8)


def test_an_expression_never_widens_a_range(tmp_path: Path, toy_params: tuple[Param, ...]) -> None:
    made = load(tmp_path, toy_params, HEAD + '[parameters.shards]\nhigh = "1000 * cpus"')
    assert values(made, "shards")[-1] == 16


def test_a_share_follows_the_whole_and_keeps_to_its_range(toy_space: Space) -> None:
    point = toy_space.encode({"cap": 1024})
    shares = [
        toy_space.full(toy_space.at({**point, "batch": index}))["batch"] for index in range(9)
    ]
    assert shares == [256, 256, 256, 128, 64, 32, 16, 8, 4]


def test_a_parameter_is_left_at_its_default_where_its_condition_fails(toy_space: Space) -> None:
    assert "ring" not in toy_space.encode({"shards": 1})
    assert "ring" in toy_space.encode({"shards": 4})


def test_auto_is_neither_less_nor_more_than_a_number(toy_space: Space) -> None:
    assert "ring" not in toy_space.encode({})
    assert toy_space.objection({"cap": 1024}) is None


def test_a_forbidden_point_is_named_with_its_reason(toy_space: Space) -> None:
    objection = toy_space.objection({"cap": 1024, "shards": 4})
    assert objection == "cap * shards > 2048: too much memory"


def test_what_the_allocator_refuses_is_not_proposed(toy_params: tuple[Param, ...]) -> None:
    def refuse(config: Mapping[str, Value]) -> None:
        if config["lock"] == "spin":
            raise UsageError("no spinning here")

    made = Space("hz", (), (), (), toy_params, refuse)
    assert made.objection({"lock": "spin"}) == "no spinning here"
    assert made.objection({"lock": "mutex"}) is None


def test_every_sample_is_legal_and_reads_back_from_its_point(toy_space: Space) -> None:
    rng = Random(5)
    for _ in range(300):
        config = toy_space.sample(rng)
        assert toy_space.objection(config) is None
        assert toy_space.at(toy_space.encode(config)) == config
        assert toy_space.contains(config)


def test_a_configuration_holds_only_what_differs_from_the_defaults(toy_space: Space) -> None:
    assert toy_space.reduced({"cap": 256, "lock": "spin"}) == {"lock": "spin"}


def test_a_value_off_the_grid_is_read_as_its_nearest_neighbour(
    tmp_path: Path, toy_params: tuple[Param, ...]
) -> None:
    made = load(tmp_path, toy_params, HEAD + "[parameters.cap]\nvalues = [16, 64]")
    assert made.at(made.encode({"cap": 512})) == {"cap": 64}
    assert not made.contains({"cap": 512})


def test_the_fingerprint_changes_with_what_can_be_proposed(
    tmp_path: Path, toy_params: tuple[Param, ...]
) -> None:
    whole = load(tmp_path, toy_params, HEAD + "[parameters.cap]")
    again = load(tmp_path, toy_params, HEAD + "# a comment\n[parameters.cap]")
    narrow = load(tmp_path, toy_params, HEAD + "[parameters.cap]\nlow = 16")
    assert whole.fingerprint() == again.fingerprint() != narrow.fingerprint()


def test_what_the_installed_version_lacks_is_left_out_with_all_that_names_it(
    tmp_path: Path, toy_params: tuple[Param, ...]
) -> None:
    text = (
        HEAD + "[parameters.cap]\n[parameters.newer]\nif_present = true\n"
        '[[forbid]]\nrule = "newer > 1"\nwhy = "x"\n'
        '[[preset]]\nname = "p"\nwhy = "x"\nset = { newer = 1 }\n'
    )
    made = load(tmp_path, toy_params, text)
    assert [d.name for d in made.dimensions] == ["cap"]
    assert (made.rules, made.presets) == ((), ())


def test_a_parameter_for_programs_at_rest_is_searched_only_where_that_is_judged(
    tmp_path: Path, toy_params: tuple[Param, ...]
) -> None:
    text = (
        HEAD
        + """
[parameters.cap]
[parameters.shards]
if_rests = true
[[preset]]
name = "rest"
why = "a reason"
set = { shards = 2 }
"""
    )
    of_speed, of_rest = (load(tmp_path, toy_params, text, rests=rests) for rests in (0, 1))
    assert [d.name for d in of_speed.dimensions] == ["cap"]
    assert of_speed.presets == ()
    assert [d.name for d in of_rest.dimensions] == ["cap", "shards"]
    assert [preset.name for preset in of_rest.presets] == ["rest"]


def test_what_never_returns_memory_is_tried_only_where_that_is_allowed(
    tmp_path: Path, toy_params: tuple[Param, ...]
) -> None:
    text = (
        HEAD
        + """
[parameters.delay]
values = [0, 100, 10000]
keeping = [10000]
[parameters.pages]
keeping = ["on"]
[[preset]]
name = "hoard"
why = "a reason"
set = { delay = 10000 }
[[preset]]
name = "at-once"
why = "a reason"
returns = true
set = { delay = 0 }
"""
    )
    usual, allowed = (load(tmp_path, toy_params, text, keeping=keeping) for keeping in (0, 1))
    assert {d.name: d.values for d in usual.dimensions} == {"delay": (0, 100)}
    assert [preset.name for preset in usual.presets] == ["at-once"]
    assert {d.name: d.values for d in allowed.dimensions} == {
        "delay": (0, 100, 10000),
        "pages": ("off", "on"),
    }
    assert [preset.name for preset in allowed.presets] == ["hoard", "at-once"]
    assert allowed.returning == (Arm.of("hz", {"delay": 0}),)


# ---- the space that hztune ships for hz ----------------------------------------------------------


@pytest.fixture(scope="module")
def hz() -> Space:
    facts = {"cpus": 4, "threads": 8, "rests": 1}
    return space.load("hz", params.table(), check=params.check, facts=facts)


def test_hz_searches_every_row_of_the_table_or_says_why_not(hz: Space) -> None:
    data = tomllib.loads((artifacts.search_spaces() / "hz.toml").read_text())
    named = {d.name for d in hz.dimensions} | set(data.get("not_searched", {}))
    assert named == {param.name for param in params.table()}


def test_hz_searches_nothing_that_only_experiments_set(hz: Space) -> None:
    assert not {param.name for param in params.table() if param.is_experimental} & {
        dimension.name for dimension in hz.dimensions
    }


def test_the_presets_of_hz_can_be_proposed(hz: Space) -> None:
    assert [preset.name for preset in hz.presets if not hz.contains(preset.config)] == []


def test_hz_tells_what_returns_memory_at_rest_and_else(hz: Space) -> None:
    assert hz.returning[0].config == {"decay_ms": 0, "background_period_us": 65536}
    facts = {"cpus": 4, "threads": 8}
    assert space.load("hz", params.table(), check=params.check, facts=facts).returning


def test_the_defaults_of_hz_are_on_the_grid(hz: Space) -> None:
    assert hz.contains({})


# ---- what a bad file is told ---------------------------------------------------------------------

BAD = {
    "no TOML": ("schema = = 1", "is no TOML"),
    "another schema": ('schema = 2\nallocator = "hz"', "schema is 2; legal is 1"),
    "no allocator": ("schema = 1", "allocator is None"),
    "an unknown key": (HEAD + "colour = 1", "key 'colour' means nothing"),
    "an unknown parameter": (HEAD + "[parameters.capp]", "did you mean cap?"),
    "an unknown key of a parameter": (
        HEAD + "[parameters.cap]\nmin = 8",
        "key 'min' means nothing",
    ),
    "a parameter that is no table": (HEAD + "[parameters]\ncap = 8", "legal is a table"),
    "a range above the legal one": (
        HEAD + "[parameters.cap]\nhigh = 4096",
        "goes from 8 to 4096; legal is a power of two from 8 to 1024",
    ),
    "a range upside down": (HEAD + "[parameters.cap]\nlow = 64\nhigh = 32", "from 64 to 32"),
    "a bound that is no number": (HEAD + "[parameters.cap]\nlow = true", "low is True"),
    "a range of words": (HEAD + "[parameters.lock]\nlow = 1", "is a word and has no range"),
    "an illegal value that keeps memory": (HEAD + "[parameters.cap]\nkeeping = [9]", 'cap is "9"'),
    "an illegal value": (HEAD + "[parameters.cap]\nvalues = [8, 9]", 'cap is "9"; legal is'),
    "an illegal word": (HEAD + '[parameters.lock]\nvalues = ["rw"]', "one of: mutex spin lockfree"),
    "no values": (HEAD + "[parameters.cap]\nvalues = []", "legal is a list of different values"),
    "the same value twice": (HEAD + "[parameters.cap]\nvalues = [8, 8]", "different values"),
    "a share of a word": (HEAD + '[parameters.cap]\nshare_of = "lock"', "share_of is 'lock'"),
    "a share of nothing": (HEAD + '[parameters.cap]\nshare_of = "x"', "there is no 'x'"),
    "a condition on nothing": (
        HEAD + '[parameters.cap]\nwhen = "shard > 1"',
        "did you mean shards",
    ),
    "a condition that is code": (
        HEAD + "[parameters.cap]\nwhen = \"__import__('os')\"",
        "is no expression",
    ),
    "a circle": (
        HEAD + '[parameters.cap]\nwhen = "delay > 1"\n[parameters.delay]\nwhen = "cap > 8"',
        "need each other in a circle",
    ),
    "a rule without a reason": (HEAD + '[[forbid]]\nrule = "cap > 8"', "why is None"),
    "a rule that is no table": (HEAD + 'forbid = ["cap > 8"]', "written [[forbid]]"),
    "a preset out of range": (
        HEAD + '[[preset]]\nname = "p"\nwhy = "x"\nset = { cap = 7 }',
        'cap is "7"',
    ),
    "a forbidden preset": (
        HEAD + '[[forbid]]\nrule = "cap > 8"\nwhy = "big"\n'
        '[[preset]]\nname = "p"\nwhy = "x"\nset = { cap = 16 }',
        "'p' is not legal: cap > 8: big",
    ),
    "both searched and not": (
        HEAD + '[parameters.cap]\n[not_searched]\ncap = "x"',
        "stands under [parameters] too",
    ),
}


@pytest.mark.parametrize("mistake", BAD)
def test_a_mistake_is_one_sentence_with_the_file_and_what_is_legal(
    mistake: str, tmp_path: Path, toy_params: tuple[Param, ...]
) -> None:
    text, said = BAD[mistake]
    with pytest.raises(UsageError) as caught:
        load(tmp_path, toy_params, text)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "space.toml"))
    assert said in message
    assert "\n" not in message


def test_a_space_that_does_not_exist_is_answered_with_those_that_do() -> None:
    with pytest.raises(UsageError, match=r"no search space 'hzz' \(shipped: .*hz"):
        space.find("hzz")


def test_a_file_that_does_not_exist_is_named() -> None:
    with pytest.raises(UsageError, match=r"no search space 'none\.toml'"):
        space.find("none.toml")


# ---- expressions ---------------------------------------------------------------------------------

TRUE = [
    "1 < 2 <= 2",
    "a == 3 and word == 'auto'",
    "not a > 3",
    "a in [1, 2, 3]",
    "word not in ['x']",
    "min(a, 7) * 2 + 1 == 7",
    "max(a, 7) // 2 == 3 and 7 % 4 == 3 and 7 / 2 == 3",
    "-a < 0",
    "word > 5 or a > 2",
    "not word + 1 > 0",
]
FALSE = ["word > 0", "word < 0", "word * a > 0", "a / 0 > 0", "a > 3 or word != 'auto'"]
SENSELESS = [
    "",
    "a b",
    "a.b",
    "a[0]",
    "lambda: 1",
    "open('x')",
    "min()",
    "min(a, key=b)",
    "1.5 > a",
    "a ** 9",
    "a if a else a",
    "[x for x in a]",
    "f'{a}'",
    "a > " * 600 + "1",
]


@pytest.mark.parametrize("text", TRUE)
def test_an_expression_holds(text: str) -> None:
    assert Expression.parse(text).holds({"a": 3, "word": "auto"})


@pytest.mark.parametrize("text", FALSE)
def test_an_expression_does_not_hold(text: str) -> None:
    assert not Expression.parse(text).holds({"a": 3, "word": "auto"})


@pytest.mark.parametrize("text", SENSELESS)
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no expression; legal are"):
        Expression.parse(text)


def test_a_word_is_no_number() -> None:
    with pytest.raises(UsageError, match="does not give a whole number"):
        Expression.parse("word").number({"word": "auto"})
