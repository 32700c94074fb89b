"""Fakes and checks for tests of plugins, without a trainer, torch or a GPU.

def test_value_above_the_limit_stops_the_run() -> None:
    bus = FakeBus(KLStop(limit=0.2), provides=["metrics.row"])
    bus.fire(StepEnd, step=1, row={"actor/ppo_kl": 0.5})
    assert bus.control.reason == "ppo_kl above 0.2"
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hooktrainer.testing.contract import check_order_independent, check_plugin, fake_ports
    from hooktrainer.testing.fake_bus import FakeBus
    from hooktrainer.testing.fake_engine import FakeEngine, FakeTransport
    from hooktrainer.testing.fake_state import FakeCheckpointStore, FakeRunState
    from hooktrainer.testing.fakes import (
        FakeBuffer,
        FakeKLControl,
        FakeLearner,
        FakePrompts,
        FakeRewindableSink,
        FakeSink,
        FakeTask,
        ManualClock,
    )

__all__ = [
    "FakeBuffer",
    "FakeBus",
    "FakeCheckpointStore",
    "FakeEngine",
    "FakeKLControl",
    "FakeLearner",
    "FakePrompts",
    "FakeRewindableSink",
    "FakeRunState",
    "FakeSink",
    "FakeTask",
    "FakeTransport",
    "ManualClock",
    "check_order_independent",
    "check_plugin",
    "fake_ports",
]

_HOMES = {
    "FakeBus": "fake_bus",
    "FakeCheckpointStore": "fake_state",
    "FakeEngine": "fake_engine",
    "FakeRunState": "fake_state",
    "FakeTransport": "fake_engine",
    "check_order_independent": "contract",
    "check_plugin": "contract",
    "fake_ports": "contract",
}


def __getattr__(name: str) -> object:
    """Import a name at its first use, because pytest loads this package in every project for its fixture."""
    if name not in __all__:
        raise AttributeError(f"module 'hooktrainer.testing' has no attribute '{name}'")
    return getattr(import_module(f"hooktrainer.testing.{_HOMES.get(name, 'fakes')}"), name)


def __dir__() -> list[str]:
    return __all__
