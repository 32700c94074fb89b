"""Metric types. A metric carries its own reduction.

Merging is exactly associative: sums are fractions of integers. The order of merges (micro-batch, rank, iteration, step)
never changes a value, not even in its last bit. A quotient is rounded once, when it is read.
NaNs are left out of every reduction and counted. With only NaNs a metric has the value NaN; an empty one has the value
None. Metrics keep no tensors: every number is converted to a Python float.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self, TypeAlias

import attrs

from hooktrainer.errors import MetricError
from hooktrainer.metrics.exact_sum import Exact, number

__all__ = [
    "REDUCTIONS",
    "Counts",
    "Exact",
    "Last",
    "Max",
    "Mean",
    "Metric",
    "Min",
    "Rate",
    "Reduction",
    "Sum",
    "Term",
    "Value",
    "merge",
    "number",
    "plain",
    "reduced",
]

Value: TypeAlias = float | Mapping[float, int] | None
"""The reduced value of a metric: a number, a histogram, or None for an empty metric."""


def _all_finite(numbers: Iterable[float]) -> bool:
    return all(map(math.isfinite, numbers))


def _exact(value: object) -> Exact:  # type checkers do not follow a classmethod as a converter
    return Exact.of(value)


@attrs.frozen
class Metric:
    """Base of all metrics: merge metrics of one type with `merge`, then read `value`."""

    nans: int = attrs.field(default=0, kw_only=True)
    """Number of NaNs that were left out."""

    @property
    def value(self) -> Value:
        """The reduced value; NaN if all numbers were NaN, None if there were none."""
        raise NotImplementedError

    def merge(self, later: Self) -> Self:
        """Return the merged metric; `later` is the newer one."""
        raise NotImplementedError

    def _nothing(self) -> float | None:
        return math.nan if self.nans else None

    def _leave_out(self, nans: int = 1, **fields: object) -> None:
        """Set the given fields and count the NaNs."""
        for name, value in (fields | {"nans": self.nans + nans}).items():
            object.__setattr__(self, name, value)


@attrs.frozen
class Mean(Metric):
    """Weighted mean, `total / count`. The count is a sum of weights and may be fractional."""

    total: Exact = attrs.field(converter=_exact, default=Exact())
    count: Exact = attrs.field(converter=_exact, default=Exact(1))

    def __attrs_post_init__(self) -> None:
        if self.total.is_nan or self.count.is_nan:
            self._leave_out(total=Exact(), count=Exact())
        if self.count.numerator < 0 or self.count.special:
            raise MetricError(f"the weight of a mean must be finite and at least 0, found {float(self.count)}")

    @classmethod
    def of(cls, values: Iterable[object], weights: Iterable[object] | None = None) -> Mean:
        """Return the mean of many values with a weight each, 1 by default.

        A value of weight 0 is left out, also if it is NaN. The mean of no values has the value None.
        """
        numbers = list(map(number, values))
        sizes = [1.0] * len(numbers) if weights is None else list(map(number, weights))
        if len(numbers) == len(sizes) and _all_finite(numbers) and all(0 < size < math.inf for size in set(sizes)):
            return cls(Exact.weighted(numbers, sizes), Exact.total(sizes))
        pairs = [(Exact.of(value), Exact.of(size)) for value, size in zip(numbers, sizes, strict=True) if size != 0]
        return functools.reduce(cls.merge, [cls(value * size, size) for value, size in pairs], cls(0, 0))

    @property
    def value(self) -> float | None:
        """Return the reduced value."""
        return self.total / self.count if self.count else self._nothing()

    def merge(self, later: Mean) -> Mean:
        """Return the metric over the values of both."""
        return Mean(self.total + later.total, self.count + later.count, nans=self.nans + later.nans)


@attrs.frozen
class Sum(Metric):
    """Sum of all numbers."""

    total: Exact | None = attrs.field(converter=attrs.converters.optional(_exact), default=None)

    def __attrs_post_init__(self) -> None:
        if self.total is not None and self.total.is_nan:
            self._leave_out(total=None)

    @classmethod
    def of(cls, values: Iterable[object]) -> Sum:
        """Return the sum of many values; the sum of no values has the value None."""
        numbers = list(map(number, values))
        if numbers and _all_finite(numbers):
            return cls(Exact.total(numbers))
        return functools.reduce(cls.merge, map(cls, numbers), cls())

    @property
    def value(self) -> float | None:
        """Return the reduced value."""
        return self._nothing() if self.total is None else float(self.total)

    def merge(self, later: Sum) -> Sum:
        """Return the metric over the values of both."""
        both = [total for total in (self.total, later.total) if total is not None]
        return Sum(sum(both, Exact()) if both else None, nans=self.nans + later.nans)


@attrs.frozen
class _Pick(Metric):
    """Base of the metrics that keep one of their numbers."""

    kept: float | None = attrs.field(converter=attrs.converters.optional(number), default=None)

    def __attrs_post_init__(self) -> None:
        if self.kept is not None and math.isnan(self.kept):
            self._leave_out(kept=None)

    @classmethod
    def of(cls, values: Iterable[object]) -> Self:
        """Reduce many values, the newest last; the metric of no values has the value None."""
        numbers = list(map(number, values))
        kept = [one for one in numbers if not math.isnan(one)]
        return cls(functools.reduce(cls._pick, kept) if kept else None, nans=len(numbers) - len(kept))

    @property
    def value(self) -> float | None:
        """Return the reduced value."""
        return self._nothing() if self.kept is None else self.kept

    @staticmethod
    def _pick(first: float, second: float) -> float:
        raise NotImplementedError

    def merge(self, later: Self) -> Self:
        """Return the metric over the values of both."""
        both = [kept for kept in (self.kept, later.kept) if kept is not None]
        kept = self._pick(*both) if len(both) == 2 else (both[0] if both else None)
        return type(self)(kept, nans=self.nans + later.nans)


@attrs.frozen
class Max(_Pick):
    """Largest value."""

    @staticmethod
    def _pick(first: float, second: float) -> float:
        return max(first, second)


@attrs.frozen
class Min(_Pick):
    """Smallest value."""

    @staticmethod
    def _pick(first: float, second: float) -> float:
        return min(first, second)


@attrs.frozen
class Last(_Pick):
    """Newest value."""

    @staticmethod
    def _pick(first: float, second: float) -> float:  # noqa: ARG004
        return second


@attrs.frozen
class Rate(Metric):
    """Sum of numerators over sum of denominators; the value is None if the denominator is 0."""

    numerator: Exact = attrs.field(converter=_exact, default=Exact())
    denominator: Exact = attrs.field(converter=_exact, default=Exact())

    def __attrs_post_init__(self) -> None:
        if self.numerator.is_nan or self.denominator.is_nan:
            self._leave_out(numerator=Exact(), denominator=Exact())

    @property
    def value(self) -> float | None:
        """Return the reduced value."""
        return self.numerator / self.denominator if self.denominator else self._nothing()

    def merge(self, later: Rate) -> Rate:
        """Return the metric over the values of both."""
        return Rate(self.numerator + later.numerator, self.denominator + later.denominator, nans=self.nans + later.nans)


def _histogram(counts: Mapping[Any, Any]) -> Mapping[float, int]:
    histogram = Counter[float]()
    for value, count in counts.items():
        plain = number(count)
        if plain < 0 or not plain.is_integer():
            raise MetricError(f"the counts of a histogram are integers of at least 0, found {count!r} for {value!r}")
        if plain:
            histogram[number(value)] += int(plain)
    return MappingProxyType(dict(histogram))


@attrs.frozen
class Counts(Metric):
    """Histogram: the number of times that each value occurred."""

    counts: Mapping[float, int] = attrs.field(converter=_histogram, factory=dict)

    def __attrs_post_init__(self) -> None:
        numbers = {value: count for value, count in self.counts.items() if not math.isnan(value)}
        if len(numbers) < len(self.counts):
            nans = sum(self.counts.values()) - sum(numbers.values())
            self._leave_out(nans, counts=MappingProxyType(numbers))

    @classmethod
    def of(cls, values: Iterable[object]) -> Counts:
        """Return the histogram of many values."""
        return cls(Counter(number(value) for value in values))

    @property
    def value(self) -> Mapping[float, int] | float | None:
        """Return the reduced value."""
        return dict(sorted(self.counts.items())) if self.counts else self._nothing()

    def merge(self, later: Counts) -> Counts:
        """Return the metric over the values of both."""
        return Counts(Counter(self.counts) + Counter(later.counts), nans=self.nans + later.nans)


Reduction: TypeAlias = type[Mean] | type[Sum] | type[Max] | type[Min] | type[Last]
"""A metric type that plain numbers can be converted to."""
REDUCTIONS: Final[Mapping[str, Reduction]] = {"mean": Mean, "sum": Sum, "max": Max, "min": Min, "last": Last}
"""Reductions for plain numbers, by their names in YAML."""


class Term(NamedTuple):
    """A number of a metric. The terms of a step are reduced together, which is faster than merging metrics."""

    reduction: Reduction
    value: float
    weight: float = 1.0
    """Weight of the number if it is reduced to a `Mean`."""


def reduced(terms: Sequence[Term]) -> Metric:
    """Reduce terms of one reduction, the newest last."""
    reduction = terms[0].reduction
    values = [term.value for term in terms]
    return Mean.of(values, [term.weight for term in terms]) if reduction is Mean else reduction.of(values)


def plain(reported: object) -> object:
    """Return the value of a `Metric`; any other object unchanged."""
    return reported.value if isinstance(reported, Metric) else reported


def merge(first: Metric, second: Metric) -> Metric:
    """Merge two metrics of one type; `second` is the newer. Raises `MetricError` if the types differ."""
    if type(first) is not type(second):
        raise MetricError(f"cannot merge {type(first).__name__} with {type(second).__name__}")
    return first.merge(second)
