"""From a configuration to a trainer: names, loading, composition and the run directory."""

from __future__ import annotations

__all__ = [
    "build",
    "composition",
    "directory",
    "history",
    "inference",
    "launch",
    "limits",
    "loading",
    "metric_names",
    "model_files",
    "new_package",
    "option_docs",
    "ranks",
    "record",
    "registry",
    "report",
    "resume",
    "rows",
    "settings",
    "trained",
]
