"""From a configuration to a trainer: names, loading, composition and the run directory."""

from __future__ import annotations

__all__ = [
    "build",
    "composition",
    "directory",
    "limits",
    "loading",
    "metric_names",
    "option_docs",
    "registry",
    "resume",
]
