"""Helpers without knowledge of training: files, imports, signals, shutdown, streams and the clock."""

from __future__ import annotations

__all__ = ["clock", "files", "imports", "shutdown", "signals", "streams"]
