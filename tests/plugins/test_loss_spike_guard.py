"""loss_spike_guard on the fake bus."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooktrainer.errors import RunError
from hooktrainer.events import IterationEnd, StepEnd, StepStart
from hooktrainer.metrics import Counts, Mean, Sum
from hooktrainer.testing import FakeBus, FakeRunState, check_plugin
from hooktrainer_plugins.loss_spike_guard import LossSpikeGuard

USUAL = [1.0, 1.1, 0.9, 1.0, 1.1, 0.9, 1.0, 1.0]
"""Median 1, median absolute deviation 0.05, robust standard deviation 0.07413."""


class Watched:
    def __init__(self, **options: object) -> None:
        self.run = FakeRunState(state={"weights": 0})
        self.guard = LossSpikeGuard(window=8, run=self.run, **options)
        self.bus = FakeBus(self.guard, provides=["metrics.row"])
        self.step = 0

    def see(self, *values: float) -> list[int]:
        """Return the steps, one update each, that were detected as spikes."""
        spikes = []
        for value in values:
            self.step += 1
            self.bus.fire(StepStart, step=self.step)
            self.run.state["weights"] = self.step
            self.bus.fire(IterationEnd, step=self.step, metrics={"actor/pg_loss": Mean(value, 1)})
            self.bus.fire(StepEnd, step=self.step)
            spikes += [self.step] * int(self.bus.row.get("actor/loss_spikes", 0))
        return spikes


def test_plugin_passes_check_plugin() -> None:
    check_plugin(LossSpikeGuard)


def test_value_above_the_threshold_of_robust_deviations_is_a_spike(caplog: pytest.LogCaptureFixture) -> None:
    assert Watched(threshold=10).see(*USUAL, 1.74) == []
    assert Watched(threshold=10).see(*USUAL, 1.75) == [9]
    assert (
        "actor/pg_loss is 1.75 in update 1 of step 9, 10.1 robust standard deviations above the median 1 of the "
        "last 8 updates; loss_spike_guard allows 10" in caplog.text
    )


def test_no_spike_is_detected_before_the_window_is_full() -> None:
    assert Watched().see(*USUAL[:7], 1000.0) == []


def test_a_spike_does_not_raise_the_bar_for_the_next() -> None:
    assert Watched().see(*USUAL, 5.0, 5.0, 1.0, 5.0) == [9, 10, 12]


@pytest.mark.parametrize("value", [-1000.0, -5.0, 0.2, 1000.0])
def test_a_fall_is_a_spike_as_a_rise_is(value: float, caplog: pytest.LogCaptureFixture) -> None:
    assert Watched().see(*USUAL, value, 1.0) == [9]
    assert f"deviations {'above' if value > 1 else 'below'} the median 1" in caplog.text


def test_a_value_that_is_not_finite_is_a_spike_at_any_time() -> None:
    assert Watched().see(float("nan"), 1.0, float("-inf")) == [1, 3]
    assert Watched().see(*USUAL, float("nan"), float("inf"), 5.0) == [9, 10, 11]


def test_non_finite_values_are_ignored() -> None:
    watched = Watched()
    metrics = {"actor/pg_loss": Mean(float("nan"), 1), "actor/skipped_updates": Sum(1)}
    watched.bus.fire(IterationEnd, step=1, metrics=metrics)
    watched.bus.fire(StepEnd, step=1)
    assert "actor/loss_spikes" not in watched.bus.row


def test_small_change_of_a_constant_metric_is_no_spike() -> None:
    assert Watched().see(*[1.0] * 8, 1.4) == []


def test_missing_metric_is_logged_once_with_a_suggestion(caplog: pytest.LogCaptureFixture) -> None:
    assert Watched(metric="actor/pgloss").see(*USUAL, 50.0) == []
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        "loss_spike_guard has no effect: its metric 'actor/pgloss' is missing in update 1 of step 1. Did you mean "
        "'actor/pg_loss'?"
    )


def test_histogram_as_metric_is_logged_and_a_numpy_scalar_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    for value in [*USUAL, 50.0]:
        watched.bus.fire(IterationEnd, step=1, metrics={"actor/pg_loss": np.float32(value)})
    watched.bus.fire(StepEnd, step=1)
    assert watched.bus.row["actor/loss_spikes"] == 1
    caplog.clear()

    watched = Watched()
    watched.bus.fire(IterationEnd, step=1, metrics={"actor/pg_loss": Counts({1.0: 2})})
    assert "'actor/pg_loss' is a " in caplog.text
    assert "not a number, in update 1 of step 1" in caplog.text


def test_metric_seen_before_may_be_absent_in_an_update(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.see(1.0)
    watched.bus.fire(IterationEnd, step=2, metrics={"actor/skipped_updates": 1})
    assert not caplog.records


def test_action_stop_stops_the_run_with_the_reason() -> None:
    watched = Watched(action="stop")
    watched.see(*USUAL, 5.0)

    assert (watched.bus.control.reason or "").startswith(
        "actor/pg_loss is 5 in update 1 of step 9, 54.0 robust standard deviations"
    )


def test_action_rollback_restores_the_learner_before_the_step_is_published_and_counts_it() -> None:
    watched = Watched(action="rollback")
    assert watched.see(*USUAL, 5.0) == [9]

    assert watched.run.state["weights"] == 8
    assert (watched.run.learner_restores, watched.run.latest) == ([9], None)
    assert watched.bus.row["actor/rollbacks"] == 1


def test_more_consecutive_rollbacks_than_the_limit_fail_the_run() -> None:
    watched = Watched(action="rollback", limit=2)
    watched.see(*USUAL, 5.0, 1.0, 5.0, 5.0)

    with pytest.raises(RunError, match="3 spikes in a row; loss_spike_guard rolls back 2"):
        watched.see(5.0)


@given(st.lists(st.floats(0.1, 10), min_size=8, max_size=30), st.integers(8, 29))
def test_state_dict_restores_the_window(values: list[float], cut: int) -> None:
    unbroken = Watched().see(*values)
    first, second = Watched(), Watched()
    spikes = first.see(*values[:cut])
    second.guard.load_state_dict(first.guard.state_dict())
    second.step = first.step

    assert spikes + second.see(*values[cut:]) == unbroken
