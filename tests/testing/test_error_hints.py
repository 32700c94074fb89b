"""Errors for common mistakes with the test kit and with declarations."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from hooktrainer import Plugin, Priority, on
from hooktrainer.errors import MetricError, MissingMetricError, PlanError
from hooktrainer.events import IterationEnd, StepEnd
from hooktrainer.metrics import Mean, Sum, number
from hooktrainer.testing import FakeBus, check_order_independent, check_plugin


@attrs.define(kw_only=True)
class EarlyStop(Plugin):
    """Stops."""

    @on(StepEnd, priority=Priority.REPORT, needs=["metrics.row"])
    def stop(self, event: StepEnd) -> None:
        if event.record.row["actor/ppo_kl"] > 1:
            event.control.stop("far away")


@attrs.define(kw_only=True)
class Watcher(Plugin):
    """Reads the metrics of an iteration."""

    @on(IterationEnd)
    def watch(self, event: IterationEnd) -> None:
        event.metrics["loss"]


def bus() -> FakeBus:
    return FakeBus(EarlyStop(), Watcher(), provides=["metrics.row"])


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda: FakeBus(EarlyStop), r"takes plugins, not their classes: FakeBus\(EarlyStop\(...\)\)"),
        (lambda: FakeBus("early_stop"), "takes plugins, found 'early_stop', which is no hooktrainer.Plugin"),
        (lambda: FakeBus(EarlyStop(), provides="metrics.row"), r"expected a list, provides=\['metrics.row'\]"),
        (lambda: FakeBus(EarlyStop(), provides=StepEnd), r"expected a list, provides=\[StepEnd\]"),
        (lambda: bus().fire("step_end"), r"as in fire\(StepEnd, ...\); found 'step_end'"),
        (lambda: bus().fire(IterationEnd.signal), r"as in fire\(IterationEnd, ...\)"),
        (lambda: bus().fire(EarlyStop), "takes an event class"),
        (lambda: check_plugin(EarlyStop()), r"takes a class .*: check_plugin\(EarlyStop\), found"),
        (lambda: check_order_independent([EarlyStop()]), r'entries as in YAML, .*{"use": "package.module:EarlyStop"}'),
        (lambda: check_order_independent([EarlyStop]), r'entries as in YAML, .*{"use": "package.module:EarlyStop"}'),
    ],
)
def test_misuse_of_the_test_kit_is_a_type_error_with_a_fix(misuse: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        misuse()


def test_missing_data_of_a_built_in_plugin_suggests_provides() -> None:
    with pytest.raises(PlanError) as caught:
        FakeBus(EarlyStop())
    (note,) = caught.value.__notes__
    assert note.endswith('provides=["metrics.row"]')


def test_missing_metric_in_a_test_explains_how_to_pass_it() -> None:
    with pytest.raises(MissingMetricError, match="actor/ppo_kl") as caught:
        bus().fire(StepEnd)
    assert caught.value.__notes__[-1].endswith('fire(StepEnd, row={"...": 1.0})')
    with pytest.raises(KeyError) as missing:
        bus().fire(IterationEnd)
    assert missing.value.__notes__[-1].endswith('fire(IterationEnd, metrics={"...": 1.0})')
    with pytest.raises(KeyError) as unreported:
        check_order_independent(["metric_aggregation", "weight_sync", {"use": f"{__name__}:EarlyStop"}])
    assert "the fake learner reports actor/pg_loss" in unreported.value.__notes__[-1]
    entries = ["metric_aggregation", "weight_sync", {"use": f"{__name__}:EarlyStop"}]
    check_order_independent(entries, metrics=lambda update: {"actor/ppo_kl": 0.1 * update})


def test_priority_before_the_first_band_is_refused() -> None:
    @attrs.define
    class Early(Plugin):
        @on(StepEnd, priority=50)
        def early(self, event: StepEnd) -> None: ...

    with pytest.raises(PlanError, match="has the priority 50, which lies before the first band, PREPARE 100"):
        FakeBus(Early())


@pytest.mark.parametrize("metric", [Mean(1.0), Sum(2.0)])
def test_metric_object_in_place_of_a_number_is_an_error_that_names_its_type(metric: object) -> None:
    kind = type(metric).__name__
    with pytest.raises(
        MetricError, match=rf"^metric 'a': expected a number, found a {kind}; read its \.value, or pass the {kind}"
    ):
        number(metric, "a")
