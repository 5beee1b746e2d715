"""What a shell completes where a value stands; `tuner/share` holds the scripts that ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from hztune import api

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Offer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def offer_files(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The files here, which the shell finds."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def offer_names(known: Callable[[], Iterable[str]]) -> Offer:
    """Names of a list that is made when it is asked for; after a comma, the next name."""

    def offer(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        before, comma, begun = incomplete.rpartition(",")
        fitting = [name for name in known() if name.startswith(begun)]
        return [CompletionItem(f"{before}{comma}{name}") for name in fitting]

    return offer


def offer_contenders(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Allocators; and files, as a profile is one, and so is a program."""
    names = offer_names(lambda: ["default", *api.allocator_names()])(ctx, param, incomplete)
    return [*names, *offer_files(ctx, param, incomplete)]


def live_parameters() -> list[str]:
    """What may be set in a process that runs, each as NAME=."""
    return [f"{each.name}=" for each in api.parameters() if each.is_live]


def workloads() -> list[str]:
    """The workloads of this installation."""
    return [each.text.removesuffix("FILE") for each in api.workloads()]


def allocators() -> list[str]:
    """Every allocator that hztune knows, installed or not, and the words for several."""
    return [*api.allocator_names(), "any", "inside"]
