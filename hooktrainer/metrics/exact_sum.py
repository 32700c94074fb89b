"""Conversion of numbers of any library to Python floats, and sums without rounding error."""

from __future__ import annotations

import math
from typing import Final, SupportsFloat

import attrs

from hooktrainer.errors import MetricError


def number(value: object, key: str = "") -> float:
    """Convert a scalar of any library to a Python float; bools become 0 and 1.

    An array or tensor with one element counts as a scalar. Raises `MetricError` with `key` and the shape if there is
    not exactly one element, or if the element is not a real number.
    """
    prefix = f"metric {key!r}: " if key else ""
    shape = getattr(value, "shape", ())
    if math.prod(shape) != 1:
        raise MetricError(
            f"{prefix}has shape {tuple(shape)}, but one value was expected. "
            "Reduce it first, or pass a Metric (Mean, Max, Counts, ...)."
        )
    scalar = value.item() if hasattr(value, "item") else value
    try:
        if isinstance(scalar, (int, float, SupportsFloat)):  # in this order, because the protocol check is slow
            return float(scalar)
    except OverflowError:
        pass
    if hasattr(scalar, "merge") and hasattr(scalar, "value"):  # a Metric, which is defined above this module
        kind = type(scalar).__name__
        raise MetricError(f"{prefix}expected a number, found a {kind}; read its .value, or pass the {kind} itself")
    raise MetricError(f"{prefix}expected a number, a list of numbers or a Metric, found {value!r}")


ONE: Final = 1 << 1074
"""1.0 in units of the smallest positive float."""
_POSITIVE, _NEGATIVE, _NAN = 1, 2, 4


@attrs.frozen
class Exact:
    """A sum of floats without rounding error."""

    units: int = 0
    """Sum of the finite terms, in units of the smallest positive float."""
    special: int = 0
    """Bit set of the added +inf, -inf and NaN. Both infinities make NaN, in any order."""

    @classmethod
    def of(cls, value: object) -> Exact:
        """Return the sum of this one number."""
        if isinstance(value, Exact):
            return value
        plain = number(value)
        if not math.isfinite(plain):
            return cls(special=_NAN if math.isnan(plain) else _POSITIVE if plain > 0 else _NEGATIVE)
        numerator, denominator = plain.as_integer_ratio()
        return cls(numerator * (ONE // denominator))

    @property
    def is_nan(self) -> bool:
        """Whether a NaN was added."""
        return bool(self.special & _NAN)

    def __add__(self, other: Exact) -> Exact:
        return Exact(self.units + other.units, self.special | other.special)

    def __mul__(self, weight: Exact) -> Exact:
        """Return the product with a finite weight above 0, exact down to the smallest float."""
        return Exact(self.units * weight.units // ONE, self.special)

    def __truediv__(self, other: Exact) -> float:
        if self.special or other.special:
            return float(self) / float(other)
        try:
            return self.units / other.units
        except OverflowError:
            return math.inf if (self.units > 0) == (other.units > 0) else -math.inf

    def __float__(self) -> float:
        if self.special:
            return {_POSITIVE: math.inf, _NEGATIVE: -math.inf}.get(self.special, math.nan)
        return self / Exact(ONE)

    def __repr__(self) -> str:
        return f"Exact({float(self)})"
