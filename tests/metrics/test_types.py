"""Metric types: every reduction, every kind of number, and merges in any order."""

from __future__ import annotations

import functools
import gc
import math
import pickle
import random
import weakref
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hooktrainer.errors import MetricError
from hooktrainer.metrics import Counts, Exact, Last, Max, Mean, Metric, Min, Rate, Sum, merge, number

NUMBERS = st.floats(width=64)
WEIGHTS = st.floats(min_value=0, max_value=1e300, allow_subnormal=True)
METRICS = (
    st.lists(st.builds(lambda value, weight: Mean.of([value], [weight]), NUMBERS, WEIGHTS), min_size=1, max_size=8)
    | st.lists(st.builds(Sum, NUMBERS | st.none()), min_size=1, max_size=8)
    | st.lists(st.builds(Max, NUMBERS | st.none()), min_size=1, max_size=8)
    | st.lists(st.builds(Min, NUMBERS | st.none()), min_size=1, max_size=8)
    | st.lists(st.builds(Last, NUMBERS | st.none()), min_size=1, max_size=8)
    | st.lists(st.builds(Rate, NUMBERS, NUMBERS), min_size=1, max_size=8)
    | st.lists(st.builds(Counts, st.dictionaries(NUMBERS, st.integers(0, 2**40), max_size=4)), min_size=1, max_size=8)
)


def merged_in_a_random_tree(metrics: list[Metric], seed: int) -> Metric:
    """Merge neighbours in any order until one is left."""
    pick, left = random.Random(seed), list(metrics)
    while len(left) > 1:
        at = pick.randrange(len(left) - 1)
        left[at : at + 2] = [merge(left[at], left[at + 1])]
    return left[0]


@settings(max_examples=150, deadline=None)
@given(metrics=METRICS, seed=st.integers(0, 2**32))
@example(metrics=[Sum(math.inf), Sum(-math.inf), Sum(5.0)], seed=1)
@example(metrics=[Sum(1e308), Sum(1e308), Sum(-1e308)], seed=0)
@example(metrics=[Sum(1e16), Sum(1.0), Sum(-1e16)], seed=2)
def test_merge_is_associative(metrics: list[Metric], seed: int) -> None:
    assert merged_in_a_random_tree(metrics, seed) == functools.reduce(merge, metrics)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([Mean, Sum, Max, Min, Last]), st.lists(NUMBERS, min_size=1, max_size=8))
@example(Sum, [0.1] * 3)
@example(Max, [-0.0, 0.0])
def test_many_numbers_at_once_are_as_many_merges(
    kind: type[Mean | Sum | Max | Min | Last], values: list[float]
) -> None:
    assert kind.of(values) == functools.reduce(merge, map(kind, values))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(NUMBERS, WEIGHTS | st.sampled_from([0.0, 1.0, math.nan])), min_size=1, max_size=8))
@example([(1e300, 5e-324), (-1e300, 1e300)])
@example([(5e-324, 0.5), (5e-324, 0.5)])
def test_many_weighted_numbers_at_once_are_as_many_merges(pairs: list[tuple[float, float]]) -> None:
    together = Mean.of([value for value, _ in pairs], [weight for _, weight in pairs])
    assert together == functools.reduce(merge, [Mean.of([value], [weight]) for value, weight in pairs])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(0.5, 1e9)), min_size=1, max_size=20))
def test_a_mean_is_rounded_once(pairs: list[tuple[float, float]]) -> None:
    total = sum(Fraction(value) * Fraction(weight) for value, weight in pairs)
    count = sum(Fraction(weight) for _, weight in pairs)
    assert Mean.of([value for value, _ in pairs], [weight for _, weight in pairs]).value == float(total / count)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_a_sum_is_rounded_once(values: list[float]) -> None:
    try:
        expected = math.fsum(values)
    except OverflowError:
        return
    assert Sum.of(values).value == expected


@settings(max_examples=100, deadline=None)
@given(st.floats(allow_nan=False), st.lists(st.integers(1, 10_000), min_size=1, max_size=6))
def test_mean_of_one_value_is_that_value_for_any_weight(value: float, weights: list[int]) -> None:
    assert Mean.of([value] * len(weights), weights).value == value


class TestMean:
    def test_mean_weighs_values_by_counts(self) -> None:
        assert Mean.of([1.0, 3.0], [1, 3]).value == 2.5

    def test_mean_merges_totals(self) -> None:
        assert merge(Mean(3.0, 3), Mean(2.0, 1)).value == 1.25

    def test_a_total_alone_counts_once(self) -> None:
        assert Mean(0.0).value == 0.0
        assert Mean(3.0) == Mean.of([3.0])

    def test_of_nothing_has_no_value(self) -> None:
        assert Mean.of([]).value is None

    def test_leaves_out_nan_together_with_its_weight(self) -> None:
        mean = Mean.of([2, math.nan, 4], [1, 5, 3])
        assert (mean.value, mean.nans) == (3.5, 1)

    def test_mean_excludes_and_counts_nans(self) -> None:
        mean = Mean.of([0.5, math.nan, 0.7, math.nan])
        assert (mean.value, mean.nans) == (pytest.approx(0.6, abs=1e-15), 2)

    def test_of_nothing_but_nan_stays_nan(self) -> None:
        mean = Mean.of([math.nan, math.nan])
        assert math.isnan(mean.value)
        assert mean.nans == 2

    def test_value_with_weight_0_is_ignored(self) -> None:
        assert Mean.of([math.nan, math.inf, 7.0], [0, 0, 0]) == Mean.of([])
        assert Mean.of([math.inf, 7.0], [0, 2]).value == 7.0

    def test_a_nan_weight_leaves_its_value_out(self) -> None:
        mean = Mean.of([1.0, 9.0], [1, math.nan])
        assert (mean.value, mean.nans) == (1.0, 1)

    def test_infinite_values_stay_visible(self) -> None:
        assert Mean.of([1.0, math.inf]).value == math.inf
        assert math.isnan(Mean.of([-math.inf, 5.0, math.inf]).value)

    def test_does_not_overflow_on_the_way(self) -> None:
        assert Mean.of([1.5e308, 1.5e308]).value == 1.5e308

    def test_weighs_by_fractions_too(self) -> None:
        assert Mean.of([1.0, 2.0], [0.5, 1.5]).value == 1.75

    @pytest.mark.parametrize("weight", [-1, math.inf, -math.inf])
    def test_refuses_a_weight_that_is_negative_or_infinite(self, weight: float) -> None:
        with pytest.raises(MetricError, match="finite and at least 0"):
            Mean(1.0, weight)
        with pytest.raises(MetricError, match="finite and at least 0"):
            Mean.of([1.0], [weight])

    def test_padding_has_no_weight(self) -> None:
        assert Mean.of([1, 2, 3, 9], [1, 1, 1, 0]).value == 2.0

    @pytest.mark.parametrize(("lengths", "expected"), [([3, 5, 7], 0.0), ([3, 16, 16], 2 / 3)])
    def test_truncation_rate_is_relative_to_the_maximum_length(self, lengths: list[int], expected: float) -> None:
        assert Mean.of(length == 16 for length in lengths).value == expected


class TestSum:
    def test_adds(self) -> None:
        assert Sum.of([1, 2, 3.5]).value == 6.5

    def test_of_nothing_has_no_value(self) -> None:
        assert Sum.of([]).value is None
        assert Sum().value is None

    def test_leaves_nan_out(self) -> None:
        total = Sum.of([1, math.nan, 2])
        assert (total.value, total.nans) == (3.0, 1)

    def test_sum_above_the_largest_float_is_infinite_until_it_decreases(self) -> None:
        assert Sum.of([1e308, 1e308]).value == math.inf
        assert Sum.of([-1e308, -1e308]).value == -math.inf
        assert Sum.of([1e308, 1e308, -1e308]).value == 1e308

    def test_sum_keeps_digits_that_a_float_would_lose(self) -> None:
        assert Sum.of([1e300, 5e-324, -1e300]).value == 5e-324


@pytest.mark.parametrize(("kind", "expected"), [(Max, 6.0), (Min, 1.0), (Last, 2.0)])
def test_picks_one_of_the_values(kind: type[Max | Min | Last], expected: float) -> None:
    assert kind.of([1, 6, 2]).value == expected


@pytest.mark.parametrize("kind", [Max, Min, Last])
class TestPick:
    def test_of_nothing_has_no_value(self, kind: type[Max | Min | Last]) -> None:
        assert kind.of([]).value is None

    def test_leaves_nan_out(self, kind: type[Max | Min | Last]) -> None:
        metric = kind.of([math.nan, 3, math.nan])
        assert (metric.value, metric.nans) == (3.0, 2)

    def test_of_nothing_but_nan_stays_nan(self, kind: type[Max | Min | Last]) -> None:
        assert math.isnan(kind(math.nan).value)


class TestRate:
    def test_divides_the_sums(self) -> None:
        assert merge(Rate(1000, 1), Rate(3000, 5)).value == pytest.approx(4000 / 6)

    @pytest.mark.parametrize("rate", [Rate(), Rate(0, 0), Rate(5, 0)])
    def test_by_zero_has_no_value(self, rate: Rate) -> None:
        assert rate.value is None

    def test_leaves_nan_out_of_both_sides(self) -> None:
        rate = merge(Rate(4, 2), Rate(math.nan, 100))
        assert (rate.value, rate.nans) == (2.0, 1)

    def test_rate_of_infinities_is_nan(self) -> None:
        assert Rate(1, math.inf).value == 0.0
        assert Rate(-math.inf, 2).value == -math.inf
        assert math.isnan(Rate(math.inf, math.inf).value)
        assert (Rate(1e308, 1e-308).value, Rate(-1e308, 1e-308).value) == (math.inf, -math.inf)


class TestCounts:
    def test_adds_up_histograms(self) -> None:
        assert merge(Counts({0.0: 3, 1.0: 1}), Counts({0.0: 2})).value == {0.0: 5, 1.0: 1}

    def test_counts_values_in_ascending_order(self) -> None:
        assert list(Counts.of([2, 1, 2, True]).value.items()) == [(1.0, 2), (2.0, 2)]

    def test_of_nothing_has_no_value(self) -> None:
        assert Counts().value is None
        assert Counts({3: 0}).value is None

    def test_leaves_nan_out(self) -> None:
        counts = Counts({math.nan: 2, 1: 1})
        assert (counts.value, counts.nans) == ({1.0: 1}, 2)
        assert math.isnan(Counts.of([math.nan]).value)

    @pytest.mark.parametrize("count", [-1, 1.5, math.inf, math.nan])
    def test_counts_refuse_invalid_numbers(self, count: float) -> None:
        with pytest.raises(MetricError, match="integers of at least 0"):
            Counts({1.0: count})

    def test_cannot_be_changed_from_outside(self) -> None:
        source = {1.0: 1}
        counts = Counts(source)
        source[1.0] = 9
        counts.value[1.0] = 9
        assert counts.value == {1.0: 1}


class TestNumbers:
    @pytest.mark.parametrize(
        "value",
        [
            1,
            True,
            np.bool_(True),
            np.int64(1),
            np.uint8(1),
            np.float16(1),
            np.float32(1),
            np.longdouble(1),
            np.array(1.0),
            np.array([[1]]),
            torch.tensor(1),
            torch.tensor(True),
            torch.tensor([1.0], requires_grad=True),
            torch.tensor([[1.0]], dtype=torch.bfloat16),
            Fraction(1),
            Decimal(1),
        ],
        ids=repr,
    )
    def test_any_scalar_becomes_a_float(self, value: object) -> None:
        assert type(number(value)) is float
        assert Mean(value).value == Sum(value).value == Max(value).value == 1.0

    @pytest.mark.parametrize(
        "value",
        [None, "3", b"3", 1j, np.complex64(1), np.str_("3"), np.array("3"), torch.tensor(1j), [1.0], {1: 2}, 10**400],
    )
    def test_value_that_is_not_a_number_is_refused_by_name(self, value: object) -> None:
        with pytest.raises(MetricError, match=r"metric 'actor/x': expected a number"):
            number(value, "actor/x")

    @pytest.mark.parametrize("value", [torch.ones(3), np.ones((3,))])
    def test_more_than_one_value_is_refused_by_name_and_shape(self, value: object) -> None:
        with pytest.raises(MetricError, match=r"metric 'actor/x': has shape \(3,\)"):
            number(value, "actor/x")

    def test_empty_tensor_is_refused(self) -> None:
        with pytest.raises(MetricError, match=r"shape \(0,\)"):
            number(np.ones(0))

    def test_half_precision_is_converted_before_adding(self) -> None:
        ones = [torch.tensor(1.0, dtype=torch.bfloat16)] * 300
        assert Mean.of(ones).value == 1.0
        assert Sum.of(ones).value == 300.0

    def test_a_metric_keeps_no_tensor_alive(self) -> None:
        tensor = torch.ones((), requires_grad=True) * 2
        alive = weakref.ref(tensor)
        metrics = [Mean(tensor), Sum(tensor), Max(tensor), Rate(tensor, tensor), Counts.of([tensor])]
        del tensor
        gc.collect()
        assert alive() is None
        assert metrics[0].value == 2.0


def test_metrics_of_two_kinds_do_not_merge() -> None:
    with pytest.raises(MetricError, match="cannot merge Mean with Sum"):
        merge(Mean(1), Sum(1))


def test_metrics_travel_between_processes() -> None:
    metrics = [Mean(1, 2), Sum(3), Max(4), Rate(1, 2), Last(math.nan)]
    assert pickle.loads(pickle.dumps(metrics)) == metrics


def test_exact_sums_print_as_numbers() -> None:
    assert repr(Exact.of(2.5)) == "Exact(2.5)"
