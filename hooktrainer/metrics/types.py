"""The metric algebra: a metric carries its own reduction.

Merging is associative, exactly: sums are integers in units of the smallest float, so that the tree of merges
(micro-batch, rank, iteration, step) never changes a value, not even in its last bit; a quotient is rounded once, when
it is read. NaNs are left out of every reduction and counted; a metric that saw nothing but NaN has the value NaN, one
that saw nothing at all has none. Nothing here keeps a tensor: whatever is handed in becomes a Python float.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Self, TypeAlias

import attrs

from hooktrainer.errors import MetricError
from hooktrainer.metrics.exact_sum import ONE, Exact, number

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
    "Value",
    "merge",
    "number",
    "plain",
]

Value: TypeAlias = float | Mapping[float, int] | None
"""What a metric reduces to: a number, a histogram, or nothing."""


def _exact(value: object) -> Exact:  # a plain function, since type checkers follow no classmethod as a converter
    return Exact.of(value)


@attrs.frozen
class Metric:
    """Base of all metrics: `merge` two of one kind, read `value` at the end."""

    nans: int = attrs.field(default=0, kw_only=True)
    """NaNs that were left out."""

    @property
    def value(self) -> Value:
        """The reduced value; NaN if only NaNs were seen, None if nothing was."""
        raise NotImplementedError

    def merge(self, later: Self) -> Self:
        """Both metrics as one; `later` counts as the newer."""
        raise NotImplementedError

    def _nothing(self) -> float | None:
        return math.nan if self.nans else None

    def _leave_out(self, nans: int = 1, **rest: object) -> None:
        """Go on as the metric that was handed only `rest`, and has counted the NaNs."""
        for name, value in (rest | {"nans": self.nans + nans}).items():
            object.__setattr__(self, name, value)


@attrs.frozen
class Mean(Metric):
    """Weighted mean, `total / count`; counts are weights and need not be whole."""

    total: Exact = attrs.field(converter=_exact, default=Exact())
    count: Exact = attrs.field(converter=_exact, default=Exact(ONE))

    def __attrs_post_init__(self) -> None:
        if self.total.is_nan or self.count.is_nan:
            self._leave_out(total=Exact(), count=Exact())
        if self.count.units < 0 or self.count.special:
            raise MetricError(f"the weight of a mean must be finite and at least 0, found {float(self.count)}")

    @classmethod
    def of(cls, values: Iterable[object], weights: Iterable[object] | None = None) -> Mean:
        """The mean of many values, one weight each (1 if none are given); an empty one has no value.

        What has the weight 0 was not measured: it is left out, NaN or not.
        """
        if weights is None:
            weighted = [cls(value) for value in values]
        else:
            pairs = [(Exact.of(value), Exact.of(weight)) for value, weight in zip(values, weights, strict=True)]
            weighted = [cls(value * weight, weight) for value, weight in pairs if weight != Exact()]
        return functools.reduce(cls.merge, weighted, cls(0, 0))

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count.units else self._nothing()

    def merge(self, later: Mean) -> Mean:
        return Mean(self.total + later.total, self.count + later.count, nans=self.nans + later.nans)


@attrs.frozen
class Sum(Metric):
    """Sum."""

    total: Exact | None = attrs.field(converter=attrs.converters.optional(_exact), default=None)

    def __attrs_post_init__(self) -> None:
        if self.total is not None and self.total.is_nan:
            self._leave_out(total=None)

    @classmethod
    def of(cls, values: Iterable[object]) -> Sum:
        """The sum of many values; an empty one has no value."""
        return functools.reduce(cls.merge, map(cls, values), cls())

    @property
    def value(self) -> float | None:
        return self._nothing() if self.total is None else float(self.total)

    def merge(self, later: Sum) -> Sum:
        both = [total for total in (self.total, later.total) if total is not None]
        return Sum(sum(both, Exact()) if both else None, nans=self.nans + later.nans)


@attrs.frozen
class _Pick(Metric):
    """Base of the reductions that keep one of the numbers they saw."""

    kept: float | None = attrs.field(converter=attrs.converters.optional(number), default=None)

    def __attrs_post_init__(self) -> None:
        if self.kept is not None and math.isnan(self.kept):
            self._leave_out(kept=None)

    @classmethod
    def of(cls, values: Iterable[object]) -> Self:
        """What many values reduce to, the newest last; an empty one has no value."""
        return functools.reduce(cls.merge, map(cls, values), cls())

    @property
    def value(self) -> float | None:
        return self._nothing() if self.kept is None else self.kept

    def _pick(self, first: float, second: float) -> float:
        raise NotImplementedError

    def merge(self, later: Self) -> Self:
        both = [kept for kept in (self.kept, later.kept) if kept is not None]
        kept = self._pick(*both) if len(both) == 2 else (both[0] if both else None)
        return type(self)(kept, nans=self.nans + later.nans)


@attrs.frozen
class Max(_Pick):
    """Largest value."""

    def _pick(self, first: float, second: float) -> float:
        return max(first, second)


@attrs.frozen
class Min(_Pick):
    """Smallest value."""

    def _pick(self, first: float, second: float) -> float:
        return min(first, second)


@attrs.frozen
class Last(_Pick):
    """Newest value."""

    def _pick(self, first: float, second: float) -> float:  # noqa: ARG002
        return second


@attrs.frozen
class Rate(Metric):
    """Sum of numerators over sum of denominators; no value while the denominator is 0."""

    numerator: Exact = attrs.field(converter=_exact, default=Exact())
    denominator: Exact = attrs.field(converter=_exact, default=Exact())

    def __attrs_post_init__(self) -> None:
        if self.numerator.is_nan or self.denominator.is_nan:
            self._leave_out(numerator=Exact(), denominator=Exact())

    @property
    def value(self) -> float | None:
        return self.numerator / self.denominator if self.denominator != Exact() else self._nothing()

    def merge(self, later: Rate) -> Rate:
        return Rate(self.numerator + later.numerator, self.denominator + later.denominator, nans=self.nans + later.nans)


def _histogram(counts: Mapping[Any, Any]) -> Mapping[float, int]:
    histogram = Counter[float]()
    for value, count in counts.items():
        plain = number(count)
        if plain < 0 or not plain.is_integer():
            raise MetricError(f"a histogram counts in whole numbers from 0, found {count!r} times {value!r}")
        if plain:
            histogram[number(value)] += int(plain)
    return MappingProxyType(dict(histogram))


@attrs.frozen
class Counts(Metric):
    """Histogram: how often each value was seen."""

    counts: Mapping[float, int] = attrs.field(converter=_histogram, factory=dict)

    def __attrs_post_init__(self) -> None:
        numbers = {value: count for value, count in self.counts.items() if not math.isnan(value)}
        if len(numbers) < len(self.counts):
            nans = sum(self.counts.values()) - sum(numbers.values())
            self._leave_out(nans, counts=MappingProxyType(numbers))

    @classmethod
    def of(cls, values: Iterable[object]) -> Counts:
        """The histogram of many values."""
        return cls(Counter(number(value) for value in values))

    @property
    def value(self) -> Mapping[float, int] | float | None:
        return dict(sorted(self.counts.items())) if self.counts else self._nothing()

    def merge(self, later: Counts) -> Counts:
        return Counts(Counter(self.counts) + Counter(later.counts), nans=self.nans + later.nans)


Reduction: TypeAlias = type[Mean] | type[Sum] | type[Max] | type[Min] | type[Last]
"""A kind of metric that plain numbers can become."""
REDUCTIONS: Final[Mapping[str, Reduction]] = {"mean": Mean, "sum": Sum, "max": Max, "min": Min, "last": Last}
"""Reductions that a rule can give to a plain number, by the name they have in YAML."""


def plain(reported: object) -> object:
    """What a reported metric says now; what is no metric, such as a plain number or None, as it is."""
    return reported.value if isinstance(reported, Metric) else reported


def merge(first: Metric, second: Metric) -> Metric:
    """Two metrics of one kind as one; `second` counts as the newer. Raises `MetricError` if the kinds differ."""
    if type(first) is not type(second):
        raise MetricError(f"cannot merge {type(first).__name__} with {type(second).__name__}")
    return first.merge(second)
