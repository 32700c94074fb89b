"""The test kit: a plugin is tested with no trainer, no torch and no GPU.

def test_it_stops_above_its_limit() -> None:
    bus = FakeBus(KLStop(limit=0.2), provides=["metrics.row"])
    bus.fire(StepEnd, step=1, row={"actor/ppo_kl": 0.5})
    assert bus.control.reason == "ppo_kl above 0.2"
"""

from hooktrainer.testing.contract import check_order_independent, check_plugin, fake_ports
from hooktrainer.testing.fake_bus import FakeBus
from hooktrainer.testing.fake_engine import FakeEngine, FakeTransport
from hooktrainer.testing.fake_state import FakeRunState
from hooktrainer.testing.fakes import (
    FakeBuffer,
    FakeKLControl,
    FakeLearner,
    FakePrompts,
    FakeSink,
    FakeTask,
    ManualClock,
)

__all__ = [
    "FakeBuffer",
    "FakeBus",
    "FakeEngine",
    "FakeKLControl",
    "FakeLearner",
    "FakePrompts",
    "FakeRunState",
    "FakeSink",
    "FakeTask",
    "FakeTransport",
    "ManualClock",
    "check_order_independent",
    "check_plugin",
    "fake_ports",
]
