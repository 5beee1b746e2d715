"""Configurations drawn at random: legal ones hold, and illegal values change nothing.

TEST_SEED draws others, and TEST_MORE=N draws N times as many (tests/soak sets both).
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

Preload = Callable[..., "subprocess.CompletedProcess[str]"]
Draw = random.Random

SEED = int(os.environ.get("TEST_SEED", "20261123"))
MORE = int(os.environ.get("TEST_MORE", "1"))
ILLEGAL_VALUES = 4_000 * MORE
LEGAL_CONFIGURATIONS = 6 * MORE
REJECTED = 78
CONFIRM = "HZ_CONFIRM "


@dataclass(frozen=True)
class Row:
    """A row of the table of parameters, as hz itself prints it."""

    name: str
    env: str
    default: str
    low: int
    high: int
    is_power: bool
    may_be_auto: bool
    words: tuple[str, ...]

    def allows(self, text: str) -> bool:
        """What the table's head says, written a second time."""
        if self.words or (self.may_be_auto and text == "auto"):
            return text == "auto" if text not in self.words else True
        if not (text.isascii() and text.isdigit() and str(int(text)) == text):
            return False
        value = int(text)
        is_power = value & (value - 1) == 0
        return self.low <= value <= self.high and (is_power or not self.is_power)


@pytest.fixture(scope="module")
def rows(core_tests: Path, plain_environment: dict[str, str]) -> list[Row]:
    """The table."""
    said = subprocess.run(
        [core_tests / "tests" / "says", "--table"],
        env=plain_environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    read = [json.loads(line) for line in said.splitlines()]
    return [Row(words=tuple(each.pop("choices").split()), **each) for each in read]


# --- illegal values -------------------------------------------------------------------------------


def odd_number(row: Row, draw: Draw) -> str:
    """A whole number that is out of range, or of the wrong kind, or far too large."""
    above = row.high + draw.choice([1, 2, row.high, 2**31, 2**32, 2**62])
    return str(
        draw.choice(
            [
                above,
                row.low - 1,
                -draw.randint(1, 2**63),
                draw.randint(row.low, row.high) | 1 | (row.low << 1),
                2**63 + row.low,
                2**64 + row.low,
                10 ** draw.randint(18, 400),
            ]
        )
    )


def odd_spelling(row: Row, draw: Draw) -> str:
    """A legal value, or a number, written in a way that is not legal."""
    value = draw.choice([row.default, str(row.low), str(row.high), *row.words])
    return draw.choice(
        [
            f" {value}",
            f"{value} ",
            f"\t{value}",
            f"+{value}",
            f"-{value}",
            f"0{value}",
            f"0x{value}",
            f"{value}k",
            f"{value}.0",
            f"{value}e0",
            f"{value},{value}",
            f"{value} {value}",
            f"{value}\v",
            f'"{value}"',
            value.upper() if value.upper() != value else f"{value}A",
            value[:-1],
            value * 200,
        ]
    )


def odd_text(_: Row, draw: Draw) -> str:
    """Something else."""
    noise = "".join(chr(draw.randint(32, 0x2FF)) for _ in range(draw.randint(1, 80)))
    return draw.choice(
        ["", "yes", "none", "NaN", "inf", "%s%n%x", "$(id)", "\u0661", noise, "z" * 9000]
    )


def illegal(row: Row, draw: Draw) -> str:
    """A value that the table does not allow."""
    while True:
        text = draw.choice([odd_number, odd_spelling, odd_text])(row, draw)
        if not row.allows(text):
            return text


def config_of(stderr: str) -> dict[str, Any]:
    """The configuration that was confirmed."""
    line = next(line for line in stderr.splitlines() if line.startswith(CONFIRM))
    read: dict[str, Any] = json.loads(line[len(CONFIRM) :])["config"]
    return read


def require_refused(values: dict[str, str], rows: list[Row], said: str) -> None:
    """Each value has its whole line, which names it and says what is legal and what happens."""
    lines = [line for line in said.split("\n") if line.startswith("hz: ")]
    assert len(lines) == len(values), (values, said)
    for row in rows:
        line = next(line for line in lines if line.startswith(f"hz: {row.env}: {row.name} is "))
        assert "; legal is " in line and line.endswith("it is ignored"), (values, line)


@pytest.mark.slow
def test_thousands_of_illegal_values_leave_the_defaults(preload: Preload, rows: list[Row]) -> None:
    draw = Draw(SEED)
    defaults = config_of(preload("true", HZ_CONFIRM="1").stderr)
    for _ in range(0, ILLEGAL_VALUES, len(rows)):
        values = {row.env: illegal(row, draw) for row in rows}
        done = preload("true", HZ_CONFIRM="1", **values)
        assert done.returncode == 0, (values, done)
        require_refused(values, rows, done.stderr)
        assert config_of(done.stderr) == defaults, values


@pytest.mark.slow
def test_each_illegal_value_alone_ends_a_strict_program_before_main(
    preload: Preload, rows: list[Row]
) -> None:
    draw = Draw(SEED)
    for row in rows * (3 * MORE):
        value = illegal(row, draw)
        done = preload("echo", "ran", HZ_STRICT="1", **{row.env: value})
        assert (done.returncode, done.stdout) == (REJECTED, ""), (row.env, value, done.stderr)
        assert done.stderr.startswith(f"hz: {row.env}: ") and done.stderr.endswith("giving up\n")


# --- legal configurations -------------------------------------------------------------------------


def legal_number(row: Row, draw: Draw) -> str:
    """Any power of two, or the ends and what lies between them, as often near the lower one."""
    if row.may_be_auto and draw.random() < 0.2:
        return "auto"
    if row.is_power:
        powers = [2**n for n in range(63) if row.low <= 2**n <= row.high]
        return str(draw.choice([0, *powers] if row.low == 0 else powers))
    drawn = round(math.exp(draw.uniform(math.log(row.low + 1), math.log(row.high + 1)))) - 1
    return str(draw.choice([row.low, row.high, drawn, drawn, drawn]))


def goes_together(values: dict[str, str]) -> bool:
    """What params.h says of pairs, written a second time."""
    number = {name: int(text) for name, text in values.items() if text.isdigit()}
    return (
        number["HZ_REFILL_BATCH"] <= number["HZ_MAGAZINE_CAP"]
        and number["HZ_FLUSH_BATCH"] <= number["HZ_MAGAZINE_CAP"]
        and number["HZ_MAGAZINE_BYTES"] <= number["HZ_THREAD_CACHE_BYTES"]
    )


def legal(rows: list[Row], draw: Draw) -> dict[str, str]:
    """A configuration in which about every third value is the default."""
    while True:
        values = {
            row.env: row.default
            if draw.random() < 0.3
            else draw.choice(row.words)
            if row.words
            else legal_number(row, draw)
            for row in rows
        }
        if goes_together(values):
            return values


def in_effect(values: dict[str, str], rows: list[Row], config: dict[str, Any]) -> bool:
    return all(
        str(config[row.name]) == values[row.env] or values[row.env] == "auto" for row in rows
    )


@pytest.mark.slow
def test_legal_configurations_are_in_effect_and_hold(
    core_tests: Path, preload: Preload, rows: list[Row]
) -> None:
    draw = Draw(SEED)
    for number in range(LEGAL_CONFIGURATIONS):
        values = legal(rows, draw)
        assert all(row.allows(values[row.env]) for row in rows)
        done = preload(
            core_tests / "tests" / "fuzz_shadow",
            **values,
            HZ_STRICT="1",
            HZ_CONFIRM="1",
            TEST_ALLOCATOR="libhz.so",
            TEST_SEED=str(SEED + number),
            TEST_STEPS="1500",
            TEST_ROUNDS="2",
        )
        changed = {row.env: values[row.env] for row in rows if values[row.env] != row.default}
        assert done.returncode == 0, (changed, done.stdout, done.stderr)
        assert in_effect(values, rows, config_of(done.stderr)), changed
