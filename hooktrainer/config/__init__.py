"""The typed configuration: sections, files, overrides and faults; it depends on neither bus nor plugins."""

from __future__ import annotations

from hooktrainer.config.entries import PluginEntry, Use
from hooktrainer.config.sections import Config, RunConfig, TrainerConfig

__all__ = [
    "Config",
    "PluginEntry",
    "RunConfig",
    "TrainerConfig",
    "Use",
    "conversion",
    "entries",
    "faults",
    "fields",
    "files",
    "origins",
    "other_names",
    "scalars",
    "sections",
    "short_forms",
    "yaml_text",
]
