"""Helpers without knowledge of training: files, imports, limits, random state, signals, shutdown, streams, clock."""

from __future__ import annotations

__all__ = [
    "clock",
    "files",
    "imports",
    "lazy_exports",
    "machine",
    "random_state",
    "registry",
    "shutdown",
    "signals",
    "streams",
]
