"""Event-driven trainer for asynchronous RL post-training of language-model policies."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hooktrainer.bus import Bus
    from hooktrainer.config import Config
    from hooktrainer.plugin import Plugin, Priority, on, port, state
    from hooktrainer.run.build import build_trainer
    from hooktrainer.run.loading import load_config
    from hooktrainer.trainer import Trainer

__all__ = ["Bus", "Config", "Plugin", "Priority", "Trainer", "build_trainer", "load_config", "on", "port", "state"]

_HOMES = {
    "Bus": "bus",
    "Config": "config",
    "Plugin": "plugin",
    "Priority": "plugin",
    "Trainer": "trainer",
    "build_trainer": "run.build",
    "load_config": "run.loading",
    "on": "plugin",
    "port": "plugin",
    "state": "plugin",
}


def __getattr__(name: str) -> object:
    """Import a public name on its first use, so that `import hooktrainer` is fast and needs no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'hooktrainer' has no attribute '{name}'")
    return getattr(import_module(f"hooktrainer.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
