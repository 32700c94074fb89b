"""metric_aggregation on the fake bus: the reduction of the metrics of iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from hooktrainer.errors import ConfigError
from hooktrainer.events import FitEnd, IterationEnd, StepEnd
from hooktrainer.metrics import Counts, Row
from hooktrainer.testing import FakeBus, check_plugin
from hooktrainer_plugins.metric_aggregation import MetricAggregation


def row_of(
    iterations: Sequence[Mapping[str, object]], samples: Sequence[int] = (), rules: Mapping[str, str] | None = None
) -> Row:
    """Return the row of a step with these metrics in its iterations."""
    bus = FakeBus(MetricAggregation(rules=dict(rules or {})), provides=["iteration.metrics"])
    for place, metrics in enumerate(iterations):
        count = samples[place] if samples else 1
        bus.fire(IterationEnd, step=1, iteration=place, metrics=metrics, samples=count)
    bus.fire(StepEnd, step=1, iterations=len(iterations))
    return bus.row


def test_plugin_passes_check_plugin() -> None:
    check_plugin(MetricAggregation)


def test_a_mean_is_weighted_by_the_samples_of_each_iteration() -> None:
    assert row_of([{"loss": 1.0}, {"loss": 3.0}], [1, 3]) == {"loss": 2.5}


def test_metric_missing_in_an_iteration_is_averaged_over_the_others() -> None:
    assert row_of([{"b": 2.0}, {"a": 0.0}, {"b": 6.0}], [1, 7, 3])["b"] == 5.0


def test_reduction_of_a_plain_number_follows_from_its_name() -> None:
    metrics = [
        {"a/max": 1, "a/min": 1, "a/sum": 1, "actor/lr": 1e-3, "timing_s/gen": 1.0, "flag": True},
        {"a/max": 5, "a/min": 0, "a/sum": 2, "actor/lr": 5e-4, "timing_s/gen": 2.5, "flag": False},
    ]

    assert row_of(metrics) == {"a/max": 5, "a/min": 0, "a/sum": 3, "actor/lr": 5e-4, "timing_s/gen": 3.5, "flag": 0.5}


def test_rules_from_yaml_override_built_in_rules() -> None:
    rules = {"reward/terminal": "last", "mine/": "sum"}

    assert row_of([{"reward/terminal": 1, "mine/x": 1}, {"reward/terminal": 2, "mine/x": 2}], rules=rules) == {
        "reward/terminal": 2,
        "mine/x": 3,
    }
    with pytest.raises(ConfigError, match="Did you mean 'mean'"):
        MetricAggregation(rules={"x": "maen"})


def test_derived_metrics_are_computed_from_aggregated_metrics() -> None:
    iterations = [
        {"global_seqlen/max": 10, "global_seqlen/min": 5, "global_seqlen/minmax_diff": 5},
        {"global_seqlen/max": 20, "global_seqlen/min": 0, "global_seqlen/minmax_diff": 20},
    ]

    assert row_of(iterations)["global_seqlen/minmax_diff"] == 20


def test_histograms_add_up() -> None:
    iterations = [{"scores": Counts({0.0: 3, 1.0: 1})}, {"scores": Counts({0.0: 2})}]

    assert row_of(iterations)["scores"] == {0.0: 5, 1.0: 1}


def test_step_without_metrics_has_an_empty_row() -> None:
    assert row_of([]) == {}


def test_step_that_failed_after_its_sync_is_sealed_in_fit_end() -> None:
    bus = FakeBus(MetricAggregation(), provides=["iteration.metrics"])
    bus.fire(IterationEnd, step=3, metrics={"loss": 2.0}, samples=1)

    bus.fire(FitEnd, step=3, status="failed")

    assert bus.row == {"loss": 2.0, "training/unscored": 1.0}


def test_metrics_of_a_step_are_not_carried_over() -> None:
    bus = FakeBus(MetricAggregation(), provides=["iteration.metrics"])
    rows = []
    for step in (1, 2):
        bus.fire(IterationEnd, step=step, metrics={"loss": step}, samples=1)
        bus.fire(StepEnd, step=step)
        rows.append(bus.row)

    assert rows == [{"loss": 1.0}, {"loss": 2.0}]
