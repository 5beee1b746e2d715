"""The values of options as text, each form in one function: a time, a list, NAME=VALUE, a command.

UsageError says what was got and what is legal. `option` is what the text was given with, "" where
the caller does not know it. What a name *means* is judged in its own table.
"""

from __future__ import annotations

import re
import shlex

from hztune.errors import UsageError

_MOST_TEXT = 200
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smh]?)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_TIMES = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,4})?)x")
_SIZE = re.compile(r"([0-9]{1,12})([KMG])")
_KB = {"K": 1, "M": 1024, "G": 1024 * 1024}
_PERCENT = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,3})?)%")
LIMIT = re.compile("|".join(each.pattern for each in (_TIMES, _SIZE, _PERCENT)))
"""A limit as people write it and profiles hold it: 1.10x, 512M, 5%."""

_COUNT = re.compile(r"[0-9]{1,6}")
_MARK = re.compile(r"[@:]")
_NAMED = re.compile(r"([A-Za-z0-9_.+-]{1,40})=(.*)", re.S)
_NAME = "1 to 40 letters, digits and _ . + -"
_CONFIGURED = re.compile(r"(inside:[a-z0-9_]+|(?!inside:)[a-z0-9_]+):(.+)")

SPARSE = "sparse"  # hztune's own sampler
SAMPLERS: dict[str, tuple[str, dict[str, bool]]] = {
    "tpe": ("TPESampler", {"multivariate": True, "constant_liar": True}),
    "random": ("RandomSampler", {}),
    "cmaes": ("CmaEsSampler", {}),
}
"""Optuna's, by name: class and settings. What one needs beside Optuna goes into pyproject.toml."""


def parse_duration(text: str, option: str = "") -> float:
    """Seconds in a time as people write it: 90s, 5m, 1.5h, 90."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise _illegal(option, text, "a number with s, m or h: 90s, 5m, 1h")
    return float(found[1]) * _SECONDS[found[2]]


def seconds_of(budget: str | float) -> float:
    return parse_duration(budget, "--budget") if isinstance(budget, str) else budget


def within(option: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UsageError(f"{option} is {value}; legal is a number from {low:g} to {high:g}")


def memory_amount(text: str, option: str = "") -> tuple[float, int]:
    """An amount of memory as people write it: (times the default's, KiB), one of them 0."""
    relative, absolute = _TIMES.fullmatch(text), _SIZE.fullmatch(text)
    if relative and float(relative[1]) > 0:
        return float(relative[1]), 0
    if absolute and int(absolute[1]) > 0:
        return 0.0, int(absolute[1]) * _KB[absolute[2]]
    legal = "a multiple of the default's memory (1.10x) or a size with its unit (512M, 2G)"
    raise _illegal(option, text, legal)


def percentage(text: str, option: str = "") -> float:
    """The part of 1 in a percentage as people write it: 1%, 0.5%."""
    found = _PERCENT.fullmatch(text)
    if found is None:
        raise _illegal(option, text, "a percentage of at least 0 and below 100 (0%, 0.5%, 2%)")
    return 0.01 * float(found[1])


def margin(text: str, option: str = "") -> float:
    part = percentage(text, option)
    if part <= 0.0:
        legal = "a percentage above 0 (0.5%, 2%); that two are exactly equal cannot be shown"
        raise _illegal(option, text, legal)
    return part


def counts(text: str, option: str = "") -> tuple[int, ...]:
    texts = text.split(",")
    if not all(_COUNT.fullmatch(each) for each in texts):
        raise _illegal(option, text, "whole numbers with commas between them (2,8,32)")
    return tuple(map(int, texts))


def listed(text: str) -> tuple[str, ...]:
    """The names in "hz,jemalloc"; one between two commas may be empty, and then no such exists."""
    return tuple(each.strip() for each in text.split(","))


def key_value(text: str, option: str = "") -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise _illegal(option, text, "KEY=VALUE")
    return key, value


def split_named(text: str) -> tuple[str, str] | None:
    """The two sides of NAME=REST; None: the text does not begin with a legal name."""
    found = _NAMED.fullmatch(text)
    return (found[1], found[2]) if found else None


def printable(text: str) -> str:
    """A program's own text in one line, without what steers a terminal or XML cannot hold."""
    return "".join(each if each.isprintable() else "?" for each in text)


def require_name(text: str, of: str) -> None:
    """UsageError unless the name of NAME=REST is legal; paths and options with "=" are none."""
    name, equals, _ = text.partition("=")
    is_meant = equals and "/" not in name and " -" not in name and not _CONFIGURED.fullmatch(text)
    if is_meant and split_named(text) is None:
        raise _illegal(f"the name of {of}", name, _NAME)


def named_command(text: str, option: str) -> tuple[str, tuple[str, ...]]:
    found = split_named(text)
    if found is None:
        raise _illegal(option, text, f"NAME='./program its arguments', the name of {_NAME}")
    return found[0], command_words(found[1], f"{option} {found[0]}=")


def command_words(text: str, option: str) -> tuple[str, ...]:
    """The words of a command, as a shell would have them; what only a shell does is not done."""
    try:
        words = tuple(shlex.split(text))
        for_shell = [word for word in shlex.split(text, posix=False) if word in FOR_SHELL]
    except ValueError as error:
        raise UsageError(f"{option} {text!r} cannot be read: {error}") from None
    if not words:
        raise UsageError(f"{option} is empty; give the command that starts the program")
    if for_shell:
        raise UsageError(
            f"{option} {text!r} has {for_shell[0]!r}, and no shell reads it; leave that out, or "
            "put all of it into one: sh -c 'exec PROGRAM ...'"
        )
    return words


FOR_SHELL = ("&", "&&", "|", "||", ">", ">>", "<", "2>", "&>", "2>&1")
"""What means something to a shell where it stands alone."""


def expression(text: str, option: str) -> re.Pattern[str]:
    """In it, ^ and $ are of each line; UsageError: it is no regular expression, or has no group."""
    try:
        compiled = re.compile(text, re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"{option} {_cut(repr(text))} is no regular expression: {error}") from None
    if compiled.groups < 1:
        raise _illegal(option, text, "an expression with a group around the number: (...)")
    return compiled


def split_workload(text: str) -> tuple[str, str | None]:
    name, at, setting = text.partition("@")
    return name, setting if at else None


def workload_name(text: str) -> str:
    """Name of the workload in "remote@main" or "trace:FILE"."""
    return _MARK.split(text, maxsplit=1)[0]


def split_configured(text: str) -> tuple[str, dict[str, str]] | None:
    """The allocator and the parameters of "hz:shards=4,thp=on"; None: it is not so written."""
    if (found := _CONFIGURED.fullmatch(text)) is None:
        return None
    return found[1], dict(key_value(each, f"{found[1]}:") for each in found[2].split(","))


def option_words(**options: object) -> list[str]:
    """The words of options: turn_ms=20.0 is --turn-ms 20; True: its name alone; None, False: no."""
    words = []
    for name, value in options.items():
        if value is not None and value is not False:
            text = f"{value:.15g}" if isinstance(value, float) else str(value)
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [text])]
    return words


def _illegal(option: str, text: str, legal: str) -> UsageError:
    return UsageError(f"{option} {_cut(repr(text))}: legal is {legal}".lstrip())


def _cut(shown: str) -> str:
    return shown if len(shown) <= _MOST_TEXT else shown[: _MOST_TEXT - 3] + "..."
