"""Plugins of one class share no state, and files of plugins are found from any working directory."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from hooktrainer import Plugin
from hooktrainer.plugin import state
from hooktrainer.testing import check_order_independent, check_plugin


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


@attrs.define(kw_only=True)
class Shares(Plugin):
    """A plugin whose option has a default that all plugins share."""

    cache: list[int] = []  # noqa: RUF008 (the fault)
    """Values."""


def test_check_plugin_refuses_a_default_that_plugins_share() -> None:
    with pytest.raises(AssertionError, match=r"share the default of 'cache', \[\]; write .*factory=list"):
        check_plugin(Shares)
    check_plugin(Shares, cache=[1])


def test_a_file_is_relative_to_the_test_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_order_independent(["metric_aggregation", "weight_sync", {"use": f"{Path(__file__).name}:Collects"}])
