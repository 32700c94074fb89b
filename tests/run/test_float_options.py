"""Every option with a float refuses values that the run cannot use, with their address."""

from __future__ import annotations

import importlib.metadata
import math
import typing

import attrs
import pytest

from hooktrainer import Plugin
from hooktrainer.algorithms.options import AlgorithmOptions
from hooktrainer.config.fields import field_type
from hooktrainer.errors import ConfigError
from hooktrainer.learner.options import CriticOptions, LearnerOptions, OptimOptions
from hooktrainer.replay.options import ReplayOptions
from hooktrainer.run.loading import config_from_mapping
from hooktrainer.run.registry import settable_fields

SECTIONS = {
    "algorithm": AlgorithmOptions,
    "optim": OptimOptions,
    "critic": CriticOptions,
    "learner": LearnerOptions,
    "replay": ReplayOptions,
}
BASE = {
    "task": "sort_digits",
    "model": "decoder",
    "rollout": "inline",
    "trainer": {"total_steps": 1, "train_batch_size": 2, "ppo_mini_batch_size": 2},
}


def plugins() -> dict[str, type]:
    entries = importlib.metadata.entry_points(group="hooktrainer.plugins")
    return {entry.name: entry.load() for entry in entries if entry.value.startswith("hooktrainer_plugins")}


def floats(cls: type) -> list[str]:
    """Return the options of a class that accept a float."""
    found = []
    for field in settable_fields(cls) if issubclass(cls, Plugin) else attrs.fields(cls):
        kind = field_type(cls, field)
        if float in (kind, *typing.get_args(kind)):
            found.append(field.alias)
    return found


def addresses() -> list[tuple[str, str]]:
    found = [(section, option) for section, cls in SECTIONS.items() for option in floats(cls)]
    engines = importlib.metadata.entry_points(group="hooktrainer.engines")
    found += [("rollout", option) for entry in engines if entry.name == "process" for option in floats(entry.load())]
    return [*found, *((name, option) for name, cls in plugins().items() for option in floats(cls))]


def read(where: str, option: str, value: float) -> None:
    mapping = {**BASE, "plugins": ["metric_aggregation", "weight_sync"]}
    if where in SECTIONS:
        mapping[where] = {option: value}
    elif where == "rollout":
        mapping["rollout"] = {"use": "process", option: value}
    else:
        others = [name for name in mapping["plugins"] if name != where]
        mapping["algorithm"] = {"kl_coeff": 0.1}  # adaptive_kl needs it
        mapping["plugins"] = [*others, {"use": where, option: value}]
    config_from_mapping(mapping)


@pytest.mark.parametrize(("where", "option"), addresses())
@pytest.mark.parametrize("value", [math.nan, -1.0, -math.inf, math.inf])
def test_a_negative_or_not_finite_value_is_refused_with_its_address(where: str, option: str, value: float) -> None:
    with pytest.raises(ConfigError, match=option):
        read(where, option, value)


@pytest.mark.parametrize("value", [1e308, 1e300, 1_000_000_001.0])
def test_disk_space_refuses_more_gigabytes_than_any_disk_has(value: float) -> None:
    with pytest.raises(ConfigError, match="keep_free_gb"):
        read("disk_space", "keep_free_gb", value)
