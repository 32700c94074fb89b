"""Ports are bound by type, and a port that cannot be bound is a fault before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from hooktrainer import Plugin
from hooktrainer.bus.binding import bind
from hooktrainer.bus.handlers import PlacedPlugin
from hooktrainer.errors import ConfigError
from hooktrainer.plugin import port
from hooktrainer.ports import RolloutEngine, Sink
from hooktrainer.testing import FakeEngine, FakeSink, fake_ports


class Judge:
    """A port type of a user."""


@attrs.define
class Uses(Plugin):
    engine: RolloutEngine = port()
    judge: Judge = port()
    sinks: Sequence[Sink] = port(named=True)


def entry(plugin: Plugin) -> PlacedPlugin:
    return PlacedPlugin(plugin, "uses", "plugins[3]")


def test_ports_are_bound_by_type() -> None:
    engine, judge = FakeEngine(), Judge()
    plugin = Uses()

    bind((entry(plugin),), fake_ports(engine=engine, extra={Judge: judge}))

    assert (plugin.engine, plugin.judge) == (engine, judge)


def test_ports_passed_to_the_constructor_are_kept() -> None:
    mine, judge, sink = FakeEngine(), Judge(), FakeSink()
    plugin = Uses(engine=mine, judge=judge, sinks=[sink])

    bind((entry(plugin),), fake_ports())

    assert (plugin.engine, plugin.judge, plugin.sinks) == (mine, judge, (sink,))


def test_all_missing_ports_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        bind((entry(Uses(sinks=["memroy"])),), fake_ports())

    text = str(caught.value)
    assert (
        "plugins[3]: port 'judge' requires a Judge, which this run does not offer; it has Clock, KLControl, Learner"
        in text
    )
    assert "plugins[3].sinks: 'memroy': only YAML gives names; in Python, pass the objects" in text
