"""What a configuration must not exceed, written `1.10x` (of the default's) or `512M`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from hztune.errors import UsageError
from hztune.stats import sequential_interval

_RELATIVE = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,4})?)x")
_ABSOLUTE = re.compile(r"([0-9]{1,12})([KMG])")
_LOSS = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,3})?)%")
_KB = {"K": 1, "M": 1024, "G": 1024 * 1024}


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The most peak memory that a configuration may take.

    Attributes:
        text: As the user wrote it.
        ratio: Times the default's, measured at the same moment; 0 when the limit is absolute.
        kb: KiB; 0 when the limit is relative.
    """

    text: str
    ratio: float = 0.0
    kb: int = 0

    @classmethod
    def parse(cls, text: str) -> MemoryLimit:
        """Reads a limit.

        Raises:
            UsageError: It is written in no known way, or is nothing.
        """
        relative, absolute = _RELATIVE.fullmatch(text), _ABSOLUTE.fullmatch(text)
        if relative and float(relative[1]) > 0:
            return cls(text, ratio=float(relative[1]))
        if absolute and int(absolute[1]) > 0:
            return cls(text, kb=int(absolute[1]) * _KB[absolute[2]])
        raise UsageError(
            f"{text!r}: legal is a multiple of the default's memory (1.10x) "
            "or a size with its unit (512M, 2G)"
        )

    def excess(self, control_kb: float, candidate_kb: float) -> float:
        """Logarithm of what the candidate takes / what it may take; above 0 it is too much."""
        allowed = self.kb if self.kb else self.ratio * control_kb
        return math.log(max(1.0, candidate_kb) / max(1.0, allowed))

    def kept(self, excesses: Sequence[float], alpha: float) -> bool:
        """Whether fresh measurements show at this look that the limit is kept.

        Args:
            excesses: One a fresh pair, in order of time; before the first look nothing is shown.
            alpha: Two-sided error over all looks together, see `sequential_interval`.
        """
        return bool(excesses) and sequential_interval(excesses, alpha).high <= 0.0

    def broken(self, excesses: Sequence[float], alpha: float) -> bool:
        """Whether they show, with the same meaning, that it is not."""
        return bool(excesses) and sequential_interval(excesses, alpha).low > 0.0


@dataclass(frozen=True, slots=True)
class LossLimit:
    """The most that any one of several workloads may lose.

    It is kept where the estimate keeps it. An interval that excludes a greater loss would need
    (noise / limit)^2 pairs: more than any budget has for a limit of 1 %, so that every profile
    would be refused. The estimate comes from fresh pairs, which had no part in the selection, so
    that it errs to neither side; the interval of every workload stands beside it in the results.

    Attributes:
        text: As the user wrote it.
        log: Log units, above 0.
    """

    text: str
    log: float

    @classmethod
    def parse(cls, text: str) -> LossLimit:
        """Reads a limit.

        Raises:
            UsageError: It is no percentage below 100.
        """
        found = _LOSS.fullmatch(text)
        if found is None:
            raise UsageError(f"{text!r}: legal is a percentage below 100 (1%, 0.5%)")
        return cls(text, -math.log1p(-0.01 * float(found[1])))

    def excess(self, log_ratio: float) -> float:
        """How far a workload's log ratio is below what it may be; above 0 it is too much."""
        return -log_ratio - self.log
