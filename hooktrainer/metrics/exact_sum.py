"""Conversion of numbers of any library to Python floats, and sums without rounding error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import SupportsFloat

import attrs

from hooktrainer.errors import MetricError


def number(value: object, key: str = "") -> float:
    """Convert a scalar of any library to a Python float; bools become 0 and 1.

    An array or tensor with one element counts as a scalar. Raises `MetricError` with `key` and the shape if there is
    not exactly one element, or if the element is not a real number.
    """
    if type(value) is float:
        return value
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


_POSITIVE, _NEGATIVE, _NAN = 1, 2, 4


@attrs.frozen
class Exact:
    """A sum of floats without rounding error: a fraction in lowest terms whose denominator is a power of 2."""

    numerator: int = 0
    """Numerator of the sum of the finite terms."""
    shift: int = 0
    """Binary logarithm of the denominator."""
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
        return cls(numerator, denominator.bit_length() - 1)

    @classmethod
    def total(cls, values: Sequence[float]) -> Exact:
        """Return the sum of finite numbers."""
        if len(set(values)) == 1:
            return cls.of(values[0]) * cls(len(values))
        return _total(map(float.as_integer_ratio, values))

    @classmethod
    def weighted(cls, values: Sequence[float], weights: Sequence[float]) -> Exact:
        """Return the sum of finite values, each times its finite weight."""
        if len(set(weights)) == 1:
            return cls.total(values) * cls.of(weights[0])
        pairs = zip(map(float.as_integer_ratio, values), map(float.as_integer_ratio, weights), strict=True)
        return _total((value * weight, unit * divisor) for (value, unit), (weight, divisor) in pairs)

    @property
    def is_nan(self) -> bool:
        """Whether a NaN was added."""
        return bool(self.special & _NAN)

    def __bool__(self) -> bool:
        return bool(self.numerator or self.special)

    def __add__(self, other: Exact) -> Exact:
        shift = max(self.shift, other.shift)
        numerator = (self.numerator << (shift - self.shift)) + (other.numerator << (shift - other.shift))
        return _lowest_terms(numerator, shift, self.special | other.special)

    def __mul__(self, weight: Exact) -> Exact:
        """Return the product with a finite weight above 0."""
        return _lowest_terms(self.numerator * weight.numerator, self.shift + weight.shift, self.special)

    def __truediv__(self, other: Exact) -> float:
        if self.special or other.special:
            return float(self) / float(other)
        try:
            return (self.numerator << other.shift) / (other.numerator << self.shift)
        except OverflowError:
            return math.inf if (self.numerator > 0) == (other.numerator > 0) else -math.inf

    def __float__(self) -> float:
        if self.special:
            return {_POSITIVE: math.inf, _NEGATIVE: -math.inf}.get(self.special, math.nan)
        return self / Exact(1)

    def __repr__(self) -> str:
        return f"Exact({float(self)})"


def _total(fractions: Iterable[tuple[int, int]]) -> Exact:
    """Add numerators by denominator first: floats of one magnitude share one."""
    sums: dict[int, int] = {}
    for numerator, denominator in fractions:
        sums[denominator] = sums.get(denominator, 0) + numerator
    finest = max(sums, default=1)
    return _lowest_terms(sum(part * (finest // unit) for unit, part in sums.items()), finest.bit_length() - 1)


def _lowest_terms(numerator: int, shift: int, special: int = 0) -> Exact:
    common = min(shift, (numerator & -numerator).bit_length() - 1) if numerator else shift
    return Exact(numerator >> common, shift - common, special)
