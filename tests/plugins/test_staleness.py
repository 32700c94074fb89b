"""staleness on the fake bus."""

from __future__ import annotations

import pytest

from hooktrainer.config import Config
from hooktrainer.events import FitStart, IterationEnd, StepEnd
from hooktrainer.metrics import Last
from hooktrainer.replay.staleness import Drop, Pace, Requeue, Wait
from hooktrainer.run.loading import config_from_mapping
from hooktrainer.testing import FakeBuffer, FakeBus, check_plugin
from hooktrainer_plugins.staleness import Staleness


def config_with(warmup: int) -> Config:
    sizes = {"train_batch_size": 64, "ppo_mini_batch_size": 16, "parameter_sync_step": 4}
    return config_from_mapping(
        {
            "task": "sort_digits",
            "model": "decoder",
            "rollout": "inline",
            "trainer": {"total_steps": 1, "num_warmup_batches": warmup, **sizes},
            "plugins": ["weight_sync"],
        }
    )


def test_plugin_passes_check_plugin() -> None:
    check_plugin(Staleness)


def test_strategy_is_set_in_the_buffer_at_fit_start() -> None:
    for strategy, policy in (("drop", Drop(3)), ("wait", Wait(3)), ("requeue", Requeue(3)), ("pace", Pace(3))):
        buffer = FakeBuffer()
        staleness = Staleness(max_off_policy_threshold=3, max_off_policy_strategy=strategy, buffer=buffer)
        FakeBus(staleness, provides=["metrics.row", "iteration.metrics"]).fire(FitStart)

        assert buffer.policy == policy


@pytest.mark.parametrize("threshold", [1, 2, 5])
def test_drop_evicts_above_the_threshold_and_wait_waits_at_it(threshold: int) -> None:
    assert [Drop(threshold).evicts(threshold), Drop(threshold).evicts(threshold + 1)] == [False, True]
    assert [Wait(threshold).waits_for(threshold - 1), Wait(threshold).waits_for(threshold)] == [False, True]
    assert not Drop(threshold).waits_for(99)
    assert not Wait(threshold).evicts(99)


def test_staleness_of_trained_and_evicted_groups_is_reported_per_step() -> None:
    bus = FakeBus(Staleness(), provides=["metrics.row", "iteration.metrics"])
    bus.fire(IterationEnd, step=5, groups=(1, 2), evicted=(10,))
    bus.fire(IterationEnd, step=5, groups=(1, 1), evicted=(2, 2, 2))
    bus.fire(StepEnd, step=5)

    prefix = "training/off_policy"
    assert bus.row == {
        f"{prefix}/staleness/mean": 1.25,
        f"{prefix}/staleness/max": 2,
        f"{prefix}/staleness/min": 1,
        f"{prefix}/evicted_samples": 4,
        f"{prefix}/evicted_samples_staleness/mean": 4.0,
        f"{prefix}/evicted_samples_staleness/max": 10,
        f"{prefix}/evicted_samples_staleness/min": 2,
    }


def test_staleness_is_reported_in_flight_in_queue_and_in_updates() -> None:
    bus = FakeBus(Staleness(), provides=["metrics.row", "iteration.metrics"])
    bus.fire(IterationEnd, step=5, groups=(1, 3), in_flight=(0, 1), updates_behind=(1, 9), spans=(1, 1, 2, 2))
    bus.fire(StepEnd, step=5)

    prefix = "training/off_policy"
    assert [
        bus.row[f"{prefix}/{name}/mean"] for name in ("in_flight", "in_queue", "updates_behind", "trajectory_spans")
    ] == [
        0.5,
        0.5,
        5.0,
        1.5,
    ]
    assert bus.row[f"{prefix}/in_queue/max"] == 1


def test_groups_evicted_after_the_last_iteration_are_counted() -> None:
    bus = FakeBus(Staleness(), provides=["metrics.row", "iteration.metrics"])
    bus.fire(IterationEnd, step=5, groups=(1,), evicted=(3,))
    bus.fire(StepEnd, step=5, evicted=(4, 5))

    assert bus.row["training/off_policy/evicted_samples"] == 3
    assert bus.row["training/off_policy/evicted_samples_staleness/mean"] == 4


def test_length_bias_outside_its_band_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    bus = FakeBus(Staleness(length_bias_band=(0.9, 1.1)), provides=["metrics.row", "iteration.metrics"])
    for bias in (1.0, 0.7, 0.6):
        bus.fire(IterationEnd, step=1, metrics={"training/off_policy/length_bias": Last(bias)})

    warning = "trained answers are 0.70 times as long as generated ones, outside of length_bias_band = (0.9, 1.1)"
    assert caplog.text.count(warning) == 1


@pytest.mark.parametrize("strategy", ["drop", "requeue", "wait", "pace"])
def test_warm_up_is_refused_with_pace_only(strategy: str) -> None:
    sentences = list(Staleness(max_off_policy_strategy=strategy).check(config_with(warmup=1)))

    assert bool(sentences) == (strategy == "pace")
    assert all("num_warmup_batches = 1 has no effect" in sentence for sentence in sentences)


def test_a_threshold_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_off_policy_threshold"):
        Staleness(max_off_policy_threshold=0)


@pytest.mark.parametrize(("warmup", "threshold", "refused"), [(0, 1, False), (1, 1, True), (4, 2, False), (5, 2, True)])
def test_warm_up_that_evicts_groups_in_every_step_is_refused_with_the_numbers(
    warmup: int, threshold: int, refused: bool
) -> None:
    config = config_with(warmup)

    sentences = list(Staleness(max_off_policy_threshold=threshold).check(config))

    assert bool(sentences) is refused
    if refused:
        assert f"num_warmup_batches = {warmup}" in sentences[0]
        assert f"4 x {threshold - 1} = {4 * (threshold - 1)}" in sentences[0]
        assert list(Staleness(max_off_policy_threshold=threshold, max_off_policy_strategy="wait").check(config)) == []
