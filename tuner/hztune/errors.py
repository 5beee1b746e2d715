"""The one root of hztune's own exceptions, and what each means to the shell.

An error's text is one sentence for the user: what was got, what is legal, where, what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class HztuneError(Exception):
    """Something failed at run time; the root of every error that hztune raises on purpose."""

    exit_status = 1


class UsageError(HztuneError):
    """The user asked for something that does not exist or is not legal."""

    exit_status = 2


class NoGainError(HztuneError):
    """Nothing beats the default and the user required one; or a claim does not hold."""

    exit_status = 4


class UnfitError(HztuneError):
    """The machine is unfit for measuring, or is not the one that a claim was made on."""

    exit_status = 5


class NotEnoughDataError(HztuneError):
    """What was measured does not answer the question."""

    exit_status = 6


class OutOfTime(NotEnoughDataError):
    """The budget was used up while something was measured, which was ended; the rest is kept."""


class StoppedByUser(HztuneError):
    """The user interrupted; what was measured so far is saved."""

    exit_status = 130


def no_look_at(process: str) -> UsageError:
    """What is said of a process of which the kernel tells this user nothing."""
    return UsageError(
        f"{process} may not be looked at: run as its user, or as root outside of any container"
    )


def did_you_mean(name: str, legal: Iterable[str], most: int = 1) -> str:
    """What an error says of a name that is nearly a legal one: "; did you mean hz?", or nothing."""
    near = get_close_matches(name, list(legal), n=most)
    return f"; did you mean {' or '.join(near)}?" if near else ""
