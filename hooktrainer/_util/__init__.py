"""Helpers without knowledge of training, from files and imports to signals and shutdown."""

from __future__ import annotations

__all__ = [
    "clock",
    "durations",
    "exit_limit",
    "files",
    "folders",
    "forks",
    "hangs",
    "imports",
    "lazy_exports",
    "machine",
    "places",
    "random_state",
    "registry",
    "shutdown",
    "signals",
    "streams",
    "threads",
    "timeline",
]
