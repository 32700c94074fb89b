"""Helpers without knowledge of training: files, imports, random state, signals, shutdown, streams and the clock."""

from __future__ import annotations

__all__ = ["clock", "files", "imports", "random_state", "registry", "shutdown", "signals", "streams"]
