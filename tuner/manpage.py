"""The man page, from the texts of the command line: `python tuner/manpage.py` writes it anew.

The page is committed (`tuner/share/man/man1/hztune.1`), since hztune cannot be asked for it
while its wheel is built; a test compares it with what is made here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from hztune import cli

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "tuner" / "share" / "man" / "man1" / "hztune.1"

_VERBATIM = "\b"
_ESCAPES = {"\\": "\\e", "-": "\\-", "'": "\\(aq", "^": "\\(ha", "~": "\\(ti"}


def page() -> str:
    """The whole man page as roff."""
    top = click.Context(cli.hztune, info_name="hztune")
    first, *paragraphs = _paragraphs(cli.hztune)
    lines = [
        '.\\" Made by tuner/manpage.py from the texts of the command line.',
        f'.TH HZTUNE 1 "" "hztune {_version()}"',
        ".SH NAME",
        f"hztune \\- {_text(first[0].lower() + first[1:].rstrip('.'))}",
        ".SH SYNOPSIS",
        *_synopsis(top),
        ".SH DESCRIPTION",
        *[*_filled(paragraphs)][1:],
        *_options(top),
        ".SH COMMANDS",
    ]
    for ctx in _commands(top):
        lines += [f".SS {_text(ctx.command_path)}", *_synopsis(ctx)]
        lines += [*_filled(_paragraphs(ctx.command)), *_options(ctx)]
    lines.append(".SH EXIT STATUS")
    for status, meaning in _statuses():
        lines += [".TP", f".B {status}", _text(meaning)]
    return "\n".join(lines) + "\n"


def _commands(ctx: click.Context) -> Iterator[click.Context]:
    """Every command of a group in the order of its help, those of groups in it behind them."""
    assert isinstance(ctx.command, click.Group)
    for name in ctx.command.list_commands(ctx):
        command = ctx.command.get_command(ctx, name)
        assert command is not None
        below = click.Context(command, info_name=name, parent=ctx)
        yield below
        if isinstance(command, click.Group):
            yield from _commands(below)


def _synopsis(ctx: click.Context) -> list[str]:
    words = " ".join(ctx.command.collect_usage_pieces(ctx))
    return [f"\\fB{_text(ctx.command_path)}\\fR {_text(words)}"]


def _paragraphs(command: click.Command) -> list[str]:
    """The paragraphs of a command's help; verbatim ones begin with a backspace, as click has it."""
    return inspect.cleandoc(command.help or "").split("\n\n")


def _filled(paragraphs: list[str]) -> Iterator[str]:
    for paragraph in paragraphs:
        if paragraph.startswith(_VERBATIM):
            block = paragraph.removeprefix(_VERBATIM).strip("\n").split("\n")
            yield from (".PP", ".nf", *map(_text, block), ".fi")
        else:
            yield from (".PP", _text(" ".join(paragraph.split())))


def _options(ctx: click.Context) -> Iterator[str]:
    """Every option as its `--help` has it, but for `--help` itself."""
    for param in ctx.command.get_params(ctx):
        record = param.get_help_record(ctx)
        if isinstance(param, click.Option) and record is not None and "--help" not in param.opts:
            names, text = record
            yield from (".TP", f".B {_text(names)}", _text(text))


def _text(words: str) -> str:
    """Words as roff prints them as they are; those in backticks become bold."""
    escaped = "".join(_ESCAPES.get(letter, letter) for letter in words)
    bold = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", escaped)
    return f"\\&{bold}" if bold.startswith(".") else bold


def _statuses() -> list[tuple[str, str]]:
    """The table of exit statuses in README: status and meaning."""
    rows: list[tuple[str, str]] = re.findall(
        r"^\| (\d+) \| (.+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    return rows


def _version() -> str:
    text = (ROOT / "core" / "CMakeLists.txt").read_text()
    found = re.search(r"project\(hz VERSION ([0-9.]+)", text)
    assert found is not None
    return found[1]


if __name__ == "__main__":
    PAGE.write_text(page())
