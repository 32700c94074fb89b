"""The record of a step: open, sealed once, read-only."""

from __future__ import annotations

import math
import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hooktrainer.errors import MetricError, RecordError
from hooktrainer.metrics import Counts, Last, Max, Mean, Min, Record, Sum, Term


def test_metrics_of_one_name_are_merged() -> None:
    record = Record(step=1)
    record.add({"loss": Mean.of([1.0], [1])})
    record.add({"loss": Mean.of([3.0], [3]), "tokens": Sum(5)})
    assert record.seal() == {"loss": 2.5, "tokens": 5.0}


def test_a_row_cannot_be_read_before_it_is_sealed() -> None:
    record = Record(step=7)
    assert not record.sealed
    with pytest.raises(RecordError, match="step 7 was read before it was sealed"):
        _ = record.row


def test_sealed_record_returns_its_row_and_refuses_further_metrics() -> None:
    record = Record(step=7)
    row = record.seal()
    assert record.sealed
    assert record.row is row
    with pytest.raises(RecordError, match="plugin 'late' added loss to step 7 after"):
        record.add({"loss": Mean(1.0)}, writer="plugin 'late'")
    with pytest.raises(RecordError, match="step 7 was sealed before"):
        record.seal()


def test_a_row_and_its_histograms_are_read_only() -> None:
    record = Record(step=1)
    record.add({"loss": Mean(1.0), "staleness": Counts({1: 2})})
    row = record.seal()
    with pytest.raises(TypeError):
        row["loss"] = 2.0
    with pytest.raises(TypeError):
        row["staleness"][1.0] = 3


def test_conflicting_reductions_are_refused_and_both_writers_named() -> None:
    record = Record(step=1)
    record.add({"loss": Mean(1.0)}, writer="plugin 'a' (plugins[0])")
    with pytest.raises(
        MetricError, match=r"'loss' has two reductions: Mean from plugin 'a' \(plugins\[0\]\), Max from the"
    ):
        record.add({"new": Sum(1), "loss": Max(1.0)})
    assert record.seal() == {"loss": 1.0}


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([Mean, Sum, Max, Min, Last]),
    st.lists(st.tuples(st.booleans(), st.floats(), st.floats(0.5, 100)), min_size=1, max_size=8),
)
def test_terms_are_reduced_as_metrics_are_merged(
    kind: type[Mean | Sum | Max | Min | Last], parts: list[tuple[bool, float, float]]
) -> None:
    terms, merged = Record(step=1), Record(step=1)
    for as_term, value, weight in parts:
        metric = Mean.of([value], [weight]) if kind is Mean else kind.of([value])
        terms.add({"x": Term(kind, value, weight) if as_term else metric})
        merged.add({"x": metric})
    found, expected = terms.seal(), merged.seal()
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, rel=0, abs=0, nan_ok=True)


def test_a_term_and_a_metric_of_another_reduction_are_refused() -> None:
    record = Record(step=1)
    record.add({"loss": Term(Mean, 1.0)}, writer="plugin 'a'")
    with pytest.raises(MetricError, match="'loss' has two reductions: Mean from plugin 'a', Sum from plugin 'b'"):
        record.add({"new": Term(Sum, 1.0), "loss": Term(Sum, 1.0)}, writer="plugin 'b'")
    with pytest.raises(MetricError, match="'loss' has two reductions"):
        record.add({"loss": Max(1.0)})
    with pytest.raises(MetricError, match="added a metric under 3"):
        record.add({3: Term(Sum, 1.0)})
    assert record.seal() == {"loss": 1.0}


def test_a_plain_number_is_refused_by_name_and_writer() -> None:
    with pytest.raises(MetricError, match="plugin 'a' added 'loss' as a plain float"):
        Record(step=1).add({"loss": 1.0}, writer="plugin 'a'")


def test_nan_values_are_excluded_and_counted() -> None:
    record = Record(step=1)
    record.add({"reward": Mean.of([0.5, math.nan, 0.75, math.nan]), "dead": Last(math.nan), "tokens": Sum(3)})
    row = record.seal()
    assert (row["reward"], row["nan/reward"], row["nan/dead"]) == (0.625, 2.0, 1.0)
    assert math.isnan(row["dead"])
    assert "nan/tokens" not in row


def test_a_metric_without_a_value_is_left_out_of_the_row() -> None:
    record = Record(step=1)
    record.add({"nothing": Mean.of([]), "loss": Mean(1.0)})
    assert record.seal() == {"loss": 1.0}


def test_record_is_empty_until_a_metric_is_added() -> None:
    record = Record(step=1)
    assert record.empty
    record.add({"loss": Mean(1.0)})
    assert not record.empty


def test_metrics_of_before_seal_are_in_the_same_row() -> None:
    asked: list[str] = []
    record = Record(step=1, before_seal=lambda: asked.append("once") or {"timing_s/step": Sum(2.0)})
    record.add({"timing_s/gen": Sum(1.0)})
    assert not asked
    assert record.seal() == {"timing_s/gen": 1.0, "timing_s/step": 2.0}
    assert asked == ["once"]


def test_failed_seal_does_not_count_metrics_twice() -> None:
    record = Record(step=1, before_seal=lambda: {"timing_s/step": Sum(2.0)})

    def fail(_: object) -> dict[str, float]:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        record.seal(fail)

    assert record.seal() == {"timing_s/step": 2.0}


def test_metric_measured_by_the_loop_is_refused_from_other_writers() -> None:
    record = Record(step=1, before_seal=lambda: {"timing_s/step": Sum(2.0)})
    record.add({"timing_s/step": Sum(1.0)}, "learner.collect")

    with pytest.raises(MetricError, match="learner.collect reports 'timing_s/step', which the loop measures"):
        record.seal()


def test_derived_values_replace_add_and_remove_metrics() -> None:
    record = Record(step=1)
    record.add({"rate": Mean(9.0), "broken": Mean(9.0), "tokens": Sum(8), "seconds": Sum(2)})
    row = record.seal(
        lambda parts: {"rate": parts["tokens"] / parts["seconds"], "broken": None, "gone": None, "new": 1.0}
    )
    assert row == {"rate": 4.0, "tokens": 8.0, "seconds": 2.0, "new": 1.0}


def test_derivation_cannot_modify_its_input() -> None:
    record = Record(step=1)
    record.add({"loss": Mean(1.0)})
    with pytest.raises(TypeError):
        record.seal(lambda parts: operator.setitem(parts, "loss", 2.0))


def test_missing_metric_is_a_key_error_with_a_suggestion() -> None:
    record = Record(step=3)
    record.add({"val/score/mean": Sum(1.0)})
    row = record.seal()

    with pytest.raises(KeyError) as caught:
        row["val/score/maen"]
    assert str(caught.value).startswith("the row of step 3 has no 'val/score/maen'. Did you mean 'val/score/mean'?")
    assert row.get("val/score/max") is None
    assert "val/score/max" not in row
