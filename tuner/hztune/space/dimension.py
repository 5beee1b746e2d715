"""A dimension: one parameter as the search sees it, a short list of legal values in their order.

Powers of two and logarithmic ranges are listed by exponent, special values (`auto`, 0 for "off")
stand first, and a share lists 1, 1/2, 1/4 ... of another parameter. So every dimension is an index
into a tuple: a sampler steps through it in its natural geometry, whatever it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hztune.params import Param, Value
from hztune.space.expression import Expression

_MAX_LINEAR_VALUES = 33


@dataclass(frozen=True, slots=True)
class Dimension:
    """One parameter of a space.

    Attributes:
        param: The knob, as its allocator describes it.
        values: Legal values in order; for a share the whole-number divisors 1, 2, 4 ...
        low: Least value of a share; unused otherwise.
        high: Greatest value of a share; unused otherwise.
        share_of: The parameter that it is a share of, or "".
        when: Where it is searched; elsewhere it stays at its default.
    """

    param: Param
    values: tuple[Value, ...]
    low: int = 0
    high: int = 0
    share_of: str = ""
    when: Expression | None = None

    @property
    def name(self) -> str:
        """The parameter's name."""
        return self.param.name

    @property
    def is_ordered(self) -> bool:
        """Whether neighbours in `values` are alike: numbers are, words are not."""
        return self.param.kind == "int"

    @property
    def needs(self) -> frozenset[str]:
        """The parameters that must have a value before this one can have one."""
        names = self.when.names if self.when else frozenset()
        return names | ({self.share_of} if self.share_of else frozenset())

    def value(self, index: int, config: Mapping[str, Value]) -> Value:
        """The value at `index`, given the parameters that it needs."""
        choice = self.values[index]
        if not self.share_of:
            return choice
        return self._share(int(choice), config)

    def index(self, value: Value, config: Mapping[str, Value]) -> int | None:
        """The first index that gives `value` under `config`, or None."""
        for index in range(len(self.values)):
            if self.value(index, config) == value:
                return index
        return None

    def nearest(self, value: Value, config: Mapping[str, Value]) -> int:
        """The index of `value`, or of the number nearest to it; 0 when no number is."""
        exact = self.index(value, config)
        if exact is not None:
            return exact
        listed = [self.value(index, config) for index in range(len(self.values))]
        if not isinstance(value, int):
            return 0
        gaps = [abs(other - value) if isinstance(other, int) else float("inf") for other in listed]
        return gaps.index(min(gaps))

    def _share(self, divisor: int, config: Mapping[str, Value]) -> Value:
        whole = config[self.share_of]
        if not isinstance(whole, int):
            return self.param.default
        return max(self.low, min(self.high, whole // divisor))


def grid(param: Param, low: int, high: int) -> tuple[Value, ...]:
    """The values of a number or an enum between `low` and `high`, as its own scale steps.

    The default is among them where it is within `low`..`high`, so that a search can start from it.
    """
    if param.kind == "enum":
        return param.choices
    steps: set[int] = {0} if low == 0 else set()
    if param.scale == "linear":
        stride = max(1, -(-(high - low) // (_MAX_LINEAR_VALUES - 1)))
        steps |= {*range(low, high + 1, stride), high}
    elif param.scale == "log":
        steps |= {max(low, 1), high, *powers_of_two(max(low, 1), high)}
    else:
        steps |= set(powers_of_two(max(low, 1), high))
    if isinstance(param.default, int) and low <= param.default <= high:
        steps.add(param.default)
    special: tuple[Value, ...] = ("auto",) if param.may_be_auto else ()
    return special + tuple(sorted(steps))


def powers_of_two(low: int, high: int) -> list[int]:
    """Every power of two from `low` (at least 1) to `high`."""
    return [1 << exponent for exponent in range(high.bit_length()) if low <= 1 << exponent <= high]
