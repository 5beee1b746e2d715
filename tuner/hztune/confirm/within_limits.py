"""Does a configuration keep the limits of its study, beside its gain?"""

from __future__ import annotations

from typing import Literal

from hztune.decide import Answer, Looks, all_of
from hztune.decide.question import FUTILE_FROM
from hztune.trial import ArmRecord, Ledger


def limit_answer(
    ledger: Ledger, record: ArmRecord, error: float, looks: Looks, rounds: int
) -> tuple[Answer, Answer]:
    """Is the memory limit kept, and what may be lost of speed? Without a limit the answer is yes.

    Args:
        ledger: Has the limits.
        record: The fresh pairs.
        error: Of a yes; a no is no claim, and has the error of what is reported.
        looks: At the pairs.
        rounds: Of each pair.
    """
    limit, loss = ledger.limit, ledger.max_loss
    memory = limit.question(record.excesses, looks, error).answer if limit else "yes"
    if loss is None:
        return memory, "yes"
    priors = [ledger.noise_on(part).spread(rounds) for part in range(len(record.each))]
    lost = loss.questions(record.each, looks, error, priors)
    return memory, all_of(asked.answer for asked in lost)


def missing_limit(memory: Answer, loss: Answer) -> Literal["over_limit", "over_loss"]:
    """Which of two limits, that are not both kept, is the one to name."""
    is_loss = memory == "yes" or (memory == "open" and loss == "no")
    return "over_loss" if is_loss else "over_limit"


def limit_is_futile(ledger: Ledger, record: ArmRecord, error: float, looks: Looks) -> bool:
    """Whether even a lucky truth would not be shown to keep the memory limit."""
    if ledger.limit is None or len(record.pairs) < FUTILE_FROM:
        return False
    asked = ledger.limit.question(record.excesses, looks, error)
    return asked.answer != "yes" and (not asked.values or asked.is_futile())
