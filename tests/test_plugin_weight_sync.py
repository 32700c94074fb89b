"""weight_sync on the fake bus."""

from __future__ import annotations

import pytest

from hooktrainer.errors import SyncError
from hooktrainer.events import FitStart, StepEnd, WeightsSynced
from hooktrainer.testing import (
    FakeBuffer,
    FakeBus,
    FakeEngine,
    FakeLearner,
    FakeTransport,
    ManualClock,
    check_plugin,
)
from hooktrainer_plugins.weight_sync import WeightSync


def weight_sync(
    transport: FakeTransport, engine: FakeEngine | None = None, clock: ManualClock | None = None
) -> WeightSync:
    return WeightSync(
        learner=FakeLearner(),
        engine=engine or FakeEngine(),
        transport=transport,
        buffer=FakeBuffer(),
        clock=clock or ManualClock(),
    )


def test_it_keeps_the_contract() -> None:
    check_plugin(WeightSync)


def test_the_first_publish_is_no_sync_of_a_step() -> None:
    transport = FakeTransport()
    bus = FakeBus(weight_sync(transport), provides=["metrics.row"])

    bus.fire(FitStart)

    assert (transport.published, bus.emitted) == ([0], ())


def test_step_k_publishes_version_k_and_says_so_once() -> None:
    transport, engine = FakeTransport(), FakeEngine()
    bus = FakeBus(weight_sync(transport, engine), provides=["metrics.row"])

    bus.fire(StepEnd, step=7, last=True)

    assert (transport.published, engine.version) == ([7], 7)
    (synced,) = bus.emitted
    assert isinstance(synced, WeightsSynced)
    assert (synced.step, synced.version, synced.last) == (7, 7, True)


def test_a_publish_that_fails_emits_nothing_and_the_next_one_publishes_its_own_step() -> None:
    transport = FakeTransport([None, SyncError("lost"), None])
    bus = FakeBus(weight_sync(transport), provides=["metrics.row"])

    bus.fire(StepEnd, step=1)
    with pytest.raises(SyncError, match="lost"):
        bus.fire(StepEnd, step=2)
    assert bus.emitted == ()
    bus.fire(StepEnd, step=3)

    assert transport.published == [1, 3]


def test_the_time_of_the_sync_is_in_the_row_of_its_step() -> None:
    clock = ManualClock()
    bus = FakeBus(weight_sync(FakeTransport(before_publish=clock.advance), clock=clock), provides=["metrics.row"])
    times = []
    for step in (1, 2, 3):
        bus.fire(StepEnd, step=step)
        times.append(bus.row["timing_s/weight_sync"])

    assert times == [1.0, 2.0, 3.0]
