"""The configuration of a run: from YAML to typed sections, and to the plugins and components that they name.

`files` and `overrides` give plain data, `schema` reads it into `sections`, `parts` builds what they name, and `load`
does all of it, so that every fault is shown at once.
"""

from __future__ import annotations

from hooktrainer.config.load import ConfigWarning, config_from_mapping, dump, load_config
from hooktrainer.config.named import PluginEntry, Use
from hooktrainer.config.parts import Parts, build_parts
from hooktrainer.config.sections import Config, RunConfig, TrainerConfig

__all__ = [
    "Config",
    "ConfigWarning",
    "Parts",
    "PluginEntry",
    "RunConfig",
    "TrainerConfig",
    "Use",
    "build_parts",
    "config_from_mapping",
    "dump",
    "load_config",
]
