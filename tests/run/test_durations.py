"""Every option in seconds accepts only durations that all waits of the standard library can take."""

from __future__ import annotations

import importlib.metadata
import re

import attrs
import pytest

from hooktrainer.config import Config
from hooktrainer.errors import ConfigError
from hooktrainer.replay.options import ReplayOptions
from hooktrainer.run.loading import config_from_mapping

OPTIONS = {
    "replay.sample_timeout_s": {"replay": {"sample_timeout_s": None}},
    "replay.group_timeout_s": {"replay": {"group_timeout_s": None}},
    "rollout.sync_timeout_s": {"rollout": {"use": "process", "sync_timeout_s": None}},
    "timeout_s": {"plugins": ["metric_aggregation", "weight_sync", {"use": "watchdog", "timeout_s": None}]},
    "patience_s": {"plugins": ["metric_aggregation", "weight_sync", {"use": "checkpoint", "patience_s": None}]},
}


def filled(part: object, value: float) -> object:
    if isinstance(part, dict):
        return {key: filled(inner, value) for key, inner in part.items()}
    if isinstance(part, list):
        return [filled(inner, value) for inner in part]
    return value if part is None else part


def config(address: str, value: float) -> Config:
    base = {
        "task": "sort_digits",
        "model": "decoder",
        "rollout": "inline",
        "plugins": ["metric_aggregation", "weight_sync"],
    }
    trainer = {"total_steps": 1, "train_batch_size": 2, "ppo_mini_batch_size": 2}
    return config_from_mapping({**base, "trainer": trainer, **filled(OPTIONS[address], value)})


@pytest.mark.parametrize("value", [1.0e10, 1e308, float("inf"), 1_000_001.0, float("nan"), 0.0, -1.0])
@pytest.mark.parametrize("address", OPTIONS)
def test_an_absurd_duration_is_refused_with_its_address(address: str, value: float) -> None:
    with pytest.raises(ConfigError, match=re.escape(address)):
        config(address, value)


@pytest.mark.parametrize("address", OPTIONS)
def test_a_duration_of_eleven_days_is_accepted(address: str) -> None:
    config(address, 1_000_000.0)


def test_no_option_in_seconds_is_left_out() -> None:
    groups = ("plugins", "engines", "tasks", "models", "sinks")
    kinds = [entry.load() for kind in groups for entry in importlib.metadata.entry_points(group=f"hooktrainer.{kind}")]
    own = [kind for kind in [*kinds, ReplayOptions] if attrs.has(kind) and kind.__module__.startswith("hooktrainer")]
    names = {field.name for kind in own for field in attrs.fields(kind) if field.init and field.name.endswith("_s")}
    assert names == {address.rpartition(".")[2] for address in OPTIONS}
