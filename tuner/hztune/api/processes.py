"""Processes that run: what they hold, and what may be changed in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hztune.attach.diagnosis import Diagnosis
    from hztune.attach.questions import Changed, Statistics, Trimmed


def process_statistics(pid: int) -> Statistics:
    """What a process holds, by its allocator's own account; it must take requests.

    Raises:
        UsageError: There is none, or it takes no requests.
        HztuneError: It did not answer in time, or ended.
    """
    from hztune.attach import questions

    return questions.statistics(pid)


def change_process(pid: int, settings: Mapping[str, str]) -> Changed:
    """Changes parameters of hz in a process, all or none: {"decay_ms": "0"}.

    Raises:
        UsageError: There is none, it takes no requests, or refuses the change.
        HztuneError: It did not answer in time, or ended.
    """
    from hztune.attach import questions

    return questions.set_parameters(pid, settings)


def trim_process(pid: int) -> Trimmed:
    """Has a process give back what it does not need.

    Raises:
        UsageError: There is none, or it takes no requests.
        HztuneError: It did not answer in time, or ended.
    """
    from hztune.attach import questions

    return questions.trim(pid)


def diagnose(pid: int) -> Diagnosis:
    """What a process's allocator holds, what is set, and what would help, in words.

    Raises:
        UsageError: There is no such process, or it may not be looked at.
    """
    from hztune.attach import diagnosis

    return diagnosis.diagnose(pid)
