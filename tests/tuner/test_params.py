"""The table of parameters as Python sees it: the core's own, judged by the core's own code."""

import pytest
from tests.conftest import pytest_sessionstart

from hztune import params
from hztune.errors import UsageError
from hztune.params import Param

TABLE = params.table()


def knob(**changes):
    """A knob of some other allocator."""
    return Param(**{"name": "arena_max", "default": 8, "doc": "", "low": 1, "high": 64, **changes})


def test_a_default_both_ends_and_every_word_are_legal_and_what_lies_beyond_is_not():
    for row in TABLE:
        is_number = row.kind == "int"
        legal = [row.default, *((row.low, row.high) if is_number else row.choices)]
        assert [params.parse(row, str(value)) for value in legal] == legal
        wrong = ["", "0", "1", row.choices[0].upper(), row.choices[0] + " "] if row.choices else []
        numbers = [str(row.low - 1), str(row.high + 1), str(row.high * 2)]
        for text in [*(numbers if is_number else wrong), "nonsense"]:
            with pytest.raises(UsageError, match=row.name):
                params.parse(row, text)


ODD = ["", " 256", "256 ", "0x100", "1e3", "256k", "٢٥٦", "-256", "0256", "256\0", "9" * 40]


@pytest.mark.parametrize("text", ODD)
def test_a_number_is_plain_decimal_and_nothing_else(text):
    with pytest.raises(UsageError, match="magazine_cap"):
        params.parse(params.find("magazine_cap"), text)


def test_what_the_core_refuses_is_told_in_its_words():
    refused = {
        "a power of two from": {"magazine_cap": 100},
        "refill_batch is True": {"refill_batch": True},
        "refill_batch is 256 and magazine_cap 8": {"refill_batch": 256, "magazine_cap": 8},
    }
    for said, config in refused.items():
        with pytest.raises(UsageError, match=said):
            params.check(config)
    with pytest.raises(UsageError, match="did you mean magazine_cap"):
        params.find("magazin_cap")
    params.check(params.defaults())


def test_an_environment_names_only_what_was_given_in_the_order_of_the_table():
    made = params.environment({"depot_lock": "spin", "magazine_cap": 512})
    assert list(made.items()) == [("HZ_MAGAZINE_CAP", "512"), ("HZ_DEPOT_LOCK", "spin")]


def test_a_misspelt_variable_is_recognised_and_a_foreign_one_is_not():
    assert params.nearly("HZ_MAGAZIN_CAP") == "HZ_MAGAZINE_CAP"
    assert params.nearly("HZ_NETWORK_PUBLICADDRESS") is None
    assert params.nearly("HZ_MAGAZINE_CAP") is None


def test_a_foreign_number_is_legal_within_its_range_and_auto_where_it_says_so():
    assert [params.parse(knob(), text) for text in ("1", "64")] == [1, 64]
    assert params.parse(knob(low=-1), "-1") == -1
    assert params.parse(knob(may_be_auto=True), "auto") == "auto"


@pytest.mark.parametrize("text", ["0", "65", "x", "", "auto", "1.5", "08"])
def test_a_foreign_number_outside_its_range_is_not_legal(text):
    with pytest.raises(UsageError, match=r"arena_max is .*; legal is a whole number from 1 to 64"):
        params.parse(knob(), text)


def test_tests_of_another_table_than_the_installed_one_stop_in_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "hz").mkdir()
    (tmp_path / "hz" / "params.def").write_text("/* a row fewer */")
    monkeypatch.setattr("hztune.artifacts.include_dir", lambda: tmp_path)
    with pytest.raises(pytest.exit.Exception, match="run pip install --editable"):
        pytest_sessionstart()
