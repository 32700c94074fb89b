"""early_stopping on the fake bus."""

from __future__ import annotations

import math

import pytest

from hooktrainer.errors import MissingMetricError
from hooktrainer.events import StepEnd
from hooktrainer.testing import FakeBus, check_plugin
from hooktrainer_plugins.early_stopping import EarlyStopping

SCORE = "val/score/mean"


def stopped_at(plugin: EarlyStopping, *values: float | None) -> tuple[int | None, str | None]:
    """Return the step that requested a stop, and its reason; None is a row without the metric."""
    bus = FakeBus(plugin, provides=["metrics.row"])
    for step, value in enumerate(values, start=1):
        row = {"actor/pg_loss": 0.0} if value is None else {plugin.metric: value}
        bus.fire(StepEnd, step=step, row=row, last=step == len(values))
        if bus.control.reason is not None:
            return step, bus.control.reason
    return None, None


def test_plugin_passes_check_plugin() -> None:
    check_plugin(EarlyStopping)


def test_the_run_stops_after_patience_rows_without_an_improvement() -> None:
    assert stopped_at(EarlyStopping(patience=3), 0.1, 0.5, 0.4, 0.5, 0.5, 0.9) == (
        5,
        "val/score/mean has not improved since step 2, which has 0.5: it is 0.5 in step 5 (patience 3)",
    )


def test_an_improvement_restarts_patience() -> None:
    assert stopped_at(EarlyStopping(patience=2), 0.1, 0.0, 0.2, 0.1, 0.3, 0.2) == (None, None)


def test_rows_without_the_metric_do_not_count() -> None:
    assert stopped_at(EarlyStopping(patience=2), None, 0.5, None, None, 0.4, None, 0.3)[0] == 7


@pytest.mark.parametrize(
    ("options", "values", "step"),
    [
        ({"min_delta": 0.05}, [0.5, 0.54, 0.5499], 3),
        ({"min_delta": 0.05}, [0.5, 0.54, 0.56], None),
        ({"mode": "min"}, [0.5, 0.6, 0.7], 3),
        ({"mode": "min", "min_delta": 0.1}, [0.5, 0.39, 0.28], None),
        ({}, [0.5, math.nan, math.nan], 3),
        ({}, [math.nan, -0.5, math.nan, -0.4], None),
        ({}, [-math.inf, -1e9, 0.0], None),
    ],
)
def test_what_is_an_improvement(options: dict[str, float], values: list[float], step: int | None) -> None:
    assert stopped_at(EarlyStopping(patience=2, **options), *values)[0] == step


def test_a_metric_that_was_never_a_number_stops_the_run() -> None:
    assert stopped_at(EarlyStopping(patience=1), math.nan)[1] == (
        "val/score/mean has not improved so far: it is nan in step 1 (patience 1)"
    )


def test_patience_continues_after_a_resume() -> None:
    before, resumed = EarlyStopping(patience=2), EarlyStopping(patience=2)
    first = FakeBus(before, provides=["metrics.row"])
    for step, value in enumerate([0.5, 0.4], start=1):
        first.fire(StepEnd, step=step, row={SCORE: value})
    resumed.load_state_dict(before.state_dict())
    bus = FakeBus(resumed, provides=["metrics.row"])
    bus.fire(StepEnd, step=3, row={SCORE: 0.45})

    assert bus.control.reason is not None
    assert "since step 1, which has 0.5" in bus.control.reason


def test_misspelt_metric_is_an_error_at_the_first_row_that_could_have_it() -> None:
    bus = FakeBus(EarlyStopping(metric="val/scores/mean"), provides=["metrics.row"])
    bus.fire(StepEnd, step=1, row={"actor/pg_loss": 0.1})
    with pytest.raises(MissingMetricError, match=r"early_stopping checks the metric 'val/scores/mean'.*Did you mean"):
        bus.fire(StepEnd, step=2, row={SCORE: 0.1})


def test_missing_validation_is_logged_at_the_end_of_the_run(caplog: pytest.LogCaptureFixture) -> None:
    stopped_at(EarlyStopping(), None, None)

    (logged,) = [record.getMessage() for record in caplog.records]
    assert logged.startswith("early_stopping checked nothing: no row has a metric of validation")


@pytest.mark.parametrize("options", [{"patience": 0}, {"patience": 1.5}, {"mode": "best"}, {"min_delta": -1}])
def test_invalid_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError), match=next(iter(options))):
        EarlyStopping(**options)
