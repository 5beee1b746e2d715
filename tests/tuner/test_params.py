"""The table of parameters as Python sees it: the core's own, judged by the core's own code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hztune import params
from hztune.errors import UsageError
from hztune.params import Param

ROOT = Path(__file__).parents[2]
TABLE = params.table()
NUMBERS = [row for row in TABLE if row.kind == "int"]
ENUMS = [row for row in TABLE if row.kind == "enum"]


def knob(**changes: object) -> Param:
    """A knob of some other allocator."""
    fields: dict[str, object] = {
        "name": "arena_max", "kind": "int", "default": 8, "low": 1, "high": 64, "scale": "linear",
        "unit": "", "choices": (), "may_be_auto": False, "env": "", "macro": "", "doc": "",
    }  # fmt: skip
    return Param(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_table_has_numbers_and_words() -> None:
    assert NUMBERS and ENUMS


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_row_says_everything_that_its_users_need(row: Param) -> None:
    assert row.env == f"HZ_{row.name.upper()}"
    assert row.macro == f"HZ_CONFIG_{row.name.upper()}"
    assert row.doc and not row.doc.endswith(".")
    assert row.kind == "enum" or row.unit


def test_the_table_lists_the_units_that_its_rows_have() -> None:
    text = (ROOT / "core/include/hz/params.def").read_text()
    (listed,) = re.findall(r"^ \* unit     of the number: (.+)$", text, re.MULTILINE)
    assert sorted(listed.split(", ")) == sorted({row.unit for row in NUMBERS})


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_default_is_legal_and_is_its_own_text(row: Param) -> None:
    assert params.parse(row, str(row.default)) == row.default


@pytest.mark.parametrize("row", NUMBERS, ids=lambda row: row.name)
def test_both_ends_of_a_range_are_legal_and_what_lies_beyond_is_not(row: Param) -> None:
    for value in (row.low, row.high):
        assert params.parse(row, str(value)) == value
    for text in (str(row.low - 1), str(row.high + 1), str(row.high * 2)):
        with pytest.raises(UsageError, match=row.name):
            params.parse(row, text)


@pytest.mark.parametrize("row", ENUMS, ids=lambda row: row.name)
def test_every_word_of_an_enum_is_legal_and_no_other(row: Param) -> None:
    for word in row.choices:
        assert params.parse(row, word) == word
    for text in ("", "0", "1", row.choices[0].upper(), row.choices[0] + " ", "nonsense"):
        with pytest.raises(UsageError, match=" ".join(row.choices)):
            params.parse(row, text)


@pytest.mark.parametrize(
    "text", ["", " 256", "256 ", "0x100", "1e3", "256k", "٢٥٦", "-256", "0256", "256\0", "9" * 40]
)
def test_a_number_is_plain_decimal_and_nothing_else(text: str) -> None:
    with pytest.raises(UsageError, match="magazine_cap"):
        params.parse(params.find("magazine_cap"), text)


def test_a_power_of_two_row_refuses_what_lies_between() -> None:
    with pytest.raises(UsageError, match="a power of two from"):
        params.check({"magazine_cap": 100})


def test_a_truth_value_is_not_taken_for_a_number() -> None:
    with pytest.raises(UsageError, match="refill_batch is True"):
        params.check({"refill_batch": True})


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="did you mean magazine_cap"):
        params.find("magazin_cap")


def test_rows_that_do_not_fit_each_other_are_refused_in_the_words_of_the_core() -> None:
    with pytest.raises(UsageError, match="refill_batch is 256 and magazine_cap 8"):
        params.check({"refill_batch": 256, "magazine_cap": 8})


def test_the_defaults_fit_each_other() -> None:
    params.check(params.defaults())


def test_an_environment_names_only_what_was_given_in_the_order_of_the_table() -> None:
    made = params.environment({"depot_lock": "spin", "magazine_cap": 512})
    assert list(made.items()) == [("HZ_MAGAZINE_CAP", "512"), ("HZ_DEPOT_LOCK", "spin")]


def test_completing_a_configuration_adds_every_other_default() -> None:
    full = params.complete({"magazine_cap": 512})
    assert full == {**params.defaults(), "magazine_cap": 512}


def test_a_misspelt_variable_is_recognised_and_a_foreign_one_is_not() -> None:
    assert params.nearly("HZ_MAGAZIN_CAP") == "HZ_MAGAZINE_CAP"
    assert params.nearly("HZ_NETWORK_PUBLICADDRESS") is None
    assert params.nearly("HZ_MAGAZINE_CAP") is None


@pytest.mark.parametrize("value", [1, 64])
def test_a_foreign_number_within_its_range_is_legal(value: int) -> None:
    assert params.parse(knob(), str(value)) == value


@pytest.mark.parametrize("text", ["0", "65", "x", "", "auto", "1.5", "08"])
def test_a_foreign_number_outside_its_range_is_not_legal(text: str) -> None:
    with pytest.raises(UsageError, match=r"arena_max is .*; legal is a whole number from 1 to 64"):
        params.parse(knob(), text)


def test_a_foreign_knob_may_be_left_to_its_allocator_where_it_says_so() -> None:
    assert params.parse(knob(may_be_auto=True), "auto") == "auto"


def test_a_foreign_knob_may_be_negative_where_its_range_says_so() -> None:
    assert params.parse(knob(low=-1), "-1") == -1
