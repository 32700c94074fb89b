"""The typed configuration: sections, files, overrides and faults. It knows no bus and no plugin."""

from __future__ import annotations

from hooktrainer.config.entries import PluginEntry, Use
from hooktrainer.config.sections import Config, RunConfig, TrainerConfig

__all__ = ["Config", "PluginEntry", "RunConfig", "TrainerConfig", "Use"]
