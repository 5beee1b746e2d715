"""How a command prints lines: sizes, and what others had a word in, as names of processes."""

from __future__ import annotations

from collections.abc import Iterable

import click

from hztune.arguments import printable


def print_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Prints lines, and nothing in them that steers a terminal."""
    click.echo("\n".join(map(printable, lines)), err=err)


def mib(size: int) -> str:
    """Bytes as a number of MiB."""
    return f"{size / (1 << 20):.1f}"
