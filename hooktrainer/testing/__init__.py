"""Fakes and checks for tests of plugins, without a trainer, torch or a GPU.

def test_value_above_the_limit_stops_the_run() -> None:
    bus = FakeBus(KLStop(limit=0.2), provides=["metrics.row"])
    bus.fire(StepEnd, step=1, row={"actor/ppo_kl": 0.5})
    assert bus.control.reason == "ppo_kl above 0.2"
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hooktrainer._util.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hooktrainer.testing.contract import check_order_independent, check_plugin, fake_ports
    from hooktrainer.testing.fake_bus import FakeBus
    from hooktrainer.testing.fake_engine import FakeEngine, FakeTransport
    from hooktrainer.testing.fake_state import FakeCheckpointStore, FakeRunState
    from hooktrainer.testing.fakes import (
        FakeBuffer,
        FakeKLControl,
        FakeLatestSamples,
        FakeLearner,
        FakeModelExport,
        FakePrompts,
        FakeRewindableSink,
        FakeSampleLog,
        FakeSink,
        FakeTask,
        FakeTimeline,
        ManualClock,
    )
    from hooktrainer.testing.sink_contract import check_sink
    from hooktrainer.testing.task_contract import check_task

__all__ = [
    "FakeBuffer",
    "FakeBus",
    "FakeCheckpointStore",
    "FakeEngine",
    "FakeKLControl",
    "FakeLatestSamples",
    "FakeLearner",
    "FakeModelExport",
    "FakePrompts",
    "FakeRewindableSink",
    "FakeRunState",
    "FakeSampleLog",
    "FakeSink",
    "FakeTask",
    "FakeTimeline",
    "FakeTransport",
    "ManualClock",
    "check_order_independent",
    "check_plugin",
    "check_sink",
    "check_task",
    "fake_ports",
]

# Imported on first use, because pytest loads this package in every project for its fixture.
__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        **dict.fromkeys(__all__, "fakes"),
        "FakeBus": "fake_bus",
        "FakeCheckpointStore": "fake_state",
        "FakeEngine": "fake_engine",
        "FakeRunState": "fake_state",
        "FakeTransport": "fake_engine",
        "check_order_independent": "contract",
        "check_plugin": "contract",
        "check_sink": "sink_contract",
        "check_task": "task_contract",
        "fake_ports": "contract",
    },
)
