"""weight_sync on the fake bus."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.learners import MinimalLearner
from hooktrainer.errors import SyncError
from hooktrainer.events import FitStart, StepEnd, WeightsSynced
from hooktrainer.ports import Example, Learner, Prompt
from hooktrainer.testing import (
    FakeBuffer,
    FakeBus,
    FakeEngine,
    FakeLearner,
    FakePrompts,
    FakeTransport,
    ManualClock,
    check_plugin,
)
from hooktrainer.weight_sync.same_host import SameHostTransport
from hooktrainer_plugins.weight_sync import WeightSync


def weight_sync(
    transport: FakeTransport,
    engine: FakeEngine | None = None,
    clock: ManualClock | None = None,
    learner: FakeLearner | None = None,
    **options: object,
) -> WeightSync:
    return WeightSync(
        learner=learner or FakeLearner(),
        engine=engine or FakeEngine(),
        transport=transport,
        buffer=FakeBuffer(),
        prompts=FakePrompts(),
        clock=clock or ManualClock(),
        **options,
    )


def test_plugin_passes_check_plugin() -> None:
    check_plugin(WeightSync)


def test_publish_at_fit_start_emits_no_weights_synced() -> None:
    transport = FakeTransport()
    bus = FakeBus(weight_sync(transport), provides=["metrics.row"])

    bus.fire(FitStart)

    assert (transport.published, bus.emitted) == ([0], ())


def test_the_first_publish_of_a_resumed_run_replaces_the_newer_version_of_an_engine_that_outlived_the_run() -> None:
    plugin = weight_sync(FakeTransport())
    plugin.engine.stage({"updates": 9}, 9)
    plugin.engine.flip()
    bus = FakeBus(plugin, provides=["metrics.row"])
    bus.fire(FitStart)
    assert plugin.engine.version == 0
    bus.fire(StepEnd, step=1)
    with pytest.raises(SyncError, match=r"engine 0 \(FakeEngine\) already holds version 1, and versions only rise"):
        bus.fire(StepEnd, step=1)
    assert (plugin.engine.version, plugin.engine.paused, bus.emitted) == (1, False, ())


def test_step_end_publishes_the_version_of_its_step_and_emits_weights_synced_once() -> None:
    transport, engine = FakeTransport(), FakeEngine()
    bus = FakeBus(weight_sync(transport, engine), provides=["metrics.row"])

    bus.fire(StepEnd, step=7, last=True)

    assert (transport.published, engine.version) == ([7], 7)
    (synced,) = bus.emitted
    assert isinstance(synced, WeightsSynced)
    assert (synced.step, synced.version, synced.last) == (7, 7, True)


def test_failed_publish_emits_nothing_and_the_next_step_publishes_its_version() -> None:
    transport, engine = FakeTransport([None, SyncError("lost"), None]), FakeEngine()
    bus = FakeBus(weight_sync(transport, engine), provides=["metrics.row"])

    bus.fire(StepEnd, step=1)
    assert [event.version for event in bus.emitted] == [1]
    with pytest.raises(SyncError, match="lost"):
        bus.fire(StepEnd, step=2)
    assert (bus.emitted, engine.version) == ((), 1)
    bus.fire(StepEnd, step=3)

    assert [event.version for event in bus.emitted] == [3]
    assert (transport.published, engine.version) == ([1, 3], 3)


class KeepsItsHead(FakeEngine):
    """An engine that acknowledges all weights, and continues to use the first ones."""

    @property
    def held(self) -> object:
        return self._first if hasattr(self, "_first") else super().held

    def flip(self) -> None:
        super().flip()
        self._first = self.held


def test_engine_that_keeps_its_old_weights_is_restored_and_nothing_is_emitted() -> None:
    engine, learner = KeepsItsHead(), FakeLearner()
    bus = FakeBus(weight_sync(FakeTransport(), engine, learner=learner), provides=["metrics.row"])

    bus.fire(FitStart)
    learner.update(())
    with pytest.raises(SyncError, match=r"engine 0 \(KeepsItsHead\) does not use the weights that it confirmed"):
        bus.fire(StepEnd, step=1)

    assert (bus.emitted, engine.version, engine.paused) == ((), 0, False)
    assert engine.calls[-2:] == ["unflip", "resume"]


class WithoutScores(FakeLearner):
    logprobs = None


@pytest.mark.parametrize("learner", [WithoutScores(), MinimalLearner()])
def test_learner_without_logprobs_is_refused_before_staging(learner: Learner) -> None:
    assert isinstance(learner, Learner)
    engine, name = FakeEngine(), type(learner).__name__
    bus = FakeBus(weight_sync(FakeTransport(), engine, learner=learner), provides=["metrics.row"])
    expected = rf"{name} has no logprobs\(tokens\).*ports\.SupportsLogprobs.*\{{use: weight_sync, canary: false\}}"
    with pytest.raises(SyncError, match=expected):
        bus.fire(StepEnd, step=1)
    assert engine.calls == []


def test_learner_without_logprobs_is_accepted_without_the_canary() -> None:
    engine = FakeEngine()
    bus = FakeBus(weight_sync(FakeTransport(), engine, learner=WithoutScores(), canary=False), provides=["metrics.row"])
    bus.fire(StepEnd, step=1)
    assert engine.calls == ["stage", "pause", "flip", "resume"]
    assert "weight_sync/canary_error" not in bus.row


def test_canary_of_a_task_without_held_out_prompts_has_tokens_of_every_vocabulary() -> None:
    asked: list[list[int]] = []

    class NoneHeldOut(FakePrompts):
        def heldout(self, count: int) -> list[object]:
            return []

    class Listening(FakeLearner):
        def logprobs(self, tokens: np.ndarray) -> np.ndarray:
            asked.append(tokens.tolist())
            return super().logprobs(tokens)

    plugin = weight_sync(FakeTransport(), learner=Listening())
    plugin.prompts = NoneHeldOut()
    bus = FakeBus(plugin, provides=["metrics.row"])
    bus.fire(StepEnd, step=1)
    assert bus.row["weight_sync/canary_error"] == 0.0
    assert set(asked[0]) == {0, 1}


def test_canary_uses_the_start_of_the_first_held_out_prompt() -> None:
    asked: list[list[int]] = []

    class Listening(FakeLearner):
        def logprobs(self, tokens: np.ndarray) -> np.ndarray:
            asked.append(tokens.tolist())
            return super().logprobs(tokens)

    class Long(FakePrompts):
        def heldout(self, count: int) -> list[Prompt]:
            return [Prompt(Example("long"), np.arange(50))][:count]

    plugin = weight_sync(FakeTransport(), learner=Listening())
    FakeBus(plugin, provides=["metrics.row"]).fire(StepEnd, step=1)
    plugin.prompts = Long()
    bus = FakeBus(plugin, provides=["metrics.row"])
    bus.fire(FitStart)
    plugin.prompts = FakePrompts()
    bus.fire(StepEnd, step=1)
    assert asked == [[1, 1], [*range(4)], [*range(4)]]  # a single token is repeated; the text is that of the start


def test_canary_error_is_in_the_row() -> None:
    class Rounded(FakeEngine):
        def logprobs(self, tokens: np.ndarray) -> np.ndarray:
            return super().logprobs(tokens) + 0.25

    bus = FakeBus(weight_sync(FakeTransport(), Rounded(), canary_atol=0.5), provides=["metrics.row"])
    bus.fire(StepEnd, step=1)
    assert bus.row["weight_sync/canary_error"] == 0.25


def test_same_host_transport_accepts_fake_components() -> None:
    learner, engine = FakeLearner(), FakeEngine()
    bus = FakeBus(weight_sync(SameHostTransport(), engine, learner=learner, bucket_mb=0.5), provides=["metrics.row"])
    learner.weights = lambda: {"w": torch.full((3,), float(learner.updates))}
    learner.logprobs = lambda tokens: np.full(len(tokens) - 1, -3.0 * learner.updates, np.float32)
    for step in (1, 2):
        learner.update(())
        bus.fire(StepEnd, step=step)
        assert (engine.version, engine.held["w"].tolist()) == (step, [float(step)] * 3)


def test_sync_time_is_in_the_row_of_its_step() -> None:
    clock = ManualClock()
    bus = FakeBus(weight_sync(FakeTransport(before_publish=clock.advance), clock=clock), provides=["metrics.row"])
    times = []
    for step in (1, 2, 3):
        bus.fire(StepEnd, step=step)
        times.append(bus.row["timing_s/weight_sync"])

    assert times == [1.0, 2.0, 3.0]
