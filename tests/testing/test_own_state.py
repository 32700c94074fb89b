"""Plugins of one class share no state."""

from __future__ import annotations

import attrs

from hooktrainer import Plugin
from hooktrainer.plugin import state


@attrs.define(kw_only=True)
class Collects(Plugin):
    """A plugin with mutable defaults."""

    _values: list[int] = state([])
    _nested: dict[str, list[int]] = state({"a": []})
    _count: int = state(3)


def test_each_plugin_gets_its_own_copy_of_a_default() -> None:
    first, second = Collects(), Collects()
    first._values.append(1)
    first._nested["a"].append(1)
    assert second.state_dict() == Collects().state_dict() == {"values": [], "nested": {"a": []}, "count": 3}
