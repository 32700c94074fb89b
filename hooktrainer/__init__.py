"""Event-driven trainer for asynchronous RL post-training of language-model policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hooktrainer._util.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hooktrainer.bus import Bus
    from hooktrainer.config import Config
    from hooktrainer.plugin import Plugin, Priority, on, port, state
    from hooktrainer.run.build import build_trainer
    from hooktrainer.run.loading import load_config
    from hooktrainer.trainer import Trainer

__all__ = ["Bus", "Config", "Plugin", "Priority", "Trainer", "build_trainer", "load_config", "on", "port", "state"]

# Imported on first use, so that `import hooktrainer` is fast and needs no torch.
__getattr__, __dir__ = lazy_exports(
    __name__,
    {
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
    },
)
