"""A small configuration, and functions that load it with changes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import attrs
import pytest

from hooktrainer import Plugin
from hooktrainer.config import Config
from hooktrainer.errors import ConfigError
from hooktrainer.run.composition import composition_of
from hooktrainer.run.loading import load_config

BASE = """
task: {use: sort_digits, digits: 3}
model: decoder
rollout: {use: inline, n: 2}
optim: {lr: 0.001}
trainer: {total_steps: 2, train_batch_size: 32, ppo_mini_batch_size: 8, parameter_sync_step: 4}
"""
PLUGINS = BASE + "plugins: [metric_aggregation, weight_sync]\n"


@attrs.define(kw_only=True)
class Probe(Plugin):
    """A plugin without handlers, which checks its options."""

    rank: int = 1
    every: int = 5
    targets: list[str] = attrs.field(factory=list)
    params: dict[str, object] = attrs.field(factory=dict)
    anything: object = None
    limit: int | None = None
    rate: float = 1.0
    label: str = ""
    mode: Literal["on", "off"] = "off"
    where: Path = Path()

    def check(self, config: Config) -> list[str]:
        if self.rank > config.trainer.train_batch_size:
            return [f"rank {self.rank} is above train_batch_size {config.trainer.train_batch_size}"]
        return []


PROBE = f"{__name__}:Probe"
TWO = BASE + f"plugins: [{{use: '{PROBE}', name: a, every: 1}}, {{use: '{PROBE}', name: b, every: 2}}]\n"


def written(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def load(folder: Path, text: str, *overrides: str) -> Config:
    return load_config(written(folder, text), overrides=overrides)


def faults(folder: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(folder, text, *overrides)
    return [str(fault) for fault in caught.value.faults]


def probe(folder: Path, options: str, *overrides: str) -> Probe:
    config = load(folder, BASE + f"plugins: [{{use: '{PROBE}', {options}}}]\n", *overrides)
    (found,) = composition_of(config).plan.plugins
    assert isinstance(found.plugin, Probe)
    return found.plugin
