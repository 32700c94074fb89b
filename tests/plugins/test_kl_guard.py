"""kl_guard on the fake bus."""

from __future__ import annotations

import pytest

from hooktrainer.errors import MissingMetricError
from hooktrainer.events import StepEnd
from hooktrainer.testing import FakeBus, check_plugin
from hooktrainer_plugins.kl_guard import KLGuard


def stopped_by(guard: KLGuard, *values: float) -> list[str | None]:
    bus = FakeBus(guard, provides=["metrics.row"])
    reasons = []
    for step, value in enumerate(values, start=1):
        bus.fire(StepEnd, step=step, row={"actor/ppo_kl": value})
        reasons.append(bus.control.reason)
    return reasons


def test_plugin_passes_check_plugin() -> None:
    check_plugin(KLGuard)


@pytest.mark.parametrize(("value", "reason"), [(0.2, None), (0.5, "actor/ppo_kl 0.5 above 0.2 in step 1")])
def test_value_above_the_limit_stops_the_run(value: float, reason: str | None) -> None:
    assert stopped_by(KLGuard(limit=0.2), value) == [reason]


def test_nan_stops_the_run() -> None:
    assert stopped_by(KLGuard(), float("nan")) == ["actor/ppo_kl nan above 0.2 in step 1"]


@pytest.mark.parametrize(
    ("value", "stops"),
    [(-0.5, True), (-0.2, False), (-0.2001, True), (float("-inf"), True), (float("inf"), True), (-0.0, False)],
)
def test_the_size_of_a_negative_divergence_counts(value: float, stops: bool) -> None:
    expected = f"actor/ppo_kl {value:g} {'below -0.2' if value < 0 else 'above 0.2'} in step 1" if stops else None
    assert stopped_by(KLGuard(limit=0.2), value) == [expected]


def test_option_patience_sets_the_number_of_consecutive_steps() -> None:
    reason = "actor/ppo_kl 0.6 above 0.2 for 2 steps in step 4"

    assert stopped_by(KLGuard(patience=2), 0.5, 0.1, 0.5, 0.6) == [None, None, None, reason]


def test_action_warn_only_logs(caplog: pytest.LogCaptureFixture) -> None:
    assert stopped_by(KLGuard(action="warn"), 0.5, 0.1) == [None, None]
    assert [record.getMessage() for record in caplog.records] == ["actor/ppo_kl 0.5 above 0.2 in step 1"]


def test_missing_metric_is_an_error_that_names_the_option() -> None:
    with pytest.raises(MissingMetricError) as caught:
        stopped_by(KLGuard(metric="actor/ppokl"), 0.5)

    assert str(caught.value) == (
        "kl_guard checks the metric 'actor/ppokl', which the row of step 1 does not have. Did you mean 'actor/ppo_kl'? "
        "Set its option `metric` to a key of metrics.jsonl"
    )


def fired(guard: KLGuard, *rows: dict[str, float], last: bool = False) -> FakeBus:
    bus = FakeBus(guard, provides=["metrics.row"])
    for step, row in enumerate(rows, start=1):
        bus.fire(StepEnd, step=step, row=row, last=last and step == len(rows))
    return bus


def test_validation_metric_may_be_absent_before_the_first_validation(caplog: pytest.LogCaptureFixture) -> None:
    guard = KLGuard(metric="val/score/mean")
    bus = fired(guard, {"actor/ppo_kl": 0.5}, {"val/score/mean": 0.3}, {"actor/ppo_kl": 0.5}, last=True)

    assert bus.control.reason == "val/score/mean 0.3 above 0.2 in step 2"
    assert len(caplog.records) == 1


def test_misspelt_validation_metric_is_an_error_at_the_first_validation() -> None:
    with pytest.raises(MissingMetricError, match=r"the row of step 2 does not have\. Did you mean 'val/score/mean'\?"):
        fired(KLGuard(metric="val/scores/mean"), {"actor/ppo_kl": 0.5}, {"val/score/mean": 0.1})


def test_missing_validation_is_logged_at_the_end_of_the_run(caplog: pytest.LogCaptureFixture) -> None:
    fired(KLGuard(metric="val/score/mean"), {"actor/ppo_kl": 0.1}, {"actor/ppo_kl": 0.1}, last=True)

    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        "kl_guard checked nothing: no row has a metric of validation such as 'val/score/mean'. Add `validation` to "
        "the plugins, or set another `metric`"
    )


def test_step_without_the_metric_does_not_reset_patience() -> None:
    bus = FakeBus(KLGuard(patience=2), provides=["metrics.row"])
    for step, row in enumerate([{"actor/ppo_kl": 0.5}, {"actor/skipped_updates": 1.0}], start=1):
        bus.fire(StepEnd, step=step, row=row)
    assert bus.control.reason is None

    bus.fire(StepEnd, step=3, row={"actor/ppo_kl": 0.5})

    assert bus.control.reason == "actor/ppo_kl 0.5 above 0.2 for 2 steps in step 3"


@pytest.mark.parametrize("options", [{"limit": 0}, {"patience": 0}, {"action": "rollback"}])
def test_invalid_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        KLGuard(**options)
