"""How a command prints lines in which others had a word: names of processes, paths, answers."""

from __future__ import annotations

from collections.abc import Iterable

import click

from hztune.arguments import printable


def print_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Prints lines, and nothing in them that steers a terminal."""
    click.echo("\n".join(map(printable, lines)), err=err)
