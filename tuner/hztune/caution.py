"""A caution: what a profile may do to programs that it was not tuned for, in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from hztune.errors import UsageError
from hztune.params import Value
from hztune.strictjson import TEXT, Fields

Trouble = Literal["speed", "memory", "failure", "known", "trace"]
TROUBLES: tuple[Trouble, ...] = ("speed", "memory", "failure", "known", "trace")
"""Less speed, more memory, a process that failed: measured. `known`: not measured here. `trace`: it
was proved on a trace, and not on the program."""

_MANY_TIMES = 0.5
"""Ratio of speed below which a loss is told as a factor."""


@dataclass(frozen=True, slots=True)
class Caution:
    """What a profile may do elsewhere.

    Attributes:
        what: What is worse; `known` is a risk that was not measured.
        on: The kind of programs ("programs with large blocks"); of a known risk or a trace, the
            sentence.
        workload: On which workload of the panel it was seen; "" for a known risk.
        params: The parameters that do it, with their values; empty: the cause was not found.
        ratio: Speed or peak memory, tuned / default; None where nothing was measured.
        ci_low: Lower end of its 95 % interval.
        ci_high: Upper end.
    """

    what: Trouble
    on: str
    workload: str = ""
    params: tuple[tuple[str, Value], ...] = ()
    ratio: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None

    @property
    def text(self) -> str:
        """In words: "on programs with large blocks: 33 times slower (max_dirty_bytes=0)"."""
        cause = " ".join(f"{name}={value}" for name, value in self.params)
        if self.what == "known":
            return f"known risk of {cause}: {self.on}"
        if self.what == "trace":
            return self.on
        told = f"on {self.on}: {self._effect()}"
        return f"{told} ({cause})" if cause else told

    def _effect(self) -> str:
        """How much worse it is."""
        if self.what == "failure" or self.ratio is None:
            return "a process failed"
        if self.what == "memory":
            return f"{self.ratio:.1f} times the memory"
        if self.ratio < _MANY_TIMES:
            return f"{1.0 / self.ratio:.0f} times slower"
        return f"{100.0 * (1.0 - self.ratio):.0f} % slower"


def read(fields: Fields) -> Caution:
    """A caution of a file, from its object.

    Raises:
        UsageError: Something in it is not legal.
    """
    caution = Caution(
        what=cast("Trouble", fields.word("what", TROUBLES)),
        on=fields.text("on", TEXT),
        workload=fields.text("workload", TEXT),
        params=fields.child("params").values(),
        ratio=fields.number_or_none("ratio", 0, 1e9),
        ci_low=fields.number_or_none("ci_low", 0, 1e9),
        ci_high=fields.number_or_none("ci_high", 0, 1e9),
    )
    fields.close()
    _judge(caution)
    return caution


def _judge(caution: Caution) -> None:
    """The relations inside it."""
    measured = (caution.ci_low, caution.ratio, caution.ci_high)
    needed = caution.what in ("speed", "memory")
    if needed != (None not in measured) or (not needed and measured != (None,) * 3):
        raise UsageError("a warning lacks its ratio, or has one that is not of its kind")
    if needed and (
        list(measured) != sorted(cast("Sequence[float]", measured)) or not caution.ratio
    ):
        raise UsageError("the ratio of a warning lies outside its interval, or is 0")
    if caution.what == "known" and not caution.params:
        raise UsageError("a known risk is one of parameters, and names none")
