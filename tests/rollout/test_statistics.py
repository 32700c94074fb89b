"""Metrics of engines: merged until they are taken, with waits for groups and for weights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hooktrainer.metrics import Sum
from hooktrainer.rollout import statistics as stats_module
from hooktrainer.rollout.statistics import RolloutStats


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    now = [100.0]
    monkeypatch.setattr(stats_module, "perf_counter", lambda: now[0])
    return now


def test_take_returns_merged_metrics_once() -> None:
    stats = RolloutStats()
    stats.record({"a": Sum(1), "b": Sum(2)})
    stats.record({"a": Sum(3)})
    assert {key: metric.value for key, metric in stats.take().items()} == {"a": 4, "b": 2}
    assert stats.take() == {}


def test_waits_during_a_sync_count_for_weights_and_others_for_groups(clock: list[float]) -> None:
    stats = RolloutStats()
    first = stats.mark()
    clock[0] += 1  # groups
    stats.begin_sync()
    clock[0] += 2  # weights
    second = stats.mark()
    stats.begin_sync()  # a second bucket does not restart the sync
    clock[0] += 4
    stats.end_sync()
    clock[0] += 8
    stats.waited(first, "rollout-0")
    stats.waited(second, "rollout-0")
    metrics = stats.take()
    assert metrics["timing_s/engine_wait_groups"].value == 1 + 8 + 8
    assert metrics["timing_s/engine_wait_weights"].value == 2 + 4 + 4


def test_active_sync_counts_up_to_now(clock: list[float]) -> None:
    stats = RolloutStats()
    stats.begin_sync()
    clock[0] += 1
    mark = stats.mark()
    clock[0] += 2
    stats.waited(mark, "rollout-0")
    assert stats.take()["timing_s/engine_wait_weights"].value == 2
    stats.end_sync()
    stats.end_sync()
