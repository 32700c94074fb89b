"""Every option in seconds accepts only durations that all waits of the standard library can take."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import attrs
import pytest

from hooktrainer.config import Config
from hooktrainer.errors import ConfigError
from hooktrainer.replay.options import ReplayOptions
from hooktrainer.run.loading import config_from_mapping

SERVER = {"use": "server", "urls": ["http://localhost:8000"], "weights_dir": "weights"}
OPTIONS = {
    "learner.timeout_s": {"learner": {"timeout_s": None}},
    "replay.sample_timeout_s": {"replay": {"sample_timeout_s": None}},
    "replay.group_timeout_s": {"replay": {"group_timeout_s": None}},
    "rollout.sync_timeout_s": {"rollout": {"use": "process", "sync_timeout_s": None}},
    "rollout.turn_timeout_s": {"rollout": {"use": "thread", "turn_timeout_s": None}},
    "rollout.retry_s": {"rollout": {**SERVER, "retry_s": None}},
    "rollout.request_timeout_s": {"rollout": {**SERVER, "request_timeout_s": None}},
    "timeout_s": {"plugins": ["metric_aggregation", "weight_sync", {"use": "watchdog", "timeout_s": None}]},
    "server_timeout_s": {
        "plugins": [
            "metric_aggregation",
            "weight_sync",
            {"use": "log_after_collect", "sinks": [{"use": "wandb", "server_timeout_s": None}]},
        ]
    },
    "patience_s": {"plugins": ["metric_aggregation", "weight_sync", {"use": "checkpoint", "patience_s": None}]},
}


BASE = {
    "task": "sort_digits",
    "model": "decoder",
    "rollout": "inline",
    "trainer": {"total_steps": 1, "train_batch_size": 2, "ppo_mini_batch_size": 2},
    "plugins": ["metric_aggregation", "weight_sync"],
}


def filled(part: object, value: float) -> object:
    if isinstance(part, dict):
        return {key: filled(inner, value) for key, inner in part.items()}
    if isinstance(part, list):
        return [filled(inner, value) for inner in part]
    return value if part is None else part


def config(address: str, value: float) -> Config:
    return config_from_mapping({**BASE, **filled(OPTIONS[address], value)})


@pytest.mark.parametrize("value", [1.0e10, 1e308, float("inf"), 1_000_001.0, float("nan"), 0.0, -1.0])
@pytest.mark.parametrize("address", OPTIONS)
def test_an_absurd_duration_is_refused_with_its_address(address: str, value: float) -> None:
    with pytest.raises(ConfigError, match=re.escape(address)):
        config(address, value)


@pytest.mark.parametrize("address", OPTIONS)
def test_a_duration_of_eleven_days_is_accepted(address: str) -> None:
    config(address, 1_000_000.0)


@pytest.mark.parametrize("address", OPTIONS)
def test_a_refused_duration_is_shown_with_the_limits(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(address, 0.0)
    (fault,) = caught.value.faults
    assert fault.message == "expected a number of seconds above 0, at most 1,000,000; found 0.0 (float)"


PATIENT = "import attrs\nfrom hooktrainer import Plugin\n\n\n@attrs.define(kw_only=True)\nclass Patient(Plugin):\n    "


@pytest.mark.parametrize("value", ["0.0", "-1", "float('inf')", "float('nan')", "1e7", "True", "'long'", "None"])
@pytest.mark.parametrize("place", ["class", "property"])
def test_a_limit_of_a_plugin_that_is_no_duration_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    body = f"patience_s = {value}" if place == "class" else f"patience_s = property(lambda self: {value})"
    Path("mine.py").write_text(PATIENT + body + "\n")
    plugins = {"plugins": ["metric_aggregation", "weight_sync", "mine.py:Patient"]}
    with pytest.raises(ConfigError) as caught:
        config_from_mapping({**BASE, **plugins})
    (fault,) = caught.value.faults
    assert fault.address == "plugins[2]"
    assert fault.message.startswith("its patience_s: expected a number of seconds above 0, at most 1,000,000; found ")


@pytest.mark.parametrize("value", ["1", "0.5", "1e6"])
def test_a_limit_of_a_plugin_that_is_a_duration_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(f"{PATIENT}patience_s = {value}\n")
    config_from_mapping({**BASE, "plugins": ["metric_aggregation", "weight_sync", "mine.py:Patient"]})


def test_no_option_in_seconds_is_left_out() -> None:
    groups = ("plugins", "engines", "tasks", "models", "sinks")
    kinds = [entry.load() for kind in groups for entry in importlib.metadata.entry_points(group=f"hooktrainer.{kind}")]
    own = [kind for kind in [*kinds, ReplayOptions] if attrs.has(kind) and kind.__module__.startswith("hooktrainer")]
    names = {field.name for kind in own for field in attrs.fields(kind) if field.init and field.name.endswith("_s")}
    assert names == {address.rpartition(".")[2] for address in OPTIONS}
