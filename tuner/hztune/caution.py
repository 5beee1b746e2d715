"""A caution: what a profile may do to programs that it was not tuned for, in one line."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from hztune.schema import Schema, Setting, Text, Times, Word

Trouble = Literal["speed", "memory", "failure", "known", "trace"]
"""Less speed, more memory, a process that failed: measured. `known`: not measured here. `trace`: it
was proved on a trace, and not on the program."""

_MANY_TIMES = 0.5
"""Times of speed below which a loss is told as a factor."""


class Caution(Schema, frozen=True):
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
    on: Text
    workload: Text = ""
    params: dict[Word, Setting] = field(default_factory=dict)
    ratio: Times | None = None
    ci_low: Times | None = None
    ci_high: Times | None = None

    def __post_init__(self) -> None:
        """Refuses what does not fit together.

        Raises:
            ValueError: A measured trouble lacks its interval, or another one has one.
        """
        measured = [each for each in (self.ci_low, self.ratio, self.ci_high) if each is not None]
        if len(measured) != 3 * (self.what in ("speed", "memory")):
            raise ValueError("a warning lacks its ratio, or has one that is not of its kind")
        if measured != sorted(measured) or self.ratio == 0:
            raise ValueError("the ratio of a warning lies outside its interval, or is 0")
        if self.what == "known" and not self.params:
            raise ValueError("a known risk is one of parameters, and names none")

    @property
    def text(self) -> str:
        """In words: "on programs with large blocks: 33 times slower (max_dirty_bytes=0)"."""
        cause = " ".join(f"{name}={value}" for name, value in self.params.items())
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
