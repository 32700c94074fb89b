"""What an engine measures: merged until taken, and waits told apart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hooktrainer.metrics import Sum
from hooktrainer.rollout import stats as meter_module
from hooktrainer.rollout.stats import Meter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    now = [100.0]
    monkeypatch.setattr(meter_module, "perf_counter", lambda: now[0])
    return now


def test_metrics_are_merged_and_taken_once() -> None:
    meter = Meter()
    meter.record({"a": Sum(1), "b": Sum(2)})
    meter.record({"a": Sum(3)})
    assert {key: metric.value for key, metric in meter.take().items()} == {"a": 4, "b": 2}
    assert meter.take() == {}


def test_a_wait_during_a_sync_is_for_weights_and_the_rest_is_for_groups(clock: list[float]) -> None:
    meter = Meter()
    first = meter.mark()
    clock[0] += 1  # groups
    meter.begin_sync()
    clock[0] += 2  # weights
    second = meter.mark()
    meter.begin_sync()  # an engine that is asked to stage again goes on syncing
    clock[0] += 4
    meter.end_sync()
    clock[0] += 8
    meter.waited(first)
    meter.waited(second)
    metrics = meter.take()
    assert metrics["timing_s/engine_wait_groups"].value == 1 + 8 + 8
    assert metrics["timing_s/engine_wait_weights"].value == 2 + 4 + 4


def test_a_sync_that_goes_on_counts_up_to_now(clock: list[float]) -> None:
    meter = Meter()
    meter.begin_sync()
    clock[0] += 1
    mark = meter.mark()
    clock[0] += 2
    meter.waited(mark)
    assert meter.take()["timing_s/engine_wait_weights"].value == 2
    meter.end_sync()
    meter.end_sync()
